"""CLIMB: constrained learning against imbalance of the clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Mean, Memory, Plan, PrivateInputs, PrivatePart, Round, WeightTerms, hyper


@dataclass(frozen=True)
class CLIMB(Algorithm):
    """Uniform mean loss, with every client's loss held within ε of the mean by a dual variable λ_i ≥ 0.

    min (1/n) Σ f_i  s.t.  f_i − f̄ ≤ ε;  w_i = (1 + λ_i − mean λ) / m,  λ_i ← clip(λ_i + γ (f_i − f̄ − ε)/n, 0, 100)

    With partial participation the weights sum to 1 in expectation only. In one round their sum may be zero or negative;
    the step is then taken as defined, away from the drawn clients' optima. A smaller step γ, or more clients per round,
    prevents it.
    """

    reference = "Shen et al., 2022"
    any_sum = True
    epsilon: float = hyper(
        0.1, "margin above the mean", least=0, reason="it is a margin", fedavg="∞ (uniform)", grid=(0.01, 0.1, 0.5, 1.0)
    )
    lr_dual: float = hyper(
        1.0,
        "step γ of the ascent on λ",
        least=0,
        reason="a negative step would reward violations",
        fedavg="0 (uniform FedAvg)",
        danger="a weight turns negative once mean λ exceeds λ_i + 1; with few clients per round even their sum may",
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return losses.mean()

    def init(self, population: Tensor) -> Memory:
        return {"dual": torch.zeros_like(population)}

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        dual = memory["dual"].clone()
        n = (round.population > 0).sum()
        own = dual[round.ids]
        mean_dual = dual.sum() / n
        weights = (1 + own - mean_dual) / len(round.ids)
        violation = round.losses - round.losses.mean() - self.epsilon
        ascended = own + self.lr_dual * violation / n
        dual[round.ids] = ascended.clamp(0, 100)
        return Plan(round.ids, weights), {"dual": dual}

    def coefficients(self, shares: Tensor) -> Tensor:
        return torch.full_like(shares, 1 / len(shares))

    def terms(self, ids: Tensor, losses: Tensor, sizes: Tensor, memory: Memory) -> WeightTerms:
        ones = torch.ones_like(sizes)
        dual = memory["dual"][ids]
        return WeightTerms(torch.stack([ones, dual]))

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        mean_loss = mean(own.loss)
        weight = 1 + own.dual - own.mean_dual
        violation = own.loss - mean_loss - self.epsilon
        dual = own.dual + self.lr_dual * violation / own.clients
        return PrivatePart(weight, objective=mean_loss, dual=dual.clamp(0, 100))
