"""Carry out an experiment on disk: resumable, interruptible, one process per folder."""

import dataclasses
import functools
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..callbacks import Progress
from ..callbacks.registry import by_name
from ..clients.client import Client
from ..core.average import ModelState
from ..core.errors import InputError, Interruption
from ..data import DataSettings, Federation, federate
from ..simulate.problem import Problem
from ..simulate.state import Run
from ..spread.options import SpreadOptions
from ..spread.remote_call import Task
from .analysis.configuration import differences
from .analysis.findings import Findings
from .driver import Listener, closed
from .experiment import Experiment
from .parts import ComparisonPart, held, parts_of, places_in, train_parts
from .progress import WorkersProgress, silence
from .session import stop_requested, train_in, unfinished
from .storage.client_table import client_table
from .storage.folder import RunFolder
from .storage.header import Header, Table, as_rows
from .storage.lock import locked
from .storage.pack import unpacked
from .storage.reading import read_runs

Introduction = Callable[[Federation], None]


def _nothing(federation: Federation) -> None:
    pass


def complete(experiment: Experiment, out: Path, listen: Listener, introduce: Introduction = _nothing) -> None:
    """Carry out what is left of the experiment's runs in `out`, in this process.

    Runs that were spread over workers stay in their parts, one after another.
    """
    root = out / experiment.name
    with locked(root):
        waiting = _waiting(experiment, root)
        if not waiting:
            return
        experiment.train.device_here()
        federation = federate(experiment.data)
        introduce(federation)
        if experiment.train.engine == "flower":
            _run_on_flower(experiment, federation, waiting, root, listen)
            return
        parts = parts_of(root, _runs_of(experiment), waiting, 0)
        if not parts:
            _run_here(experiment, federation, waiting, root, listen)
        for part in parts:
            with held(part):
                _run_here(experiment, federation, part.runs, root, listen, part.planned)


def complete_by_workers(
    experiments: Sequence[Experiment],
    out: Path,
    spread: SpreadOptions,
    shares: WorkersProgress,
    introduce: Introduction = _nothing,
) -> None:
    """Carry out what is left of the experiments' runs in `out`, by several workers: the same folders and bits.

    Several experiments, such as a comparison on many federations, are worked on side by side.
    """
    with ExitStack() as locks:
        left_to_do: dict[Path, tuple[Experiment, list[Run]]] = {}  # by folder
        for experiment in experiments:
            if experiment.train.engine == "flower":
                raise InputError(
                    "engine='flower' has workers of its own; leave out --workers and --cluster, or use 'parallel'"
                )
            root = (out / experiment.name).resolve()
            locks.enter_context(locked(root))
            waiting = _waiting(experiment, root)
            if waiting and spread.cluster is None:
                experiment.train.device_here()
            if waiting:
                introduce(federate(experiment.data))
                left_to_do[root] = experiment, waiting
        if not left_to_do:
            return
        runs_left = sum(len(waiting) for _, waiting in left_to_do.values())
        first_root = next(iter(left_to_do))
        places = places_in(first_root, spread, runs_left)
        parts_each = math.ceil(len(places) / len(left_to_do))
        parts = []
        for root, (experiment, waiting) in left_to_do.items():
            parts += parts_of(root, _runs_of(experiment), waiting, parts_each)

        def task_of(part: ComparisonPart) -> Task:
            experiment, _ = left_to_do[part.root]
            return functools.partial(_train_part, experiment, part)

        train_parts(parts, places, task_of, shares)


def _train_part(experiment: Experiment, part: ComparisonPart) -> None:
    """What a worker does: train the runs of one part."""
    with held(part):
        federation = federate(experiment.data)
        _run_here(experiment, federation, part.runs, part.root, silence, part.planned)


def _waiting(experiment: Experiment, root: Path) -> list[Run]:
    runs = _runs_of(experiment)
    configs = {planned.name: experiment.config(planned) for planned in runs}
    try:
        return unfinished(root, runs, configs)
    except InputError:
        experiment.check_model()  # a misspelt name explains why the folder's runs are others
        raise


def findings_of(experiment: Experiment, out: Path) -> Findings:
    """What the experiment's runs, complete in `out`, add up to."""
    return read_runs(out / experiment.name, _runs_of(experiment))


def files_read(experiment: Experiment, out: Path) -> list[Path]:
    """The files that the findings are made from."""
    root = out / experiment.name
    paths = []
    for planned in _runs_of(experiment):
        folder = RunFolder.of(root, planned)
        paths += [folder.header_path, folder.rounds_path]
    return paths


def take_over(experiments: Sequence[Experiment], out: Path, folder: Path) -> dict[str, list[str]]:
    """Copy runs of the experiments that another comparison, packed or not, has finished into `out`.

    Returns their names by experiment.
    """
    if not folder.is_dir():
        raise InputError(f"--reuse: there is no folder {folder}; give a comparison's, such as runs/demo")
    taken = {}
    with unpacked(folder) as place:
        finished = []
        for candidate in RunFolder.all_in(place):
            header = candidate.header()
            if header is not None and header.finished:
                finished.append((candidate, header))
        for experiment in experiments:
            root = out / experiment.name
            with locked(root):
                taken[experiment.name] = _taken(experiment, root, finished, folder)
    return taken


