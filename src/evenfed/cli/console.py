"""Live progress of a comparison: a bar in a terminal, plain lines elsewhere. Always on stderr."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..core.server import Record
from ..simulate.loop import Run


class _Unread:
    """A stream whose reader may go, a closed pipe or terminal: what is computed matters more than who watches."""

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


def page() -> Console:
    """Where progress is told."""
    return Console(file=cast(TextIO, _Unread(sys.stderr)), highlight=False)


class Live:
    """Counts rounds of all runs that advance together."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.began: float | None = None
        self.first, self.told = 0, 0.0
        self.names: list[str] = []
        self.how = ""

    def __call__(self, runs: Sequence[Run], records: Sequence[Record], how: str) -> None:
        index, total = records[0].index + 1, runs[0].settings.rounds
        names = [run.name for run in runs]
        if self.began is None or names != self.names:
            self.names = names
            self.began, self.first, self.told = time.monotonic() - sum(r.seconds for r in records), index - 1, 0.0
            self._start(runs, total)
        if how != self.how:  # at first, and where less fits into memory than was thought
            self.how = how
            self.console.print(f"engine: {how}", markup=False)
        pace = (index - self.first) * len(runs) / max(time.monotonic() - self.began, 1e-9)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=index, pace=f"{pace:.0f} rounds/s")
        elif index == total or index / total >= self.told + 0.1:
            self.told = index / total
            left = (total - index) * len(runs) / pace
            self.console.print(f"round {index} of {total}, {len(runs)} runs, {pace:.0f} rounds/s, {left:.0f} s left")

    def _start(self, runs: Sequence[Run], total: int) -> None:
        labels = list(dict.fromkeys(r.label for r in runs))
        shown = ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")
        self.console.print(f"{len(runs)} runs, {total} rounds each: {shown}", markup=False)
        if not self.console.is_terminal:
            return
        if self.bar is None:
            self.bar = Progress(
                TextColumn("round {task.completed} of {task.total}"),
                BarColumn(),
                TextColumn("{task.fields[pace]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.start()
        self.task = self.bar.add_task("", total=total, pace="")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def live() -> Iterator[Live]:
    shown = Live(page())
    try:
        yield shown
    finally:
        shown.stop()
