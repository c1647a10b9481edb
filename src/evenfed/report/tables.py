"""A report's tables, free of any format: the paper's detailed table, its Table 2, an overview, every run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..comparison.analysis.entry_figures import EXPECTED, LASTING, EntryFigures
from ..comparison.analysis.findings import Findings
from ..comparison.runs import FLOOR_NAMES
from ..fairness import FIGURES
from ..metrics import Metric
from .notes import (
    LASTING_NOTE,
    MOVED_NOTE,
    OSCILLATION_NOTE,
    accuracy_note,
    definitions,
    few_examples,
    floor_notes,
    improved_notes,
    is_alone,
    personal_note,
    short_fit_notes,
    spread_of,
)
from .table import Cell, Column, Line, MeansAndSpreads, Table

TITLES = {
    "worst10": "worst 10 %",
    "worst20": "worst 20 %",
    "best10": "best 10 %",
    LASTING: "lasting worst 10 %",
    **FLOOR_NAMES,
}
METRIC_COLUMNS = (
    Column("mean", "mean", +1),
    Column("std", "std", -1),
    Column("worst", "worst", +1),
    Column("worst10", "worst 10 %", +1),
    Column("worst20", "worst 20 %", +1),
    Column("best10", "best 10 %", +1),
)
LASTING_COLUMN = Column(LASTING, "lasting worst 10 %", +1)
EXPECTED_WORST10 = Column(f"{EXPECTED}worst10", "expected worst 10 %", +1)
_OF_THE_METRIC = ("mean", "worst", "worst10", "worst20", "best10", LASTING, "mean_gain")
SHARES = ("improved", "degraded")  # of clients, always in percent
SUPPRESSION_COLUMNS = (
    Column("improved", "improved suffering", +1),
    Column("degraded", "degraded well-performing", -1),
    Column("mean_gain", "mean, points", +1),
)
_AGAINST_FEDAVG = (Column("improved", "improved"), Column("degraded", "degraded"))
NEGATIVE = Column("negative", "negative rounds")
WEIGHTS = (Column("moved", "weight moved"), Column("oscillation", "oscillation"))


def title(key: str) -> str:
    """A key as a reader sees it."""
    return TITLES.get(key, key)


def when(findings: Findings, late: bool) -> str:
    """The rounds that figures are from, for a title."""
    rounds = "last round"
    if late and findings.last_rounds > 1:
        rounds = f"average of the last {findings.last_rounds} rounds"
    if findings.min_test:
        return f"{rounds}, clients judged on {findings.min_test} examples or more"
    return rounds


def name_of(kind: str, late: bool) -> str:
    """A table's name in files and Markdown blocks."""
    return f"{kind}-late" if late else f"{kind}-last"


def judged_by(late: bool) -> tuple[str, ...]:
    """The metrics of differences from FedAvg; one round alone has no lasting worst 10 %."""
    if late:
        return ("mean", "worst10", LASTING, "std")
    return ("mean", "worst10", "std")


def compared_by(late: bool) -> tuple[str, ...]:
    """The same and the best 10 %, who may be those that pay."""
    return (*judged_by(late), "best10")


def figures_at(row: EntryFigures, late: bool) -> MeansAndSpreads:
    """A row's figures in the last rounds or in the last one."""
    return row.late if late else row.last


def measured(
    row: EntryFigures,
    late: bool,
    name: str,
    points: str | None = None,
) -> Cell:
    """A figure with its spread over seeds (one seed has none), accuracies in percent; empty if unknown."""
    figures = figures_at(row, late)
    if name not in figures:
        return Cell()
    mean, spread = figures[name]
    if np.isnan(mean):
        return Cell()
    unit = row.metric.unit
    scale = 100 if name in SHARES else unit
    cell = Cell(scale * mean)
    if name in SHARES:
        cell = replace(cell, digits=1)
    if row.seeds > 1:
        cell = replace(cell, spread=scale * spread)
    if points is not None:
        amount, _ = figures[points]
        cell = replace(cell, points=unit * amount)
    return cell


def metric_cells(row: EntryFigures, late: bool, metrics: Sequence[str] = FIGURES) -> list[Cell]:
    """Those figures of one entry."""
    cells = []
    for metric in metrics:
        cells.append(measured(row, late, metric))
    return cells


