"""What was chosen on validation data and from what: tables, and the grids that a figure draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..comparison.choose import Choice
from ..comparison.findings import BASELINE, Entry
from ..comparison.history import LASTING
from ..settings import VARIANT
from .table import Cell, Column, Line, Table
from .tables import LASTING_NOTE, correlation, joined, measured, metric_cells, metric_columns, title

FIGURES = ("mean", "worst10", LASTING)  # shown; the first two decide
_PARTS = (*FIGURES, "oscillation")


@dataclass(frozen=True)
class Grid:
    """A method's candidates over the two dials in which they differ."""

    method: str
    dials: tuple[str, str]
    entries: Mapping[tuple[Any, Any], Entry]  # by the dials' values

    def values(self, dial: int) -> list[Any]:
        """In order; a dial that is off, as `smooth` is by default, comes last."""
        values = {point[dial] for point in self.entries}
        is_off_somewhere = None in values
        values.discard(None)
        ordered = sorted(values, key=float)
        if is_off_somewhere:
            ordered.append(None)
        return ordered


def grids(choice: Choice) -> list[Grid]:
    """Of every method that has just two dials."""
    grids = []
    for method in choice.chosen:
        entries = choice.candidates(method)
        dials = _varied(entries)
        if len(dials) == 2:
            one, other = dials
            by_point = {}
            for entry in entries:
                point = (_setting(entry, one), _setting(entry, other))
                by_point[point] = entry
            grids.append(Grid(method, (one, other), by_point))
    return grids


def _varied(entries: Sequence[Entry]) -> list[str]:
    """The hyper-parameters and options in which the entries differ."""
    hyper_parameters = entries[0].config["hyper_parameters"]
    varied = []
    for name in (*hyper_parameters, *VARIANT):
        values = set()
        for entry in entries:
            setting = _setting(entry, name)
            values.add(repr(setting))
        if len(values) > 1:
            varied.append(name)
    return varied


def _setting(entry: Entry, name: str) -> Any:
    part = "train" if name in VARIANT else "hyper_parameters"
    return entry.config[part].get(name)


def tables(choice: Choice) -> list[Table]:
    """What was chosen, and for each method all candidates over its two dials."""
    findings = choice.findings
    lines = []
    for method, entry in choice.chosen.items():
        verdict = f"of {len(choice.candidates(method))}"
        if not choice.reached[method]:
            verdict += "; none reaches the required mean"
        cells = _cells(choice, entry)
        cells.append(Cell(verdict=verdict))
        lines.append(Line(entry.label, cells, method))
    for control in findings.controls:
        cells = _cells(choice, control)
        cells.append(Cell(verdict="chance"))
        lines.append(Line(control.label, cells, BASELINE, control=True))
    columns = metric_columns(_PARTS)
    columns.append(Column("verdict", ""))
    chosen = Table(
        name="chosen",
        title="Chosen on validation data",
        columns=columns,
        lines=lines,
        notes=(choice.rule,),
        head="entry",
        digits=findings.metric.digits,
    )
    tables = [chosen, _candidates(choice)]
    for grid in grids(choice):
        tables.append(_grid_table(choice, grid))
    return tables


def _candidates(choice: Choice) -> Table:
    """Every entry, and whether its mean is good enough."""
    lines = []
    for entry in choice.findings.entries:
        verdict = "" if choice.is_admitted(entry) else "mean too low"
        if choice.chosen[entry.method].label == entry.label:
            verdict = "chosen"
        cells = _cells(choice, entry)
        cells.append(Cell(verdict=verdict))
        lines.append(Line(entry.label, cells, entry.method))
    columns = metric_columns(_PARTS)
    columns.append(Column("verdict", ""))
    return Table(
        name="candidates",
        title="Candidates on validation data",
        columns=columns,
        lines=lines,
        notes=(LASTING_NOTE,),
        head="entry",
        digits=choice.findings.metric.digits,
    )


def _grid_table(choice: Choice, grid: Grid) -> Table:
    """A line for each value of the first dial and each figure, a column for each value of the second dial."""
    one, other = grid.dials
    columns = []
    for value in grid.values(1):
        column = Column(
            key=f"{other}={value}",
            title=f"{other}={shown(value)}",
        )
        columns.append(column)
    lines = []
    for value in grid.values(0):
        by_entry = []
        for across in grid.values(1):
            point = (value, across)
            entry = grid.entries.get(point)
            by_entry.append(_cells(choice, entry))
        for k, part in enumerate(_PARTS):
            cells = [figures[k] for figures in by_entry]
            line = Line(f"{one}={value}", cells, part)
            lines.append(line)
    notes = [_grid_note(choice)]
    for candidate in grid.entries.values():
        for breakdown in candidate.broken:
            notes.append(f"{breakdown}.")
    return Table(
        name=f"grid-{grid.method}",
        title=f"{grid.method} over {one} and {other}",
        columns=columns,
        lines=lines,
        notes=notes,
        head="",
        digits=choice.findings.metric.digits,
    )


def _grid_note(choice: Choice) -> str:
    fedavg = choice.chosen[BASELINE]
    row = choice.rows[fedavg.label]
    figures = []
    for metric in FIGURES:
        cell = measured(row, True, metric)
        figure = cell.text(choice.findings.metric.digits + 1)
        figures.append(f"{title(metric)} {figure}")
    last_rounds = choice.findings.last_rounds
    fedavg_figures = ", ".join(figures)
    return joined(
        f"Validation {choice.findings.metric.title}, average of the last {last_rounds} rounds.",
        f"For comparison {fedavg.label}, chosen the same way: {fedavg_figures}.",
        LASTING_NOTE,
    )


def shown(value: Any) -> str:
    """As an experiment's file has it."""
    return "none" if value is None else str(value)


def _cells(choice: Choice, entry: Entry | None) -> list[Cell]:
    """The figures of a candidate; empty if there is none with these values."""
    if entry is None:
        return [Cell()] * len(_PARTS)
    row = choice.rows[entry.label]
    cells = metric_cells(row, True, FIGURES)
    cells.append(correlation(row.oscillation))
    return cells
