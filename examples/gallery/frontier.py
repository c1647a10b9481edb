"""
Mean against worst tenth
========================

What does a gain for the worst tenth cost in the mean? Vary the strength of each method, and draw both. All runs train
together. On this easy task nobody pays; on harder ones the mean does.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import evenfed

digits = load_digits()
split = {"clients": 20, "concentration": 0.2, "test": 0.3, "seed": 3}
clients = evenfed.federate(digits.data / 16, digits.target, "dirichlet", **split)
entries = ["fedavg"]
for strength in (0.5, 1, 2, 4):
    entries.append(f"semi_vred[beta={strength},smooth=0.25]")
    entries.append(f"vred[beta={strength},smooth=0.25]")
    entries.append(f"term[alpha={strength},smooth=0.25]")
options = {"rounds": 30, "lr": 0.1, "batch_size": 16, "last_rounds": 10}
torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
comparison = evenfed.compare(model, clients, entries, seeds=2, **options)

# %%
# Lines join the strengths of one method, weakest first. The grey cross is FedAvg with other batches: what chance alone
# does.


def point(row):
    mean, _ = row.late["mean"]
    worst, _ = row.late["worst10"]
    return 100 * mean, 100 * worst


for method in ("fedavg", "semi_vred", "vred", "term"):
    points = [point(row) for row in comparison.rows if row.label.startswith(method)]
    plt.plot(*zip(*points, strict=True), "o-", label=method)
floor = comparison.noise_floor
plt.plot(*point(floor), "x", color="grey", label=floor.label)
plt.xlabel("mean test accuracy, %")
plt.ylabel("worst 10 %: test accuracy, %")
plt.legend()
plt.show()
