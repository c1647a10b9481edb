"""A comparison's folder read again and again while its runs are written.

Files that have not changed are not opened, and of a file that has grown only the new lines are read.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from ...core.errors import InputError
from ...core.files import plain_file
from ...core.server import Record
from ..analysis.findings import Findings
from ..analysis.history import History
from ..runs import FLOOR_NAMES
from .folder import RunFolder
from .header import Header
from .pack import PACKED, holds_runs
from .reading import baseline_of, findings_of_runs, read
from .rounds_file import chained

_State = tuple[int, int, int]  # inode, size and time of a file


@dataclass(frozen=True)
class PartialRun:
    """A run as far as it has been written."""

    label: str
    seed: int
    header: Header
    history: History

    @property
    def rounds(self) -> int:
        """That were written."""
        return len(self.history.records)

    @property
    def is_complete(self) -> bool:
        """Whether all its rounds were written. The note that it has finished may follow a moment later."""
        return self.header.finished or self.rounds >= self.header.rounds

    def cut(self, rounds: int) -> "PartialRun":
        """As it was after so many rounds."""
        if rounds >= self.rounds:
            return self
        history = replace(
            self.history,
            records=self.history.records[:rounds],
            model_round=None,
            stopped=None,
        )
        return replace(self, history=history)


@dataclass(eq=False)
class LiveRun:
    """One run's folder, and what was read of it."""

    folder: RunFolder
    so_far: PartialRun | None = None
    damage: str | None = None
    written_at: float = 0.0
    _states: tuple[_State | None, _State | None] = (None, None)
    _records: list[Record] = field(default_factory=list)
    _digest: str = ""
    _read_to: int = 0  # bytes of the file of rounds

    def look(self) -> bool:
        """Read what is new; whether anything was."""
        states = (
            _state(self.folder.header_path),
            _state(self.folder.rounds_path),
        )
        if states == self._states:
            return False
        grows = _has_grown(self._states[1], states[1])
        self._states = states
        self.written_at = _last_written(states)
        self.damage = None
        try:
            header = self.folder.header()
            if not grows:
                self._forget()
            self._read_lines()
            self.so_far = None
            if header is not None and self.folder.seed is not None:
                self.so_far = self._of(header)
        except (InputError, OSError) as error:
            self._forget()
            self.so_far = None
            self.damage = str(error)
        return True

    def _forget(self) -> None:
        self._records = []
        self._digest = ""
        self._read_to = 0

    def _read_lines(self) -> None:
        """The lines that were written to their ends since the last time."""
        path = self.folder.rounds_path
        if not path.exists():
            return
        with plain_file(path).open("rb") as file:
            file.seek(self._read_to)
            fresh = file.read()
        end = fresh.rfind(b"\n") + 1
        whole = fresh[:end]
        texts = whole.decode(errors="replace").splitlines(keepends=True)
        records = self.folder.lines.records(texts, len(self._records))
        self._records = [*self._records, *records]
        self._digest = chained(self._digest, texts)
        self._read_to += len(whole)

    def _of(self, header: Header) -> PartialRun:
        if header.finished and header.lines_digest not in (None, self._digest):
            self.folder.history()  # says what is damaged
        return PartialRun(
            label=self.folder.label,
            seed=self.folder.seed or 0,
            header=header,
            history=self.folder.history_of(header, self._records),
        )


@dataclass(frozen=True)
class LiveProgress:
    """How far the runs of a comparison are."""

    runs: Sequence[PartialRun]
    damaged: Sequence[str] = ()
    written_at: float = 0.0  # seconds since 1970

    @property
    def has_begun(self) -> bool:
        return bool(self.runs)

    @property
    def is_complete(self) -> bool:
        return self.has_begun and all(run.is_complete for run in self.runs)

    @property
    def rounds(self) -> int:
        """That every run has reached."""
        return min((run.rounds for run in self.runs), default=0)

    def sentence(self) -> str:
        number = len(self.runs)
        if self.is_complete:
            return "The run has finished." if number == 1 else f"All {number} runs have finished."
        running = [run for run in self.runs if not run.is_complete]
        rounds = [run.rounds for run in running]
        least = min(rounds)
        most = max(rounds)
        planned = running[0].header.rounds
        at = f"round {most}" if least == most else f"rounds {least} to {most}"
        clock = datetime.fromtimestamp(self.written_at).strftime("%H:%M:%S")
        if len(running) == number:
            who = "The run is" if number == 1 else f"All {number} runs are"
        else:
            finished = number - len(running)
            others = "the other is" if len(running) == 1 else "the others are"
            who = f"{finished} of {number} runs have finished, {others}"
        return f"{who} at {at} of {planned}, last written at {clock}."


