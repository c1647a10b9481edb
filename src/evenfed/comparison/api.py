"""`train` and `compare`: the Python interface for one's own model and data."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..client import Client
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.server import Record, Server
from ..fairness import Fairness, Suppression
from ..settings import Settings
from ..simulate.loop import Run, start
from ..simulate.problem import LossFunction, Problem, drawn_by, initial_model
from .driver import Group, Sink, Training, drive
from .history import FLOOR_ROW, History, Row, row
from .plan import Variant, plan_runs, seed_list, with_baseline


@dataclass(frozen=True)
class Progress:
    """What a callback gets after every round of every run."""

    label: str
    seed: int
    record: Record
    server: Server


Callback = Callable[[Progress], Any]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    label: str
    algorithm: Algorithm
    settings: Settings
    model: nn.Module  # the trained global model
    records: list[Record]  # one per round
    client_names: list[str]
    shares: NDArray[np.float64]  # [n] of all training examples
    engine: str  # how clients were visited, and why
    server: Server
    personal: Tensor | None  # [n, D] clients' own models (Ditto)

    @property
    def history(self) -> History:
        """What the records add up to."""
        return History(self.records, self.shares, self.settings.last_rounds)

    @property
    def accuracy(self) -> NDArray[np.float64] | None:
        """[n] test accuracies at the end (NaN for a client without test data); None without any test data."""
        return self.history.accuracy

    @property
    def fairness(self) -> Fairness | None:
        """mean, std, worst, worst10, worst20, best10 of `accuracy`."""
        return self.history.fairness

    @property
    def late_fairness(self) -> Fairness | None:
        """The same, averaged over the last rounds (`last_rounds`)."""
        return self.history.late_fairness

    @property
    def oscillation(self) -> float:
        """Lag-1 correlation over rounds of the clients' losses about their mean; below -0.85 it over-corrects."""
        return self.history.oscillation

    @property
    def moved(self) -> float:
        """How much of the weight stood elsewhere than with FedAvg, from 0 to 1, on average over rounds."""
        return self.history.moved

    def client_model(self, client: int) -> nn.Module:
        """The model that serves this client: its own where the algorithm trains one."""
        return self.model if self.personal is None else _loaded(self.model, self.server, self.personal[client])


def train(
    model: nn.Module,
    clients: Sequence[Client],
    algorithm: str | Algorithm = "semi_vred",
    *,
    loss: LossFunction | None = None,
    score: LossFunction | None = None,
    callbacks: Iterable[Callback] = (),
    **options: Any,
) -> Result:
    """Train `model` over `clients` (`model` itself is left as it is).

    `algorithm`: a name, with hyper-parameters in brackets ("semi_vred[beta=1]"), or an instance.
    `loss(outputs, targets)` gives one loss an example (default: cross entropy), `score` one number an
    example that counts as accuracy (default: top-1 for whole-number targets). `options` are the fields of
    `evenfed.Settings`: rounds, lr, batch_size, local_epochs, seed, participation, prox, server_lr,
    server_optimizer, smooth, start, engine, device, precision, evaluate_every, last_rounds. A callback that raises
    StopIteration ends training after that round.

    >>> import torch, evenfed
    >>> clients = [evenfed.Client(train=(torch.randn(8, 4), torch.randint(0, 3, (8,)))) for _ in range(3)]
    >>> result = evenfed.train(torch.nn.Linear(4, 3), clients, algorithm="vred", rounds=2, lr=0.1)
    >>> len(result.records), result.records[0].losses.shape, result.accuracy
    (2, (3,), None)
    """
    if isinstance(algorithm, str):
        variant = Variant.parse(algorithm)
        label = variant.label
        chosen = variant.algorithm
        options = {**variant.options, **options}
    else:
        chosen = algorithm
        label = getattr(algorithm, "name", "")
    if not isinstance(chosen, Algorithm):
        raise InputError(f"algorithm is a {type(chosen).__name__}; give a name or an instance of an Algorithm")
    for key in (f.name for f in dataclasses.fields(chosen) if f.name in options):
        raise InputError(f"{key} belongs to {chosen.name}: write algorithm='{chosen.name}[{key}={options[key]}]'")
    run = Run(label, chosen, Settings.of(options))
    if run.settings.smooth is not None and not chosen.uses_losses:
        warnings.warn(f"smooth has no effect: {chosen.name} does not weigh clients by their losses", stacklevel=2)
    problem = Problem.of(model, clients, run.settings, loss, score)
    (result,) = _trained([Training(run, start(run, problem))], problem, callbacks)
    advice = result.history.advice(chosen.name)
    if advice:
        warnings.warn(advice, stacklevel=2)
    return result


