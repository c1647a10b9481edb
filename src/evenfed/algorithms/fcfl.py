"""FCFL: fairness-constrained federated learning, performance only (no sensitive attribute)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Memory, Plan, Round, hyper
from ..core.maths import best_common_descent


@dataclass(frozen=True)
class FCFL(Algorithm):
    """Stage 1: descend a soft maximum of the losses, sharpened as it flattens. Stage 2: raise the mean, harm no one.

    w ∝ exp(f_i / T), T ← T · cooling once 0.1 ‖Σ w_i g_i‖ ≤ T;  then w = argmax ⟨Σ w_j δ_j, mean δ⟩ s.t. no conflict
    """

    reference = "Cui et al., 2021"
    needs = "gram"
    needs_path = True
    not_private = "it compares single updates with each other, which no sum of them tells"
    temperature: float = hyper(0.5, "T at the start", above=0, reason="it divides the losses", fedavg="∞ (uniform)")
    cooling: float = hyper(0.01, "factor on T when it falls", above=0, most=1, reason="T must not rise")
    floor: float = hyper(1e-4, "lowest T", above=0, reason="T divides the losses")
    minimax_rounds: int = hyper(
        35,
        "rounds of stage 1",
        least=0,
        reason="it counts rounds",
        danger="the authors took 800 of 2,300 gradient steps; scale it with your number of rounds",
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return losses.max()

    def init(self, population: Tensor) -> Memory:
        return {"temperature": torch.tensor([self.temperature], dtype=torch.float64)}

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        scaled = round.losses / memory["temperature"]
        return Plan(round.ids, scaled.softmax(0)), memory

    def mix(self, round: Round, plan: Plan, gram: Tensor, ages: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        if round.index >= self.minimax_rounds:
            return best_common_descent(gram), memory
        weights = plan.weights / plan.weights.sum()
        sq_length = weights @ gram @ weights
        length = sq_length.clamp(min=0).sqrt()
        steps = round.local_steps[plan.ids].double()
        path = round.lr * steps.mean()  # turns an update into a mean gradient
        temperature = memory["temperature"]
        cooler = (temperature * self.cooling).clamp(min=self.floor)
        is_flat = 0.1 * length / path <= temperature
        temperature = torch.where(is_flat, cooler, temperature)
        return weights, {"temperature": temperature}
