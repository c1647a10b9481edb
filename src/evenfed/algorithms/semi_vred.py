"""Semi-VRed: semi-variance reduction."""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Mean, PrivateInputs, PrivatePart, hyper
from ..core.maths import capped_beta


@dataclass(frozen=True)
class SemiVRed(Algorithm):
    """Mean loss plus β times the upper semi-variance of the clients' losses.

    F = f̄ + β Σ p_i (f_i − f̄)₊²,  w_i = p_i (1 + 2β ((f_i − f̄)₊ − s)),  s = Σ p_j (f_j − f̄)₊
    """

    reference = "Semi-Variance Reduction for Fair Federated Learning, Algorithm 1"
    beta: float = hyper(
        0.2,
        "weight of the semi-variance, in 1 / units of loss",
        least=0,
        reason="a negative β would leave the worst served further behind",
        fedavg=0,
        danger="a weight turns negative past β_max = 1 / (2s), which changes every round",
        grid=(0.01, 0.05, 0.1, 0.2, 0.5, 1.0),
    )
    safe: float | None = hyper(
        None, "cap β at this fraction of the round's β_max", above=0, most=1, reason="it is a fraction of β_max"
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        mean = shares @ losses
        excess = (losses - mean).clamp(min=0)
        beta = capped_beta(self.beta, self.safe, spread=shares @ excess)
        return mean + beta * shares @ excess**2

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        mean_loss = mean(own.loss)
        excess = (own.loss - mean_loss).clamp(min=0)
        s = mean(excess).clamp(min=0)
        beta = capped_beta(self.beta, self.safe, spread=s)
        weight = 1 + 2 * beta * (excess - s)
        objective = mean_loss + beta * excess**2
        return PrivatePart(weight, objective)