@dataclass(frozen=True)
class Comparison:
    """Runs of several algorithms and seeds on the same clients and initial models."""

    results: dict[str, list[Result]]  # label -> one result a seed
    floor: list[Result]  # FedAvg again with other seeds: what chance alone does

    @property
    def rows(self) -> list[Row]:
        """One row an entry: metrics, and what it does to the clients FedAvg serves worst and best."""
        baseline = [r.history for r in self.results["fedavg"]] if "fedavg" in self.results else None
        return [row(label, [r.history for r in runs], baseline) for label, runs in self.results.items()]

    @property
    def noise_floor(self) -> Row | None:
        """The same row for FedAvg against FedAvg with other seeds."""
        if not self.floor:
            return None
        return row(FLOOR_ROW, [r.history for r in self.floor], [r.history for r in self.results["fedavg"]])

    def suppression(self, label: str) -> list[Suppression]:
        """The paper's Table 2 for one entry, a seed at a time, at the last round."""
        pairs = zip(self.results[label], self.results["fedavg"], strict=True)
        return [
            Suppression.of(a.accuracy, b.accuracy)
            for a, b in pairs
            if a.accuracy is not None and b.accuracy is not None
        ]


def compare(
    model: nn.Module | Callable[[], nn.Module],
    clients: Sequence[Client],
    algorithms: Iterable[str | Algorithm | Variant] | Mapping[str, Any] = ("fedavg", "vred", "semi_vred"),
    *,
    seeds: int | Sequence[int] = 3,
    noise_floor: bool = True,
    loss: LossFunction | None = None,
    score: LossFunction | None = None,
    callbacks: Iterable[Callback] = (),
    **options: Any,
) -> Comparison:
    """Train every algorithm with every seed on the same clients; all runs share the engine's stacks.

    `algorithms`: names, instances, or forms such as "semi_vred[beta=1,smooth=0.25]"; or a dict from label
    to any of these or to a table of options. FedAvg is added if it is missing: it is what others are set
    against. `model`: a module (the same initial model for every seed), or a function that makes one (then
    each seed has its own). `noise_floor` runs FedAvg once more with other seeds. Other options: see `train`.

    >>> import torch, evenfed
    >>> data = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
    >>> found = evenfed.compare(lambda: torch.nn.Linear(4, 3), [evenfed.Client(d, d) for d in data],
    ...                         ["semi_vred"], seeds=2, rounds=2)
    >>> list(found.results), len(found.results["semi_vred"])
    (['fedavg', 'semi_vred'], 2)
    """
    if "seed" in options:
        raise InputError("compare takes `seeds` (a number or a list), not `seed`")
    shared = Settings.of(options)
    variants = with_baseline(_variants(algorithms))
    numbers = seed_list(seeds)
    runs, floor = plan_runs(variants, numbers, shared, noise_floor)
    everything = runs + floor
    problem = Problem.of(initial_model(model, numbers[0]), clients, shared, loss, score)
    drawn = drawn_by(problem, model)
    trainings = [Training(run, start(run, problem, drawn)) for run in everything]
    results = _trained(trainings, problem, callbacks)
    by_label: dict[str, list[Result]] = {v.label: [] for v in variants}
    for result in results[: len(runs)]:
        by_label[result.label].append(result)
    return Comparison(by_label, results[len(runs) :])


def _variants(algorithms: Iterable[str | Algorithm | Variant] | Mapping[str, Any]) -> list[Variant]:
    if isinstance(algorithms, str):
        raise InputError(f"algorithms='{algorithms}' is one string; give a list such as ['fedavg', 'semi_vred']")
    if not isinstance(algorithms, Mapping):
        return [_variant(None, entry) for entry in algorithms]
    return [_variant(label, entry) for label, entry in algorithms.items()]


def _variant(label: str | None, entry: Any) -> Variant:
    if isinstance(entry, Mapping):
        return Variant.of(str(label), entry)
    if isinstance(entry, Algorithm):
        return Variant(label or entry.name, entry)
    if isinstance(entry, str):
        entry = Variant.parse(entry)
    if not isinstance(entry, Variant):
        raise InputError(f"an entry of algorithms is a {type(entry).__name__}; give a name or an Algorithm")
    return entry if label is None else dataclasses.replace(entry, label=label)


class _Callbacks(Sink):
    """Calls back after every round; a callback that raises StopIteration ends the training."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)

    def after_round(self, group: Group) -> bool:
        stopped = False
        for training in group:
            progress = Progress(
                label=training.run.label,
                seed=training.run.settings.seed,
                record=training.records[-1],
                server=training.state.server,
            )
            for callback in self.callbacks:
                try:
                    callback(progress)
                except StopIteration:
                    stopped = True
        return stopped


def _trained(trainings: Sequence[Training], problem: Problem, callbacks: Iterable[Callback]) -> list[Result]:
    drive(trainings, problem, _Callbacks(callbacks))
    sizes = problem.train.sizes
    shares = (sizes / sizes.sum()).numpy().astype(np.float64)
    results = []
    for training in trainings:
        server = training.state.server
        result = Result(
            label=training.run.label,
            algorithm=training.run.algorithm,
            settings=training.run.settings,
            model=_loaded(problem.model, server, server.theta),
            records=training.records,
            client_names=problem.client_names,
            shares=shares,
            engine=training.engine,
            server=server,
            personal=training.state.personal,
        )
        results.append(result)
    return results


def _loaded(model: nn.Module, server: Server, theta: Tensor) -> nn.Module:
    """A copy of `model` with these parameters and the server's buffers, in evaluation mode."""
    loaded = copy.deepcopy(model).eval()
    values = server.layout.unflatten(theta)
    assert isinstance(values, dict)
    loaded.load_state_dict({**values, **server.buffers}, strict=False)
    return loaded
