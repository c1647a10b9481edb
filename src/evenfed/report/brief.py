"""A result in a few lines, for `print` and for notebooks."""

import html
import io
from collections.abc import Sequence

from rich.console import Console

from ..comparison.history import History, Row, row
from .table import Line, Table
from .tables import METRIC_COLUMNS, metric_cells
from .write import pages

_WIDTH = 100


def of_comparison(title: str, rows: Sequence[Row], floor: Row | None, notes: Sequence[str] = ()) -> Table:
    """One line per entry: means over seeds and their spread, in the last rounds."""
    lines = []
    for entry in rows:
        lines.append(Line(entry.label, metric_cells(entry, late=True)))
    if floor is not None:
        lines.append(Line(floor.label, metric_cells(floor, late=True), control=True))
    table = Table("brief", title, METRIC_COLUMNS, lines, notes)
    return table.with_best()


def of_run(title: str, history: History, notes: Sequence[str] = ()) -> Table:
    """Two lines: the model's round, usually the last, and the average of the last rounds."""
    figures = row("", [history], None)
    rounds = min(history.last_rounds, len(history.records))
    last = "last round" if history.model_round is None else f"round {history.model_round}"
    lines = [
        Line(last, metric_cells(figures, late=False)),
        Line(f"last {rounds} rounds", metric_cells(figures, late=True)),
    ]
    return Table("brief", title, METRIC_COLUMNS, lines, notes, head="")


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
