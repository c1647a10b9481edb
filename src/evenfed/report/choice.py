"""What was chosen on validation data and from what: tables, and the grids that a figure draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..comparison.choose import Choice
from ..comparison.findings import BASELINE, Entry, Findings
from ..comparison.history import LASTING
from ..settings import VARIANT
from .tables import LASTING_NOTE, Cell, Column, Line, Table, correlation, joined, measured, title

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
        return sorted(values, key=lambda value: float("inf") if value is None else float(value))


def grids(choice: Choice) -> list[Grid]:
    """Of every method that has just two dials."""
    grids = []
    for method in choice.chosen:
        entries = choice.candidates(method)
        dials = _varied(entries)
        if len(dials) == 2:
            one, other = dials
            by_point = {(_setting(entry, one), _setting(entry, other)): entry for entry in entries}
            grids.append(Grid(method, (one, other), by_point))
    return grids


def _varied(entries: Sequence[Entry]) -> list[str]:
    """The hyper-parameters and options in which the entries differ."""
    names = [*entries[0].config["hyper_parameters"], *VARIANT]
    varied = []
    for name in names:
        values = {repr(_setting(entry, name)) for entry in entries}
        if len(values) > 1:
            varied.append(name)
    return varied


def _setting(entry: Entry, name: str) -> Any:
    source = entry.config["train"] if name in VARIANT else entry.config["hyper_parameters"]
    return source.get(name)


def tables(choice: Choice) -> list[Table]:
    """What was chosen, and for each method all candidates over its two dials."""
    findings = choice.findings
    lines = []
    for method, entry in choice.chosen.items():
        verdict = f"of {len(choice.candidates(method))}"
        if not choice.reached[method]:
            verdict += "; none reaches the required mean"
        cells = (*_cells(findings, entry), Cell(verdict=verdict))
        lines.append(Line(entry.label, cells, method))
    floor = findings.floor
    if floor:
        cells = (*_cells(findings, floor), Cell(verdict="chance"))
        lines.append(Line(floor.label, cells, BASELINE, control=True))
    chosen = Table(
        name="chosen",
        title="Chosen on validation data",
        columns=(*(Column(part, title(part)) for part in _PARTS), Column("verdict", "")),
        lines=tuple(lines),
        notes=(choice.rule,),
        head="entry",
    )
    return [chosen, *(_grid_table(choice, grid) for grid in grids(choice))]


def _grid_table(choice: Choice, grid: Grid) -> Table:
    """A line for each value of the first dial and each figure, a column for each value of the second dial."""
    findings = choice.findings
    one, other = grid.dials
    columns = [Column(f"{other}={value}", f"{other}={shown(value)}") for value in grid.values(1)]
    lines = []
    for value in grid.values(0):
        entries = [grid.entries.get((value, across)) for across in grid.values(1)]
        by_entry = [_cells(findings, entry) for entry in entries]
        for part, cells in zip(_PARTS, zip(*by_entry, strict=True), strict=True):
            lines.append(Line(f"{one}={value}", cells, part))
    notes = [_grid_note(choice)]
    for entry in grid.entries.values():
        notes += [f"{breakdown}." for breakdown in entry.broken]
    return Table(
        name=f"grid-{grid.method}",
        title=f"{grid.method} over {one} and {other}",
        columns=tuple(columns),
        lines=tuple(lines),
        notes=tuple(notes),
        head="",
    )


def _grid_note(choice: Choice) -> str:
    fedavg = choice.chosen[BASELINE]
    figures = []
    for name, cell in zip(_PARTS, _cells(choice.findings, fedavg), strict=True):
        if name in FIGURES:
            figures.append(f"{title(name)} {cell.text(2)}")
    return joined(
        f"Validation accuracy in %, average of the last {choice.findings.last_rounds} rounds.",
        f"For comparison {fedavg.label}, chosen the same way: {', '.join(figures)}.",
        LASTING_NOTE,
    )


def shown(value: Any) -> str:
    """As an experiment's file has it."""
    return "none" if value is None else str(value)


def _cells(findings: Findings, entry: Entry | None) -> tuple[Cell, ...]:
    """The figures of a candidate; empty if there is none with these values."""
    if entry is None:
        return (Cell(),) * len(_PARTS)
    row = findings.rows[entry.label]
    figures = [measured(row, True, name) for name in FIGURES]
    return (*figures, correlation(row.oscillation))
