"""FedAvg: the baseline every other algorithm is set against."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Mean, Own, Part


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Mean loss over all examples.

    F = Σ p_i f_i,  w_i = p_i
    """

    reference = "McMahan et al., 2017"
    uses_losses = False

    def private(self, own: Own, mean: Mean) -> Part:
        return Part(weight=1.0, objective=own.loss)