def metric_columns(metrics: Sequence[str]) -> list[Column]:
    """Columns of figures that do not compete."""
    return [Column(metric, title(metric)) for metric in metrics]


def share(value: float) -> Cell:
    """In percent; weights that grow without bound move more than there is."""
    if np.isnan(value):
        return Cell()
    if value > 10:
        return Cell(verdict="> 1000")
    return Cell(100 * value, digits=1)


def correlation(value: float) -> Cell:
    if np.isnan(value):
        return Cell()
    return Cell(value, signed=True, digits=2)


def directed(columns: Sequence[Column], metric: Metric) -> list[Column]:
    """The same columns where less of the metric may be better; a spread is always better small."""
    turned = []
    for column in columns:
        if column.key in _OF_THE_METRIC:
            column = replace(column, better=column.better * metric.sign)
        turned.append(column)
    return turned


def suppression_columns(metric: Metric) -> list[Column]:
    """Table 2's columns; the mean's change in points, or in the metric's own unit."""
    improved, degraded, gain = SUPPRESSION_COLUMNS
    if not metric.is_share:
        gain = replace(gain, title=f"mean {metric.name}")
    return directed((improved, degraded, gain), metric)


def detailed(findings: Findings, late: bool) -> Table:
    """The paper's detailed table: every metric of every entry, with its spread over seeds."""
    notes = definitions(
        accuracy_note(findings, not is_alone(findings)),
        *floor_notes(findings),
        personal_note(findings),
        *few_examples(findings.judged_sizes),
    )
    table = Table(
        name=name_of("detailed", late),
        title=f"{findings.metric.name.capitalize()} and fairness, {when(findings, late)}",
        columns=directed(METRIC_COLUMNS, findings.metric),
        lines=_lines(findings, late, METRIC_COLUMNS),
        digits=findings.metric.digits,
        notes=notes,
    )
    return table.with_best()


def overview(findings: Findings, late: bool) -> Table:
    """The table most readers want: one line per entry, the most telling figure of every kind."""
    mean, std, _, worst10, _, best10 = METRIC_COLUMNS
    figures = [mean, std, worst10, *_expected(findings), best10]
    if late:
        figures.append(LASTING_COLUMN)
    weights = () if findings.origin else WEIGHTS
    columns = (*figures, *_against(findings), *weights)
    return _at_a_glance(findings, late, columns)


def brief(findings: Findings, all_by: str = "--full") -> Table:
    """What `evenfed compare` and `evenfed report` show first: the figures a choice is made by.

    `all_by`: the option that shows all.
    """
    mean, std, _, worst10, _, best10 = METRIC_COLUMNS
    after_worst10 = _expected(findings) or [best10]
    columns = (mean, worst10, *after_worst10, std, *_against(findings))
    notes = definitions(
        accuracy_note(findings, not is_alone(findings)),
        *(short_fit_notes(findings) if EXPECTED_WORST10 in columns else ()),
        *improved_notes(findings),
        *floor_notes(findings),
        personal_note(findings),
        f"All tables: {all_by}.",
    )
    table = _at_a_glance(findings, True, columns)
    return replace(table, name="brief", notes=notes)


def summary(findings: Findings) -> list[Table]:
    """What `evenfed compare --full` shows: the overview with every metric, in the last rounds and in the last one."""
    rest = (*_against(findings), NEGATIVE, *WEIGHTS)
    late_columns = (*METRIC_COLUMNS, *_expected(findings), LASTING_COLUMN, *rest)
    last_columns = (*METRIC_COLUMNS, *rest)
    late = _at_a_glance(findings, True, late_columns)
    last = _at_a_glance(findings, False, last_columns)
    notes = list(late.notes)  # once, under the second table
    notes += findings.left_out
    notes += few_examples(findings.judged_sizes)
    without_notes = replace(late, notes=())
    with_notes = replace(last, notes=notes)
    return [without_notes, with_notes]


