"""A report's tables, free of any format: the paper's detailed table, its Table 2, an overview, every run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..comparison.findings import BASELINE, Findings, seeds_named
from ..comparison.history import LASTING, METRICS, History, Row
from ..comparison.plan import FLOOR_LABEL
from ..comparison.statistics import Difference

TITLES = {
    "worst10": "worst 10 %",
    "worst20": "worst 20 %",
    "best10": "best 10 %",
    LASTING: "lasting worst 10 %",
    FLOOR_LABEL: "chance alone",
}
LASTING_NOTE = (
    "Lasting worst 10 %: average each client over the last rounds, then take the worst tenth. Higher than the "
    "worst 10 % when different clients are worst each round."
)
ONE_SEED = "One seed: the interval covers clients only, and nothing is judged, because seeds move figures as much."
_IMPROVED_NOTE = (
    "Improved: percent of the clients below FedAvg's mean that gain. Degraded: percent of those above it that lose."
)
_MOVED_NOTE = (
    "Weight moved: percent of weight placed differently from FedAvg; near 0 an entry differs only in its learning rate "
    "or local loss."
)
_OSCILLATION_NOTE = "Oscillation: lag-1 correlation of the clients' losses; below -0.85 the weights over-correct."


@dataclass(frozen=True)
class Cell:
    """One cell of a table; accuracies in percent, differences in points."""

    value: float | None = None
    spread: float | None = None  # over seeds
    points: float | None = None  # the amount that goes with a share of clients
    low: float | None = None  # of a 95 % interval
    high: float | None = None
    verdict: str = ""
    signed: bool = False
    best: bool = False
    digits: int | None = None  # instead of the table's

    @classmethod
    def of(cls, difference: Difference) -> "Cell":
        """A difference with its interval."""
        return cls(difference.points, low=difference.low, high=difference.high, signed=True)

    def text(self, digits: int) -> str:
        """As a reader sees it.

        >>> Cell(65.4, spread=6.29, points=1.47).text(1), Cell(1.5, low=-0.25, high=3, signed=True).text(1)
        ('65.4±6.3 (+1.5)', '+1.5 [-0.2, +3.0]')
        """
        if self.value is None:
            return self.verdict or "-"
        if self.digits is not None:
            digits = self.digits
        sign = "+" if self.signed else ""
        text = f"{self.value:{sign}.{digits}f}"
        if self.spread is not None:
            text += f"±{self.spread:.{digits}f}"
        if self.points is not None:
            text += f" ({self.points:+.{digits}f})"
        if self.low is not None and self.high is not None:
            text += f" [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"
        return text

    def numbers(self) -> dict[str, float | None]:
        """Every number at full precision."""
        return {name: getattr(self, name) for name in ("value", "spread", "points", "low", "high")}


@dataclass(frozen=True)
class Column:
    """What a column holds, and which end of it is better (0: neither)."""

    key: str
    title: str
    better: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a table; an entry may have several, told apart by `part`."""

    entry: str
    cells: Sequence[Cell]
    part: str = ""
    control: bool = False  # the noise floor, which does not compete


@dataclass(frozen=True)
class Table:
    """A table with the notes under it."""

    name: str
    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    digits: int = 1  # where space is scarce; documents have room for two
    head: str = "algorithm"

    @property
    def has_parts(self) -> bool:
        return any(line.part for line in self.lines)

    def with_best(self) -> "Table":
        """The best of every column marked, the noise floor aside."""
        lines = []
        best = [self._best(k) for k in range(len(self.columns))]
        for line in self.lines:
            cells = list(line.cells)
            for k, cell in enumerate(line.cells):
                if cell.value is not None and cell.value == best[k] and not line.control:
                    cells[k] = replace(cell, best=True)
            lines.append(replace(line, cells=cells))
        return replace(self, lines=lines)

    def _best(self, k: int) -> float | None:
        """Of the k-th column; None if neither end of it is better."""
        better = self.columns[k].better
        values = []
        for line in self.lines:
            value = line.cells[k].value
            if value is not None and not line.control:
                values.append(value)
        if better == 0 or not values:
            return None
        return max(values) if better > 0 else min(values)


METRIC_COLUMNS = (
    Column("mean", "mean", +1),
    Column("std", "std", -1),
    Column("worst", "worst", +1),
    Column("worst10", "worst 10 %", +1),
    Column("worst20", "worst 20 %", +1),
    Column("best10", "best 10 %", +1),
)
LASTING_COLUMN = Column(LASTING, "lasting worst 10 %", +1)
_AGAINST_FEDAVG = (Column("improved", "improved"), Column("degraded", "degraded"))
_NEGATIVE = Column("negative", "negative rounds")
_WEIGHTS = (Column("moved", "weight moved"), Column("oscillation", "oscillation"))
SUPPRESSION_COLUMNS = (
    Column("improved", "improved suffering", +1),
    Column("degraded", "degraded well-performing", -1),
    Column("mean_gain", "mean, points", +1),
)


