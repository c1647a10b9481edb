"""`train` and `compare`: the Python interface for your own model and data."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..callbacks import Callback, Callbacks, callback_list
from ..callbacks.registry import deciding
from ..clients.pooling import ClientsLike
from ..core.algorithm import Algorithm
from ..core.choices import refuse_unknown
from ..core.errors import InputError, Interruption
from ..core.server import Record
from ..core.verbosity import Verbosity
from ..losses import LossFunction
from ..settings import Settings
from ..simulate.initial_models import InitialModels, drawn_by
from ..simulate.problem import Problem, Score, initial_model
from ..simulate.state import Run, State
from ..spread.options import SpreadOptions, spread_of
from ..spread.remote_call import Task
from . import fingerprints
from .analysis.entry import advice_on
from .analysis.entry_order import read_order, write_order
from .analysis.groups import GroupMetric
from .driver import ListenerSink, Training, drive
from .option_warnings import warn_of_options, warn_of_seeds, without_effect
from .parts import ComparisonPart, held, parts_of, places_in, train_parts
from .progress import shown, shown_shares, silence, wanted_detail
from .result import Comparison, Result
from .runs import NoiseFloorChoice, check_noise_floor, plan_runs, refuse_repeated, seed_list
from .session import train_in, unfinished
from .storage.conflicts import folder_named, refuse_other_initial
from .storage.folder import RunFolder
from .storage.header import Header
from .storage.lock import locked
from .variants import Variant, with_baseline

Entry = str | Algorithm | type[Algorithm] | Variant | Mapping[str, Any]
Entries = Entry | Iterable[Entry]  # a mapping: from labels to entries


def train(
    model: nn.Module,
    clients: ClientsLike,
    algorithm: Entry = "semi_vred",
    *,
    loss: LossFunction | str | None = None,
    score: Score | None = None,
    unseen: ClientsLike = (),
    test: Any = None,
    callbacks: Callbacks = (),
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Result:
    """Train one model across `clients`. `model` itself is not changed.

    `clients`: a list of `evenfed.Client`, a dict of them by name, or `evenfed.Clients`. In place of a client, its
    training data: a pair, a dataset, a DataLoader or a table.
    `algorithm`: a name, with hyper-parameters in brackets ("semi_vred[beta=1]"), a class or an instance.
    `loss(outputs, targets)`: one loss per example, or a name of `evenfed.losses`; cross entropy by default.
    `score(outputs, targets)`: one number per example that counts as accuracy, or a name of `evenfed.scores`; top-1 by
    default where targets are classes. An `evenfed.Metric` says which end is better, or takes whole clients (AUC, F1).
    `unseen`: clients that never train and are judged apart (`Result.unseen`); `test`: examples that belong to no client
    (`Result.test`). Neither counts in `fairness`.
    `callbacks`: a function of a `Progress`, an `evenfed.callbacks.Callback` or several; called after every round.
    `progress.stop()`, or StopIteration, ends the run.
    `out`: a folder that keeps the run: the same call resumes it, more `rounds` extend it, `evenfed report` reads it.
    `progress`: show a progress bar on stderr; by default in terminals and notebooks.
    `options`: the fields of `evenfed.Settings`: rounds, lr, lr_schedule, optimizer, clip, batch_size, local_epochs,
    local_steps, drop_last, augment, prox, batch_norm, seed, batch_seed, participation, server_lr,
    server_optimizer, smooth, average, weigh_at, guard, start, engine, device, precision, evaluate_every,
    evaluate_participation, last_rounds.

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
    _check_arguments(train, options)
    settings = Settings.of({**variant.options, **options})
    if not chosen.uses_losses:
        for option in without_effect(settings):
            warnings.warn(f"{option} has no effect: {chosen.name} does not weigh clients by their losses", stacklevel=2)
    problem = Problem.of(model, clients, settings, loss, score, unseen, test)
    run = Run(variant.label, chosen, settings)
    warn_of_options([run], clients)
    work = _Work(problem, callback_list(callbacks), progress=progress)
    (result,) = work.results([run], out)
    advice = result.history.advice(chosen.name)
    if advice:
        warnings.warn(advice, stacklevel=2)
    return result


