"""
Train, and see who is served badly
==================================

Twenty clients hold few digits each. The mean hides that some of them are served far worse than the others.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import evenfed

digits = load_digits()
split = {"clients": 20, "concentration": 0.2, "test": 0.3, "seed": 3}
clients = evenfed.federate(digits.data / 16, digits.target, "dirichlet", **split)
torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
result = evenfed.train(model, clients, "fedavg", rounds=20, lr=0.1, batch_size=16)
result

# %%
# Each client's accuracy, lowest first; the two on the left are the worst tenth.

order = np.argsort(result.accuracy)
colours = ["#c4361d" if rank < 2 else "#2f6db5" for rank in range(len(order))]
plt.bar(range(len(order)), 100 * result.accuracy[order], color=colours)
plt.axhline(100 * result.fairness.mean, color="black", linewidth=0.8, label="mean")
plt.xticks([])
plt.xlabel("clients, worst served first")
plt.ylabel("test accuracy, %")
plt.legend()
plt.show()

# %%
# Which digits do they hold?

counts = np.stack([np.bincount(client.train[1], minlength=10) for client in clients])
plt.imshow(counts[order].T, aspect="auto", cmap="Blues")
plt.grid(False)
plt.xticks([])
plt.xlabel("clients, worst served first")
plt.ylabel("digit")
plt.yticks(range(10))
plt.colorbar(label="training examples")
plt.show()