def _taken(
    experiment: Experiment,
    root: Path,
    finished: Sequence[tuple[RunFolder, Header]],
    origin: Path,
) -> list[str]:
    """Copy the finished runs that are the experiment's, but for those that it has; names them."""
    taken = []
    for planned in _runs_of(experiment):
        target = RunFolder.of(root, planned)
        if target.header() is not None:
            continue
        config = experiment.config(planned)
        for candidate, header in finished:
            if differences(header.config, config):
                continue
            relabelled = dataclasses.replace(
                header,
                label=planned.label,
                selected_on=experiment.selected_on,
                taken_from=header.taken_from or str(origin),  # where it was first taken from
            )
            target.take_over(candidate, relabelled)
            taken.append(f"{planned.label} seed {planned.settings.seed}")
            break
    return taken


def _runs_of(experiment: Experiment) -> list[Run]:
    runs, floor = experiment.runs()
    return runs + floor


def _header(experiment: Experiment, planned: Run, clients: Table, problem: Problem) -> Header:
    return Header(
        label=planned.label,
        seed=planned.settings.seed,
        selected_on=experiment.selected_on,
        config=experiment.config(planned),
        clients=clients,
        device=str(problem.device),
        metric=problem.metric.recorded,
        judged_classes=as_rows(problem.label_counts),
    )


def _table_of(federation: Federation) -> Table:
    """Who holds how much, from which split: saved with every run."""
    return client_table(
        federation.names,
        federation.train_sizes,
        federation.judged_sizes,
        federation.class_counts,
        federation.seed,
        federation.notes,
        federation.unseen_names,
    )


def _run_here(
    experiment: Experiment,
    federation: Federation,
    runs: Sequence[Run],
    root: Path,
    listen: Listener,
    planned: Sequence[Run] = (),
) -> None:
    """Train in this process. `planned`: all runs of the comparison, if others train some of them."""
    problem, initial = experiment.problem(federation, federation.judged)
    clients = _table_of(federation)
    callbacks = by_name(experiment.track)
    headers = {}
    for run in runs:
        headers[run.name] = _header(experiment, run, clients, problem)
    train_in(root, runs, problem, headers, initial, listen, callbacks, planned)


def _run_on_flower(
    experiment: Experiment,
    federation: Federation,
    runs: Sequence[Run],
    root: Path,
    listen: Listener,
) -> None:
    """Train on Flower's simulation, one run after another; each strategy writes its own folder, round by round."""
    _refuse_what_flower_lacks(experiment)
    from ..flower import FairStrategy, client_app
    from ..flower.array_layout import ArrayLayout
    from ..flower.simulation import simulate
    from ..flower.strategy import IN_ORDER

    _refuse_lost_models(runs, root)
    problem, initial = experiment.problem(federation, federation.judged)
    site = _Site(experiment)
    personal = root.resolve() / ".personal"  # kept here, a client's own model outlives a kill
    device = experiment.train.device
    functions = experiment.functions()
    app = client_app(site.model, site.data, padding=federation.padding, device=device, state=personal, **functions)
    clients = _table_of(federation)
    callbacks = by_name(experiment.track)

    def after_round(progress: Progress) -> None:
        listen([progress.run], [progress.record], IN_ORDER)

    def serve(grid: Any) -> None:
        for planned in runs:
            options = dict(vars(planned.settings))
            del options["engine"], options["device"]
            options["header"] = _header(experiment, planned, clients, problem)
            strategy = FairStrategy(
                planned.algorithm,
                out=root,
                label=planned.label,
                ordered=True,
                listen=[after_round, *callbacks],
                **options,
            )
            seed = planned.settings.seed
            own = initial.problem(seed)
            strategy.about = own
            strategy.journal.interrupted = stop
            model = ModelState(initial(seed), own.buffers)
            arrays = ArrayLayout.of_model(problem.layout, model).arrays(model)
            strategy.start(grid, arrays)
            if stop():
                return

    with stop_requested() as stop, closed(callbacks):
        on_gpu = problem.device.type == "cuda"
        simulate(serve, app, len(federation.names), gpu=on_gpu)
        if stop():
            raise Interruption
    shutil.rmtree(personal, ignore_errors=True)


def _refuse_what_flower_lacks(experiment: Experiment) -> None:
    instead = "needs the simulator; leave it out, or use engine = 'parallel'"
    if "early_stopping" in experiment.track:
        raise InputError(f"track.early_stopping {instead}")
    if experiment.data.unseen:
        raise InputError(f"data.unseen={experiment.data.unseen} {instead}")


def _refuse_lost_models(runs: Sequence[Run], root: Path) -> None:
    """Clients on Flower keep their own models themselves, and only until the run has ended."""
    for planned in runs:
        if planned.algorithm.personal() is None:
            continue
        folder = RunFolder.of(root, planned)
        if folder.finished:
            raise InputError(
                f"{planned.name} cannot go on beyond its last round: on Flower its clients keep their own models only "
                "until the end; choose another --out, or train with engine='parallel'"
            )


@functools.cache
def _federated(data: DataSettings) -> Federation:
    """Once per process: a simulated client's process serves many clients."""
    return federate(data)


@dataclass(frozen=True)
class _Site:
    """The experiment as the client app of Flower's simulation sees it; it is sent to the app's processes."""

    experiment: Experiment

    def model(self) -> nn.Module:
        return self.experiment.new_model(_federated(self.experiment.data))

    def data(self, context: Any) -> Client:
        position = int(context.node_config["partition-id"])
        return _federated(self.experiment.data).client(position)
