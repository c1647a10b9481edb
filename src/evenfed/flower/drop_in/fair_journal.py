"""A run of `Fair` on disk: begun with its first server, gone on with as if its process had not died."""

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...comparison.analysis.configuration import config_of
from ...comparison.storage.header import Header, Table
from ...core.server import Record, Server
from ...simulate.state import State
from ..fleet_options import Resting, signed, unsigned
from ..journal import AboutClients, Journal
from .fair_state import FairState
from .foreign_clients import ForeignClients

Losses = dict[int, float]  # of the current model, by position
Notes = Mapping[str, Tensor]

_NODES = "fair.nodes"
_CLIENTS = "fair.clients"  # size, test examples, partition-id
_SIZES = "fair.sizes"  # as the server counts them
_STEPS = "fair.local_steps"
_MEASURED = "fair.measured"
_RANDOM = "fair.random"


def clients_of(strangers: ForeignClients) -> dict[str, Any]:
    """The clients met so far, as a run's header keeps them."""
    positions = range(len(strangers.sizes))
    return {
        "names": [strangers.name(position) for position in positions],
        "train": [_whole(size) for size in strangers.sizes],
        "test": [_whole(strangers.judged_on.get(position, 0.0)) for position in positions],
        "classes": None,
        "split_seed": None,
        "notes": [],
    }


def recall(strangers: ForeignClients, notes: Notes) -> None:
    """Know the clients of a checkpoint again, by their nodes."""
    if strangers.door.listed is None:  # else the list says whose place is whose
        for position, node in enumerate(notes[_NODES].tolist()):
            strangers.settle(unsigned(node), position)
    known = notes[_CLIENTS].tolist()
    strangers.sizes = [size for size, _, _ in known]
    for position, (_, judged_on, partition) in enumerate(known):
        strangers.judged_on[position] = judged_on
        if partition >= 0:
            strangers.partitions[position] = int(partition)


def recall_names(strangers: ForeignClients, clients: Table) -> None:
    """The clients of a finished run's header, by their names."""
    strangers.sizes = [float(size) for size in clients["train"]]
    strangers.names = list(clients["names"])


def notes_of(server: Server, strangers: ForeignClients, measured: Losses) -> dict[str, Tensor]:
    """What the next round depends on beside the server's own state."""
    nodes = []
    clients = []
    for position, size in enumerate(strangers.sizes):
        node = strangers.nodes.get(position, 0)  # 0: a listed site that was never met
        nodes.append(signed(node))
        judged_on = strangers.judged_on.get(position, 0.0)
        partition = strangers.partitions.get(position, -1)
        clients.append((size, judged_on, float(partition)))
    return {
        _NODES: torch.tensor(nodes, dtype=torch.int64),
        _CLIENTS: torch.tensor(clients, dtype=torch.float64).reshape(-1, 3),
        _SIZES: server.sizes,
        _STEPS: server.local_steps,
        _MEASURED: torch.tensor([*measured.items()], dtype=torch.float64).reshape(-1, 2),
        _RANDOM: _random_state(),
    }


def restored(state: State) -> tuple[Server, Losses]:
    """The server of a resumed run and the losses it had measured; Flower then draws the clients it would have drawn."""
    notes = state.notes
    server = dataclasses.replace(state.server, sizes=notes[_SIZES], local_steps=notes[_STEPS])
    measured = {int(position): loss for position, loss in notes[_MEASURED].tolist()}
    _set_random_state(notes[_RANDOM])
    return server, measured


def skipped(index: int, clients: int, dropped: Losses | Mapping[int, str]) -> Record:
    """A round without a usable reply, before any client's size is known."""
    return Record(
        index=index,
        losses=np.full(clients, np.nan),
        weights=np.zeros(clients),
        objective=math.nan,
        negative_weights=0,
        dropped=tuple(sorted(dropped)),
        skipped=True,
        reason="no usable reply",
    )


def _whole(size: float) -> float:
    return int(size) if size == int(size) else size


def _random_state() -> Tensor:
    """Of Python's generator, with which Flower draws clients."""
    version, numbers, gauss = random.getstate()
    rest = math.nan if gauss is None else gauss
    return torch.tensor([version, rest, *numbers], dtype=torch.float64)  # 32-bit numbers: exact


def _set_random_state(state: Tensor) -> None:
    version, rest, *numbers = state.tolist()
    gauss = None if math.isnan(rest) else rest
    whole = tuple(int(number) for number in numbers)
    random.setstate((int(version), whole, gauss))


ENGINE = "flower: clients of their own"


@dataclass
class FairJournal:
    """What of the server and its clients goes into the journal."""

    journal: Journal
    strangers: ForeignClients
    holding: FairState
    resting: Resting
    drawn: Table  # who is asked, and how often
    has_begun: bool = False

    def stand(self) -> Losses:
        """Where the run was left, if it was begun before; returns the losses known of the current model."""
        journal = self.journal
        if journal.is_finished(self._config()):
            self.holding.stand(journal.ended_state().server)
            recall_names(self.strangers, journal.clients)
            return {}
        notes = journal.kept_notes()
        if not notes:
            return {}
        recall(self.strangers, notes)
        self.resting.recall(notes)
        fresh = self.holding.sized(self.strangers.counts())
        server, losses = restored(self.begin(fresh))
        self.holding.stand(server)
        return losses

    def begin(self, server: Server) -> State:
        """Begin the journal; where the run stands after that."""
        self.has_begun = True
        about = self._about()
        header = Header(
            label=self.journal.run.label,
            seed=self.journal.run.settings.seed,
            config=self._config(),
            clients=clients_of(self.strangers),
            device="the clients' own",
            metric=about.metric.recorded,
        )
        return self.journal.begin(header, State(server), ENGINE, about)

    def after_round(self, record: Record, losses: Losses) -> None:
        """Write the round down; one before any client has replied waits until there is a server."""
        server = self.holding.server
        if server is None:
            self.journal.postpone(record)
            return
        self.journal.clients = clients_of(self.strangers)
        self.journal.about = self._about()
        notes = notes_of(server, self.strangers, losses) | self.resting.notes()
        self.journal.after_round(record, server, notes)

    def _about(self) -> AboutClients:
        """As callbacks see them."""
        names = [self.strangers.name(position) for position in range(len(self.strangers.sizes))]
        return AboutClients(names, self.strangers.keys.metric)

    def _config(self) -> dict[str, Any]:
        """All that decides the result, as far as the server does."""
        listed = self.strangers.door.listed
        places = {} if listed is None else {"sites": len(listed)}
        model = {"parameters": len(self.holding.current.theta)}
        return {
            **config_of(self.journal.run, {"name": "flower"}, model),
            "fair": {
                **self.drawn,
                **places,
                "loss_from": self.strangers.keys.loss,
                "loss_in": self.strangers.keys.loss_in,
                "size_from": self.strangers.keys.size,
                "score_from": self.strangers.keys.score,
                "local_steps": self.holding.local_steps,
                "buffers": list(self.holding.buffers),
            },
            **self.journal.decides,
        }
