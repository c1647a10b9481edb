"""AFL: agnostic federated learning."""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Memory, Plan, Round, hyper
from ..core.maths import project_simplex


@dataclass(frozen=True)
class AFL(Algorithm):
    """Loss of the worst mixture of clients, by gradient ascent on the mixture λ.

    F = max_λ Σ λ_i f_i = max_i f_i,  λ ← Proj(λ + γ f),  w = λ (new λ, started at the shares)
    Partial participation: ascent with (n/m) f_i for those drawn, weights λ_i / Σ_S λ.
    """

    reference = "Mohri et al., 2019"
    mixture = "lambda"
    not_private = "the server projects the vector of all losses onto the simplex, for which it must see each"
    lr_lambda: float = hyper(
        0.1,
        "step γ of the ascent on λ",
        least=0,
        reason="a negative step would favour the best served",
        fedavg=0,
        danger="λ collapses onto one client in about 1 / (γ · spread of the losses) rounds",
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return losses.max()

    def init(self, population: Tensor) -> Memory:
        return {"lambda": population.clone()}

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        eligible = round.population > 0
        ascent = memory["lambda"].clone()
        per_drawn = eligible.sum() / len(round.ids)
        ascent[round.ids] += self.lr_lambda * round.losses * per_drawn
        mixture = ascent.clone()
        mixture[eligible] = project_simplex(ascent[eligible])
        drawn = mixture[round.ids]
        weights = drawn / drawn.sum() if drawn.sum() > 0 else round.shares
        return Plan(round.ids, weights), {"lambda": mixture}
