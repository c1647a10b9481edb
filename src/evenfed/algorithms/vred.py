"""VRed: variance reduction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, PrivateInputs, PrivatePart, WeightTerms, hyper
from ..core.errors import InputError
from ..core.maths import capped_beta


@dataclass(frozen=True)
class VRed(Algorithm):
    """Mean loss plus β times the variance of the clients' losses.

    F = f̄ + β Σ p_i (f_i − f̄)²,  w_i = p_i (1 + 2β (f_i − f̄))
    """

    reference = "Semi-Variance Reduction for Fair Federated Learning, Algorithm 1"
    beta: float = hyper(
        0.2,
        "weight of the variance, in 1 / units of loss",
        least=0,
        reason="a negative β would spread the losses",
        fedavg=0,
        danger="a weight turns negative past β_max = 1 / (2 (f̄ − min f)), which changes every round",
        grid=(0.01, 0.05, 0.1, 0.2, 0.5, 1.0),
    )
    safe: float | None = hyper(
        None, "cap β at this fraction of the round's β_max", above=0, most=1, reason="it is a fraction of β_max"
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        mean = shares @ losses
        beta = capped_beta(self.beta, self.safe, spread=mean - losses.min())
        return mean + beta * shares @ (losses - mean) ** 2

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        return WeightTerms(torch.stack([sizes, sizes * losses]))

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        if self.safe is not None:
            raise InputError(
                "vred with `safe` cannot run with private=True: its bound needs the smallest loss, which no sum of "
                "losses gives. Leave `safe` out, or use semi_vred, whose bound is a sum"
            )
        mean_loss = mean(own.loss)
        gap = own.loss - mean_loss
        weight = 1 + 2 * self.beta * gap
        objective = mean_loss + self.beta * gap**2
        return PrivatePart(weight, objective)