def _at_a_glance(findings: Findings, late: bool, columns: Sequence[Column]) -> Table:
    notes = definitions(
        accuracy_note(findings, not is_alone(findings)),
        *(short_fit_notes(findings) if EXPECTED_WORST10 in columns else ()),
        LASTING_NOTE if LASTING_COLUMN in columns else "",
        *improved_notes(findings),
        "" if findings.origin else MOVED_NOTE,
        "" if findings.origin else OSCILLATION_NOTE,
        *floor_notes(findings),
        personal_note(findings),
    )
    table = Table(
        name=name_of("overview", late),
        title=f"At a glance, {when(findings, late)}",
        columns=directed(columns, findings.metric),
        lines=_lines(findings, late, columns),
        digits=findings.metric.digits,
        notes=notes,
    )
    return table.with_best()


def _lines(findings: Findings, late: bool, columns: Sequence[Column]) -> list[Line]:
    """One line per entry, the noise floor after them; dashes for those that broke down."""
    lines = []
    for entry in findings.everyone:
        row = findings.rows[entry.label]
        cells = []
        for column in columns:
            is_compared = entry is not findings.baseline
            cells.append(_figure(row, late, column.key, is_compared))
        lines.append(Line.of(entry, cells))
    for entry in findings.lost:
        nothing = [Cell()] * len(columns)
        lines.append(Line(entry.label, nothing, control=True))
    return lines


def _figure(row: EntryFigures, late: bool, key: str, is_compared: bool) -> Cell:
    """One figure of an entry, by its column's key; FedAvg, or what is alone, is compared with nothing."""
    if key == "moved":
        return share(row.moved)
    if key == "oscillation":
        return correlation(row.oscillation)
    if key == "negative":
        return Cell(row.negative_rounds, digits=0)
    if key == EXPECTED_WORST10.key and not (row.fit and row.fit.is_good):
        return Cell()
    if key not in ("improved", "degraded"):
        return measured(row, late, key)
    if not is_compared:
        return Cell()
    return replace(measured(row, late, key), spread=None)


def suppression(findings: Findings, late: bool) -> Table:
    """The paper's Table 2: what happens to the clients FedAvg serves below and above its mean."""
    baseline = figures_at(findings.rows[findings.baseline.label], late)
    worse, better = ("below", "above") if findings.metric.higher_is_better else ("above", "below")
    suffering, _ = baseline["suffering"]
    well_performing, _ = baseline["well_performing"]
    note = (
        f"In % of the clients, {spread_of(findings)}; in brackets their mean {findings.metric.change}. Suffering: "
        f"clients {worse} {findings.baseline_name}'s mean with the same seed ({suffering:.1f} on average), improved "
        f"if they gain. Well-performing: clients {better} it ({well_performing:.1f}), degraded if they lose."
    )
    against = f"Clients against {findings.baseline_name}"
    return suppression_table(findings, late, findings.rows, against, note)


def suppression_table(
    findings: Findings,
    late: bool,
    rows: Mapping[str, EntryFigures],
    head: str,
    note: str,
) -> Table:
    """Table 2 of `rows`, by the entries' labels."""
    lines = []
    for entry in findings.everyone[1:]:
        row = rows[entry.label]
        cells = suppression_cells(row, late)
        line = Line.of(entry, cells)
        lines.append(line)
    table = Table(
        name=name_of("suppression", late),
        title=f"{head}, {when(findings, late)}",
        columns=suppression_columns(findings.metric),
        digits=findings.metric.digits,
        lines=lines,
        notes=definitions(note, *floor_notes(findings), personal_note(findings)),
    )
    return table.with_best()


def suppression_cells(row: EntryFigures, late: bool) -> list[Cell]:
    """Table 2's cells of one entry."""
    improved = measured(row, late, "improved", points="suffering_gain")
    degraded = measured(row, late, "degraded", points="well_gain")
    mean_gain = measured(row, late, "mean_gain")
    return [improved, degraded, replace(mean_gain, signed=True)]


def _against(findings: Findings) -> tuple[Column, ...]:
    """Clients that gain and lose, where there is something to compare with."""
    return () if is_alone(findings) else _AGAINST_FEDAVG


def _expected(findings: Findings) -> list[Column]:
    """The expected worst 10 %, where it is known and fits FedAvg's, which all others are compared with."""
    fit = findings.rows[findings.baseline.label].fit
    if fit is None or not fit.is_good:
        return []
    return [EXPECTED_WORST10]
