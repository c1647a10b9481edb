"""Ditto: a personal model for every client in addition to the global one."""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, PrivateInputs, PrivatePart, WeightTerms, hyper


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg, and for each client a model of its own, tied to the incoming global one; evaluated with its own.

    v_i ← v_i − η (∇f_i(v_i) + λ (v_i − θ)) on the same batches; v_i starts at the initial model
    """

    reference = "Li et al., 2021 (Ditto)"
    uses_losses = False
    lam: float = hyper(
        1.0,
        "strength λ of the tie; 0 trains each client alone",
        least=0,
        reason="a negative tie would push clients away from each other",
        fedavg="∞",
        danger="unstable once lr · λ reaches 1",
        grid=(0.1, 1.0, 2.0),
    )

    def personal(self) -> float:
        return self.lam

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        return WeightTerms(sizes[None])

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        return PrivatePart(weight=1.0, objective=own.loss)
