"""A result in a few lines, for `print` and for notebooks."""

import html
import io
import math
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from ..comparison.history import Figures, History, Row, row
from ..metrics import Metric
from .table import Cell, Line, Table
from .tables import METRIC_COLUMNS
from .write import pages

_WIDTH = 100


def of_comparison(title: str, rows: Sequence[Row], floor: Row | None, notes: Sequence[str] = ()) -> Table:
    """One line per entry: means over seeds and their spread, in the last rounds."""
    metric = rows[0].metric
    lines = []
    for entry in rows:
        lines.append(Line(entry.label, _cells(entry, entry.late)))
    if floor is not None:
        lines.append(Line(floor.label, _cells(floor, floor.late), control=True))
    return _table(f"{title}; test {metric.title}", metric, lines, notes).with_best()


def of_run(title: str, history: History, notes: Sequence[str] = ()) -> Table:
    """Two lines: the model's round, usually the last, and the average of the last rounds."""
    figures = row("", [history], None)
    rounds = min(history.last_rounds, len(history.records))
    last = "last round" if history.model_round is None else f"round {history.model_round}"
    lines = [
        Line(last, _cells(figures, figures.last)),
        Line(f"last {rounds} rounds", _cells(figures, figures.late)),
    ]
    metric = figures.metric
    table = _table(f"{title}; test {metric.title}", metric, lines, notes)
    return replace(table, head="")


def _table(title: str, metric: Metric, lines: Sequence[Line], notes: Sequence[str]) -> Table:
    columns = []
    for column in METRIC_COLUMNS:
        is_spread = column.key == "std"  # less is better, whatever is measured
        better = column.better if is_spread else column.better * metric.sign
        columns.append(replace(column, better=better))
    return Table("brief", title, columns, lines, notes, digits=metric.digits)


def _cells(entry: Row, figures: Figures) -> list[Cell]:
    """In the metric's unit; one seed has no spread."""
    unit = entry.metric.unit
    cells = []
    for column in METRIC_COLUMNS:
        mean, spread = figures.get(column.key, (math.nan, math.nan))
        if math.isnan(mean):
            cells.append(Cell())
        elif entry.seeds == 1:
            cells.append(Cell(unit * mean))
        else:
            cells.append(Cell(unit * mean, spread=unit * spread))
    return cells


def text(table: Table) -> str:
    """The table in plain characters."""
    page = Console(file=io.StringIO(), width=_WIDTH, no_color=True, force_terminal=False, force_jupyter=False)
    with page.capture() as captured:
        page.print(pages([table], page))
    lines = [line.rstrip() for line in captured.get().strip("\n").splitlines()]
    return "\n".join(lines)


def as_html(table: Table) -> str:
    """The table as plain HTML; names are escaped."""
    heads = [table.head, *(column.title for column in table.columns)]
    parts = [f"<p>{html.escape(table.title)}</p>", "<table>", _html_row("th", heads)]
    for line in table.lines:
        cells = [cell.text(table.digits) for cell in line.cells]
        parts.append(_html_row("td", [line.entry, *cells]))
    parts.append("</table>")
    parts += [f"<p>{html.escape(note)}</p>" for note in table.notes]
    return "\n".join(parts)


def _html_row(tag: str, cells: Sequence[str]) -> str:
    escaped = [f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells]
    return f"<tr>{''.join(escaped)}</tr>"