def title(key: str) -> str:
    """A key as a reader sees it."""
    return TITLES.get(key, key)


def accuracy_on(judge: str) -> str:
    """What is measured: accuracy on test data, or on data set aside for choosing."""
    return "VALIDATION accuracy" if judge == "validation" else "Test accuracy"


def when(findings: Findings, late: bool) -> str:
    """The rounds that figures are from, for a title."""
    rounds = f"average of the last {findings.last_rounds} rounds" if late else "last round"
    if findings.min_test:
        return f"{rounds}, clients judged on {findings.min_test} examples or more"
    return rounds


def name_of(kind: str, late: bool) -> str:
    """A table's name in files and Markdown blocks."""
    return f"{kind}-late" if late else f"{kind}-last"


def judged_by(late: bool) -> tuple[str, ...]:
    """The metrics of differences from FedAvg; one round alone has no lasting worst 10 %."""
    return ("mean", "worst10", LASTING, "std") if late else ("mean", "worst10", "std")


def figures_at(row: Row, late: bool) -> Mapping[str, tuple[float, float]]:
    """A row's figures, mean and spread over seeds, in the last rounds or in the last one."""
    return row.late if late else row.last


def measured(row: Row, late: bool, name: str, points: str | None = None) -> Cell:
    """A figure in percent with its spread over seeds (one seed has none); empty if unknown."""
    figures = figures_at(row, late)
    if name not in figures:
        return Cell()
    mean, spread = figures[name]
    if np.isnan(mean):
        return Cell()
    cell = Cell(100 * mean)
    if row.seeds > 1:
        cell = replace(cell, spread=100 * spread)
    if points is not None:
        amount, _ = figures[points]
        cell = replace(cell, points=100 * amount)
    return cell


def metric_cells(row: Row, late: bool, metrics: Sequence[str] = METRICS) -> list[Cell]:
    """Those figures of one entry."""
    return [measured(row, late, metric) for metric in metrics]


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


def detailed(findings: Findings, late: bool) -> Table:
    """The paper's detailed table: every metric of every entry, with its spread over seeds."""
    note = joined(accuracy_note(findings), floor_note(findings))
    table = Table(
        name=name_of("detailed", late),
        title=f"Accuracy and fairness, {when(findings, late)}",
        columns=METRIC_COLUMNS,
        lines=_lines(findings, late, METRIC_COLUMNS),
        notes=(note, *few_examples(findings.judged_sizes)),
    )
    return table.with_best()


def overview(findings: Findings, late: bool) -> Table:
    """The table most readers want: one line per entry, the most telling figure of every kind."""
    mean, std, _, worst10, _, best10 = METRIC_COLUMNS
    columns = (mean, std, worst10, best10, LASTING_COLUMN, *_AGAINST_FEDAVG, *_WEIGHTS)
    return _at_a_glance(findings, late, columns)


def summary(findings: Findings) -> list[Table]:
    """What `evenfed compare` shows: the overview with every metric, in the last rounds and in the last one."""
    rest = (*_AGAINST_FEDAVG, _NEGATIVE, *_WEIGHTS)
    late = _at_a_glance(findings, True, (*METRIC_COLUMNS, LASTING_COLUMN, *rest))
    last = _at_a_glance(findings, False, (*METRIC_COLUMNS, *rest))
    notes = [*late.notes, *findings.left_out, *few_examples(findings.judged_sizes)]
    return [replace(late, notes=()), replace(last, notes=notes)]


def _at_a_glance(findings: Findings, late: bool, columns: Sequence[Column]) -> Table:
    note = joined(
        accuracy_note(findings),
        LASTING_NOTE if LASTING_COLUMN in columns else "",
        _IMPROVED_NOTE,
        _MOVED_NOTE,
        _OSCILLATION_NOTE,
        floor_note(findings),
    )
    table = Table(
        name=name_of("overview", late),
        title=f"At a glance, {when(findings, late)}",
        columns=columns,
        lines=_lines(findings, late, columns),
        notes=(note,),
    )
    return table.with_best()


def _lines(findings: Findings, late: bool, columns: Sequence[Column]) -> list[Line]:
    """One line per entry, the noise floor last."""
    lines = []
    for entry in findings.everyone:
        row = findings.rows[entry.label]
        cells = [_figure(row, late, column.key) for column in columns]
        lines.append(Line(entry.label, cells, control=entry.is_control))
    return lines


def _figure(row: Row, late: bool, key: str) -> Cell:
    """One figure of an entry, by its column's key."""
    if key == "moved":
        return share(row.moved)
    if key == "oscillation":
        return correlation(row.oscillation)
    if key == "negative":
        return Cell(row.negative_rounds, digits=0)
    if key not in ("improved", "degraded"):
        return measured(row, late, key)
    if row.label == BASELINE:
        return Cell()
    return replace(measured(row, late, key), spread=None)


