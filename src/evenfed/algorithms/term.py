"""TERM: tilted empirical risk minimisation, at the level of clients."""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, PrivateInputs, PrivatePart, WeightTerms, hyper

STEEPEST = 34.0  # largest exponent of a private tilt: e^34 times the mean's weight, within what a masked sum carries


@dataclass(frozen=True)
class TERM(Algorithm):
    """Soft maximum of the losses: a tilt between their mean and their maximum.

    F = (1/α) log Σ p_i exp(α f_i),  w_i ∝ p_i exp(α f_i)
    """

    reference = "Li et al., 2021"
    alpha: float = hyper(
        0.5,
        "tilt",
        least=0,
        reason="a negative tilt would favour the best served",
        fedavg=0,
        danger="one client takes nearly all the weight once α · (max f − f̄) exceeds log 1/p",
        grid=(0.01, 0.1, 0.5, 1.0),
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        if self.alpha == 0:
            return shares @ losses
        exponents = self.alpha * losses + shares.log()
        return exponents.logsumexp(0) / self.alpha

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        return WeightTerms(sizes[None], exponents=self.alpha * losses)

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        mean_loss = mean(own.loss)
        gap = own.loss - mean_loss
        exponent = (self.alpha * gap).clamp(max=STEEPEST)
        tilt = exponent.exp()
        z = mean(tilt)
        objective = mean_loss + z.log() / self.alpha if self.alpha else mean_loss
        return PrivatePart(weight=tilt / z, objective=objective)
