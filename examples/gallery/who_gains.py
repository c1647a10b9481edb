"""
Who gains and who pays
======================

The mean says little about fairness. Look at every client's change against FedAvg, from the same initial model.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import evenfed

digits = load_digits()
split = {"clients": 20, "concentration": 0.2, "test": 0.3, "seed": 3}
clients = evenfed.federate(digits.data / 16, digits.target, "dirichlet", **split)
entries = ["fedavg", "semi_vred[beta=1,smooth=0.25]"]
options = {"rounds": 30, "lr": 0.1, "batch_size": 16, "last_rounds": 10}
comparison = evenfed.compare(lambda: torch.nn.Linear(64, 10), clients, entries, seeds=3, **options)
comparison

# %%
# Averages over seeds and the last ten rounds, client by client. Left: those that FedAvg serves worst.

frame = comparison.to_pandas()
late = frame[frame["round"] > 20]
late = late.groupby(["label", "client"])["accuracy"].mean().unstack(0) * 100
late = late.sort_values("fedavg")
change = late["semi_vred[beta=1,smooth=0.25]"] - late["fedavg"]
plt.bar(range(len(change)), change, color=np.where(change < 0, "#c4361d", "#2f6db5"))
plt.axhline(0, color="black", linewidth=0.8)
plt.xticks([])
plt.xlabel("clients, by FedAvg's accuracy, lowest first")
plt.ylabel("change, points")
plt.show()

# %%
# The same in numbers, at the last round of the first seed:

comparison.suppression("semi_vred[beta=1,smooth=0.25]")[0]
