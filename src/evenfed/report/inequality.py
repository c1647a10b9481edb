"""Tables of how unequal clients are in the field's other measures, and of groups of clients."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..comparison.analysis.entry_figures import mean_and_spread
from ..comparison.analysis.findings import Entry, Findings
from ..fairness import Inequality
from .notes import definitions, measured_on, spread_of
from .table import Cell, Column, Line, Table
from .tables import METRIC_COLUMNS, directed, name_of, when

_MEASURES = (
    Column("gini", "Gini", -1),
    Column("jain", "Jain", +1),
    Column("theil", "Theil", -1),
    Column("entropy", "entropy", +1),
    Column("cv", "CV", -1),
    Column("angle", "angle", -1),
    Column("gap_90_10", "gap 90-10 %", -1),
    Column("gap_75_25", "gap 75-25 %", -1),
    Column("gap_max_min", "best minus worst", -1),
)
_WEIGHTED = Column("weighted_mean", "mean by size")
_DIGITS = {"gini": 3, "jain": 3, "theil": 3, "entropy": 3, "cv": 3, "angle": 1}
_NOTE = (
    "Equal clients: Gini, Theil, CV and angle (degrees) 0, Jain and entropy 1. Gaps: between quantiles over clients, "
    "in the metric's unit. Formulas: docs/metrics.md."
)
_OF_LOSSES = "Less of the metric is better: these measures then weigh the clients served worst most."

Members = Mapping[str, Sequence[int]]  # of each group: its clients by their place


def inequality(findings: Findings, late: bool) -> Table:
    """One line per entry, means over seeds."""
    columns = list(_MEASURES)
    has_sizes = findings.origin is None or findings.origin.has_sizes
    if has_sizes:
        columns.append(_WEIGHTED)
    lines = []
    for entry in findings.everyone:
        cells = _cells(entry, late)
        if has_sizes:
            cells.append(_weighted_mean(findings, entry, late))
        lines.append(Line.of(entry, cells))
    unit = f"{measured_on(findings)} over clients, {spread_of(findings)}."
    by_size = "Mean by size: clients weighted by their test examples." if has_sizes else ""
    table = Table(
        name=name_of("inequality", late),
        title=f"Inequality between clients, {when(findings, late)}",
        columns=columns,
        lines=lines,
        notes=definitions(unit, _NOTE, by_size, "" if findings.metric.higher_is_better else _OF_LOSSES),
        digits=findings.metric.digits,
    )
    return table.with_best()


def _cells(entry: Entry, late: bool) -> list[Cell]:
    per_seed = []
    for seed in entry.runs:
        evaluations = entry.figures(seed, late)
        measures = list(map(Inequality.of, evaluations))
        per_seed.append(Inequality.average(measures))
    cells = []
    for column in _MEASURES:
        key = column.key
        values = [getattr(measures, key) for measures in per_seed]
        is_relative = key in _DIGITS
        scale = 1.0 if is_relative else entry.metric.unit
        cell = Cell.over_seeds(values, scale, _DIGITS.get(key))
        cells.append(cell)
    return cells


def _weighted_mean(findings: Findings, entry: Entry, late: bool) -> Cell:
    sizes = np.array(findings.header.judged_sizes, dtype=np.float64)
    means = []
    for seed in entry.runs:
        figures = entry.figures(seed, late).mean(axis=0)
        is_known = ~np.isnan(figures)
        weights = sizes[is_known]
        total = weights.sum()
        mean = np.nan
        if total > 0:
            mean = figures[is_known] @ weights / total
        means.append(float(mean))
    return Cell.over_seeds(means, entry.metric.unit)


def groups(findings: Findings, late: bool) -> list[Table]:
    """Each group of clients by itself, and how far apart their means are; none where clients have no groups."""
    if findings.origin is None or not findings.origin.groups:
        return []
    members: dict[str, list[int]] = {}
    for place, client in enumerate(findings.header.clients["names"]):
        group = findings.origin.groups.get(client, "no group")
        members.setdefault(group, []).append(place)
    mean, std, _, worst10, _, _ = METRIC_COLUMNS
    columns = [Column("clients", "clients"), *directed((mean, worst10, std), findings.metric)]
    lines = []
    for entry in findings.everyone:
        lines += _of_groups(entry, late, members)
    note = f"{measured_on(findings)} over the clients of each group, mean over seeds. Each client counts once."
    table = Table(
        name=name_of("groups", late),
        title=f"Groups of clients, {when(findings, late)}",
        columns=columns,
        lines=lines,
        notes=(note,),
        digits=findings.metric.digits,
    )
    return [table]


def _of_groups(entry: Entry, late: bool, members: Members) -> list[Line]:
    """A line for each group, and one for the distance between the best and the worst group's mean."""
    lines = []
    means = []
    for group, places in members.items():
        cells = _of_group(entry, late, places)
        lines.append(Line.of(entry, cells, group))
        _, mean, _, _ = cells
        if mean.value is not None:
            means.append(mean.value)
    apart = Cell()
    if means:
        apart = Cell(max(means) - min(means))
    cells = [Cell(), apart, Cell(), Cell()]
    lines.append(Line.of(entry, cells, "best minus worst group"))
    return lines


def _of_group(entry: Entry, late: bool, places: Sequence[int]) -> list[Cell]:
    clients = 0
    evaluations = []
    for seed in entry.runs:
        for figures in entry.figures(seed, late):
            own = figures[places]
            is_known = ~np.isnan(own)
            clients = max(clients, int(is_known.sum()))
            evaluations.append(entry.metric.fairness(own))
    cells = [Cell(float(clients), digits=0)]
    for metric in ("mean", "worst10", "std"):
        values = [getattr(fairness, metric) for fairness in evaluations]
        mean, _ = mean_and_spread(values)
        cell = Cell()
        if not np.isnan(mean):
            cell = Cell(entry.metric.unit * mean)
        cells.append(cell)
    return cells
