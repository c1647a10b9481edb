"""FedAvg: the baseline every other algorithm is set against."""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, PrivateInputs, PrivatePart, WeightTerms


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Mean loss over all examples.

    F = Σ p_i f_i,  w_i = p_i
    """

    reference = "McMahan et al., 2017"
    uses_losses = False

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        return WeightTerms(sizes[None])

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        return PrivatePart(weight=1.0, objective=own.loss)
