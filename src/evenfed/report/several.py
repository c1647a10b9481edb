"""Comparisons beside each other: the same entries on other federations, or in another set-up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..comparison.findings import Entry, Findings
from ..comparison.history import METRICS, History, Row
from ..comparison.statistics import Pairs, components
from ..core.errors import InputError
from ..settings import VARIANT
from . import paper
from .against import controls, differences
from .tables import (
    METRIC_COLUMNS,
    SUPPRESSION_COLUMNS,
    Cell,
    Column,
    Line,
    Table,
    floor_note,
    judged_by,
    measured,
    name_of,
    suppression_cells,
    title,
    when,
)

_SPLIT = "data.seed"  # comparisons that differ in this alone are repetitions on other federations
_NO_MATTER = ("train.device", "train.engine", "train.seed")
_UNSAID = {"data.judge": "test", "model.normalise": False}  # where a run does not name it


def tables(comparisons: Sequence[Findings], papers: paper.Numbers | None) -> list[Table]:
    """Pooled over federations where nothing but the split differs, else set beside each other."""
    names, same_set_up = _told_apart(comparisons)
    several = _in_common(comparisons)
    others = dict.fromkeys(e.label for f in comparisons for e in f.everyone if e.label not in several[0].rows)
    left_out = f"Left out, as not the same in all of them: {', '.join(others)}." if others else ""
    found = []
    for late in (True, False):
        pairs = [Pairs(f, late, stream) for stream, f in enumerate(several)]
        found.append(_beside(several, names, late, papers, left_out))
        if same_set_up:
            found += [_components(several, late), _suppression(several, late), *differences(pairs, names)]
            found += [controls(pairs)] if several[0].controls else []
        else:
            found.append(_within(pairs, names))
    return found


def federations(comparisons: Sequence[Findings]) -> list[Findings]:
    """What the comparisons have in common, if nothing but the split differs, so that it can be pooled; else nothing."""
    return _in_common(comparisons) if len(comparisons) == 1 or _told_apart(comparisons)[1] else []


def _told_apart(several: Sequence[Findings]) -> tuple[list[str], bool]:
    """A name for each, of what is set otherwise than in the others; and whether that is the split alone."""
    flat = [_UNSAID | dict(_flat(f.header["config"])) for f in several]
    places = sorted({k for one in flat for k in one if any(one[k] != other.get(k) for other in flat)} - {*_NO_MATTER})
    names = [", ".join(f"{place}={one.get(place)}" for place in places) for one in flat]
    if len(set(names)) < len(names):
        folders = ", ".join(str(f.folder) for f in several)
        raise InputError(
            f"{folders}: two of them ran FedAvg on the same data in the same set-up; give comparisons that differ in "
            "data.seed (other federations) or in what is to be compared, each once"
        )
    tasks = {str(f.folder): (f.header["config"]["data"]["name"], f.rounds) for f in several}
    if len(set(tasks.values())) > 1:
        told = ", ".join(f"{folder}: {data}, {rounds} rounds" for folder, (data, rounds) in tasks.items())
        raise InputError(f"{told}; report on comparisons of the same data set and number of rounds together")
    return names, places == [_SPLIT]


def _flat(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _in_common(several: Sequence[Findings]) -> list[Findings]:
    """Those entries alone that stand for the same in all comparisons, in the first one's order."""
    labels = [e.label for e in several[0].everyone if all(e.label in f.rows for f in several)]
    meant = {label: {repr(_meant(f.named(label), f.baseline)) for f in several} for label in labels}
    common = [label for label in labels if len(meant[label]) == 1]
    return [findings.only(common) for findings in several]


def _meant(entry: Entry, baseline: Entry) -> tuple[Any, ...]:
    """What an entry is, beside FedAvg of the same comparison."""
    ours, shared = entry.config["train"], baseline.config["train"]
    return (
        entry.method,
        entry.config["hyper_parameters"],
        {k: ours.get(k) for k in VARIANT if ours.get(k) != shared.get(k)},
    )


def _beside(
    several: Sequence[Findings], names: Sequence[str], late: bool, papers: paper.Numbers | None, left_out: str
) -> Table:
    """Every metric of every entry in each comparison."""
    lines = []
    for label in several[0].rows:
        control = several[0].named(label).repeats is not None
        for name, findings in zip(names, several, strict=True):
            cells = tuple(measured(findings.rows[label], late, m) for m in METRICS)
            lines.append(Line(label, cells, name, control))
        theirs = (papers or {}).get(several[0].named(label).method)
        if theirs and not control and not late:
            lines.append(Line(label, tuple(Cell(*theirs[m]) for m in METRICS), "paper"))
    told = ["Accuracy in % over clients, mean ± spread over seeds.", floor_note(several[0]), left_out]
    name, head = name_of("beside", late), f"Side by side, {when(several[0], late)}"
    return Table(name, head, METRIC_COLUMNS, tuple(lines), (" ".join(filter(None, told)),))


