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
from .clients.client import Client
from .comparison.api import train
from .core.algorithm import Algorithm, Plan, PrivateInputs, PrivatePart, build, check_declared
from .core.class_checks import overridden
from .core.errors import InputError
from .core.maths import are_finite
from .core.open_round import OpenRound
from .core.round import close_round, open_round
from .core.running import RunningSums, can_run
from .core.server import Record, Server, Update
from .core.sums import number_of_means, parts

LR = 0.1


def check_algorithm(algorithm: Algorithm, seed: int = 0) -> None:
    """Raise AssertionError, saying what broke, unless `algorithm` keeps what every engine relies on."""
    check_declared(type(algorithm))
    check = _Check(algorithm)
    check.hooks()
    check.round_trip()
    check.local_loss()
    rng = np.random.default_rng(seed)
    for n in (1, 2, 7):
        for spread in (0.0, 1.0, 20.0):
            case = _Case.drawn(rng, n, spread)
            record = check.one_round(case)
            check.weights(case, record)
            check.terms(case)
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
    def drawn(
        cls,
        rng: np.random.Generator,
        n: int,
        spread: float,
    ) -> "_Case":
        """Random; with a spread of zero all losses are equal."""
        gaps = rng.gamma(2.0, 1 + spread, n)
        if spread == 0:
            gaps = np.zeros(n)
        losses = gaps + 0.5
        sizes = rng.integers(1, 100, n)
        deltas = rng.normal(size=(n, 5))
        return cls(
            losses=torch.from_numpy(losses),
            sizes=sizes.tolist(),
            deltas=torch.from_numpy(deltas),
        )

    def reordered(self, order: np.ndarray) -> "_Case":
        return _Case(
            losses=self.losses[order],
            sizes=[self.sizes[i] for i in order],
            deltas=self.deltas[order],
        )

    def __str__(self) -> str:
        count = len(self.sizes)
        rounded = self.losses.numpy().round(2)
        return f"{count} clients, losses {rounded}"


