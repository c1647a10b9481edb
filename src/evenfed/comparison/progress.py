"""Progress on stderr: a bar in a terminal, one line in a notebook, else a line for every tenth of the rounds."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from ..core.server import Record
from ..core.verbosity import Verbosity
from ..core.words import counted, first_of
from ..simulate.state import Run
from .driver import Listener

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_LABELS_SHOWN = 4
_NOTEBOOK_SECONDS = 0.2  # between two versions of a notebook's line


class _ForgivingStream:
    """A stream that ignores write errors: training continues after its pipe or terminal is closed."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def progress_page() -> "Console":
    """The console on stderr that shows progress."""
    from rich.console import Console

    stream = cast(TextIO, _ForgivingStream(sys.stderr))
    is_terminal = sys.stderr.isatty()  # lines for a file or a pipe are not broken
    return Console(file=stream, highlight=False, force_jupyter=False, soft_wrap=not is_terminal)


@dataclass(eq=False)
class _Meter:
    """How much is done: a bar in a terminal, else a line for every tenth."""

    page: "Console"
    total: int = 1
    share_printed: float = 0.0
    bar: "Progress | None" = None
    task: "TaskID | None" = None

    def begin(self, total: int) -> None:
        self.total = total
        self.share_printed = 0.0
        if not self.page.is_terminal:
            return
        if self.bar is None:
            self.bar = _bar(self.page)
            self.bar.start()
        self.task = self.bar.add_task("", total=total, pace="")

    def show(self, done: int, pace: str, line: str) -> None:
        """`line` is for where there is no bar."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, pace=pace)
        else:
            self.print(line, done / self.total)

    def print(self, line: str, share: float) -> None:
        is_complete = share >= 1 > self.share_printed
        is_next_tenth = share >= self.share_printed + 0.1
        if is_complete or is_next_tenth:
            self.share_printed = share
            self.page.print(line)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class _NotebookMeter(_Meter):
    """One line in a notebook, rewritten in place."""

    printed_at = 0.0
    width = 0

    def print(self, line: str, share: float) -> None:
        now = time.monotonic()
        if share < 1 and now - self.printed_at < _NOTEBOOK_SECONDS:
            return
        self.printed_at = now
        self.width = max(self.width, len(line))
        sys.stderr.write("\r" + line.ljust(self.width))

    def close(self) -> None:
        if self.width:
            sys.stderr.write("\n")
            sys.stderr.flush()


def _bar(page: "Console") -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("round {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeRemainingColumn(),
        console=page,
        transient=True,
    )


@dataclass(eq=False)
class RoundsCounter:
    """Shows the rounds of runs that train together."""

    page: "Console"
    meter: _Meter
    talks: bool = True  # whether it first prints which runs train, and on which engine
    names: Sequence[str] = ()
    engine: str = ""
    began: float = 0.0  # when the first of these rounds began, by the monotonic clock
    rounds_before: int = 0

    def __call__(self, runs: Sequence[Run], records: Sequence[Record], engine: str) -> None:
        count = len(runs)
        done = records[0].index + 1
        total = runs[0].settings.rounds
        names = [run.name for run in runs]
        if names != self.names:
            fewer = set(names) < set(self.names)  # a callback stopped the others
            self.names = names
            elapsed = sum(record.seconds for record in records)
            self.began = time.monotonic() - elapsed
            self.rounds_before = done - 1
            if not fewer:
                self._introduce(runs, total)
        if engine != self.engine and self.talks:  # at first, and when less fits into memory than was thought
            self.engine = engine
            self.page.print(f"engine: {engine}", markup=False)
        elapsed = time.monotonic() - self.began
        rounds = done - self.rounds_before
        pace = rounds * count / max(elapsed, 1e-9)
        shown_pace = f"{pace:.0f} rounds/s"
        seconds_left = (total - done) * count / pace
        shown_runs = counted(count, "run")
        line = f"round {done} of {total}, {shown_runs}, {shown_pace}, {seconds_left:.0f} s left"
        self.meter.show(done, shown_pace, line)

    def _introduce(self, runs: Sequence[Run], total: int) -> None:
        labels = list(dict.fromkeys(run.label for run in runs))
        shown = first_of(labels, _LABELS_SHOWN)
        if self.talks:
            number = counted(len(runs), "run")
            self.page.print(f"{number}, {total} rounds each: {shown}", markup=False)
        self.meter.begin(total)

    def close(self) -> None:
        self.meter.close()


class _VerboseCounter(RoundsCounter):
    """Also a line for every round of every run: losses before training, scores where the round was evaluated."""

    def __call__(self, runs: Sequence[Run], records: Sequence[Record], engine: str) -> None:
        super().__call__(runs, records, engine)
        for run, record in zip(runs, records, strict=True):
            line = f"{run.name}: round {record.index + 1} of {run.settings.rounds}"
            line += _ranged("loss", record.known("losses"))
            line += _ranged("score", record.known("accuracy"))
            if record.dropped:
                line += f", {len(record.dropped)} clients dropped"
            if record.skipped:
                line += ", skipped: nothing usable came back"
            self.page.print(line, markup=False, soft_wrap=True)


def _ranged(name: str, values: NDArray[np.float64]) -> str:
    """The mean of clients' values, and from where to where they go."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ""
    mean = known.mean()
    lowest = known.min()
    highest = known.max()
    return f", {name} {mean:.4f} (clients: {lowest:.4f} to {highest:.4f})"


