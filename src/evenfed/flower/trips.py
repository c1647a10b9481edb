"""How often a client is asked per round, and what waits for its weight where that is once."""

import math

import torch

from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.fold import Fold
from ..core.round import open_round
from ..core.server import Server, Update
from ..settings import Settings


def check_trips(trips: int, algorithm: Algorithm, settings: Settings, private: bool) -> None:
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
        self.losses: dict[int, float] = {}
        self.updates: dict[int, Update] = {}

    def add(self, update: Update, loss: float) -> None:
        client = int(update.ids)
        self.losses[client] = loss
        self.updates[client] = update

    def folded(self, server: Server) -> Fold:
        """The round, opened with the losses that came; the updates are folded in the order they were asked for."""
        clients = self.drawn.tolist()
        losses = [self.losses.get(client, math.nan) for client in clients]
        turn = open_round(server, losses, self.drawn)
        fold = Fold(turn)
        for client in turn.plan.ids.tolist():
            fold.add(self.updates.pop(client))
        return fold
