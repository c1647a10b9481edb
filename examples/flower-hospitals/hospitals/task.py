"""Three hospitals tell benign from malignant tumours (569 women, 30 measurements each; it comes with scikit-learn).

They hold unequal numbers of cases, and the smallest calibrates differently: its instrument reads the last ten
measurements two standard deviations higher.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

from evenfed import Client

NAMES = ("city", "county", "island")
TRAIN, TEST = (240, 120, 16), (50, 30, 100)


def model() -> torch.nn.Module:
    """A new model; server and hospitals call this."""
    return torch.nn.Sequential(torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def hospital(site: int, split: int = 0) -> Client:
    """One hospital's cases under one of many random splits."""
    inputs, targets = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(split).permutation(len(inputs))
    common = inputs[order[: TRAIN[0]]]  # all scale by the city's cases
    start = sum(TRAIN[:site]) + sum(TEST[:site])
    own = order[start : start + TRAIN[site] + TEST[site]]
    x, y = ((inputs[own] - common.mean(0)) / common.std(0)).astype("float32"), targets[own]
    if NAMES[site] == "island":
        x[:, 20:] += 2
    n = TRAIN[site]
    return Client(train=(x[:n], y[:n]), test=(x[n:], y[n:]), name=NAMES[site])


def data(context) -> Client:
    """Of the hospital that this node stands for."""
    return hospital(context.node_config["partition-id"])
