"""A conformance suite for algorithms, inside and outside this repository.

>>> from evenfed.algorithms import SemiVRed
>>> check_algorithm(SemiVRed(beta=0.5))
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .algorithms import find, names
from .client import Client
from .comparison.api import train
from .core.algorithm import Algorithm, Own, Part, Plan, build
from .core.errors import InputError
from .core.round import close_round, open_round
from .core.server import Record, Server, Update
from .core.sums import number_of_means, parts

LR = 0.1


def check_algorithm(algorithm: Algorithm, seed: int = 0) -> None:
    """Raise AssertionError, saying what broke, unless `algorithm` keeps what every engine relies on."""
    check = _Check(algorithm)
    check.round_trip()
    check.local_loss()
    rng = np.random.default_rng(seed)
    for n in (1, 2, 7):
        for spread in (0.0, 1.0, 20.0):
            case = _Case.drawn(rng, n, spread)
            record = check.one_round(case)
            check.weights(case, record)
            check.order(case, record, rng.permutation(n))
    check.empty_clients(rng)
    check.partial_participation()
    check.private(rng)
    check.engines()


@dataclass(frozen=True)
class _Case:
    """The losses, sizes and updates of some clients."""

    losses: Tensor  # [n]
    sizes: list[int]  # [n]
    deltas: Tensor  # [n, D]

    @classmethod
    def drawn(cls, rng: np.random.Generator, n: int, spread: float) -> "_Case":
        """Random; with a spread of zero all losses are equal."""
        losses = rng.gamma(2.0, 1 + spread, n) * (spread > 0) + 0.5
        sizes = rng.integers(1, 100, n)
        deltas = rng.normal(size=(n, 5))
        return cls(torch.from_numpy(losses), sizes.tolist(), torch.from_numpy(deltas))

    def reordered(self, order: np.ndarray) -> "_Case":
        sizes = [self.sizes[i] for i in order]
        return _Case(self.losses[order], sizes, self.deltas[order])

    def __str__(self) -> str:
        return f"{len(self.sizes)} clients, losses {self.losses.numpy().round(2)}"


@dataclass(frozen=True)
class _Check:
    """The checks of one algorithm."""

    algorithm: Algorithm

    def require(self, holds: Any, complaint: str) -> None:
        if not bool(holds):
            raise AssertionError(f"{self.algorithm}: {complaint}")

    def start(self, sizes: list[int], width: int, seed: int = 0) -> Server:
        """A model of zeros before the first round."""
        return Server.start(self.algorithm, torch.zeros(width).double(), sizes, lr=LR, seed=seed)

    def one_round(self, case: _Case) -> Record:
        server = self.start(case.sizes, case.deltas.shape[1])
        turn = open_round(server, case.losses)
        updates = []
        for client in turn.plan.ids.tolist():
            delta = case.deltas[client]
            updates.append(Update(client, delta, snapshot=delta))
        server, record = close_round(turn, updates, lambda _, ids: case.losses[ids])
        self.require(server.theta.isfinite().all(), "the model is not finite after a round")
        for value in server.memory.values():
            self.require(value.isfinite().all(), "its memory is not finite")
        return record

    def round_trip(self) -> None:
        """Name and hyper-parameters lead back to the algorithm."""
        algorithm = self.algorithm
        cls = type(algorithm)
        self.require(dataclasses.is_dataclass(algorithm), "make it a frozen dataclass")
        self.require(algorithm.name, f"{cls.__name__} has no name")
        text = json.dumps(algorithm.describe())
        rebuilt = build(cls, json.loads(text))
        self.require(rebuilt == algorithm, "its hyper-parameters do not survive JSON")
        if algorithm.name in names():
            self.require(find(algorithm.name) is cls, f"{algorithm.name} names another class")

    def local_loss(self) -> None:
        losses = torch.linspace(0.01, 12, 50, dtype=torch.float64)
        stacked = self.algorithm.local_loss(losses)
        for loss, together in zip(losses, stacked, strict=True):
            alone = self.algorithm.local_loss(loss)
            self.require(torch.equal(alone, together), "local_loss must be elementwise, so that it serves a stack")

    def weights(self, case: _Case, record: Record) -> None:
        finite = np.isfinite(record.weights).all()
        self.require(finite, f"weights {record.weights} are not finite ({case})")
        self.require(np.isfinite(record.objective), f"the objective is not finite ({case})")
        if self.algorithm.sums_to_one:
            total = record.weights.sum()
            complaint = f"weights sum to {total}; declare sums_to_one = False ({case})"
            self.require(abs(total - 1) < 1e-9, complaint)

    def order(self, case: _Case, record: Record, order: np.ndarray) -> None:
        """Renaming the clients renames the weights; algorithms that draw clients at random are left out."""
        if len(case.losses.unique()) < len(case.losses):
            return  # ties may be broken by position
        plan = self._plan(case, seed=0)
        for seed in range(1, 4):
            other = self._plan(case, seed)
            same_clients = torch.equal(other.ids, plan.ids)
            if not same_clients or not torch.equal(other.weights, plan.weights):
                return
        renamed = self.one_round(case.reordered(order)).weights
        expected = record.weights[order]
        complaint = f"weights depend on the order of the clients: {expected} became {renamed}"
        self.require(np.allclose(renamed, expected, rtol=1e-6, atol=1e-8), complaint)

    def _plan(self, case: _Case, seed: int) -> Plan:
        server = self.start(case.sizes, case.deltas.shape[1], seed)
        return open_round(server, case.losses).plan

    def empty_clients(self, rng: np.random.Generator) -> None:
        losses = torch.from_numpy(rng.gamma(2, 1, 5))
        deltas = torch.from_numpy(rng.normal(size=(5, 5)))
        record = self.one_round(_Case(losses, [0, 10, 30, 0, 5], deltas))
        self.require(not record.weights[[0, 3]].any(), "a client without data got a weight")
        self.require(np.isfinite(record.weights).all(), "clients without data make weights non-finite")

    def partial_participation(self) -> None:
        server = self.start([5, 0, 10, 20, 40, 8], width=3, seed=3)
        for k in range(6):
            ids = server.draw(2)
            losses = (ids.double() + 1 + k) / 3
            turn = open_round(server, losses, ids)
            updates = []
            for client in turn.plan.ids.tolist():
                delta = torch.full((3,), 0.1 + client).double()
                updates.append(Update(client, delta, snapshot=torch.ones(3).double()))
            server, record = close_round(turn, updates, lambda _, chosen: chosen.double() + 1)
            self.require(np.isfinite(record.weights).all(), "weights are not finite under partial participation")
            self.require(not record.skipped, "a round of two healthy clients was skipped")

    def private(self, rng: np.random.Generator) -> None:
        """Where the method `private` is written: weights, step and objective from sums are those of plain rounds."""
        try:
            number_of_means(self.algorithm)
        except InputError:
            return  # its definition needs more than sums
        n = 6
        server = self.start(rng.integers(1, 50, n).tolist(), width=4)
        shares = server.sizes.double() / server.sizes.sum()
        c = self.algorithm.coefficients(shares)
        duals = torch.zeros(n).double()
        for _ in range(3):
            losses = torch.from_numpy(rng.gamma(2.0, 0.5, n))
            deltas = torch.from_numpy(rng.normal(size=(n, 4)))
            computed = self._parts(losses, deltas, duals, c)
            weights = c * _column(computed, "weight")
            step = weights @ deltas / (c @ _column(computed, "length"))
            objective = c @ _column(computed, "objective")
            duals = _column(computed, "dual")
            turn = open_round(server, losses)
            planned = torch.zeros(n).double()
            planned[turn.plan.ids] = turn.plan.weights
            before = server.theta
            updates = [Update(client, deltas[client]) for client in turn.plan.ids.tolist()]
            server, record = close_round(turn, updates)
            self._same("weights", weights, planned)
            self._same("step", step, before - server.theta)
            self._same("objective", objective, torch.tensor(record.objective, dtype=torch.float64))

    def _parts(
        self,
        losses: Tensor,
        deltas: Tensor,
        duals: Tensor,
        c: Tensor,
    ) -> list[Part]:
        """What each client computes from the sums."""
        clients = []
        for loss, delta, dual in zip(losses, deltas, duals, strict=True):
            own = Own(
                loss=loss,
                lr=LR,
                clients=len(losses),
                dual=float(dual),
                mean_dual=float(duals.mean()),
                sq_norm=float(delta @ delta),
            )
            clients.append(own)
        return parts(self.algorithm, clients, c.tolist())

    def _same(self, what: str, private: Tensor, plain: Tensor) -> None:
        complaint = f"`private` gives the {what} {private.tolist()}, a plain round {plain.tolist()}"
        self.require(torch.allclose(private, plain, rtol=1e-9, atol=1e-12), complaint)

    def engines(self) -> None:
        """Both simulators agree, in double precision, on unequal clients one of which is empty."""
        draw = torch.Generator().manual_seed(0)
        clients = []
        for size in (9, 0, 4, 17):
            inputs = torch.randn(size, 3, generator=draw, dtype=torch.float64)
            targets = torch.randint(0, 2, (size,), generator=draw)
            clients.append(Client((inputs, targets)))
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        options: dict[str, Any] = {"rounds": 3, "lr": LR, "batch_size": 4, "local_epochs": 2, "device": "cpu"}
        reference = train(model, clients, self.algorithm, engine="reference", **options)
        parallel = train(model, clients, self.algorithm, engine="parallel", **options)
        one = reference.server.theta
        other = parallel.server.theta
        self.require(torch.allclose(one, other, rtol=1e-8, atol=1e-10), "the engines disagree")
        for ours, theirs in zip(reference.records, parallel.records, strict=True):
            same_weights = np.allclose(ours.weights, theirs.weights, rtol=1e-7, atol=1e-9)
            self.require(same_weights, "the engines' weights disagree")
            self.require(ours.weights[1] == 0, "a client without data got a weight")


def _column(computed: list[Part], name: str) -> Tensor:
    """One number of every client's part."""
    values = [float(getattr(part, name)) for part in computed]
    return torch.tensor(values, dtype=torch.float64)