def compare(
    model: nn.Module | Callable[[], nn.Module],
    clients: ClientsLike,
    algorithms: Entries = ("fedavg", "vred", "semi_vred"),
    *,
    seeds: int | Sequence[int] = 3,
    noise_floor: NoiseFloorChoice = True,
    loss: LossFunction | str | None = None,
    score: Score | None = None,
    unseen: ClientsLike = (),
    test: Any = None,
    callbacks: Callbacks = (),
    out: str | Path | None = None,
    progress: bool | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    **options: Any,
) -> Comparison:
    """Train every algorithm with every seed on the same clients. All runs share the engine.

    `model`: a module (every seed starts from it), or a function that makes one (every seed draws its own). A module
    needs `batch_size`, or something else that is random: else all seeds give the same runs.
    `algorithms`: names, forms such as "semi_vred[beta=1,smooth=0.25]", classes, instances, or tables such as
    {"algorithm": SemiVRed(beta=1), "smooth": 0.25}; or a dict from label to any of these. FedAvg is added if it is
    missing: the others are compared with it.
    `seeds`: a number of seeds, or a list of them.
    `noise_floor`: train FedAvg once more to show what chance alone does: from the same initial models with its batches
    in another order ("batches"), with other seeds ("seeds"), "both", or False. True: "batches"; "seeds" without
    `batch_size`, where each client is one batch.
    `workers`: spread the runs over so many processes; `device="cuda:all"` (or "cuda:0,cuda:2"): over one per GPU;
    `cluster`: over a Ray cluster ("auto" or its address) or as SLURM jobs ("slurm:partition=gpu,time=60"). All need
    `out`, in a folder that every worker sees. Callbacks run in the workers.
    Other options: see `train`.

    >>> import torch, evenfed
    >>> data = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
    >>> comparison = evenfed.compare(lambda: torch.nn.Linear(4, 3), [evenfed.Client(d, d) for d in data],
    ...                              ["semi_vred"], seeds=2, rounds=2)
    >>> list(comparison.results), len(comparison.results["semi_vred"])
    (['fedavg', 'semi_vred'], 2)
    """
    for name in ("seed", "batch_seed"):
        if name in options:
            raise InputError(f"compare takes `seeds` (a number or a list), not `{name}`")
    _check_arguments(compare, options)
    spread, device = spread_of(options.get("device"), workers, cluster)
    if spread is not None and device is not None:
        options["device"] = device
    shared = Settings.of(options)
    variants = with_baseline(_variants(algorithms))
    numbers = seed_list(seeds)
    runs, floor = plan_runs(variants, numbers, shared, check_noise_floor(noise_floor))
    if not isinstance(algorithms, Mapping):  # whose labels are the user's own
        refuse_repeated(runs)
    subject = _Subject(model, numbers[0], clients, loss, score, unseen, test)
    spreading = None
    own_settings = shared
    if spread is not None:
        spreading = _Spreading(spread, subject, shared)
        own_settings = dataclasses.replace(shared, device="cpu")  # workers train, each on its own device
    problem, drawn = subject.under(own_settings)
    warn_of_options(runs, clients)
    warn_of_seeds(runs, problem, drawn)
    work = _Work(problem, callback_list(callbacks), progress, drawn, spreading)
    results = work.results(runs + floor, out)
    by_label: dict[str, list[Result]] = {}
    for result in results[: len(runs)]:
        by_label.setdefault(result.label, []).append(result)
    for label, of_label in by_label.items():
        advice = advice_on(label, [result.history for result in of_label])
        if advice is not None:
            warnings.warn(advice, stacklevel=2)
    folder = None
    if out is not None:
        folder = folder_named(out)
        earlier = read_order(folder) or []
        order = dict.fromkeys([*by_label, *earlier])
        write_order(folder, list(order))
    return Comparison(by_label, results[len(runs) :], folder)


def _variants(algorithms: Entries) -> list[Variant]:
    if isinstance(algorithms, str):
        raise InputError(f"algorithms='{algorithms}' is one string; give a list such as ['fedavg', 'semi_vred']")
    if isinstance(algorithms, Algorithm | Variant | type):
        algorithms = [algorithms]
    if isinstance(algorithms, Mapping):
        return [Variant.of_entry(entry, label) for label, entry in algorithms.items()]
    return list(map(Variant.of_entry, algorithms))


@dataclass(frozen=True)
class _Subject:
    """What `compare` trains: model, clients, and what they are judged by."""

    model: nn.Module | Callable[[], nn.Module]
    first_seed: int
    clients: ClientsLike
    loss: LossFunction | str | None
    score: Score | None
    unseen: ClientsLike
    test: Any

    def under(self, settings: Settings) -> tuple[Problem, InitialModels | None]:
        """The problem on the settings' device, and the initial models by seed if a function makes them."""
        first_model = initial_model(self.model, self.first_seed)
        problem = Problem.of(first_model, self.clients, settings, self.loss, self.score, self.unseen, self.test)
        return problem, drawn_by(problem, self.model)


def _train_part(
    subject: _Subject,
    settings: Settings,
    callbacks: Sequence[Callback],
    headers: Mapping[str, Header],
    part: ComparisonPart,
) -> None:
    """What a worker does: train the runs of one part, on the device that it was given."""
    problem, drawn = subject.under(settings)
    own_headers = {}
    for name in part.names:
        own_headers[name] = dataclasses.replace(headers[name], device=str(problem.device))
    with held(part):
        train_in(part.root, part.runs, problem, own_headers, drawn, silence, callbacks, part.planned)


