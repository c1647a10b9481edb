"""FedAvg: the baseline every other algorithm is set against."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Mean loss over all examples.

    F = Σ p_i f_i,  w_i = p_i
    """

    reference = "McMahan et al., 2017"
    uses_losses = False
