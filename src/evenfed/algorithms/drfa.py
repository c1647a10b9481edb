"""DRFA: distributionally robust federated averaging."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Memory, Plan, Round, hyper
from ..core.maths import project_simplex


@dataclass(frozen=True)
class DRFA(Algorithm):
    """AFL's objective with local steps: clients are drawn by λ, and λ learns from a random snapshot.

    m clients ~ λ with replacement, each weight 1/m; λ ← Proj(λ + τγv), v_i = (n/m) f_i(θ') for m drawn uniformly
    """

    reference = "Deng et al., 2020"
    mixture = "lambda"
    not_private = "the server draws clients by weights it learns from single losses"
    uses_losses = False
    lr_lambda: float = hyper(
        0.1,
        "step γ of the ascent on λ, times the local steps τ",
        least=0,
        reason="a negative step would favour the best served",
        fedavg="0 (FedAvg with clients drawn by share)",
        danger="λ collapses onto few clients in about 1 / (τγ · spread of the losses) rounds",
    )

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        return losses.max()

    def init(self, population: Tensor) -> Memory:
        return {"lambda": population.clone()}

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        mixture = memory["lambda"].numpy()
        drawn = len(round.ids)
        chances = mixture / mixture.sum()
        draws = round.rng.choice(len(mixture), size=drawn, p=chances)
        ids, times = torch.from_numpy(draws).unique(return_counts=True)
        moment = round.rng.random() * round.local_steps[ids]
        steps = moment.floor().long() + 1  # uniform in 1 .. τ
        weights = times.double() / drawn
        return Plan(ids, weights, snapshot_steps=steps, probe=round.ids), memory

    def learn(self, round: Round, plan: Plan, probe_losses: Tensor, memory: Memory) -> Memory:
        assert plan.probe is not None
        eligible = round.population > 0
        tau = round.local_steps[plan.ids].double().mean()
        mixture = memory["lambda"].clone()
        per_probed = eligible.sum() / len(plan.probe)
        step = tau * self.lr_lambda
        mixture[plan.probe] += step * probe_losses * per_probed
        mixture[eligible] = project_simplex(mixture[eligible])
        return {"lambda": mixture}