def runs(findings: Findings) -> Table:
    """Every run by itself: how far seeds are apart, and which runs oscillate."""
    columns = []
    for metric in judged_by(late=False):
        name = title(metric)
        columns.append(Column(f"{metric}-late", f"{name}, late"))
        columns.append(Column(f"{metric}-last", f"{name}, last"))
    columns += [LASTING_COLUMN, *_WEIGHTS, _NEGATIVE, Column("skipped", "skipped rounds")]
    lines = []
    for entry in findings.everyone:
        for seed, run in entry.runs.items():
            cells = _run_cells(run)
            lines.append(Line(entry.label, cells, f"seed {seed}", entry.is_control))
    note = (
        f"{accuracy_on(findings.judge)} in %. Late: average of the last {findings.last_rounds} rounds; last: last "
        f"round. {LASTING_NOTE} Weight moved: half the sum of absolute differences from FedAvg's weights in %, "
        "averaged over rounds. Oscillation: lag-1 correlation, over the later half of the rounds, of each client's "
        "loss minus the mean loss, averaged over clients; below -0.85 the weights chase the last round's losses. "
        "Negative rounds: rounds with a negative weight."
    )
    return Table("runs", "Every run", columns, lines, (note,))


def _run_cells(run: History) -> list[Cell]:
    cells = []
    for metric in judged_by(late=False):
        late = getattr(run.late_fairness, metric)
        last = getattr(run.fairness, metric)
        cells.append(Cell(100 * late))
        cells.append(Cell(100 * last))
    lasting = Cell()
    if run.lasting is not None:
        lasting = Cell(100 * run.lasting)
    cells.append(lasting)
    cells.append(share(run.moved))
    cells.append(correlation(run.oscillation))
    cells.append(Cell(float(run.negative_rounds), digits=0))
    cells.append(Cell(float(run.skipped_rounds), digits=0))
    return cells


def suppression(findings: Findings, late: bool) -> Table:
    """The paper's Table 2: what happens to the clients FedAvg serves below and above its mean."""
    lines = []
    for entry in findings.everyone[1:]:
        cells = suppression_cells(findings.rows[entry.label], late)
        lines.append(Line(entry.label, cells, control=entry.is_control))
    fedavg = figures_at(findings.rows[BASELINE], late)
    suffering, _ = fedavg["suffering"]
    well_performing, _ = fedavg["well_performing"]
    note = (
        f"In % of the clients, {spread_of(findings)}; in brackets their mean change in points. Suffering: clients "
        f"below FedAvg's mean with the same seed ({suffering:.1f} on average), improved if they gain. Well-performing: "
        f"clients above it ({well_performing:.1f}), degraded if they lose."
    )
    table = Table(
        name=name_of("suppression", late),
        title=f"Clients against FedAvg, {when(findings, late)}",
        columns=SUPPRESSION_COLUMNS,
        lines=lines,
        notes=(joined(note, floor_note(findings)),),
    )
    return table.with_best()


def suppression_cells(row: Row, late: bool) -> list[Cell]:
    """Table 2's cells of one entry."""
    improved = measured(row, late, "improved", points="suffering_gain")
    degraded = measured(row, late, "degraded", points="well_gain")
    mean_gain = measured(row, late, "mean_gain")
    return [improved, degraded, replace(mean_gain, signed=True)]


def joined(*sentences: str) -> str:
    """Sentences as one paragraph; empty ones are dropped."""
    return " ".join(filter(None, sentences))


def accuracy_note(findings: Findings) -> str:
    """What the figures are."""
    return f"{accuracy_on(findings.judge)} in % over clients, {spread_of(findings)}; best in bold."


def spread_of(findings: Findings) -> str:
    seeds = len(findings.seeds)
    return f"mean ± spread over {seeds} seeds" if seeds > 1 else "one seed, so no spread"


def floor_note(findings: Findings) -> str:
    """What the lines of the noise floor are."""
    sentences = []
    if findings.floor:
        sentences.append("Chance alone: FedAvg again with other seeds.")
    for entry in findings.controls:
        if entry is findings.floor:
            continue
        usual = findings.baseline.precision
        sentence = f"{entry.label}: {entry.repeats} in {entry.precision} instead of {usual}"
        if len(entry.runs) < len(findings.seeds):
            sentence += f", {seeds_named(entry.runs)} only"
        sentences.append(f"{sentence}.")
    return joined(*sentences)


def few_examples(judged_sizes: Sequence[int]) -> list[str]:
    """A warning about clients with so few examples that their accuracy says little."""
    few = sum(0 < size < 10 for size in judged_sizes)
    judged = sum(size > 0 for size in judged_sizes)
    if few == 0:
        return []
    return [f"{few} of {judged} clients are judged on fewer than 10 examples: `worst` depends on those."]
