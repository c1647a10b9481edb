"""
When one model does not fit all
===============================

Two groups of clients that contradict each other: what is class 0 for one group is class 1 for the other. No single
model can serve both, so re-weighting cannot help much. Ditto gives each client a model of its own.
"""

import matplotlib.pyplot as plt
import torch

import evenfed

torch.manual_seed(0)
clients = []
for number in range(8):
    inputs = torch.randn(80, 5)
    targets = (inputs[:, 0] > 0).long()
    if number >= 6:
        targets = 1 - targets
    examples = (inputs[:40], targets[:40]), (inputs[40:], targets[40:])
    clients.append(evenfed.Client(*examples, name=f"client {number + 1}"))

entries = ["fedavg", "semi_vred[beta=1,smooth=0.25]", "ditto[lam=0.1]"]
model = torch.nn.Linear(5, 2)
options = {"rounds": 40, "lr": 0.3, "batch_size": 10}
comparison = evenfed.compare(model, clients, entries, seeds=1, noise_floor=False, **options)

# %%
figure, axes = plt.subplots(1, len(entries), sharey=True, figsize=(9, 2.8))
for axis, label in zip(axes, entries, strict=True):
    (result,) = comparison[label]
    axis.bar(range(1, 9), 100 * result.accuracy, color=["#2f6db5"] * 6 + ["#c4361d"] * 2)
    axis.set_title(label, fontsize=9)
    axis.set_xticks(range(1, 9))
    axis.set_xlabel("client (red: minority)")
axes[0].set_ylabel("test accuracy, %")
plt.show()

# %%
# A client's own model is ``result.client_model(i)``; ``result.model`` is the global one.

comparison["ditto[lam=0.1]"][0].client_model(7)
