"""What was chosen on validation data and from what: tables, and the grids that a figure draws."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..comparison.analysis.entry_figures import LASTING
from ..comparison.analysis.expected import MOST_UNEXPLAINED
from ..comparison.analysis.findings import BASELINE, Entry
from ..comparison.tuning.choose import Choice
from ..core.words import assignments
from ..settings import VARIANT, Settings
from .notes import LASTING_NOTE, definitions, in_percent, measured_on
from .table import Cell, Column, Line, Table
from .tables import correlation, measured, metric_cells, metric_columns, title, when

FIGURES = ("mean", "worst10", LASTING)  # shown; the first two decide
_PARTS = (*FIGURES, "oscillation")


@dataclass(frozen=True)
class Grid:
    """A method's candidates over two dials in which they differ; in others they are as the chosen one."""

    method: str
    dials: tuple[str, str]
    entries: Mapping[tuple[Any, Any], Entry]  # by the dials' values
    others: Mapping[str, Any]  # values of the other dials

    @property
    def as_chosen(self) -> str:
        """The other dials as an experiment's file has them; empty if there are none.

        >>> Grid("vred", ("beta", "lr"), {}, {"smooth": 0.1, "average": None}).as_chosen
        'smooth=0.1, average=none'
        """
        return assignments(self.others, shown)

    def values(self, dial: int) -> list[Any]:
        """In order."""
        values = {point[dial] for point in self.entries}
        return in_order(values)


def in_order(values: Iterable[Any]) -> list[Any]:
    """A dial's values: numbers by size, then names; a dial that is off, as `smooth` is by default, comes last.

    >>> in_order([None, 0.95, 0.9, "adam", 10])
    [0.9, 0.95, 10, 'adam', None]
    """

    def place(value: Any) -> tuple[int, float, str]:
        if value is None:
            return 2, 0.0, ""
        if isinstance(value, str):
            return 1, 0.0, value
        return 0, float(value), ""

    return sorted(values, key=place)


def grids(choice: Choice) -> list[Grid]:
    """Of every method that has two dials or more: over the first two, in the order of `_varied`."""
    grids = []
    for method, chosen in choice.chosen.items():
        candidates = choice.candidates(method)
        dials = _varied(candidates)
        if len(dials) < 2:
            continue
        one, other, *rest = dials
        others = {name: _setting(chosen, name) for name in rest}
        by_point = {}
        for entry in candidates:
            is_as_chosen = all(_setting(entry, name) == value for name, value in others.items())
            if is_as_chosen:
                point = (_setting(entry, one), _setting(entry, other))
                by_point[point] = entry
        grids.append(Grid(method, (one, other), by_point, others))
    return grids


def _varied(entries: Sequence[Entry]) -> list[str]:
    """The hyper-parameters in which the entries differ, then the options as `Settings` lists them."""
    hyper_parameters = entries[0].config["hyper_parameters"]
    options = [option.name for option in dataclasses.fields(Settings) if option.name in VARIANT]
    varied = []
    for name in (*hyper_parameters, *options):
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
    """What was chosen, all candidates, and those of each method over two dials."""
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
        notes=definitions(choice.rule, why_measured(choice)),
        head="entry",
        digits=findings.metric.digits,
    )
    tables = [chosen, _candidates(choice)]
    for grid in grids(choice):
        tables.append(_grid_table(choice, grid))
    return tables


def _candidates(choice: Choice) -> Table:
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
        notes=(_figures_note(choice), LASTING_NOTE),
        head="entry",
        digits=choice.findings.metric.digits,
    )


def _grid_table(choice: Choice, grid: Grid) -> Table:
    """A line for each value of the first dial and each figure, a column for each value of the second dial."""
    one, other = grid.dials
    columns = []
    for value in grid.values(1):
        column = Column(
            key=f"{other}={shown(value)}",
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
            line = Line(f"{one}={shown(value)}", cells, part)
            lines.append(line)
    as_chosen = f" ({grid.as_chosen}, as chosen)" if grid.others else ""
    notes = _grid_notes(choice)
    for candidate in grid.entries.values():
        for breakdown in candidate.broken:
            notes.append(f"{breakdown}.")
    return Table(
        name=f"grid-{grid.method}",
        title=f"{grid.method} over {one} and {other}{as_chosen}",
        columns=columns,
        lines=lines,
        notes=notes,
        head="",
        digits=choice.findings.metric.digits,
    )


def _grid_notes(choice: Choice) -> list[str]:
    fedavg = choice.chosen[BASELINE]
    row = choice.rows[fedavg.label]
    figures = []
    for metric in FIGURES:
        cell = measured(row, True, metric)
        figure = cell.text(choice.findings.metric.digits + 1)
        figures.append(f"{title(metric)} {figure}")
    fedavg_figures = ", ".join(figures)
    return [
        _figures_note(choice),
        f"For comparison {fedavg.label}, chosen the same way: {fedavg_figures}.",
        LASTING_NOTE,
    ]


def figures_named(choice: Choice) -> str:
    """What is shown: validation accuracy, measured or expected."""
    named = measured_on(choice.findings)
    return f"Expected {named}" if choice.is_expected else named


def _figures_note(choice: Choice) -> str:
    findings = choice.findings
    named = f"{figures_named(choice)}{in_percent(findings)}"
    return f"{named}, {when(findings, True)}, {averaged_over(choice, has_spread=True)}."


def averaged_over(choice: Choice, has_spread: bool = False) -> str:
    """The federations and seeds that figures are means over; `has_spread`: where their spread is shown too."""
    numbers = {len(findings.seeds) for findings in choice.comparisons}
    most = max(numbers)
    mean = "mean ± spread" if has_spread and len(choice.findings.seeds) > 1 else "mean"
    seeds = f"{most} seeds"
    if most == 1:
        seeds = "one seed"
    federations = len(choice.comparisons)
    if federations == 1:
        return f"{mean} over {seeds}" if most > 1 else seeds
    if len(numbers) > 1:
        return f"{mean} over {federations} federations and their seeds"
    return f"{mean} over {federations} federations with {seeds} each"


def why_measured(choice: Choice) -> str:
    """Why figures are measured although accuracies are judged; empty if they are expected ones."""
    if choice.is_expected or not choice.findings.metric.is_share:
        return ""
    misfits = 0
    for findings in choice.comparisons:
        baseline = findings.baseline
        if any(run.expected is None for run in baseline.histories):
            return "Figures are measured: these runs have no class recalls, which expected accuracies need."
        fit = findings.rows[baseline.label].fit
        if fit is None or not fit.is_good:
            misfits += 1
    where = "all candidates"
    if misfits:
        where = "FedAvg"
    if misfits and len(choice.comparisons) > 1:
        where += f" on {misfits} of {len(choice.comparisons)} federations"
    return (
        f"Figures are measured: expected accuracies do not fit {where}: class shares and noise leave more than "
        f"{100 * MOST_UNEXPLAINED:.0f} % of the spread between clients unexplained."
    )


def shown(value: Any) -> str:
    """As an experiment's file has it."""
    return "none" if value is None else str(value)


def _cells(choice: Choice, entry: Entry | None) -> list[Cell]:
    if entry is None:
        return [Cell()] * len(_PARTS)
    row = choice.rows[entry.label]
    cells = metric_cells(row, True, FIGURES)
    cells.append(correlation(row.oscillation))
    return cells
