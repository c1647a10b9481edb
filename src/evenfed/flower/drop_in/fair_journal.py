"""A run of `Fair` on disk: it begins with the first server, and a later process resumes it."""

import dataclasses
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from ...comparison.analysis.configuration import config_of
from ...comparison.storage.header import Header, Table
from ...core.files import plain_file
from ...core.server import Record, Server
from ...simulate.state import State
from ..fleet_options import Resting, signed, unsigned
from ..journal import AboutClients, Journal, clients_table
from .fair_state import FairState
from .foreign_clients import ForeignClients
from .trips import PerClient

Notes = Mapping[str, Tensor]

_NODES = "fair.nodes"
_CLIENTS = "fair.clients"  # size, test examples, partition-id
_SIZES = "fair.sizes"  # as the server counts them
_STEPS = "fair.local_steps"
_MEASURED = "fair.measured"
_RANDOM = "fair.random"


def clients_of(clients: ForeignClients) -> Table:
    """The clients met so far, as a run's header keeps them."""
    positions = range(len(clients.sizes))
    names = [clients.name(position) for position in positions]
    train = [_whole(size) for size in clients.sizes]
    test = [_whole(clients.tested_on.get(position, 0.0)) for position in positions]
    return clients_table(names, train, test)


def recall(clients: ForeignClients, notes: Notes) -> None:
    """Know the clients of a checkpoint again, by their nodes."""
    if clients.admission.listed is None:  # else the list says whose place is whose
        for position, node in enumerate(notes[_NODES].tolist()):
            clients.freeze(unsigned(node), position)
    known = notes[_CLIENTS].tolist()
    clients.sizes = [size for size, _, _ in known]
    for position, (_, tested_on, partition) in enumerate(known):
        clients.tested_on[position] = tested_on
        if partition >= 0:
            clients.partitions[position] = int(partition)


def notes_of(server: Server, clients: ForeignClients, measured: PerClient) -> dict[str, Tensor]:
    """What the next round depends on in addition to the server's own state."""
    nodes = []
    rows = []
    for position, size in enumerate(clients.sizes):
        node = clients.nodes.get(position, 0)  # 0: a listed site that was never met
        nodes.append(signed(node))
        tested_on = clients.tested_on.get(position, 0.0)
        partition = clients.partitions.get(position, -1)
        rows.append((size, tested_on, float(partition)))
    return {
        _NODES: torch.tensor(nodes, dtype=torch.int64),
        _CLIENTS: torch.tensor(rows, dtype=torch.float64).reshape(-1, 3),
        _SIZES: server.sizes,
        _STEPS: server.local_steps,
        _MEASURED: torch.tensor([*measured.items()], dtype=torch.float64).reshape(-1, 2),
        _RANDOM: _random_state(),
    }


def restored(state: State) -> tuple[Server, PerClient]:
    """The server of a resumed run and the losses it had measured; Flower then draws the clients it would have drawn."""
    notes = state.notes
    server = dataclasses.replace(state.server, sizes=notes[_SIZES], local_steps=notes[_STEPS])
    measured = {int(position): loss for position, loss in notes[_MEASURED].tolist()}
    _set_random_state(notes[_RANDOM])
    return server, measured


def skipped(index: int, clients: int, dropped: PerClient | Mapping[int, str]) -> Record:
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
METRICS = "flower-metrics.jsonl"  # a line per round: the clients' metrics, aggregated


@dataclass
class FairJournal:
    """What of the server and its clients goes into the journal."""

    journal: Journal
    clients: ForeignClients
    state: FairState
    resting: Resting
    drawn: Table  # who is asked, and how often
    has_begun: bool = False
    train_metrics: MetricRecord | None = None  # of the open round, aggregated
    evaluate_metrics: MetricRecord | None = None

    def resume(self) -> PerClient:
        """Where the run was left, if it was begun before; returns the losses known of the current model."""
        journal = self.journal
        if journal.is_finished(self._config()):
            self.state.restore(journal.ended_state().server)
            self.clients.sizes = list(map(float, journal.clients["train"]))
            self.clients.names = list(journal.clients["names"])
            return {}
        notes = journal.kept_notes()
        if not notes:
            return {}
        recall(self.clients, notes)
        self.resting.recall(notes)
        fresh = self.state.sized(self.clients.counts())
        server, losses = restored(self.begin(fresh))
        self.state.restore(server)
        return losses

    def begin(self, server: Server) -> State:
        self.has_begun = True
        about = self._about()
        header = Header(
            label=self.journal.run.label,
            seed=self.journal.run.settings.seed,
            config=self._config(),
            clients=clients_of(self.clients),
            device="the clients' own",
            metric=about.metric.recorded,
        )
        return self.journal.begin(header, State(server), ENGINE, about)

    def after_round(self, record: Record, losses: PerClient) -> None:
        """Write the round down; one before any client has replied waits until there is a server."""
        self.journal.clients = clients_of(self.clients)
        self.journal.about = self._about()
        server = self.state.server
        if server is None:
            self.train_metrics = None
            self.evaluate_metrics = None
            self.journal.postpone(record)
            return
        notes = notes_of(server, self.clients, losses) | self.resting.notes()
        self._write_metrics(record.index + 1)
        self.journal.after_round(record, server, notes)

    def _write_metrics(self, number: int) -> None:
        """Append the open round's metrics; of a round that is run again, the last line counts."""
        kept = {"train": self.train_metrics, "evaluate": self.evaluate_metrics}
        self.train_metrics = None
        self.evaluate_metrics = None
        folder = self.journal.folder
        if folder is None:
            return
        metrics = {kind: None if record is None else dict(record) for kind, record in kept.items()}
        row = {"round": number, **metrics}
        with plain_file(folder.path / METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def restore_metrics(self, result: Result) -> None:
        """Give the rounds of an earlier process the metrics that they returned."""
        folder = self.journal.folder
        if folder is None or not (folder.path / METRICS).is_file():
            return
        tables = {"train": result.train_metrics_clientapp, "evaluate": result.evaluate_metrics_clientapp}
        for line in (folder.path / METRICS).read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # the process died while it wrote
                continue
            number = row["round"]
            if number > len(self.journal.records):
                continue
            for kind, table in tables.items():
                table.pop(number, None)
                if row[kind] is not None:
                    table[number] = MetricRecord(row[kind])

    def _about(self) -> AboutClients:
        names = [self.clients.name(position) for position in range(len(self.clients.sizes))]
        return AboutClients(names, self.clients.keys.metric)

    def _config(self) -> Table:
        """All that decides the result, as far as the server does."""
        listed = self.clients.admission.listed
        places = {} if listed is None else {"sites": len(listed)}
        model = {"parameters": len(self.state.current.theta)}
        return {
            **config_of(self.journal.run, {"name": "flower"}, model),
            "fair": {
                **self.drawn,
                **places,
                "loss_from": self.clients.keys.loss,
                "loss_in": self.clients.keys.loss_in,
                "size_from": self.clients.keys.size,
                "score_from": self.clients.keys.score,
                "local_steps": self.state.local_steps,
                "buffers": list(self.state.buffers),
            },
            **self.journal.decides,
        }