@dataclass
class LiveFolder:
    """A comparison's folder: its runs as far as they are, and what they add up to."""

    folder: Path
    _runs: dict[Path, LiveRun] = field(default_factory=dict)
    _packed: _State | None = None

    def look(self) -> bool:
        """Read what is new; whether anything was."""
        packed = _state(self.folder / PACKED)
        is_new = packed != self._packed
        self._packed = packed
        followed = {}
        for run in RunFolder.all_in(self.folder):
            known = self._runs.get(run.path)
            followed[run.path] = known or LiveRun(run)
        is_new |= followed.keys() != self._runs.keys()
        self._runs = followed
        for each in followed.values():
            is_new |= each.look()
        return is_new

    @property
    def is_packed(self) -> bool:
        """Whether it holds finished runs in one file."""
        return self._packed is not None

    @property
    def has_begun(self) -> bool:
        return self.is_packed or self.progress.has_begun

    @property
    def is_complete(self) -> bool:
        return self.is_packed or self.progress.is_complete

    @property
    def is_even(self) -> bool:
        """Whether all runs have come equally far: then `so_far` is what is comparable."""
        return len({run.rounds for run in self.progress.runs}) <= 1

    @property
    def progress(self) -> LiveProgress:
        runs = []
        damaged = []
        written_at = 0.0
        for followed in self._runs.values():
            written_at = max(written_at, followed.written_at)
            if followed.so_far is not None:
                runs.append(followed.so_far)
            if followed.damage is not None:
                damaged.append(followed.damage)
        return LiveProgress(runs, damaged, written_at)

    def comparable(self) -> Findings | None:
        """What runs add up to that have come equally far; None before the first evaluation.

        These are the complete runs if they can be compared with the baseline. Before that, they are all runs as they
        were after the last round that each of them has reached.
        """
        if self.is_packed:
            return read(self.folder)
        runs = self.progress.runs
        complete = [run for run in runs if run.is_complete]
        if _can_be_compared(complete, runs):
            return self._findings(complete)
        common = self.progress.rounds
        cut = [run.cut(common) for run in runs]
        return self._findings(cut)

    def so_far(self) -> Findings | None:
        """What all runs add up to, each as far as it is: for curves, not for comparisons."""
        if self.is_packed:
            return read(self.folder)
        return self._findings(self.progress.runs)

    def _findings(self, runs: Sequence[PartialRun]) -> Findings | None:
        by_label: dict[str, dict[int, PartialRun]] = {}
        for run in sorted(runs, key=lambda run: run.seed):
            if run.history.late:
                by_seed = by_label.setdefault(run.label, {})
                by_seed[run.seed] = run
        begun = {run.label for run in self.progress.runs}
        if not begun or baseline_of(begun) not in by_label:
            return None
        return findings_of_runs(self.folder, by_label, begun)


@dataclass
class NewestComparison:
    """Of the comparisons below a folder, each in a folder of its own, the one that is written to."""

    folder: Path
    others: int = 0  # besides the one that was chosen last
    _chosen: Path | None = None
    _known: frozenset[Path] = frozenset()
    _finished: dict[Path, _State | None] = field(default_factory=dict)  # header -> as it was found to say so

    def choose(self) -> Path | None:
        """The one written last, of those with an unfinished run if there are such; None if the folder holds none.

        It stays chosen until another begins, or until it has finished and another has not: of two that are written to
        at the same time, a reader sees one.
        """
        if holds_runs(self.folder):
            return None
        runs: dict[Path, list[RunFolder]] = {}
        for header in self.folder.glob("*/*/seed-*/header.json"):
            run = RunFolder(header.parent)
            runs.setdefault(header.parents[2], []).append(run)
        self.others = max(0, len(runs) - 1)
        has_begun = not runs.keys() <= self._known
        self._known = frozenset(runs)
        unfinished = []
        for place, inside in runs.items():
            if not all(self._has_finished(run) for run in inside):
                unfinished.append(place)
        stays = self._chosen in (unfinished or runs) and not has_begun
        if not stays:
            candidates = sorted(unfinished or runs)
            self._chosen = max(candidates, key=lambda place: _written_at(runs[place]), default=None)
        return self._chosen

    def _has_finished(self, run: RunFolder) -> bool:
        """Whether nothing more is to be seen of a run; a damaged one is none to wait for."""
        state = _state(run.header_path)
        if self._finished.get(run.header_path) == state:
            return True
        try:
            has_finished = run.finished
        except InputError:
            has_finished = True
        if has_finished:
            self._finished[run.header_path] = state
        return has_finished


def _written_at(runs: Sequence[RunFolder]) -> float:
    """When any of them was written to."""
    states = []
    for run in runs:
        states += [_state(run.header_path), _state(run.rounds_path)]
    return _last_written(states)


def _can_be_compared(complete: Sequence[PartialRun], begun: Sequence[PartialRun]) -> bool:
    """Whether the baseline is among them and, if others have begun, another entry."""
    if not begun:
        return False
    all_labels = {run.label for run in begun}
    labels = {run.label for run in complete}
    baseline = baseline_of(all_labels)
    others = all_labels - {baseline, *FLOOR_NAMES}
    has_rival = not others or bool(labels & others)
    return baseline in labels and has_rival


def _state(path: Path) -> _State | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _last_written(states: Sequence[_State | None]) -> float:
    """Seconds since 1970."""
    times = [state[2] for state in states if state is not None]
    return max(times, default=0) / 1e9


def _has_grown(before: _State | None, after: _State | None) -> bool:
    """Whether it is the same file, with something added or as it was."""
    if before is None or after is None:
        return False
    file, size, _ = before
    file_after, size_after, _ = after
    return file == file_after and size_after >= size
