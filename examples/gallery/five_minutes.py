"""
Train and see who is served badly
=================================

Twenty clients hold few digits each. Averaged over all of them the model does well; some clients are far below.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import evenfed

digits = load_digits()
clients = evenfed.federate(digits.data / 16, digits.target, "dirichlet", clients=20, concentration=0.1, test=0.3)
model = torch.nn.Linear(64, 10)
result = evenfed.train(model, clients, "fedavg", rounds=20, lr=0.1, batch_size=16)
result

# %%
# A client's accuracy beside its size: the worst served are not always the smallest.

sizes = [len(client.train[1]) for client in clients]
plt.scatter(sizes, result.accuracy)
plt.xlabel("training examples")
plt.ylabel("test accuracy")
plt.show()
