"""Whom the guard has held back: how often, when and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..comparison.analysis.findings import Entry, Findings
from ..comparison.analysis.side_by_side import names_of
from ..core.guard import WHAT, Clip
from .table import Cell, Column, Line, Table

LEFT_OUT = "left out"
_MOST = 10  # clients shown of an entry
_NOTE = (
    "Rounds, over all seeds, in which what a client reported counted for less; left out: rounds without its update. An "
    "honest client whose data differ from the others' may be among them."
)


@dataclass
class GuardCount:
    """How often one client was held back, over all seeds, and when."""

    rounds: int = 0
    first: int | None = None  # round, counted from 1
    last: int | None = None
    times: Counter[str] = field(default_factory=Counter)  # by what was bounded

    def add(self, number: int, clips: Sequence[Clip]) -> None:
        """One more round."""
        self.rounds += 1
        if self.first is None or self.last is None:
            self.first = number
            self.last = number
        self.first = min(self.first, number)
        self.last = max(self.last, number)
        for clip in clips:
            self.times[clip.what] += 1
            if what_of(clip) == LEFT_OUT:
                self.times[LEFT_OUT] += 1

    @property
    def cells(self) -> list[Cell]:
        numbers = [self.rounds, self.first, self.last]
        for what in (*WHAT, LEFT_OUT):
            numbers.append(self.times[what])
        cells = []
        for number in numbers:
            value = None if number is None else float(number)
            cells.append(Cell(value, digits=0))
        return cells


Counts = dict[int, GuardCount]  # client -> how it was held back
_COLUMNS = [
    Column("rounds", "rounds"),
    Column("first", "first"),
    Column("last", "last"),
    *[Column(what, what) for what in WHAT],
    Column("left-out", LEFT_OUT),
]


def what_of(clip: Clip) -> str:
    """What was bounded; an update that does not count at all was left out."""
    if clip.what == "update" and clip.counted == 0:
        return LEFT_OUT
    return clip.what


def tables(comparisons: Sequence[Findings]) -> list[Table]:
    """One line per client that was held back; no table where nobody was."""
    lines = []
    notes = [_NOTE]
    names = names_of(comparisons) if len(comparisons) > 1 else [""]
    for name, findings in zip(names, comparisons, strict=True):
        where = f"{name}: " if name else ""
        clients = findings.header.clients["names"]
        for entry in findings.everyone:
            counts = counts_of(entry)
            for client in most_often(counts)[:_MOST]:
                part = f"{where}{clients[client]}"
                cells = counts[client].cells
                lines.append(Line.of(entry, cells, part))
            more = len(counts) - _MOST
            if more > 0:
                notes.append(f"{where}{entry.label}: {more} more clients, less often.")
    if not lines:
        return []
    table = Table(
        name="guard",
        title="Whom the guard held back",
        columns=_COLUMNS,
        lines=lines,
        notes=notes,
        part_head="client",
    )
    return [table]


def facts(findings: Findings) -> list[str]:
    """A sentence for every entry in which the guard held someone back."""
    names = findings.header.clients["names"]
    sentences = []
    for entry in findings.everyone:
        counts = counts_of(entry)
        if not counts:
            continue
        rounds = sum(len(run.records) for run in entry.histories)
        worst = most_often(counts)[0]
        of_worst = counts[worst]
        reasons = [what for what in WHAT if of_worst.times[what]]
        sentences.append(
            f"{entry.label}: the guard held {len(counts)} of {len(names)} clients back, most often {names[worst]} "
            f"({', '.join(reasons)}; {of_worst.rounds} of {rounds} rounds)"
        )
    return sentences


def counts_of(entry: Entry) -> Counts:
    """The clients of an entry that were held back."""
    counts: Counts = {}
    for run in entry.histories:
        for record in run.records:
            by_client: dict[int, list[Clip]] = {}
            for clip in record.clipped:
                by_client.setdefault(clip.client, []).append(clip)
            for client, clips in by_client.items():
                held = counts.setdefault(client, GuardCount())
                held.add(record.index + 1, clips)
    return counts


def most_often(counts: Counts) -> list[int]:
    """The clients from the one that was held back in most rounds."""
    ascending = sorted(counts)
    return sorted(ascending, key=lambda client: counts[client].rounds, reverse=True)
