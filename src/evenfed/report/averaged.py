"""Entries that deploy the average of their models, next to the models that were averaged."""

from collections.abc import Sequence

from ..comparison.analysis.entry_figures import row
from ..comparison.analysis.findings import Entry, Findings
from .notes import accuracy_note
from .table import Cell, Line, Table
from .tables import LASTING_COLUMN, METRIC_COLUMNS, directed, metric_cells, name_of, when

DEPLOYED = "average"
CURRENT = "current model"


def tables(findings: Findings) -> list[Table]:
    """In the last rounds and in the last one; none if no entry has an average."""
    pairs = []
    for entry in findings.everyone:
        current = entry.current
        if current is not None:
            pairs.append((entry, current))
    if not pairs:
        return []
    return [_table(findings, pairs, late=True), _table(findings, pairs, late=False)]


def _table(findings: Findings, pairs: Sequence[tuple[Entry, Entry]], late: bool) -> Table:
    mean, std, _, worst10, _, _ = METRIC_COLUMNS
    columns = [mean, worst10, std]
    if late:  # one round alone has no lasting worst 10 %
        columns.insert(2, LASTING_COLUMN)
    keys = [column.key for column in columns]
    lines = []
    for entry, current in pairs:
        deployed = _cells(entry, keys, late)
        each_round = _cells(current, keys, late)
        lines.append(Line.of(entry, deployed, DEPLOYED))
        lines.append(Line.of(entry, each_round, CURRENT))
    notes = (
        accuracy_note(findings),
        "Average: the mean of the models so far; it is deployed, and all other tables judge it.",
        "Current model: the one that clients train on.",
    )
    table = Table(
        name=name_of("averaged", late),
        title=f"Deployed average and current model, {when(findings, late)}",
        columns=directed(columns, findings.metric),
        lines=lines,
        notes=notes,
        digits=findings.metric.digits,
    )
    return table.with_best()


def _cells(entry: Entry, keys: Sequence[str], late: bool) -> list[Cell]:
    figures = row(entry.label, entry.histories, None)
    return metric_cells(figures, late, keys)
