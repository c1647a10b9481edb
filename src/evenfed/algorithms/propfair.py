"""PropFair: proportional fairness."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, Plan, PrivateInputs, PrivatePart, Round, WeightTerms, hyper


@dataclass(frozen=True)
class PropFair(Algorithm):
    """Nash product of the clients' utilities M − f_i, descended by each client on its batches.

    F = −Σ p_i log(1 − f_i / M),  w_i = p_i; below M − f < ε the log goes on as a straight line
    """

    reference = "Zhang et al., 2022"
    uses_losses = False
    baseline: float = hyper(
        3.0,
        "the utility of a loss of zero (the paper's M)",
        above=0,
        reason="utilities M − f must be positive",
        fedavg="∞ (with lr scaled by M)",
        danger="losses above M − ε leave the log: see `tail`",
        grid=(2.0, 3.0, 4.0, 5.0),
    )
    tail: Literal["huber", "linear"] = hyper(
        "huber",
        "past M − ε: slope 1/ε, continuous (huber), or loss / M as the authors' code has it (linear)",
        danger="linear is discontinuous: the worst batches count M/ε times less",
    )
    epsilon: float = hyper(0.2, "where the log ends", above=0, reason="the log must end before its pole")

    def local_loss(self, loss: Tensor) -> Tensor:
        m = self.baseline
        eps = min(self.epsilon, m)
        beyond = m - loss < eps
        kept_inside = torch.where(beyond, 0.0, loss)
        inside = -torch.log1p(-kept_inside / m)
        if self.tail == "linear":
            outside = loss / m
        else:
            past_the_bend = loss - (m - eps)
            outside = past_the_bend / eps - math.log(eps / m)
        return torch.where(beyond, outside, inside)

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return shares @ self.local_loss(losses)

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        return Plan(round.ids, round.shares), memory

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        return WeightTerms(sizes[None])

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        return PrivatePart(weight=1.0, objective=self.local_loss(own.loss))