class WorkersProgress:
    """Progress of runs that workers train: rounds done, and messages about the workers. This one shows nothing."""

    def begin(self, rounds: int, runs: int, parts: int) -> None:
        """Before the first worker starts: what is left to train."""

    def tell(self, done: int) -> None:
        """`done` of these rounds are done."""

    def say(self, line: str, detail: bool = False) -> None:
        """Print a message. `detail`: only with --verbose."""


@dataclass(eq=False)
class _ShownWorkersProgress(WorkersProgress):
    page: "Console"
    meter: _Meter
    detail: Verbosity
    began: float = 0.0

    def begin(self, rounds: int, runs: int, parts: int) -> None:
        self.began = time.monotonic()
        divided = counted(parts, "part")
        self.page.print(f"{runs} runs in {divided}, one worker each; {rounds} rounds in all")
        self.meter.begin(max(1, rounds))

    def tell(self, done: int) -> None:
        if not done:
            return
        elapsed = time.monotonic() - self.began
        pace = done / max(elapsed, 1e-9)
        digits = 0 if pace >= 10 else 1
        shown_pace = f"{pace:.{digits}f} rounds/s"
        left = (self.meter.total - done) / pace
        line = f"round {done} of {self.meter.total} over all runs, {shown_pace}, {left:.0f} s left"
        self.meter.show(done, shown_pace, line)

    def say(self, line: str, detail: bool = False) -> None:
        if self.detail is Verbosity.VERBOSE or not detail:
            self.page.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.meter.close()


@contextmanager
def shown_shares(detail: Verbosity) -> Iterator[WorkersProgress]:
    """Progress of workers while the block runs."""
    if detail is Verbosity.QUIET:
        yield WorkersProgress()
        return
    page = progress_page()
    with closing(_ShownWorkersProgress(page, _Meter(page), detail)) as shares:
        yield shares


def wanted_detail(wanted: bool | None) -> Verbosity:
    """How much a call from Python prints. None: progress in terminals and notebooks, nothing elsewhere."""
    if wanted is None:
        wanted = _in_notebook() or _is_terminal()
    return Verbosity.NORMAL if wanted else Verbosity.QUIET


@contextmanager
def live(detail: Verbosity = Verbosity.NORMAL) -> Iterator[Listener]:
    """Progress of a command while the block runs."""
    if detail is Verbosity.QUIET:
        yield silence
        return
    kind = _VerboseCounter if detail is Verbosity.VERBOSE else RoundsCounter
    page = progress_page()
    with closing(kind(page, _Meter(page))) as counter:
        yield counter


@contextmanager
def shown(wanted: bool | None) -> Iterator[Listener]:
    """Progress of a call from Python while the block runs. None: in terminals and notebooks only."""
    if wanted_detail(wanted) is Verbosity.QUIET:
        yield silence
        return
    page = progress_page()
    meter = _NotebookMeter(page) if _in_notebook() else _Meter(page)
    with closing(RoundsCounter(page, meter, talks=False)) as counter:
        yield counter


def silence(runs: Sequence[Run], records: Sequence[Record], engine: str) -> None:
    pass


def _is_terminal() -> bool:
    stream = sys.stderr
    return stream is not None and hasattr(stream, "isatty") and stream.isatty()


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython in a terminal is a terminal."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return False
    shell = ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
