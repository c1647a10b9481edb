"""
Taking turns at being last, and how to stop it
==============================================

A client that was served badly gets more weight, is over-served, and loses its weight again. With large steps, clients
take turns at being last, and Semi-VRed does worse than FedAvg. Smoothed losses stop that.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import evenfed

warnings.filterwarnings("ignore", message=".*oscillates.*")  # what this page is about

digits = load_digits()
split = {"clients": 10, "shards_per_client": 1, "test": 0.3}
clients = evenfed.federate(digits.data / 16, digits.target, "shards", **split)
entries = {
    "fedavg": "fedavg",
    "Semi-VRed": "semi_vred[beta=1]",
    "damped": "semi_vred[beta=1,smooth=0.25]",
    "damped, averaged": "semi_vred[beta=1,smooth=0.25,average=0.8]",
}
options = {"rounds": 40, "lr": 1.0, "batch_size": 16, "local_epochs": 3}
torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
comparison = evenfed.compare(model, clients, entries, seeds=1, noise_floor=False, **options)

# %%
# The accuracy of the three clients that swing most without damping, round by round.

(undamped,) = comparison["Semi-VRed"]
history = np.array([record.accuracy for record in undamped.records])
swinging = history.std(axis=0).argsort()[-3:]
figure, axes = plt.subplots(1, len(entries), sharey=True, figsize=(10, 2.8))
for axis, label in zip(axes, entries, strict=True):
    (result,) = comparison[label]
    accuracies = [100 * record.accuracy[swinging] for record in result.records]
    axis.plot(range(1, 41), accuracies)
    axis.set_title(label, fontsize=10)
    axis.set_xlabel("round")
axes[0].set_ylabel("test accuracy, %")
plt.show()

# %%
# ``oscillation`` is the correlation of a client's loss with its loss one round before: near -1, clients take turns.

for label in entries:
    (result,) = comparison[label]
    worst = result.late_fairness.worst10
    print(f"{label:18} oscillation {result.oscillation:+.2f}, worst 10 % {worst:.1%}")
