"""Delta-FL: the superquantile of the clients' losses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Memory, Plan, Round, hyper
from ..core.maths import upper_tail_mask


@dataclass(frozen=True)
class DeltaFL(Algorithm):
    """Mean loss of the worst α of the mass; the other clients do not train.

    F = CVaR_{1−α}(f): the mean of the largest losses that together hold the share α
    """

    reference = "Laguel et al., 2021 (simplicial-fl)"
    not_private = "it trains the clients above a quantile of the losses, which no sum of losses gives"
    alpha: float = hyper(
        0.5,
        "tail mass kept",
        above=0,
        most=1,
        reason="it is a share of all examples",
        fedavg=1,
        danger="few clients train when α is small: the model jumps between them",
        grid=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    )
    exact: bool = hyper(False, "take only the needed part of the client at the quantile, not all of it")

    def _tail(self, losses: Tensor, shares: Tensor) -> Tensor:
        if not self.exact:
            kept = torch.where(upper_tail_mask(losses, shares, self.alpha), shares, 0.0)
            return kept / kept.sum()
        levels, level = losses.unique(return_inverse=True)  # clients of equal loss share what is left, by size
        masses = torch.zeros_like(levels).index_add(0, level, shares)
        worse = masses.sum() - masses.cumsum(0)
        left = (self.alpha - worse).clamp(min=0)
        kept = (left / masses).clamp(max=1)
        taken = shares * kept[level]
        return taken / taken.sum()

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return self._tail(losses.detach(), shares) @ losses

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        return Plan(round.ids, self._tail(round.losses, round.shares)), memory
