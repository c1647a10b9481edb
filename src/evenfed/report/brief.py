"""A result in a few lines, for `print` and for notebooks."""

import io
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from ..comparison.analysis.diagnostics import last_finite
from ..comparison.analysis.entry_figures import EntryFigures, row
from ..comparison.analysis.history import History
from ..core import markup
from ..core.markup import MarkedText
from ..metrics import Metric
from .table import Line, Table
from .tables import METRIC_COLUMNS, directed, metric_cells
from .terminal import pages

_WIDTH = 100


def of_comparison(
    title: str,
    rows: Sequence[EntryFigures],
    floors: Sequence[EntryFigures],
    notes: Sequence[str] = (),
) -> Table:
    """One line per entry: means over seeds and their spread, in the last rounds."""
    lines = []
    for entries, is_floor in ((rows, False), (floors, True)):
        for entry in entries:
            cells = metric_cells(entry, late=True)
            lines.append(Line(entry.label, cells, control=is_floor))
    table = _table(title, rows[0].metric, lines, notes)
    return table.with_best()


def of_run(title: str, history: History, notes: Sequence[str] = ()) -> Table:
    """The model's round, usually the last, and the average of the last rounds, unless that is the same.

    If the model is an average of models, also the newest of these.
    """
    figures = row("", [history], None)
    model_round = "last round"
    if history.model_round is not None:
        model_round = f"round {history.model_round}"
    rounds = min(history.last_rounds, len(history.records))
    last_rounds = "last round" if rounds == 1 else f"last {rounds} rounds"
    last = metric_cells(figures, late=False)
    late = metric_cells(figures, late=True)
    lines = [Line(model_round, last)]
    if last_rounds != model_round:
        lines.append(Line(last_rounds, late))
    current = history.current
    if current is not None:
        of_current = row("", [current], None)
        cells = metric_cells(of_current, late=False)
        lines.append(Line(f"not averaged, {model_round}", cells))
    all_notes = list(notes)
    how_far = _how_far(history)
    if how_far is not None:
        all_notes.append(how_far)
    table = _table(title, figures.metric, lines, all_notes)
    return replace(table, head="")


def _how_far(history: History) -> str | None:
    """What the last figures were of a run that broke down and has none."""
    if history.lost is None:
        return None
    metric = history.metric
    record = last_finite(history.records, metric)
    if record is None:
        return None
    known = metric.known(record)
    figures = metric.fairness(known)
    mean = metric.text(metric.unit * figures.mean)
    worst10 = metric.text(metric.unit * figures.worst10)
    number = record.index + 1
    return f"Last figures, after round {number}: mean {mean}, worst 10 % {worst10}."


def _table(
    title: str,
    metric: Metric,
    lines: Sequence[Line],
    notes: Sequence[str],
) -> Table:
    return Table(
        name="brief",
        title=f"{title}; test {metric.title}",
        columns=directed(METRIC_COLUMNS, metric),
        lines=lines,
        notes=notes,
        digits=metric.digits,
    )


def text(table: Table) -> str:
    """The table in plain characters."""
    page = Console(
        file=io.StringIO(),
        width=_WIDTH,
        no_color=True,
        force_terminal=False,
        force_jupyter=False,
    )
    with page.capture() as captured:
        page.print(pages([table], page))
    drawn = captured.get().strip("\n")
    lines = map(str.rstrip, drawn.splitlines())
    return "\n".join(lines)


def as_html(table: Table) -> str:
    """The table as HTML, the best of each column bold, the noise floor in italics."""
    heads = [table.head]
    for column in table.columns:
        heads.append(column.title)
    rows = []
    for line in table.lines:
        row = [MarkedText(line.entry, italic=line.control)]
        for cell in line.cells:
            text = cell.text(table.digits)
            row.append(MarkedText(text, bold=cell.best, italic=line.control))
        rows.append(row)
    return markup.table(table.title, heads, rows, table.notes)
