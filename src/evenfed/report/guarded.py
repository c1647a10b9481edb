"""Whom the guard has held back, how often and why."""

from collections import Counter

from ..comparison.findings import Entry, Findings
from .table import Cell, Column, Line, Table

WHAT = ("loss", "weight", "update", "buffers", "size")
_MOST = 10  # clients shown of an entry
_NOTE = (
    "Rounds, over all seeds, in which what a client reported counted for less; left out: rounds without its update. An "
    "honest client whose data differ from the others' may be among them."
)

Counts = dict[int, Counter[str]]  # client -> what was clipped -> rounds


def tables(findings: Findings) -> list[Table]:
    """One line per client that was held back; no table where nobody was."""
    lines = []
    notes = [_NOTE]
    names = findings.header.clients["names"]
    for entry in findings.everyone:
        counts = _counts(entry)
        most_often = sorted(counts, key=lambda client: (-counts[client]["rounds"], client))
        for client in most_often[:_MOST]:
            cells = []
            for what in ("rounds", *WHAT, "left out"):
                number = float(counts[client][what])
                cells.append(Cell(number, digits=0))
            lines.append(Line(entry.label, cells, str(names[client]), entry.is_control))
        if len(counts) > _MOST:
            notes.append(f"{entry.label}: {len(counts) - _MOST} more clients, less often.")
    if not lines:
        return []
    columns = [Column("rounds", "rounds")]
    columns += [Column(what, what) for what in WHAT]
    columns.append(Column("left-out", "left out"))
    return [Table(name="guard", title="Whom the guard held back", columns=columns, lines=lines, notes=notes)]


def facts(findings: Findings) -> list[str]:
    """A sentence for every entry in which the guard held someone back."""
    names = findings.header.clients["names"]
    sentences = []
    for entry in findings.everyone:
        counts = _counts(entry)
        if not counts:
            continue
        rounds = sum(len(run.records) for run in entry.histories)
        worst = max(counts, key=lambda client: counts[client]["rounds"])
        reasons = [what for what in WHAT if counts[worst][what]]
        sentences.append(
            f"{entry.label}: the guard held {len(counts)} of {len(names)} clients back, most often {names[worst]} "
            f"({', '.join(reasons)}; {counts[worst]['rounds']} of {rounds} rounds)"
        )
    return sentences


def _counts(entry: Entry) -> Counts:
    counts: Counts = {}
    for run in entry.histories:
        for record in run.records:
            held = set()
            for clip in record.clipped:
                of_client = counts.setdefault(clip.client, Counter())
                of_client[clip.what] += 1
                of_client["left out"] += clip.what == "update" and clip.counted == 0
                held.add(clip.client)
            for client in held:
                counts[client]["rounds"] += 1
    return counts
