"""
An algorithm of your own in five lines
======================================

Write the objective; its gradient is the weights. This one adds a part of the mean of the two highest losses.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import evenfed
from evenfed.core.algorithm import Algorithm, gradient, hyper
from evenfed.testing import check_algorithm


@dataclass(frozen=True)
class TopTwo(Algorithm):
    """The mean loss, with a part of it taken from the two highest.

    F = (1 - part) mean + part (sum of the two highest) / 2
    """

    part: float = hyper(0.3, "of the highest two", least=0, most=1, reason="it is a part", fedavg=0)

    def objective(self, losses, shares):
        highest = losses.topk(min(2, len(losses))).values
        return (1 - self.part) * shares @ losses + self.part * highest.mean()


check_algorithm(TopTwo())

# %%
# What it does to five clients:

losses = torch.tensor([0.3, 0.7, 1.0, 1.6, 2.6])
shares = torch.tensor([0.35, 0.25, 0.20, 0.12, 0.08])
plt.figure(figsize=(4, 2.6))
plt.bar(list("ABCDE"), gradient(TopTwo(), losses, shares))
plt.scatter(list("ABCDE"), shares, marker="_", s=300, color="black", zorder=3)
plt.ylabel("weight (lines: FedAvg)")
plt.show()

# %%
# And in training, compared with FedAvg:

digits = load_digits()
split = {"clients": 20, "concentration": 0.2, "test": 0.3, "seed": 3}
clients = evenfed.federate(digits.data / 16, digits.target, "dirichlet", **split)
entries = [TopTwo, TopTwo(part=0.6)]
options = {"rounds": 20, "lr": 0.1, "batch_size": 16}
evenfed.compare(torch.nn.Linear(64, 10), clients, entries, seeds=2, **options)
