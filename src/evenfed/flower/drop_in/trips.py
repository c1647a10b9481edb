"""How often a client is asked per round, and updates that wait until their weights are known."""

import dataclasses
import math

import torch
from torch import Tensor

from ...core.algorithm import Algorithm
from ...core.errors import InputError
from ...core.fold import Fold
from ...core.round import open_round
from ...core.running import RunningSums, can_run
from ...core.server import Record, Server, Update
from ...core.spooled import SpooledUpdates
from ...settings import Settings

PerClient = dict[int, float]  # a number of each client that has one


def check_trips(
    trips: int,
    algorithm: Algorithm,
    settings: Settings,
    private: bool = False,
) -> None:
    """Refuse fewer trips where the algorithm or the run needs more."""
    if trips not in (1, 2, 3) or isinstance(trips, bool):
        raise InputError(f"trips={trips!r}: give 1, 2 or 3, how often a client is asked per round")
    if private and trips != 3:
        raise InputError(f"trips={trips} with private=True: masked sums have trips of their own; leave `trips` out")
    if trips > 1:
        return
    if type(algorithm).learn is not Algorithm.learn:
        raise InputError(f"{algorithm.name} chooses who trains before it knows a loss; use trips=2 or 3")
    if settings.weigh_at == "average":
        raise InputError(
            "trips=1 measures the model that clients train, weigh_at='average' another; use trips=2 or 3, or "
            "weigh_at='current'"
        )


class HeldUpdates:
    """Updates whose weights are not known yet, since the losses of the round come with them."""

    def __init__(self) -> None:
        self.drawn = torch.zeros(0, dtype=torch.int64)
        self.losses: PerClient = {}
        self._held = SpooledUpdates()

    def add(self, update: Update, loss: float) -> None:
        client = int(update.ids)
        self.losses[client] = loss
        self._held.put(client, vars(update))

    def folded(self, server: Server) -> Fold:
        """The round, opened with the losses that came; the updates are folded in the order they were asked for."""
        fold = _opened(server, self.drawn, self.losses)
        self.fold_into(fold)
        return fold

    def fold_into(self, fold: Fold) -> None:
        """Fold those that came, in the plan's order."""
        for client in fold.plan.ids.tolist():
            if client in self.losses:
                fold.add(Update(**self._held.take(client)))


def _opened(server: Server, drawn: Tensor, losses: PerClient) -> Fold:
    """The round over those drawn, with the losses that are known."""
    values = [losses.get(client, math.nan) for client in drawn.tolist()]
    return Fold(open_round(server, values, drawn))


Waiting = HeldUpdates | RunningSums


def waiting_for_losses(server: Server) -> Waiting:
    """Takes updates before their weights are known: as a few sums if the algorithm allows it, else one by one."""
    return RunningSums(server) if can_run(server) else HeldUpdates()


class ForeignRound:
    """A round over clients whose losses are known before it, or come with their updates."""

    def __init__(self, drawn: list[int], losses: PerClient) -> None:
        self.losses = losses  # those known before
        self.awaited = set(drawn)
        self.failures: dict[int, str] = {}  # client -> reason
        self.unmeasured: set[int] = set()  # without a loss, which the algorithm does not look at
        self.held = HeldUpdates()
        self.held.drawn = torch.tensor(drawn, dtype=torch.int64)
        self.fold: Fold | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the losses of all those left are known, before they train."""
        return bool(self.awaited) and self.awaited <= self.losses.keys()

    def open(self, server: Server) -> list[int]:
        """With all losses known: who has a weight, and so trains."""
        self.fold = _opened(server, self.held.drawn, self.losses)
        trained: list[int] = self.fold.plan.ids.tolist()
        self.awaited = set(trained)
        return trained

    def take(self, update: Update, loss: float | None) -> None:
        """One client's update. It waits, so that updates are summed in the same order whenever they come."""
        if loss is None:
            self.unmeasured.add(int(update.ids))
        self.held.add(update, loss or 0.0)

    def close(self, server: Server) -> tuple[Server, Record]:
        fold = self.fold
        if fold is None:
            fold = self.held.folded(server)
        else:
            self.held.fold_into(fold)
        after, record = fold.close()
        dropped = sorted({*record.dropped, *self.failures})
        record = dataclasses.replace(record, dropped=tuple(dropped))
        if self.unmeasured:
            losses = record.losses.copy()
            losses[list(self.unmeasured)] = math.nan
            record = dataclasses.replace(record, losses=losses, objective=math.nan)
        return after, record
