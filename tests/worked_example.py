"""What tests share: the worked example of the algorithms' definitions, and small federations."""

import numpy as np
import torch

import evenfed
from evenfed.core.algorithm import Algorithm
from evenfed.core.server import Record

SIZES = [100, 300, 600]
LOSSES = [2.0, 1.0, 0.5]
DELTAS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]], dtype=torch.float64)


def example_round(
    algorithm: Algorithm, losses=LOSSES, sizes=SIZES, deltas=DELTAS, ids=None, server=None, lr=0.1
) -> tuple[evenfed.Server, Record]:
    """One round of the worked example: theta = (1, 1), learning rate 0.1."""
    server = server or evenfed.Server.start(algorithm, torch.ones(2).double(), sizes, lr=lr)
    chosen = None if ids is None else torch.tensor(ids)
    opened = evenfed.open_round(server, losses if ids is None else [losses[i] for i in ids], chosen)
    updates = [evenfed.Update(int(i), deltas[i], deltas[i]) for i in opened.plan.ids]
    return evenfed.close_round(opened, updates, lambda _, probed: torch.tensor(losses).double()[probed])


def federation(sizes=(9, 0, 4, 17, 6), features=6, classes=3, seed=0, dtype=torch.float32) -> list[evenfed.Client]:
    """Clients of unequal size, one of them empty, with label shift and test data."""
    draw = torch.Generator().manual_seed(seed)
    clients = []
    for k, size in enumerate(sizes):
        x = torch.randn(2 * size, features, generator=draw).to(dtype) + 0.3 * k
        y = (torch.rand(2 * size, generator=draw) * (1 + k % classes)).long().clamp(max=classes - 1)
        clients.append(evenfed.Client((x[:size], y[:size]), (x[size:], y[size:]), name=f"site-{k}"))
    return clients


def small_model(dtype=torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype)


def close(found, wanted, tolerance=1e-7) -> bool:
    return bool(np.allclose(np.asarray(found, dtype=float), np.asarray(wanted, dtype=float), rtol=0, atol=tolerance))
