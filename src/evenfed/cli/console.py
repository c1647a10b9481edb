"""Terminal pages: results on stdout, messages on stderr, and live progress on stderr as a bar or as plain lines."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..core.server import Record
from ..data import Federation
from ..simulate.loop import Run

NOT_DRAWN = "none; to draw them: pip install 'evenfed[report]'"
_FILE_WIDTH = 160
_LABELS_SHOWN = 4


def console() -> Console:
    """The terminal, or a wide page where output goes to a file and COLUMNS does not say how wide."""
    page = Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    if page.is_terminal or columns.isdigit():
        return page
    return Console(highlight=False, width=_FILE_WIDTH)


def say(message: str) -> None:
    """One message on stderr, not broken into lines."""
    Console(
        stderr=True,
        highlight=False,
        soft_wrap=True,
    ).print(message, markup=False)


class _Unread:
    """A stream whose reader may go away, a closed pipe or terminal: the computation must outlive it."""

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


def progress_page() -> Console:
    """Where progress is shown."""
    stream = cast(TextIO, _Unread(sys.stderr))
    return Console(file=stream, highlight=False)


class Live:
    """Counts rounds of all runs that advance together."""

    def __init__(self, page: Console) -> None:
        self.page = page
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.names: list[str] = []
        self.engine = ""
        self.began = 0.0  # when the first of these rounds began, by the monotonic clock
        self.rounds_before = 0
        self.share_printed = 0.0

    def __call__(
        self,
        runs: Sequence[Run],
        records: Sequence[Record],
        engine: str,
    ) -> None:
        done = records[0].index + 1
        total = runs[0].settings.rounds
        names = [run.name for run in runs]
        if names != self.names:
            self.names = names
            elapsed = sum(record.seconds for record in records)
            self.began = time.monotonic() - elapsed
            self.rounds_before = done - 1
            self.share_printed = 0.0
            self._introduce(runs, total)
        if engine != self.engine:  # at first, and when less fits into memory than was thought
            self.engine = engine
            self.page.print(f"engine: {engine}", markup=False)
        seconds = max(time.monotonic() - self.began, 1e-9)
        rounds = done - self.rounds_before
        pace = rounds * len(runs) / seconds
        shown_pace = f"{pace:.0f} rounds/s"
        share = done / total
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, pace=shown_pace)
        elif done == total or share >= self.share_printed + 0.1:
            self.share_printed = share
            rounds_left = total - done
            seconds_left = rounds_left * len(runs) / pace
            progress = f"round {done} of {total}, {len(runs)} runs"
            self.page.print(f"{progress}, {shown_pace}, {seconds_left:.0f} s left")

    def introduce_clients(self, federation: Federation) -> None:
        """Who takes part, and what was noted about their data."""
        self.page.print(federation.summary(), markup=False, soft_wrap=True)
        for note in federation.notes:
            self.page.print(f"! {note}", markup=False, soft_wrap=True)

    def _introduce(self, runs: Sequence[Run], total: int) -> None:
        labels = list(dict.fromkeys(run.label for run in runs))
        shown = ", ".join(labels[:_LABELS_SHOWN])
        more = len(labels) - _LABELS_SHOWN
        if more > 0:
            shown += f" and {more} more"
        self.page.print(f"{len(runs)} runs, {total} rounds each: {shown}", markup=False)
        if not self.page.is_terminal:
            return
        if self.bar is None:
            self.bar = Progress(
                TextColumn("round {task.completed} of {task.total}"),
                BarColumn(),
                TextColumn("{task.fields[pace]}"),
                TimeRemainingColumn(),
                console=self.page,
                transient=True,
            )
            self.bar.start()
        self.task = self.bar.add_task("", total=total, pace="")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def live() -> Iterator[Live]:
    """Progress while the block runs."""
    progress = Live(progress_page())
    try:
        yield progress
    finally:
        progress.stop()
