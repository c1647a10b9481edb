"""An open round: losses are known and weights planned; updates are still to come."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .algorithm import Plan, Round, check_objective
from .guard import Clip
from .server import Server

NOTHING = "no finite loss and update came back"
REFUSED = "the guard left out every update"
NO_WEIGHT = "the clients that replied have no positive weight left"
NOT_FINITE = "the step would leave a model that is not finite"

LossesAt = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class OpenRound:
    """An open round: who trains with which weight, and what closing it needs to know."""

    server: Server
    round: Round
    plan: Plan
    measured: Tensor  # [m] the losses of those who take part
    counted: Tensor  # [m] the same as far as a guard lets them count
    dropped: tuple[int, ...]
    clipped: tuple[Clip, ...] = ()

    @property
    def losses(self) -> Tensor:
        """[n] as measured; NaN for clients that do not take part."""
        clients = len(self.server.sizes)
        table = torch.full((clients,), torch.nan, dtype=torch.float64)
        table[self.round.ids] = self.measured
        return table


def clients_at_fault(
    opened: OpenRound,
    reason: str | None,
    arrived: Tensor,
    norms: Tensor,
) -> tuple[int, ...]:
    """Clients whose missing or unusable update made the round be skipped.

    If some replies are missing: the missing clients with positive weight. If none is missing: the client with the
    longest update.
    """
    if reason is None:
        return ()
    plan = opened.plan
    lost = plan.ids[~arrived]
    if not bool(arrived.any()):
        return (*opened.dropped, *lost.tolist())
    if bool(arrived.all()):
        is_longest = norms == norms.max()
        culprits = plan.ids[is_longest & (norms > 0)]
        return tuple(culprits.tolist())
    held_weight = plan.weights[~arrived] > 0
    culprits = lost[held_weight]
    return tuple(culprits.tolist())


def objective(opened: OpenRound) -> float:
    """F at the measured losses: the curve a report draws, even where the weights came from smoothed ones."""
    round = opened.round
    losses = opened.counted
    if len(losses) == 0:
        return float("nan")
    algorithm = opened.server.algorithm
    objective = algorithm.objective(losses, round.shares)
    check_objective(algorithm, objective)
    return float(objective)
