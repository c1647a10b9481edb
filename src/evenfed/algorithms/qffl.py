"""q-FFL, solved by q-FedAvg."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, Plan, PrivateInputs, PrivatePart, Round, WeightTerms, hyper
from ..core.errors import InputError


@dataclass(frozen=True)
class QFFL(Algorithm):
    """Mean of the losses raised to q + 1, with a step length estimated from the updates' norms.

    F = Σ c_i f_i^{q+1} / (q+1),  w_i = c_i f_i^q / Σ_j c_j (q f_j^{q−1} ‖δ_j‖² / η + f_j^q),  Σ w ≤ 1
    """

    reference = "Li et al., 2020"
    needs = "norms"
    least_loss = 0.0
    sums_to_one = False
    q: float = hyper(
        0.1,
        "power of the loss",
        least=0,
        reason="a negative q would favour the best served",
        fedavg=0,
        danger="steps shrink as q grows: the sum of the weights falls well below 1",
        grid=(0.01, 0.1, 1.0),
    )
    share_weighted: bool = hyper(False, "c_i = p_i (as the objective says), not 1/m (as published)", fedavg=True)

    def coefficients(self, shares: Tensor) -> Tensor:
        return shares if self.share_weighted else shares.new_full(shares.shape, 1 / len(shares))

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return self.coefficients(shares) @ _positive(losses) ** (self.q + 1) / (self.q + 1)

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        weights = self.coefficients(round.shares) * _positive(round.losses) ** self.q
        return Plan(round.ids, weights / weights.sum()), memory

    def rescale(self, round: Round, plan: Plan, sq_norms: Tensor) -> float:
        f = _positive(round.losses)
        c = self.coefficients(round.shares)
        weights = f**self.q
        curvature = self.q * f ** (self.q - 1) * sq_norms / round.lr
        step = (c @ weights) / (c @ (curvature + weights))
        return float(step)

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        scale = sizes if self.share_weighted else torch.ones_like(sizes)
        row = scale * _positive(losses) ** self.q
        return WeightTerms(row[None])

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        f = _positive(own.loss)
        power = self.q + 1
        weight = f**self.q / mean(f**self.q)
        objective = f**power / power
        curvature = self.q * own.sq_norm / (own.lr * f)
        return PrivatePart(weight, objective, weight * (1 + curvature))


def _positive(losses: Tensor) -> Tensor:
    if bool((losses < 0).any()):
        raise InputError("qffl needs losses >= 0: a power of a negative loss is undefined; shift the loss")
    return losses + 1e-10
