"""FedFV: conflicts between clients are projected away."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Memory, Plan, Round, hyper
from ..core.maths import project_off_conflicts, rescaled_to_norm_of


@dataclass(frozen=True)
class FedFV(Algorithm):
    """Uniform mean of the updates, each projected off those it conflicts with, at the plain mean's length.

    δ_i ← δ_i − (δ_i·δ_j / ‖δ_j‖²) δ_j wherever δ_i·δ_j < 0, j by ascending loss; the worst α keep theirs
    """

    reference = "Wang et al., 2021"
    needs = "gram"
    sums_to_one = False
    not_private = "it compares single updates with each other, which no sum of them tells"
    alpha: float = hyper(
        0.1, "fraction of worst served kept", least=0, most=1, reason="it is a fraction", grid=(0.0, 0.1, 0.3, 0.5)
    )
    tau: int = hyper(
        1, "rounds the mean may not oppose; 0: none", least=0, reason="it counts rounds", danger="stores τ − 1 rounds"
    )

    def remembers(self) -> int:
        return max(self.tau - 1, 0)

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        return Plan.uniform(round.ids), memory

    def mix(self, round: Round, plan: Plan, gram: Tensor, ages: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        m = len(plan.ids)
        rows = torch.eye(len(gram), dtype=gram.dtype)  # each update as a mixture of all
        index = torch.arange(m)
        ascending = round.losses.argsort(stable=True)
        first_kept = m
        if self.alpha > 0:
            first_kept = math.ceil((m - 1) * (1 - self.alpha))
        movable = ~torch.isin(index, ascending[first_kept:])
        originals = rows[:m]
        projected = originals.clone()
        for j in ascending:  # the original δ_j, one after another, for all i at once
            others = movable & (index != j)
            projected = project_off_conflicts(projected, rows[j], gram, others)
        mean = projected.mean(0, keepdim=True)
        if round.index + 1 >= self.tau:
            for age in reversed(range(self.tau)):
                conflicts = gram @ mean[0] < 0
                opposed = conflicts & (ages == age)
                together = rows[opposed].sum(0)
                mean = project_off_conflicts(mean, together, gram, opposed.any())
        plain_mean = originals.mean(0)
        mixture = rescaled_to_norm_of(mean[0], plain_mean, gram)
        return mixture, memory
