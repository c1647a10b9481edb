"""Carrying out an experiment on disk: resumable, interruptible, one process a folder."""

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
from ..simulate.loop import Run, State, engine_for, rounds, start
from ..simulate.problem import Problem
from .experiment import Experiment
from .folder import RunFolder, differences, unpacked
from .history import History, Row, row
from .journal import Journal
from .plan import FLOOR_LABEL


@dataclass(frozen=True)
class Outcome:
    """What a comparison found, read back from its folder."""

    rows: list[Row]
    controls: set[str]  # labels of rows that repeat another in another precision, and do not compete
    floor: Row | None
    advice: list[str]
    histories: dict[str, list[History]]
    last_rounds: int
    seeds: int
    judge: str  # "test" or "validation": what its accuracies are measured on
    judged: list[int]  # examples of each client they are measured on

    def describe(self) -> dict[str, Any]:
        """The table as JSON."""
        return {
            "rows": [r.describe() for r in self.rows],
            "noise_floor": self.floor.describe() if self.floor else None,
            "average_over_rounds": self.last_rounds,
            "seeds": self.seeds,
            "advice": self.advice,
        }


class Interruption(BaseException):
    """The user asked to stop; everything up to the last finished round is on disk."""


Listener = Callable[[Sequence[Run], Sequence[Record], str], None]  # the runs, a record of each, how they are run


def run(experiment: Experiment, out: Path, listen: Listener, checkpoint_seconds: float = 2.0) -> Outcome:
    """Carry out what of the experiment is not finished in `out`, and read the results back."""
    root = out / experiment.name
    with _locked(root):
        everything = [r for part in experiment.runs() for r in part]
        journals = {r.name: Journal(RunFolder(root / r.label / f"seed-{r.settings.seed}")) for r in everything}
        for r in everything:
            journals[r.name].folder.refuse_other(experiment.config(r))
        todo = [r for r in everything if not journals[r.name].folder.finished]
        if todo and experiment.train.engine == "flower":
            _on_flower(experiment, todo, root, listen)
        elif todo:
            _carry_out(experiment, todo, journals, listen, checkpoint_seconds)
    return read(experiment, out)


def take_over(experiment: Experiment, out: Path, folder: Path) -> list[str]:
    """Runs of the experiment that another comparison has finished, packed or not, put into `out`; says which."""
    if not folder.is_dir():
        raise InputError(f"--reuse: there is no folder {folder}; give a comparison's, such as runs/demo")
    root, taken = out / experiment.name, []
    with _locked(root), unpacked(folder) as place:
        found = [RunFolder(path.parent) for path in sorted(place.glob("*/seed-*/header.json"))]
        done = [(run, header["config"]) for run in found if (header := run.header()) and header.get("finished")]
        for r in (r for part in experiment.runs() for r in part):
            here, config = RunFolder(root / r.label / f"seed-{r.settings.seed}"), experiment.config(r)
            twin = next((run for run, there in done if not differences(there, config)), None)
            if twin and here.header() is None:
                origin = (twin.header() or {}).get("taken_from", str(folder))  # where it was first taken from
                here.take_over(twin, label=r.label, selected_on=experiment.selected_on, taken_from=origin)
                taken.append(f"{r.label} seed {r.settings.seed}")
    return taken


def read(experiment: Experiment, out: Path) -> Outcome:
    """The results of a finished comparison."""
    root, (runs, floor) = out / experiment.name, experiment.runs()

    def histories(group: Sequence[Run]) -> dict[str, list[History]]:
        found: dict[str, list[History]] = {}
        for r in group:
            found.setdefault(r.label, []).append(RunFolder(root / r.label / f"seed-{r.settings.seed}").history())
        return found

    by_label, other = histories(runs), histories(floor).get(FLOOR_LABEL)
    baseline = by_label["fedavg"]
    header = RunFolder(root / runs[0].label / f"seed-{runs[0].settings.seed}").header() or {}
    heard = (next(filter(None, (h.advice(label) for h in found)), None) for label, found in by_label.items())
    return Outcome(
        rows=[row(label, found, baseline) for label, found in by_label.items()],
        controls=experiment.repetitions(),
        floor=row("fedavg, other seeds", other, baseline) if other else None,
        advice=[told for told in heard if told],
        histories=by_label,
        last_rounds=min(experiment.train.last_rounds, experiment.train.rounds),
        seeds=len(experiment.seeds),
        judge=experiment.data.judge,
        judged=header["clients"]["test"],
    )


def _carry_out(
    experiment: Experiment,
    todo: Sequence[Run],
    journals: Mapping[str, Journal],
    listen: Listener,
    checkpoint_seconds: float,
) -> None:
    """Runs that stand at the same round and compute alike share the engine; usually that is all of them."""
    federation = federate(experiment.data)
    problem, initial = experiment.problem(federation, federation.judged)
    groups: dict[tuple[int, str], list[tuple[Run, State]]] = {}
    common = _common_round([journals[r.name] for r in todo])
    for r in todo:
        found = journals[r.name].resumed(start(r, problem, initial), at=common)
        groups.setdefault((found.server.index, r.settings.precision), []).append((r, found))
    with _stop_requested() as stop:
        for _, group in sorted(groups.items(), key=lambda item: (-item[0][0], item[0][1])):
            if stop():
                raise Interruption
            _Group(experiment, group, problem, federation.describe(), journals, listen, checkpoint_seconds).run(stop)


