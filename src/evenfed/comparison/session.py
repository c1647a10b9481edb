"""Carry out runs in a folder, for Python and the command line: resume, extend, stop; one process at a time."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ..callbacks import Callback
from ..simulate.initial_models import InitialModels
from ..simulate.problem import Problem
from ..simulate.state import Run
from .analysis.configuration import Configuration
from .driver import EngineKey, Listener, Training, drive, engine_key
from .runs import refuse_respelled
from .storage.conflicts import refuse_other, refuse_other_data
from .storage.disk_sink import DiskSink, StopRequested
from .storage.folder import RunFolder
from .storage.header import Header

_Session = tuple[bool, int] | None  # whether it has ended, and the round it started at; None: of a run by itself
_STOPPING = b"\nstopping after this round; Ctrl-C again stops at once and loses what is not saved yet\n"


def unfinished(root: Path, runs: Sequence[Run], configs: Mapping[str, Configuration]) -> list[Run]:
    """The runs with rounds left to do in their folders. A folder with another run is refused.

    `configs`: by the run's name, all that decides its result.
    """
    refuse_respelled(root, runs, configs)
    waiting = []
    for run in runs:
        folder = RunFolder.of(root, run)
        refuse_other(folder, configs[run.name], run.settings)
        if not folder.holds(run.settings.rounds):
            waiting.append(run)
    if waiting:
        refuse_other_data(root, configs[waiting[0].name])
    return waiting


def train_in(
    root: Path,
    runs: Sequence[Run],
    problem: Problem,
    headers: Mapping[str, Header],
    drawn: InitialModels | None,
    listen: Listener,
    callbacks: Sequence[Callback] = (),
    planned: Sequence[Run] = (),
) -> None:
    """Train runs from the last checkpoints in their folders; usually all are of one round and share the engine.

    `headers`: by the run's name. `planned`: the runs that engines are sized for, if others train some of them.
    Raises `Interruption` after a Ctrl-C, when all is on disk.
    """
    checkpoint_seconds = float(os.environ.get("EVENFED_CHECKPOINT_SECONDS", "2"))
    trainings = [Training.start(run, problem, drawn) for run in runs]
    together: dict[EngineKey, list[Training]] = {}
    for training in trainings:
        together.setdefault(training.engine_key, []).append(training)
    for group in together.values():
        starts = _starts(root, [training.run for training in group])
        for training in group:
            _resume(training, RunFolder.of(root, training.run), starts[training.run.name])
    with stop_requested() as stop, ThreadPoolExecutor(1) as background:
        disk = DiskSink(listen, root, headers, problem.device, checkpoint_seconds, stop, background)
        drive(trainings, disk, callbacks, _by_engine(planned, problem, drawn))


def _by_engine(runs: Sequence[Run], problem: Problem, drawn: InitialModels | None) -> dict[EngineKey, list[Run]]:
    sharing: dict[EngineKey, list[Run]] = {}
    for run in runs:
        own = problem if drawn is None else drawn.problem(run.settings.seed)
        sharing.setdefault(engine_key(run, own), []).append(run)
    return sharing


def _resume(training: Training, folder: RunFolder, at: int) -> None:
    """Load a run's state after round `at` from its folder, and delete what later rounds have left there."""
    rounds = training.run.settings.rounds
    training.folder = folder.path
    training.state = folder.resumed(training.state, at)
    training.stopped = folder.stop_reason(at)
    if at and (at == rounds or training.stopped is not None):
        training.last = folder.last_record(at)  # no other round is left to be the last one
    folder.sweep()
    folder.forget(keep=at)


def _starts(root: Path, runs: Sequence[Run]) -> dict[str, int]:
    """The round at which each run resumes, by its name. Runs that were trained together resume together.

    Who shares a stack may change a result's last bits. Runs of one session started it at the same round. A run that
    has lost its checkpoints starts again without the others.
    """
    saved: dict[str, set[int]] = {}  # the rounds that each run has checkpoints of
    sessions: dict[_Session, list[str]] = {}
    for run in runs:
        folder = RunFolder.of(root, run)
        header = folder.header()
        saved[run.name] = set(folder.sound_checkpoints())
        session = None
        if header is not None:
            has_lost_all = header.seconds > 0 and not saved[run.name]
            if not has_lost_all:
                started_at = header.resumed_at[-1] if header.resumed_at else 0
                session = (header.finished, started_at)
        sessions.setdefault(session, []).append(run.name)
    starts = dict.fromkeys(saved, 0)
    for names in sessions.values():
        together = [saved[name] for name in names]
        if not all(together):
            continue
        common = set.intersection(*together)
        for name in names:
            newest = max(saved[name])
            starts[name] = max(common, default=newest)
    return starts


@contextmanager
def stop_requested(saying: bytes = _STOPPING) -> Iterator[StopRequested]:
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
            os.write(2, saying)  # not print: the signal may have come in the middle of one

    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, handle)
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
