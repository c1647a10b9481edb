"""`train` and `compare`: the Python interface for your own model and data."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..callbacks import Callbacks, callback_list
from ..client import Client
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..losses import LossFunction
from ..settings import Settings
from ..simulate.loop import Run, start
from ..simulate.problem import Problem, drawn_by, initial_model, loaded
from .driver import Sink, Training, drive
from .plan import Variant, plan_runs, seed_list, with_baseline
from .result import Comparison, Result

Entry = str | Algorithm | type[Algorithm] | Variant | Mapping[str, Any]
Entries = Entry | Iterable[Entry]  # a mapping: from labels to entries


def train(
    model: nn.Module,
    clients: Sequence[Client],
    algorithm: Entry = "semi_vred",
    *,
    loss: LossFunction | str | None = None,
    score: LossFunction | str | None = None,
    callbacks: Callbacks = (),
    **options: Any,
) -> Result:
    """Train one model across `clients`. `model` itself is not changed.

    `algorithm`: a name, with hyper-parameters in brackets ("semi_vred[beta=1]"), a class or an instance.
    `loss(outputs, targets)`: one loss per example, or a name of `evenfed.losses`; cross entropy by default.
    `score(outputs, targets)`: one number per example that counts as accuracy, or a name of `evenfed.scores`; top-1 by
    default where targets are classes.
    `callbacks`: a function of a `Progress`, an `evenfed.callbacks.Callback` or several; called after every round.
    `progress.stop()`, or StopIteration, ends the run.
    `options`: the fields of `evenfed.Settings`: rounds, lr, batch_size, local_epochs, seed, participation, prox,
    server_lr, server_optimizer, smooth, start, engine, device, precision, evaluate_every, last_rounds.

    >>> import torch, evenfed
    >>> clients = [evenfed.Client(train=(torch.randn(8, 4), torch.randint(0, 3, (8,)))) for _ in range(3)]
    >>> result = evenfed.train(torch.nn.Linear(4, 3), clients, algorithm="vred", rounds=2, lr=0.1)
    >>> len(result.records), result.records[0].losses.shape, result.accuracy
    (2, (3,), None)
    """
    variant = Variant.of_entry(algorithm)
    chosen = variant.algorithm
    for field in dataclasses.fields(chosen):
        if field.name in options:
            value = options[field.name]
            written = f"{chosen.name}[{field.name}={value}]"
            raise InputError(f"{field.name} belongs to {chosen.name}: write algorithm='{written}'")
    settings = Settings.of({**variant.options, **options})
    if settings.smooth is not None and not chosen.uses_losses:
        warnings.warn(f"smooth has no effect: {chosen.name} does not weigh clients by their losses", stacklevel=2)
    problem = Problem.of(model, clients, settings, loss, score)
    run = Run(variant.label, chosen, settings)
    (result,) = _train([run], problem, callbacks)
    advice = result.history.advice(chosen.name)
    if advice:
        warnings.warn(advice, stacklevel=2)
    return result


def compare(
    model: nn.Module | Callable[[], nn.Module],
    clients: Sequence[Client],
    algorithms: Entries = ("fedavg", "vred", "semi_vred"),
    *,
    seeds: int | Sequence[int] = 3,
    noise_floor: bool = True,
    loss: LossFunction | str | None = None,
    score: LossFunction | str | None = None,
    callbacks: Callbacks = (),
    **options: Any,
) -> Comparison:
    """Train every algorithm with every seed on the same clients. All runs share the engine.

    `model`: a module (every seed starts from it), or a function that makes one (every seed draws its own).
    `algorithms`: names, forms such as "semi_vred[beta=1,smooth=0.25]", classes, instances, or tables such as
    {"algorithm": SemiVRed(beta=1), "smooth": 0.25}; or a dict from label to any of these. FedAvg is added if it is
    missing: the others are compared with it.
    `seeds`: a number of seeds, or a list of them.
    `noise_floor`: train FedAvg once more with other seeds, to show what chance alone does.
    Other options: see `train`.

    >>> import torch, evenfed
    >>> data = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
    >>> comparison = evenfed.compare(lambda: torch.nn.Linear(4, 3), [evenfed.Client(d, d) for d in data],
    ...                              ["semi_vred"], seeds=2, rounds=2)
    >>> list(comparison.results), len(comparison.results["semi_vred"])
    (['fedavg', 'semi_vred'], 2)
    """
    if "seed" in options:
        raise InputError("compare takes `seeds` (a number or a list), not `seed`")
    shared = Settings.of(options)
    variants = with_baseline(_variants(algorithms))
    numbers = seed_list(seeds)
    runs, floor = plan_runs(variants, numbers, shared, noise_floor)
    first_model = initial_model(model, numbers[0])
    problem = Problem.of(first_model, clients, shared, loss, score)
    drawn = drawn_by(problem, model)
    results = _train(runs + floor, problem, callbacks, drawn)
    by_label: dict[str, list[Result]] = {}
    for result in results[: len(runs)]:
        by_label.setdefault(result.label, []).append(result)
    return Comparison(by_label, results[len(runs) :])


def _variants(algorithms: Entries) -> list[Variant]:
    if isinstance(algorithms, str):
        raise InputError(f"algorithms='{algorithms}' is one string; give a list such as ['fedavg', 'semi_vred']")
    if isinstance(algorithms, Algorithm | Variant | type):
        algorithms = [algorithms]
    if isinstance(algorithms, Mapping):
        return [Variant.of_entry(entry, label) for label, entry in algorithms.items()]
    return list(map(Variant.of_entry, algorithms))


def _train(
    runs: Sequence[Run], problem: Problem, callbacks: Callbacks, drawn: Callable[[int], Tensor] | None = None
) -> list[Result]:
    """Train the runs from the problem's model, or from the model `drawn` by each seed."""
    trainings = []
    for run in runs:
        state = start(run, problem, drawn)
        trainings.append(Training(run, state))
    drive(trainings, problem, Sink(), callback_list(callbacks))
    sizes = problem.train.sizes
    shares = (sizes / sizes.sum()).numpy().astype(np.float64)
    results = []
    for training in trainings:
        server = training.result.server
        result = Result(
            label=training.run.label,
            algorithm=training.run.algorithm,
            settings=training.run.settings,
            model=loaded(problem.model, server, server.theta),
            records=training.records,
            client_names=problem.client_names,
            shares=shares,
            engine=training.engine,
            server=server,
            personal=training.result.personal,
            stopped=training.stopped,
            model_round=training.model_round,
        )
        results.append(result)
    return results
