"""Carry out an experiment on disk: resumable, interruptible, one process per folder."""

import dataclasses
import fcntl
import functools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from ..client import Client
from ..core.errors import InputError
from ..core.server import Record
from ..data import DataSettings, Federation, federate
from ..simulate.loop import Run, start
from ..simulate.problem import Problem
from .configuration import differences
from .driver import Group, Sink, Training, drive
from .experiment import Experiment
from .findings import Findings
from .folder import RunFolder
from .header import Header, Table
from .pack import unpacked
from .reading import read_runs


class Interruption(BaseException):
    """The user asked to stop; everything up to the last finished round is on disk."""


Listener = Callable[[Sequence[Run], Sequence[Record], str], None]  # the runs, a record of each, the engine in words
StopRequested = Callable[[], bool]
Introduction = Callable[[Federation], None]


def _nothing(federation: Federation) -> None:
    pass


def run(
    experiment: Experiment,
    out: Path,
    listen: Listener,
    checkpoint_seconds: float = 2.0,
    introduce: Introduction = _nothing,
) -> Findings:
    """Carry out the runs of the experiment that are not finished in `out`, and read the findings of all its runs.

    `introduce` is given the clients before the first round, if anything is left to train.
    """
    root = out / experiment.name
    runs = _runs_of(experiment)
    with _locked(root):
        unfinished = []
        for planned in runs:
            folder = RunFolder.of(root, planned)
            folder.refuse_other(experiment.config(planned))
            if not folder.finished:
                unfinished.append(planned)
        if unfinished:
            federation = federate(experiment.data)
            introduce(federation)
        if unfinished and experiment.train.engine == "flower":
            _run_on_flower(experiment, federation, unfinished, root, listen)
        elif unfinished:
            _run_here(experiment, federation, unfinished, root, listen, checkpoint_seconds)
    return read_runs(root, runs)


def take_over(experiment: Experiment, out: Path, folder: Path) -> list[str]:
    """Copy runs of the experiment that another comparison, packed or not, has finished into `out`; names them."""
    if not folder.is_dir():
        raise InputError(f"--reuse: there is no folder {folder}; give a comparison's, such as runs/demo")
    root = out / experiment.name
    taken = []
    with _locked(root), unpacked(folder) as place:
        finished = []
        for candidate in RunFolder.all_in(place):
            header = candidate.header()
            if header is not None and header.finished:
                finished.append((candidate, header))
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
                    taken_from=header.taken_from or str(folder),  # where it was first taken from
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
    )


def _run_here(
    experiment: Experiment,
    federation: Federation,
    unfinished: Sequence[Run],
    root: Path,
    listen: Listener,
    checkpoint_seconds: float,
) -> None:
    """Train in this process; usually all runs stand at the same round and share the engine."""
    problem, initial = experiment.problem(federation, federation.judged)
    clients = federation.describe()
    common = _common_round(root, unfinished)
    headers = {}
    trainings = []
    for planned in unfinished:
        headers[planned.name] = _header(experiment, planned, clients, problem)
        fresh = start(planned, problem, initial)
        state = RunFolder.of(root, planned).resumed(fresh, at=common)
        trainings.append(Training(planned, state))
    with _stop_requested() as stop, ThreadPoolExecutor(1) as background:
        sink = _Disk(root, headers, problem.device, listen, checkpoint_seconds, stop, background)
        drive(trainings, problem, sink)


def _common_round(root: Path, runs: Sequence[Run]) -> int:
    """The latest round at which every run that has begun left a checkpoint."""
    rounds_kept = []
    for planned in runs:
        checkpoints = RunFolder.of(root, planned).checkpoints()
        if checkpoints:
            rounds_kept.append(set(checkpoints))
    if not rounds_kept:
        return 0
    return max(set.intersection(*rounds_kept), default=0)


