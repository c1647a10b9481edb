"""Several federations at a glance: one line per entry, its figures and its difference from FedAvg."""

from collections.abc import Sequence

import numpy as np

from ..comparison.analysis.findings import BASELINE, Findings
from ..comparison.analysis.statistics import Differences
from .columns import EXPECTED_WORST10, METRIC_COLUMNS, directed
from .table import Cell, Column, Line, Table
from .tables import figures_at, name_of, when

_MEAN, _, _, _WORST10, _, _ = METRIC_COLUMNS
_GAPS = (Column("mean_gap", "Δ mean [95 %]"), Column("worst10_gap", "Δ worst 10 % [95 %]"))
_EXPECTED_GAPS = (
    Column("expected_mean_gap", "Δ expected mean [95 %]"),
    Column("expected_worst10_gap", "Δ expected worst 10 % [95 %]"),
)


def at_a_glance(differences: Differences, expected: Differences | None) -> Table:
    """Means over the federations; `expected` are the same differences in expected accuracies, where these fit."""
    first = differences.findings
    late = differences.late
    columns = directed([_MEAN, _WORST10], first.metric)
    gaps = list(_GAPS)
    if expected is not None:
        columns.append(EXPECTED_WORST10)
        gaps += _EXPECTED_GAPS
    lines = []
    for entry in first.everyone:
        label = entry.label
        cells = []
        for column in columns:
            cells.append(_over_federations(differences.comparisons, label, column.key, late))
        cells += [_gap(differences, label, "mean"), _gap(differences, label, "worst10")]
        if expected is not None:
            cells += [_gap(expected, label, "mean"), _gap(expected, label, "worst10")]
        lines.append(Line(label, cells, control=entry.is_control))
    table = Table(
        name=name_of("glance", late),
        title=f"{differences.federations} federations, {when(first, late)}",
        columns=[*columns, *gaps],
        lines=lines,
        digits=first.metric.digits,
        notes=(_note(differences),),
    )
    return table.with_best()


def _over_federations(comparisons: Sequence[Findings], label: str, metric: str, late: bool) -> Cell:
    """The mean of a figure over federations and seeds."""
    means = []
    for findings in comparisons:
        figures = figures_at(findings.rows[label], late)
        if metric in figures:
            means.append(figures[metric][0])
    if not means or np.isnan(means).any():
        return Cell()
    unit = comparisons[0].metric.unit
    return Cell(unit * float(np.mean(means)))


def _gap(differences: Differences, label: str, metric: str) -> Cell:
    known = label in differences.findings.by_label
    if label == BASELINE or not known or not differences.comparable(label, BASELINE):
        return Cell()
    return Cell.of(differences.between(label, BASELINE, metric))


def _note(differences: Differences) -> str:
    metric = differences.findings.metric
    note = f"{metric.title.capitalize()} over clients, mean over federations. Δ: minus FedAvg's, in points."
    if differences.are_over_federations:
        return f"{note} Intervals: over the {differences.federations} federations, what to expect of another one."
    return f"{note} Intervals: over seeds, these federations taken as given."
