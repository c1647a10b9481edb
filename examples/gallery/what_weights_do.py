"""
What weights do, and where they turn negative
=============================================

An algorithm turns the clients' losses into weights of their updates. Before you train, look at what it does to losses
like yours.

Five clients; the last is served worst and is the smallest.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from evenfed.algorithms import get
from evenfed.core.algorithm import gradient

losses = torch.tensor([0.3, 0.7, 1.0, 1.6, 2.6])
shares = torch.tensor([0.35, 0.25, 0.20, 0.12, 0.08])
entries = {
    "FedAvg": get("fedavg"),
    "Semi-VRed, beta 0.5": get("semi_vred", beta=0.5),
    "TERM, alpha 1": get("term", alpha=1),
    "GiFair": get("gifair"),
}

figure, axes = plt.subplots(1, len(entries), sharey=True, figsize=(9, 2.6))
for axis, (name, algorithm) in zip(axes, entries.items(), strict=True):
    weights = gradient(algorithm, losses, shares)
    axis.bar(list("ABCDE"), weights)
    axis.scatter(list("ABCDE"), shares, marker="_", s=200, color="black", zorder=3)
    axis.set_title(name, fontsize=10)
axes[0].set_ylabel("weight (lines: FedAvg)")
plt.show()

# %%
# VRed and Semi-VRed take weight from the well-served clients. Past a certain beta the best-served client's weight turns
# negative: the server then steps away from it. Semi-VRed gets there later.

betas = np.linspace(0, 2, 41)
for name in ("vred", "semi_vred"):
    of_best_served = [gradient(get(name, beta=beta), losses, shares)[0] for beta in betas]
    plt.plot(betas, of_best_served, label=name)
plt.axhline(0, color="black", linewidth=0.8)
plt.xlabel("beta")
plt.ylabel("weight of client A")
plt.legend()
plt.show()

# %%
# ``safe`` caps beta at a fraction of that bound, in every round anew.

gradient(get("semi_vred", beta=2, safe=0.9), losses, shares)
