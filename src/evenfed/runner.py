"""Carrying out an experiment on disk: resumable, interruptible, one process a folder."""

import fcntl
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .core.errors import InputError
from .core.server import Record
from .data import federate
from .experiment import Experiment
from .history import History, Row, row
from .results import RunFolder, provenance
from .simulate import checkpoint
from .simulate.api import FLOOR_LABEL
from .simulate.loop import Run, State, engine_for, rounds, start
from .simulate.problem import Problem


@dataclass(frozen=True)
class Outcome:
    """What a comparison found, read back from its folder."""

    rows: list[Row]
    floor: Row | None
    advice: list[str]
    histories: dict[str, list[History]]
    last_rounds: int
    seeds: int
    client_tests: list[int]

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


Listener = Callable[[Sequence[Run], Sequence[Record]], None]


def run(experiment: Experiment, out: Path, listen: Listener, checkpoint_seconds: float = 2.0) -> Outcome:
    """Carry out what of the experiment is not finished in `out`, and read the results back."""
    root = out / experiment.name
    with _locked(root):
        everything = [r for part in experiment.runs() for r in part]
        folders = {r.name: RunFolder(root / r.label / f"seed-{r.settings.seed}") for r in everything}
        for r in everything:
            _refuse_other_config(experiment.config(r), folders[r.name])
        todo = [r for r in everything if not folders[r.name].finished]
        if todo:
            _carry_out(experiment, todo, folders, listen, checkpoint_seconds)
    return read(experiment, out)


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
    advice = [told for label, found in by_label.items() for h in found[:1] if (told := h.advice(label))]
    return Outcome(
        rows=[row(label, found, baseline) for label, found in by_label.items()],
        floor=row("fedavg, other seeds", other, baseline) if other else None,
        advice=advice,
        histories=by_label,
        last_rounds=min(experiment.train.last_rounds, experiment.train.rounds),
        seeds=len(experiment.seeds),
        client_tests=header["clients"]["test"],
    )


def _carry_out(
    experiment: Experiment,
    todo: Sequence[Run],
    folders: Mapping[str, RunFolder],
    listen: Listener,
    checkpoint_seconds: float,
) -> None:
    """Runs that stand at the same round and compute alike share the engine; usually that is all of them."""
    federation = federate(experiment.data)
    problem, initial = experiment.problem(federation, federation.test)
    groups: dict[tuple[int, str], list[tuple[Run, State]]] = {}
    fresh = [(r, start(r, problem, initial(r.settings.seed))) for r in todo]
    common = _common_round([folders[r.name] for r in todo])
    for r, state in fresh:
        held = _checkpoints(folders[r.name])
        at = common if common in held else max(held, default=0)
        found = checkpoint.load(state, held[at]) if at else state
        groups.setdefault((found.server.index, r.settings.precision), []).append((r, found))
    for _, group in sorted(groups.items(), key=lambda item: (-item[0][0], item[0][1])):
        _Group(experiment, group, problem, federation.describe(), folders, listen, checkpoint_seconds).run()


class _Group:
    """Runs that advance together, with their checkpoints."""

    def __init__(
        self,
        experiment: Experiment,
        group: Sequence[tuple[Run, State]],
        problem: Problem,
        clients: Mapping[str, Any],
        folders: Mapping[str, RunFolder],
        listen: Listener,
        checkpoint_seconds: float,
    ) -> None:
        self.runs, self.states = [r for r, _ in group], [s for _, s in group]
        self.problem, self.listen, self.checkpoint_seconds = problem, listen, checkpoint_seconds
        self.folders = [folders[r.name] for r in self.runs]
        self.engine = engine_for(problem, self.runs)
        origin = provenance()
        for r, folder, state in zip(self.runs, self.folders, self.states, strict=True):
            before = folder.header() or {}
            folder.write_header(
                {
                    "label": r.label,
                    "seed": r.settings.seed,
                    "selected_on": experiment.selected_on,
                    "config": experiment.config(r),
                    **origin,
                    "engine": self.engine.how,
                    "device": str(problem.device),
                    "clients": clients,
                    "finished": False,
                    "seconds": before.get("seconds", 0.0),
                    "resumed_at": [*before.get("resumed_at", []), state.server.index],
                }
            )
            folder.keep_before(state.server.index)

    def run(self) -> None:
        """Rounds go on while the last checkpoint is being written."""
        waiting: list[list[Record]] = [[] for _ in self.runs]
        written = time.monotonic()
        with _stop_requested() as stop, ThreadPoolExecutor(1) as beside:
            saving: Future[None] | None = None
            for states, records in rounds(self.runs, self.states, self.problem, self.engine):
                self.states = states
                for lines, record in zip(waiting, records, strict=True):
                    lines.append(record)
                self.listen(self.runs, records)
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
        """Lines first, then all checkpoints of this round, then the old ones go: a common round always exists."""
        index = states[0].server.index
        with _beside(ready, self.problem.device):
            for folder, state, lines in zip(self.folders, states, waiting, strict=True):
                folder.append(lines)
                header = folder.header() or {}
                header["seconds"] += sum(r.seconds for r in lines)
                if finished:
                    header["engine"] = self.engine.how  # may have learnt that less fits into memory
                    checkpoint.model_file(state.server, folder.path / "model.safetensors")
                    header["finished"] = True
                else:
                    checkpoint.save(state, folder.path / f"checkpoint-{index}.safetensors")
                folder.write_header(header)
        for folder in self.folders:
            for at, path in _checkpoints(folder).items():
                if finished or at != index:
                    path.unlink()


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


def _checkpoints(folder: RunFolder) -> dict[int, Path]:
    found = {
        path: re.fullmatch(r"checkpoint-(\d+)\.safetensors", path.name) for path in folder.path.glob("checkpoint-*")
    }
    return {int(match[1]): path for path, match in found.items() if match}


def _common_round(folders: Sequence[RunFolder]) -> int:
    """The latest round at which every run that has begun left a checkpoint."""
    held = [set(_checkpoints(f)) for f in folders if _checkpoints(f)]
    return max(set.intersection(*held), default=0) if held else 0


def _refuse_other_config(config: Mapping[str, Any], folder: RunFolder) -> None:
    header = folder.header()
    if header is None:
        return
    differences = [
        f"{place}: {old!r} there, {new!r} here"
        for place, old, new in _differences(header["config"], config)
        if old != new
    ]
    if differences:
        raise InputError(
            f"{folder.path} was made with another configuration ({'; '.join(differences)}); "
            "choose another --out, or give the same configuration to go on"
        )


def _differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{place}.{key}" if place else key)
    else:
        yield place, old, list(new) if isinstance(new, tuple) else new


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

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
