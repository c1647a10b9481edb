"""GiFair: group- and individual-level fairness, every client its own group."""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, hyper


@dataclass(frozen=True)
class GiFair(Algorithm):
    """Mean loss plus λ times the sum of the absolute differences between clients.

    F = f̄ + λ Σ_{i<j} |f_i − f_j|,  λ = strength · min_i p_i / (n − 1),
    w_i = p_i + λ (number better served than i − number worse served)
    """

    reference = "Yue et al., 2021 (GIFAIR-FL)"
    not_private = "its weights are ranks: how many clients have a smaller loss than each, which no sum of losses tells"
    strength: float = hyper(
        1.0,
        "λ as a multiple of λ_max, computed from the round's shares",
        least=0,
        reason="a negative λ would widen the differences",
        fedavg=0,
        danger="above 1 the smallest client's weight turns negative whenever it is served best",
        grid=(0.1, 0.5, 1.0),
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        others = max(len(shares) - 1, 1)
        strength = self.strength * shares.min() / others
        gaps = (losses[:, None] - losses).abs().sum() / 2
        return shares @ losses + strength * gaps