@dataclass(frozen=True)
class _Spreading:
    """The workers that train a comparison, and what they need."""

    spread: SpreadOptions
    subject: _Subject
    settings: Settings

    def train(
        self,
        root: Path,
        runs: Sequence[Run],
        waiting: Sequence[Run],
        headers: Mapping[str, Header],
        callbacks: Sequence[Callback],
        detail: Verbosity,
    ) -> None:
        root = root.resolve()

        def task_of(part: ComparisonPart) -> Task:
            own_headers = {name: headers[name] for name in part.names}
            return partial(_train_part, self.subject, self.settings, callbacks, own_headers, part)

        places = places_in(root, self.spread, len(waiting))
        parts = parts_of(root, runs, waiting, len(places))
        with shown_shares(detail) as shares:
            train_parts(parts, places, task_of, shares)


@dataclass(frozen=True)
class _Work:
    """Runs on one problem, in memory or in a folder."""

    problem: Problem
    callbacks: Sequence[Callback]
    progress: bool | None = None
    drawn: InitialModels | None = None  # the initial model by seed, if it is not the problem's
    spreading: _Spreading | None = None  # over workers; None: this process trains

    def results(self, runs: list[Run], out: str | Path | None) -> list[Result]:
        """Train the runs, or what is left of them in the folder `out`."""
        if out is None and self.spreading is not None:
            raise InputError("workers write their runs to a folder; give one with out='runs/mine', say")
        if out is None:
            return self._in_memory(runs)
        root = folder_named(out)
        fingerprints.warn_of_hidden_values(self.problem)
        with locked(root):
            headers = self._headers(runs)
            configs = {name: header.config for name, header in headers.items()}
            waiting = unfinished(root, runs, configs)
            refuse_other_initial(root, runs, headers)
            try:
                if waiting:
                    self._train(root, runs, waiting, headers)
            except Interruption:
                raise KeyboardInterrupt(
                    f"stopped; every finished round is kept in {root}. Make the same call again to go on from there"
                ) from None
            return [self._from_disk(root, run) for run in runs]

    def _train(self, root: Path, runs: Sequence[Run], waiting: Sequence[Run], headers: Mapping[str, Header]) -> None:
        """Train the waiting runs; those that were spread over workers stay in their parts."""
        if self.spreading is not None:
            detail = wanted_detail(self.progress)
            self.spreading.train(root, runs, waiting, headers, self.callbacks, detail)
            return
        parts = parts_of(root, runs, waiting, 0)
        with shown(self.progress) as listen:
            if not parts:
                train_in(root, waiting, self.problem, headers, self.drawn, listen, self.callbacks)
            for part in parts:
                with held(part):
                    train_in(root, part.runs, self.problem, headers, self.drawn, listen, self.callbacks, part.planned)

    def _in_memory(self, runs: list[Run]) -> list[Result]:
        headers = self._headers(runs)  # before training, which may change a loss module's values
        trainings = [Training.start(run, self.problem, self.drawn) for run in runs]
        with shown(self.progress) as listen:
            drive(trainings, ListenerSink(listen), self.callbacks)
        results = []
        for training in trainings:
            header = dataclasses.replace(
                headers[training.run.name],
                engine=training.engine,
                stopped=training.stopped,
                model_round=training.model_round,
                finished=True,
            )
            result = self._result(training.run, training.result, training.records, header)
            results.append(result)
        return results

    def _headers(self, runs: list[Run]) -> dict[str, Header]:
        return fingerprints.headers(runs, self.problem, self.drawn, deciding(self.callbacks))

    def _from_disk(self, root: Path, run: Run) -> Result:
        folder = RunFolder.of(root, run)
        header = folder.header()
        assert header is not None
        fresh = Training.start(run, self.problem, self.drawn)
        state = folder.final(fresh.state)
        records = list(folder.history().records)
        return self._result(run, state, records, header, folder.path)

    def _result(
        self, run: Run, state: State, records: list[Record], header: Header, folder: Path | None = None
    ) -> Result:
        problem = self.problem
        if self.drawn is not None:
            problem = self.drawn.problem(run.settings.seed)
        sizes = self.problem.train.sizes.numpy().astype(np.float64)
        return Result(
            label=run.label,
            algorithm=run.algorithm,
            settings=run.settings,
            records=records,
            client_names=self.problem.client_names,
            shares=sizes / sizes.sum(),
            header=header,
            state=state,
            module=problem.model,
            folder=folder,
            group_metric=GroupMetric.of_problem(problem),
        )


def _check_arguments(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that neither the function nor `Settings` has; the error lists those of both."""
    allowed = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            allowed.append(parameter.name)
    for field in dataclasses.fields(Settings):
        is_given_apart = "seeds" in allowed and field.name in ("seed", "batch_seed")
        if not is_given_apart:
            allowed.append(field.name)
    refuse_unknown("option", options, allowed)