class _Disk(Sink):
    """Writes every run to its folder. Rounds go on while the last checkpoint is being written."""

    def __init__(
        self,
        root: Path,
        headers: Mapping[str, Header],
        device: torch.device,
        listen: Listener,
        checkpoint_seconds: float,
        stop: StopRequested,
        background: ThreadPoolExecutor,
    ) -> None:
        self.root = root
        self.headers = headers
        self.device = device
        self.listen = listen
        self.checkpoint_seconds = checkpoint_seconds
        self.stop = stop
        self.background = background
        self.saving: Future[None] | None = None
        self.saved_at = 0.0

    def begin(self, group: Group) -> None:
        if self.stop():
            raise Interruption
        for training in group:
            header = self.headers[training.run.name]
            header = dataclasses.replace(header, engine=training.engine)
            self._folder(training).begin(header, training.state)
        self.saved_at = time.monotonic()

    def after_round(self, group: Group) -> None:
        runs = [training.run for training in group]
        records = [training.records[-1] for training in group]
        self.listen(runs, records, group[0].engine)
        idle = self.saving is None or self.saving.done()
        seconds = time.monotonic() - self.saved_at
        due = idle and seconds >= self.checkpoint_seconds
        if self.stop() or due:
            self._wait()
            snapshot = self._snapshot(group)
            self.saving = self.background.submit(self._save, snapshot, self._event())
            self.saved_at = time.monotonic()
            ended = group[0].rounds_done == runs[0].settings.rounds
            if self.stop() and not ended:
                self._wait()
                raise Interruption

    def end(self, group: Group) -> None:
        self._wait()
        snapshot = self._snapshot(group)
        self._save(snapshot, self._event(), finished=True)

    def failed(self, group: Group) -> None:
        self._wait()
        snapshot = self._snapshot(group)
        self._save(snapshot, self._event())

    def _folder(self, training: Training) -> RunFolder:
        return RunFolder.of(self.root, training.run)

    def _wait(self) -> None:
        """Until the last checkpoint is written; an error in writing it is raised here."""
        if self.saving is not None:
            self.saving.result()
        self.saving = None

    def _snapshot(self, group: Group) -> Group:
        """The group as it stands now, with the records not written yet; the group itself forgets them."""
        copies = []
        for training in group:
            copies.append(dataclasses.replace(training))
            training.records = []
        return copies

    def _event(self) -> torch.cuda.Event | None:
        """Where the device stands now: a copy must wait for it, but not for what is asked of it later."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _save(self, group: Group, ready: torch.cuda.Event | None, finished: bool = False) -> None:
        """All checkpoints of this round before any old one goes: a common round always exists."""
        with _own_stream(ready, self.device):
            for training in group:
                folder = self._folder(training)
                folder.write(
                    training.records,
                    training.state,
                    finished,
                    training.engine,
                    training.stopped,
                    training.model_round,
                )
        kept_round = None if finished else group[0].rounds_done
        for training in group:
            self._folder(training).forget(keep=kept_round)


@contextmanager
def _own_stream(ready: torch.cuda.Event | None, device: torch.device) -> Iterator[None]:
    """Copies from the device in a stream of their own, so that training need not wait for them."""
    if ready is None:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield


def _run_on_flower(
    experiment: Experiment,
    federation: Federation,
    unfinished: Sequence[Run],
    root: Path,
    listen: Listener,
) -> None:
    """Train on Flower's simulation, one run after another; each strategy writes its own folder, round by round."""
    from ..flower import FairStrategy, client_app
    from ..flower.simulation import simulate
    from ..flower.wire import Shape

    problem, initial = experiment.problem(federation, federation.judged)
    site = _Site(experiment)
    personal = root.resolve() / ".personal"  # kept here, a client's own model outlives a kill
    device = experiment.train.device
    app = client_app(site.model, site.data, padding=federation.padding, device=device, state=personal)
    shape = Shape(problem.layout, tuple(problem.buffers))
    clients = federation.describe()

    def after_round(strategy: FairStrategy, planned: Run, record: Record) -> bool:
        listen([planned], [record], strategy.how)
        return stop()

    def serve(grid: Any) -> None:
        for planned in unfinished:
            options = dict(vars(planned.settings))
            del options["engine"], options["device"]
            options["header"] = _header(experiment, planned, clients, problem)
            strategy = FairStrategy(planned.algorithm, out=root, label=planned.label, ordered=True, **options)
            strategy.listen = functools.partial(after_round, strategy, planned)
            theta = initial(planned.settings.seed)
            strategy.start(grid, shape.arrays(theta, problem.buffers))
            if stop():
                return

    with _stop_requested() as stop:
        on_gpu = problem.device.type == "cuda"
        simulate(serve, app, len(federation.names), gpu=on_gpu)
        if stop():
            raise Interruption
    shutil.rmtree(personal, ignore_errors=True)


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


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One process at a time writes to a comparison's folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / ".lock").open("w")
    except OSError as error:
        raise InputError(f"{root} cannot be written to ({error.strerror}); choose another --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another evenfed is writing to {root}; wait for it, or choose another --out") from None
        yield


_STOPPING = b"\nstopping after this round; Ctrl-C again stops at once and loses what is not saved yet\n"


@contextmanager
def _stop_requested() -> Iterator[StopRequested]:
    """Ctrl-C or a termination signal asks to stop after the round; a second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    signals: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        with suppress(OSError):  # who reads it may be gone
            os.write(2, _STOPPING)  # not print: the signal may have come in the middle of one

    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, handle)
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
