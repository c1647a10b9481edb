"""A conformance suite for algorithms, inside and outside this repository.

>>> from evenfed.algorithms import SemiVRed
>>> check_algorithm(SemiVRed(beta=0.5))
"""

import dataclasses
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .algorithms import find, names
from .client import Client
from .comparison.api import train
from .core.algorithm import Algorithm, Own, build
from .core.errors import InputError
from .core.round import close_round, open_round
from .core.server import Record, Server, Update
from .core.sums import number_of_means, parts


def check_algorithm(algorithm: Algorithm, seed: int = 0) -> None:
    """Raise AssertionError, saying what broke, unless `algorithm` keeps what every engine relies on."""
    _check_round_trip(algorithm)
    _check_local_loss(algorithm)
    rng = np.random.default_rng(seed)
    for n in (1, 2, 7):
        for spread in (0.0, 1.0, 20.0):
            losses = rng.gamma(2.0, 1 + spread, n) * (spread > 0) + 0.5
            sizes = rng.integers(1, 100, n)
            deltas = torch.from_numpy(rng.normal(size=(n, 5)))
            record = _one_round(algorithm, losses, sizes, deltas)
            _check_weights(algorithm, record, f"{n} clients, losses {losses.round(2)}")
            _check_order(algorithm, losses, sizes, deltas, record, rng.permutation(n))
    _check_empty_clients(algorithm, rng)
    _check_partial_participation(algorithm)
    _check_private(algorithm, rng)
    _check_engines(algorithm)


def _one_round(algorithm: Algorithm, losses: np.ndarray, sizes: np.ndarray, deltas: Tensor) -> Record:
    """One round with these losses and updates, from a model of zeros."""
    server = Server.start(algorithm, torch.zeros(deltas.shape[1]).double(), sizes.tolist(), lr=0.1)
    turn = open_round(server, torch.from_numpy(losses))
    updates = [Update(int(i), deltas[i], deltas[i]) for i in turn.plan.ids]
    after, record = close_round(turn, updates, lambda _, ids: torch.from_numpy(losses)[ids])
    assert bool(after.theta.isfinite().all()), f"{algorithm}: the model is not finite after a round"
    for value in after.memory.values():
        assert bool(value.isfinite().all()), f"{algorithm}: its memory is not finite"
    return record


def _check_round_trip(algorithm: Algorithm) -> None:
    assert dataclasses.is_dataclass(algorithm), f"{algorithm}: make it a frozen dataclass"
    assert algorithm.name, f"{type(algorithm).__name__} has no name"
    options = json.loads(json.dumps(algorithm.describe()))
    assert build(type(algorithm), options) == algorithm, f"{algorithm}: its hyper-parameters do not survive JSON"
    if algorithm.name in names():
        assert find(algorithm.name) is type(algorithm), f"{algorithm.name} names another class"


def _check_local_loss(algorithm: Algorithm) -> None:
    losses = torch.linspace(0.01, 12, 50, dtype=torch.float64)
    stacked = algorithm.local_loss(losses)
    alone = torch.stack([algorithm.local_loss(loss) for loss in losses])
    assert torch.equal(stacked, alone), f"{algorithm}: local_loss must be elementwise, so that it serves a stack"


def _check_weights(algorithm: Algorithm, record: Record, case: str) -> None:
    assert np.isfinite(record.weights).all(), f"{algorithm}: weights {record.weights} are not finite ({case})"
    assert np.isfinite(record.objective), f"{algorithm}: the objective is not finite ({case})"
    total = record.weights.sum()
    if algorithm.sums_to_one:
        assert abs(total - 1) < 1e-9, f"{algorithm}: weights sum to {total}; declare sums_to_one = False ({case})"


def _check_order(
    algorithm: Algorithm, losses: np.ndarray, sizes: np.ndarray, deltas: Tensor, record: Record, order: np.ndarray
) -> None:
    """Renaming the clients renames the weights; algorithms that draw clients at random are left out."""
    if len(np.unique(losses)) < len(losses):
        return  # ties may be broken by position
    server = Server.start(algorithm, torch.zeros(5).double(), sizes.tolist(), lr=0.1)
    first = open_round(server, torch.from_numpy(losses)).plan
    for seed in range(1, 4):
        other = open_round(dataclasses.replace(server, seed=seed), torch.from_numpy(losses)).plan
        if not torch.equal(other.ids, first.ids) or not torch.equal(other.weights, first.weights):
            return
    renamed = _one_round(algorithm, losses[order], sizes[order], deltas[torch.from_numpy(order)])
    expected = record.weights[order]
    assert np.allclose(renamed.weights, expected, rtol=1e-6, atol=1e-8), (
        f"{algorithm}: weights depend on the order of the clients: {expected} became {renamed.weights}"
    )