def _within(several: Sequence[Pairs], names: Sequence[str]) -> Table:
    """Each entry against FedAvg in the same set-up."""
    lines = []
    for label in list(several[0].findings.rows)[1:]:
        for name, pairs in zip(names, several, strict=True):
            entry = pairs.findings.named(label)
            gaps = [pairs.between(entry, pairs.findings.baseline, m) for m in judged_by(pairs.late)]
            cells = tuple(Cell(g.points, low=g.low, high=g.high, signed=True) for g in gaps)
            lines.append(Line(label, cells, name, entry.repeats is not None))
    told = "Points, entry minus FedAvg in the same set-up, with the 95 % interval over clients and seeds."
    head = f"Paired difference from FedAvg in each set-up, {when(several[0].findings, several[0].late)}"
    columns = tuple(Column(m, title(m)) for m in judged_by(several[0].late))
    return Table(name_of("paired", several[0].late), head, columns, tuple(lines), (told,))


def _components(several: Sequence[Findings], late: bool) -> Table:
    """What federations and what seeds move: standard deviations of a figure, and of its difference from FedAvg."""
    lines: list[Line] = []
    fewer = False
    for label in several[0].rows:
        entries = [f.named(label) for f in several]
        shared = [seed for seed in entries[0].runs if all(seed in e.runs for e in entries)]
        fewer |= any(len(e.runs) > len(shared) for e in entries)
        if len(shared) < 2:
            continue
        fedavg = [dict(zip(e.runs, f.beside(e), strict=True)) for f, e in zip(several, entries, strict=True)]
        own = np.array([[_of(e.runs[seed], late) for seed in shared] for e in entries])
        base = np.array([[_of(runs[seed], late) for seed in shared] for runs in fedavg])
        control = entries[0].repeats is not None
        lines += _spreads(label, "figure", own, control)
        if label != several[0].baseline.label:
            lines += _spreads(label, "minus FedAvg", own - base, control)
    told = (
        f"Points: the mean over {len(several)} federations and their seeds, and standard deviations by analysis of "
        "variance: what a new federation adds to a figure, and what a new seed on the same one adds. With so few of "
        "each they are rough; estimates below 0 count as 0." + " Only the seeds that all federations have." * fewer
    )
    head = f"Spread over federations and over seeds, {when(several[0], late)}"
    return Table(name_of("components", late), head, METRIC_COLUMNS, tuple(lines), (told,))


def _spreads(label: str, what: str, values: NDArray[np.float64], control: bool) -> Iterator[Line]:
    """`values` [federations, seeds, metrics] as three lines."""
    parts = [components(values[:, :, k]) for k in range(len(METRICS))]
    signed = what != "figure"
    mean = tuple(Cell(float(v), signed=signed) for v in values.mean(axis=(0, 1)))
    yield Line(label, mean, what, control)
    yield Line(label, tuple(Cell(between) for between, _ in parts), f"{what}: federations", control)
    yield Line(label, tuple(Cell(within) for _, within in parts), f"{what}: seeds", control)


def _of(run: History, late: bool) -> list[float]:
    fair = run.late_fairness if late else run.fairness
    return [100 * getattr(fair, m) for m in METRICS]


def _suppression(several: Sequence[Findings], late: bool) -> Table:
    """Table 2 over all federations: each client against itself under FedAvg."""
    lines = [
        Line(
            label,
            suppression_cells(_pooled([f.rows[label] for f in several]), late),
            control=several[0].named(label).repeats is not None,
        )
        for label in list(several[0].rows)[1:]
    ]
    told = (
        "In % of the clients, mean ± spread over federations and seeds; in brackets the mean change in points. "
        f"{floor_note(several[0])}"
    )
    head = f"Clients against FedAvg over {len(several)} federations, {when(several[0], late)}"
    return Table(name_of("suppression", late), head, SUPPRESSION_COLUMNS, tuple(lines), (told.strip(),)).with_best()


def _pooled(rows: Sequence[Row]) -> Row:
    """One row of all federations' runs."""

    def over(figures: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
        means, spreads = ({k: [f[k][i] for f in figures] for k in figures[0]} for i in (0, 1))
        return {
            k: (float(np.mean(means[k])), float(np.sqrt(np.mean(np.square(spreads[k])) + np.var(means[k]))))
            for k in figures[0]
        }

    return replace(rows[0], last=over([r.last for r in rows]), late=over([r.late for r in rows]))