@dataclass(frozen=True)
class _Check:
    """The checks of one algorithm."""

    algorithm: Algorithm

    def require(self, holds: Any, complaint: str) -> None:
        if not bool(holds):
            raise AssertionError(f"{self.algorithm}: {complaint}")

    def start(
        self,
        sizes: list[int],
        width: int,
        seed: int = 0,
    ) -> Server:
        """A model of zeros before the first round."""
        return Server.start(
            self.algorithm,
            torch.zeros(width).double(),
            sizes,
            lr=LR,
            seed=seed,
        )

    def one_round(self, case: _Case) -> Record:
        width = case.deltas.shape[1]
        server = self.start(case.sizes, width)
        opened = open_round(server, case.losses)

        def losses_at(theta: Tensor, ids: Tensor) -> Tensor:
            return case.losses[ids]

        server, record = close_round(opened, _updates(opened, case.deltas), losses_at)
        self.require(are_finite([server.theta]), "the model is not finite after a round")
        self.require(are_finite(server.memory.values()), "its memory is not finite")
        return record

    def hooks(self) -> None:
        """Without a hook of its own, every algorithm is FedAvg."""
        changed = set(overridden(type(self.algorithm), Algorithm)) - {"describe"}
        self.require(changed, "it gives neither `objective` nor another method of Algorithm, so it trains FedAvg")

    def round_trip(self) -> None:
        """Name and hyper-parameters lead back to the algorithm."""
        algorithm = self.algorithm
        cls = type(algorithm)
        is_dataclass = dataclasses.is_dataclass(algorithm)
        self.require(is_dataclass, "make it a frozen dataclass")
        self.require(algorithm.name, f"{cls.__name__} has no name")
        text = json.dumps(algorithm.describe())
        options = json.loads(text)
        rebuilt = build(cls, options)
        self.require(rebuilt == algorithm, "its hyper-parameters do not survive JSON")
        for field in dataclasses.fields(cls):
            for value in field.metadata.get("grid", ()):
                build(cls, {**options, field.name: value})  # refuses a value that is out of range
        if algorithm.name in names():
            named = find(algorithm.name)
            self.require(named is cls, f"{algorithm.name} names another class")

    def local_loss(self) -> None:
        losses = torch.linspace(0.01, 12, 50, dtype=torch.float64)
        stacked = self.algorithm.local_loss(losses)
        for loss, together in zip(losses, stacked, strict=True):
            alone = self.algorithm.local_loss(loss)
            elementwise = torch.equal(alone, together)
            self.require(elementwise, "local_loss must be elementwise, so that it serves a stack")

    def weights(self, case: _Case, record: Record) -> None:
        weights = record.weights
        weights_are_finite = np.isfinite(weights).all()
        self.require(weights_are_finite, f"weights {weights} are not finite ({case})")
        objective_is_finite = np.isfinite(record.objective)
        self.require(objective_is_finite, f"the objective is not finite ({case})")
        if self.algorithm.sums_to_one:
            total = weights.sum()
            error = abs(total - 1)
            complaint = f"weights sum to {total}; declare sums_to_one = False ({case})"
            self.require(error < 1e-9, complaint)

    def terms(self, case: _Case) -> None:
        """Sums of updates, taken before the weights are known, end in the same model."""
        width = case.deltas.shape[1]
        server = self.start(case.sizes, width)
        if not can_run(server):
            return
        opened = open_round(server, case.losses)
        wanted, _ = close_round(opened, _updates(opened, case.deltas))
        running = RunningSums(server)
        everyone = len(case.sizes)
        running.drawn = torch.arange(everyone)
        for client in reversed(range(everyone)):
            update = Update(client, case.deltas[client])
            running.add(update, float(case.losses[client]))
        stepped, _ = running.folded(server).close()
        is_same = torch.allclose(stepped.theta, wanted.theta, rtol=1e-7, atol=1e-9)
        self.require(is_same, f"sums by `terms` give another step than the weights ({case})")

    def order(
        self,
        case: _Case,
        record: Record,
        order: np.ndarray,
    ) -> None:
        """Renaming the clients renames the weights; algorithms that draw clients at random are left out."""
        distinct = case.losses.unique()
        if len(distinct) < len(case.losses):
            return  # ties may be broken by position
        plan = self._plan(case, seed=0)
        for seed in range(1, 4):
            other = self._plan(case, seed)
            same_clients = torch.equal(other.ids, plan.ids)
            same_weights = same_clients and torch.equal(other.weights, plan.weights)
            if not same_weights:
                return
        reordered = case.reordered(order)
        renamed = self.one_round(reordered).weights
        expected = record.weights[order]
        equal = np.allclose(renamed, expected, rtol=1e-6, atol=1e-8)
        self.require(equal, f"weights depend on the order of the clients: {expected} became {renamed}")

    def _plan(self, case: _Case, seed: int) -> Plan:
        width = case.deltas.shape[1]
        server = self.start(case.sizes, width, seed)
        return open_round(server, case.losses).plan

    def empty_clients(self, rng: np.random.Generator) -> None:
        sizes = [0, 10, 30, 0, 5]
        losses = torch.from_numpy(rng.gamma(2, 1, 5))
        deltas = torch.from_numpy(rng.normal(size=(5, 5)))
        case = _Case(losses, sizes, deltas)
        weights = self.one_round(case).weights
        of_empty_clients = weights[[0, 3]]
        self.require(not of_empty_clients.any(), "a client without data got a weight")
        finite = np.isfinite(weights).all()
        self.require(finite, "clients without data make weights non-finite")

    def partial_participation(self) -> None:
        sizes = [5, 0, 10, 20, 40, 8]
        width = 3
        server = self.start(sizes, width, seed=3)
        deltas = torch.arange(0.1, len(sizes)).double().expand(width, -1).T

        def losses_at(theta: Tensor, ids: Tensor) -> Tensor:
            return ids.double() + 1

        for k in range(6):
            ids = server.draw(2)
            losses = (ids.double() + 1 + k) / 3
            opened = open_round(server, losses, ids)
            server, record = close_round(opened, _updates(opened, deltas), losses_at)
            finite = np.isfinite(record.weights).all()
            self.require(finite, "weights are not finite under partial participation")
            self.require(not record.skipped, "a round of two healthy clients was skipped")

    def private(self, rng: np.random.Generator) -> None:
        """Where the method `private` is written: weights, step and objective from sums are those of plain rounds."""
        try:
            number_of_means(self.algorithm)
        except InputError:
            return  # its definition needs more than sums
        n = 6
        width = 4
        sizes = rng.integers(1, 50, n).tolist()
        server = self.start(sizes, width)
        total_size = server.sizes.sum()
        shares = server.sizes.double() / total_size
        c = self.algorithm.coefficients(shares)
        duals = torch.zeros(n).double()
        for _ in range(3):
            losses = torch.from_numpy(rng.gamma(2.0, 0.5, n))
            deltas = torch.from_numpy(rng.normal(size=(n, width)))
            computed = self._parts(losses, deltas, duals, c)
            weights = c * _column(computed, "weight")
            length = c @ _column(computed, "length")
            step = weights @ deltas / length
            objective = c @ _column(computed, "objective")
            duals = _column(computed, "dual")
            opened = open_round(server, losses)
            plan = opened.plan
            planned = torch.zeros(n).double()
            planned[plan.ids] = plan.weights
            before = server.theta
            server, record = close_round(opened, _updates(opened, deltas))
            plain_step = before - server.theta
            plain_objective = torch.tensor(record.objective, dtype=torch.float64)
            self._same("weights", weights, planned)
            self._same("step", step, plain_step)
            self._same("objective", objective, plain_objective)

    def _parts(
        self,
        losses: Tensor,
        deltas: Tensor,
        duals: Tensor,
        c: Tensor,
    ) -> list[PrivatePart]:
        clients = []
        for loss, delta, dual in zip(losses, deltas, duals, strict=True):
            own = PrivateInputs(
                loss=loss,
                lr=LR,
                clients=len(losses),
                dual=float(dual),
                mean_dual=float(duals.mean()),
                sq_norm=float(delta @ delta),
            )
            clients.append(own)
        return parts(self.algorithm, clients, c.tolist())

    def _same(
        self,
        what: str,
        private: Tensor,
        plain: Tensor,
    ) -> None:
        equal = torch.allclose(private, plain, rtol=1e-9, atol=1e-12)
        self.require(equal, f"`private` gives the {what} {private.tolist()}, a plain round {plain.tolist()}")

    def engines(self) -> None:
        """Both simulators agree, in double precision, on unequal clients one of which is empty."""
        draw = torch.Generator().manual_seed(0)
        clients = []
        for size in (9, 0, 4, 17):
            inputs = torch.randn(
                size,
                3,
                generator=draw,
                dtype=torch.float64,
            )
            targets = torch.randint(0, 2, (size,), generator=draw)
            client = Client((inputs, targets))
            clients.append(client)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        options: dict[str, Any] = {
            "rounds": 3,
            "lr": LR,
            "batch_size": 4,
            "local_epochs": 2,
            "device": "cpu",
        }
        reference = train(model, clients, self.algorithm, engine="reference", **options)
        parallel = train(model, clients, self.algorithm, engine="parallel", **options)
        theta = reference.server.theta
        parallel_theta = parallel.server.theta
        same_models = torch.allclose(theta, parallel_theta, rtol=1e-8, atol=1e-10)
        self.require(same_models, "the engines disagree")
        for record, parallel_record in zip(reference.records, parallel.records, strict=True):
            weights = record.weights
            same_weights = np.allclose(weights, parallel_record.weights, rtol=1e-7, atol=1e-9)
            self.require(same_weights, "the engines' weights disagree")
            self.require(weights[1] == 0, "a client without data got a weight")


def _updates(opened: OpenRound, deltas: Tensor) -> list[Update]:
    """Of those who train, each also at the snapshot step."""
    return [Update(client, deltas[client], snapshot=deltas[client]) for client in opened.plan.ids.tolist()]


def _column(computed: list[PrivatePart], name: str) -> Tensor:
    values = [float(getattr(part, name)) for part in computed]
    return torch.tensor(values, dtype=torch.float64)