def _check_empty_clients(algorithm: Algorithm, rng: np.random.Generator) -> None:
    sizes = np.array([0, 10, 30, 0, 5])
    record = _one_round(algorithm, rng.gamma(2, 1, 5), sizes, torch.from_numpy(rng.normal(size=(5, 5))))
    assert (record.weights[sizes == 0] == 0).all(), f"{algorithm}: a client without data got a weight"
    assert np.isfinite(record.weights).all(), f"{algorithm}: clients without data make weights non-finite"


def _check_partial_participation(algorithm: Algorithm) -> None:
    server = Server.start(algorithm, torch.zeros(3).double(), [5, 0, 10, 20, 40, 8], lr=0.1, seed=3)
    for k in range(6):
        ids = server.draw(2)
        losses = (ids.double() + 1 + k) / 3
        turn = open_round(server, losses, ids)
        updates = []
        for client in turn.plan.ids.tolist():
            delta = torch.full((3,), 0.1 + client).double()
            updates.append(Update(client, delta, torch.ones(3).double()))
        server, record = close_round(turn, updates, lambda _, chosen: chosen.double() + 1)
        assert np.isfinite(record.weights).all(), f"{algorithm}: weights are not finite under partial participation"
        assert not record.skipped, f"{algorithm}: a round of two healthy clients was skipped"


def _check_private(algorithm: Algorithm, rng: np.random.Generator) -> None:
    """Where the method `private` is written: weights, step and objective from sums are those of a plain round."""
    try:
        number_of_means(algorithm)
    except InputError:
        return  # its definition needs more than sums
    n = 6
    lr = 0.1
    sizes = rng.integers(1, 50, n).tolist()
    server = Server.start(algorithm, torch.zeros(4).double(), sizes, lr=lr)
    coefficients = algorithm.coefficients(server.sizes.double() / server.sizes.sum()).numpy()
    duals = np.zeros(n)
    for k in range(3):
        losses = rng.gamma(2.0, 0.5, n)
        deltas = torch.from_numpy(rng.normal(size=(n, 4)))
        clients = []
        for i in range(n):
            loss = torch.tensor(losses[i], dtype=torch.float64)
            clients.append(Own(loss, lr, n, duals[i], duals.mean(), float(deltas[i] @ deltas[i])))
        computed = parts(algorithm, clients, coefficients.tolist())
        weights = coefficients * [float(part.weight) for part in computed]
        length = coefficients @ [float(part.length) for part in computed]
        objective = coefficients @ [float(part.objective) for part in computed]
        duals = np.array([float(part.dual) for part in computed])
        turn = open_round(server, torch.from_numpy(losses))
        planned = np.zeros(n)
        planned[turn.plan.ids] = turn.plan.weights
        case = f"round {k}, losses {losses.round(2)}"
        assert np.allclose(weights, planned, rtol=1e-9, atol=1e-12), (
            f"{algorithm}: `private` gives the weights {weights}, `plan` {planned} ({case})"
        )
        before = server.theta
        server, record = close_round(turn, [Update(i, deltas[i]) for i in turn.plan.ids.tolist()])
        step = (before - server.theta).numpy()
        private_step = weights @ deltas.numpy() / length
        assert np.allclose(private_step, step, rtol=1e-9, atol=1e-12), (
            f"{algorithm}: `private` takes the step {private_step}, a plain round {step} ({case})"
        )
        assert np.isclose(objective, record.objective, rtol=1e-9, atol=1e-12), (
            f"{algorithm}: `private` gives the objective {objective}, a plain round {record.objective} ({case})"
        )


def _check_engines(algorithm: Algorithm) -> None:
    """Both simulators agree, in double precision, on unequal clients one of which is empty."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for size in (9, 0, 4, 17):
        inputs = torch.randn(size, 3, generator=draw, dtype=torch.float64)
        targets = torch.randint(0, 2, (size,), generator=draw)
        clients.append(Client((inputs, targets)))
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    options: dict[str, Any] = {"rounds": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 2, "device": "cpu"}
    reference = train(model, clients, algorithm, engine="reference", **options)
    parallel = train(model, clients, algorithm, engine="parallel", **options)
    same_model = torch.allclose(reference.server.theta, parallel.server.theta, rtol=1e-8, atol=1e-10)
    assert same_model, f"{algorithm}: the engines disagree"
    for ours, theirs in zip(reference.records, parallel.records, strict=True):
        same_weights = np.allclose(ours.weights, theirs.weights, rtol=1e-7, atol=1e-9)
        assert same_weights, f"{algorithm}: the engines' weights disagree"
        assert ours.weights[1] == 0, f"{algorithm}: a client without data got a weight"