def _on_flower(experiment: Experiment, todo: Sequence[Run], root: Path, listen: Listener) -> None:
    """The same runs on Flower's simulation, one after another; each writes its own journal, round by round."""
    from ..flower import FairStrategy, client_app
    from ..flower.simulation import simulate
    from ..flower.wire import Shape

    federation = federate(experiment.data)
    problem, initial = experiment.problem(federation, federation.judged)
    site, own = _Site(experiment), root.resolve() / ".personal"  # kept here, a client's own model outlives a kill
    app = client_app(site.model, site.data, padding=federation.padding, device=experiment.train.device, state=own)
    shape, clients = Shape(problem.layout, tuple(problem.buffers)), federation.describe()

    def tell(strategy: FairStrategy, r: Run, record: Record) -> bool:
        listen([r], [record], strategy.how)
        return stop()

    def serve(grid: Any) -> None:
        for r in todo:
            options = {k: v for k, v in vars(r.settings).items() if k not in ("engine", "device")}
            header = {**_header(experiment, r, clients), "device": str(problem.device)}
            strategy = FairStrategy(r.algorithm, out=root, label=r.label, ordered=True, header=header, **options)
            strategy.listen = functools.partial(tell, strategy, r)
            strategy.start(grid, shape.arrays(initial(r.settings.seed), problem.buffers))
            if stop():
                return

    with _stop_requested() as stop:
        simulate(serve, app, len(federation.names), gpu=problem.device.type == "cuda")
        if stop():
            raise Interruption
    shutil.rmtree(own, ignore_errors=True)


@functools.cache
def _federated(data: DataSettings) -> Federation:
    """Once a process: a simulated client's process serves many clients."""
    return federate(data)


@dataclass(frozen=True)
class _Site:
    """An experiment as the client app of Flower's simulation sees it; travels to its processes."""

    experiment: Experiment

    def model(self) -> nn.Module:
        return self.experiment.new_model(_federated(self.experiment.data))

    def data(self, context: Any) -> Client:
        return _federated(self.experiment.data).client(int(context.node_config["partition-id"]))


class _Group:
    """Runs that advance together, with their journals."""

    def __init__(
        self,
        experiment: Experiment,
        group: Sequence[tuple[Run, State]],
        problem: Problem,
        clients: Mapping[str, Any],
        journals: Mapping[str, Journal],
        listen: Listener,
        checkpoint_seconds: float,
    ) -> None:
        self.runs, self.states = [r for r, _ in group], [s for _, s in group]
        self.problem, self.listen, self.checkpoint_seconds = problem, listen, checkpoint_seconds
        self.journals = [journals[r.name] for r in self.runs]
        self.engine = engine_for(problem, self.runs)
        how = {"engine": self.engine.how, "device": str(problem.device)}
        for r, journal, state in zip(self.runs, self.journals, self.states, strict=True):
            journal.begin({**_header(experiment, r, clients), **how}, state)

    def run(self, stop: Callable[[], bool]) -> None:
        """Rounds go on while the last checkpoint is being written."""
        waiting: list[list[Record]] = [[] for _ in self.runs]
        written = time.monotonic()
        with ThreadPoolExecutor(1) as beside:
            saving: Future[None] | None = None
            for states, records in rounds(self.runs, self.states, self.problem, self.engine):
                self.states = states
                for lines, record in zip(waiting, records, strict=True):
                    lines.append(record)
                self.listen(self.runs, records, self.engine.how)
                due = time.monotonic() - written >= self.checkpoint_seconds and (saving is None or saving.done())
                if stop() or due:
                    if saving is not None:
                        saving.result()
                    saving = beside.submit(self._save, states, waiting, self._ready())
                    waiting, written = [[] for _ in self.runs], time.monotonic()
                    if stop() and states[0].server.index < self.runs[0].settings.rounds:
                        saving.result()
                        raise Interruption
            if saving is not None:
                saving.result()
        self._save(self.states, waiting, self._ready(), finished=True)

    def _ready(self) -> torch.cuda.Event | None:
        """Where the device stands now: a copy must wait for it, but not for what is asked of it later."""
        if self.problem.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.problem.device))
        return event

    def _save(
        self,
        states: Sequence[State],
        waiting: Sequence[Sequence[Record]],
        ready: torch.cuda.Event | None,
        finished: bool = False,
    ) -> None:
        """All checkpoints of this round before any old one goes: a common round always exists."""
        how = {"engine": self.engine.how} if finished else {}  # may have learnt that less fits into memory
        with _beside(ready, self.problem.device):
            for journal, state, lines in zip(self.journals, states, waiting, strict=True):
                journal.write(lines, state, finished, how)
        for journal in self.journals:
            journal.forget(keep=None if finished else states[0].server.index)


@contextmanager
def _beside(ready: torch.cuda.Event | None, device: torch.device) -> Iterator[None]:
    """Copies from the device in a stream of their own, so that training need not wait for them."""
    if ready is None:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield


def _header(experiment: Experiment, r: Run, clients: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "label": r.label,
        "seed": r.settings.seed,
        "selected_on": experiment.selected_on,
        "config": experiment.config(r),
        "clients": clients,
    }


def _common_round(journals: Sequence[Journal]) -> int:
    """The latest round at which every run that has begun left a checkpoint."""
    held = [set(j.checkpoints()) for j in journals if j.checkpoints()]
    return max(set.intersection(*held), default=0) if held else 0


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
def _stop_requested() -> Iterator[Callable[[], bool]]:
    """Ctrl-C or a termination signal ends after the round; a second one ends at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(OSError):  # who reads it may be gone
            os.write(2, _STOPPING)  # not print: the signal may have come in the middle of one

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
