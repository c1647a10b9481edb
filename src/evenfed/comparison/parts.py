"""A comparison in parts, each trained by one worker: which runs go together is fixed in the folder.

Who shares a stack may change a result's last bits. So the parts are written down when they are made, and kept: neither
the number of workers that come later, nor a kill, nor a single process that finishes the rest changes who trains with
whom. Engines are sized for all runs that were divided together, as in one process.
"""

import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import DamageWarning, InputError, Interruption
from ..core.files import plain_file, replace_text
from ..core.words import counted, first_of
from ..simulate.shared_training import trained_together
from ..simulate.state import Run
from ..spread.dispatcher import Dispatcher, DispatchObserver, WorkerSlot, raise_failures
from ..spread.local import local_places
from ..spread.options import SLURM, SLURM_JOBS, SpreadOptions
from ..spread.remote_call import JobResult, Task
from .progress import WorkersProgress
from .session import stop_requested
from .storage.folder import RunFolder
from .storage.lock import ANOTHER_FOLDER, locked

_FOLDER = ".parts"
_PATIENCE = 60.0  # seconds that a worker waits for one that was left behind
_KEPT = "what the others have trained is kept; make the same call again to go on"

Division = list[list[str]]  # the names of the runs of each part


@dataclass(frozen=True)
class ComparisonPart:
    """Runs that train together, by one worker at a time."""

    root: Path  # the comparison's folder
    number: int
    runs: tuple[Run, ...]  # those with rounds left to do
    planned: tuple[Run, ...]  # all that were divided with them

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    @property
    def folder(self) -> Path:
        """Where its lock and its errors are; its runs are in the comparison's."""
        return self.root / _FOLDER / f"part-{self.number}"


def parts_of(root: Path, runs: Sequence[Run], waiting: Sequence[Run], count: int) -> list[ComparisonPart]:
    """The waiting runs in their parts; new ones are divided into `count` parts. Empty: the folder knows of no parts.

    `runs`: all of the comparison.
    """
    path = root / _FOLDER / "parts.json"
    divisions = _read(path)
    known: set[str] = set()
    for division in divisions:
        known.update(*division)
    fresh = [run for run in waiting if run.name not in known]
    if not divisions and count == 0:
        return []
    if fresh:
        groups = []
        for group in trained_together(fresh):
            groups.append([run.name for run in group])
        divisions.append(divided(groups, max(1, count)))
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(divisions, indent=1) + "\n")
    by_name = {run.name: run for run in runs}
    left = {run.name for run in waiting}
    parts = []
    number = 0
    for division in divisions:
        together = itertools.chain(*division)
        planned = tuple(by_name[name] for name in together if name in by_name)
        for names in division:
            own = tuple(by_name[name] for name in names if name in left)
            if own:
                parts.append(ComparisonPart(root, number, own, planned))
            number += 1
    return parts


def divided(groups: Sequence[Sequence[str]], count: int) -> Division:
    """In order, into parts with nearly as much to train; a group of runs, which are trained once, stays together.

    >>> divided([["a"], ["b"], ["c", "c, averaged"]], 2)
    [['a', 'b'], ['c', 'c, averaged']]
    """
    count = min(count, len(groups))
    size, more = divmod(len(groups), count)
    parts = []
    start = 0
    for number in range(count):
        end = start + size + (number < more)
        together = itertools.chain(*groups[start:end])
        parts.append(list(together))
        start = end
    return parts


def _read(path: Path) -> list[Division]:
    if not path.exists():
        return []
    try:
        divisions = json.loads(plain_file(path).read_text())
        for division in divisions:
            for names in division:
                if not all(isinstance(name, str) for name in names):
                    raise TypeError
    except (ValueError, TypeError):
        raise InputError(f"{path} does not say which runs go together; remove it, or {ANOTHER_FOLDER}") from None
    return list(divisions)


@contextmanager
def held(part: ComparisonPart) -> Iterator[None]:
    """One process at a time trains a part. A worker that was left behind is given time to save and end."""
    deadline = time.monotonic() + _PATIENCE
    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(locked(part.folder))
                break
            except InputError:
                if time.monotonic() > deadline or not part.folder.is_dir():
                    raise
                time.sleep(0.2)
        yield


def places_in(root: Path, spread: SpreadOptions, runs: int) -> list[WorkerSlot]:
    """Where workers can be started for so many runs."""
    if spread.cluster is None:
        return local_places(spread.devices)
    if spread.cluster == SLURM:
        from ..spread.on_slurm import slurm_places

        most = spread.workers or SLURM_JOBS
        return slurm_places(spread, min(runs, most), root / _FOLDER / SLURM)
    from ..spread.on_ray import ray_places

    return ray_places(spread)


def train_parts(
    parts: Sequence[ComparisonPart],
    places: Sequence[WorkerSlot],
    task_of: Callable[[ComparisonPart], Task],
    shares: WorkersProgress,
) -> None:
    """Have all parts trained by workers. Raises `Interruption` after a Ctrl-C, when all is on disk.

    A part that fails does not end the others; its sentence is raised when they are done.
    """
    tasks = [task_of(part) for part in parts]
    with stop_requested() as stop:
        outcomes = Dispatcher(tasks, places, _Watched(parts, shares), stop).carry_out()
        if stop():
            raise Interruption
    raise_failures(outcomes, _KEPT)


class _Watched(DispatchObserver):
    """Shows the progress of the parts, read from the checkpoints in their runs' folders."""

    def __init__(self, parts: Sequence[ComparisonPart], shares: WorkersProgress) -> None:
        self.parts = parts
        self.shares = shares
        self.begun_with = self._rounds_done()
        runs = [run for part in parts for run in part.runs]
        rounds = sum(run.settings.rounds for run in runs)
        shares.begin(rounds - self.begun_with, len(runs), len(parts))

    def progress(self, task: int) -> int:
        return _rounds_done(self.parts[task])

    def started(self, task: int, place: str) -> None:
        runs = _runs_in_words(self.parts[task])
        self.shares.say(f"{place}: {runs}", detail=True)

    def lost(self, task: int, place: str, why: str) -> None:
        runs = _runs_in_words(self.parts[task])
        self.shares.say(f"{place} was lost: {why}; another worker goes on with its {runs} from their checkpoints")

    def ended(self, task: int, place: str, outcome: JobResult) -> None:
        for sentence in outcome.damage:
            warnings.warn(sentence, DamageWarning, stacklevel=2)
        if outcome.trace:
            path = self.parts[task].folder / "error.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, outcome.trace)
            self.shares.say(f"{place} failed: {outcome.message} (where: {path})")
        elif outcome.message:
            self.shares.say(f"{place} failed: {outcome.message}")
        self.look()

    def look(self) -> None:
        self.shares.tell(self._rounds_done() - self.begun_with)

    def _rounds_done(self) -> int:
        return sum(_rounds_done(part) for part in self.parts)


def _rounds_done(part: ComparisonPart) -> int:
    total = 0
    for run in part.runs:
        folder = RunFolder.of(part.root, run)
        total += max(folder.checkpoints(), default=0)
    return total


def _runs_in_words(part: ComparisonPart) -> str:
    names = first_of(part.names, 3)
    runs = counted(len(part.runs), "run")
    return f"{runs} ({names})"
