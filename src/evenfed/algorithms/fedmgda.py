"""FedMGDA+: a direction that serves every client."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Memory, Plan, Round, hyper
from ..core.maths import least_norm_mixture


@dataclass(frozen=True)
class FedMGDA(Algorithm):
    """The shortest mixture of the normalised updates, near the uniform one: no client's loss should rise.

    λ = argmin ‖Σ λ_i δ_i/‖δ_i‖‖²  over the simplex with |λ_i − 1/n| ≤ ε;  w_i = λ_i / ‖δ_i‖
    """

    reference = "Hu et al., 2022"
    needs = "gram"
    not_private = "it compares single updates with each other, which no sum of them tells"
    uses_losses = False
    sums_to_one = False
    epsilon: float = hyper(
        0.1,
        "how far a weight may move from 1/n; 1 is MGDA",
        least=0,
        most=1,
        reason="weights lie in [0, 1]",
        fedavg="0 (uniform, normalised updates)",
        danger="the step has length ≤ 1 in parameter space: set server_lr",
        grid=(0.05, 0.1, 0.5, 1.0),
    )

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        return Plan.uniform(round.ids), memory

    def mix(self, round: Round, plan: Plan, gram: Tensor, ages: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        norms = gram.diagonal().clamp(min=0).sqrt()
        inverse = torch.where(norms > 0, 1 / norms, 0.0)  # a client that did not move has no direction
        uniform = torch.full_like(norms, 1 / len(norms))
        low = (uniform - self.epsilon).clamp(min=0)
        high = (uniform + self.epsilon).clamp(max=1)
        normalised = gram * inverse * inverse[:, None]
        mixture = least_norm_mixture(normalised, low, high)
        return mixture * inverse, memory
