"""A report's tables, free of any format: the paper's detailed table, its Table 2, paired differences, every run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..comparison.findings import BASELINE, Entry, Findings, seeds_named
from ..comparison.history import LASTING, METRICS, Row
from ..comparison.plan import FLOOR_LABEL
from ..comparison.statistics import LOWER_IS_BETTER

TITLES = {
    "worst10": "worst 10 %",
    "worst20": "worst 20 %",
    "best10": "best 10 %",
    LASTING: "lasting worst 10 %",
    FLOOR_LABEL: "chance alone",
}
LASTING_NOTE = (
    "Lasting worst 10 %: of the clients' averages over those rounds; above the worst 10 % of single rounds as far as "
    "clients take turns being last."
)
ONE_SEED = "One seed: the interval knows of clients only and nothing is judged, as seeds alone move figures as much."


@dataclass(frozen=True)
class Cell:
    """One place of a table; accuracies in per cent, differences in points."""

    value: float | None = None
    spread: float | None = None  # over seeds
    points: float | None = None  # the amount that goes with a share of clients
    low: float | None = None  # of a 95 % interval
    high: float | None = None
    verdict: str = ""
    signed: bool = False
    best: bool = False
    digits: int | None = None  # where the table's do not suit

    def text(self, digits: int) -> str:
        """As a reader sees it.

        >>> Cell(65.4, spread=6.29, points=1.47).text(1), Cell(1.5, low=-0.25, high=3, signed=True).text(1)
        ('65.4±6.3 (+1.5)', '+1.5 [-0.2, +3.0]')
        """
        if self.value is None:
            return self.verdict or "-"
        sign, digits = "+" if self.signed else "", digits if self.digits is None else self.digits
        parts = [f"{self.value:{sign}.{digits}f}" + ("" if self.spread is None else f"±{self.spread:.{digits}f}")]
        if self.points is not None:
            parts.append(f"({self.points:+.{digits}f})")
        if self.low is not None and self.high is not None:
            parts.append(f"[{self.low:+.{digits}f}, {self.high:+.{digits}f}]")
        return " ".join(parts)

    def numbers(self) -> dict[str, float | None]:
        """Every number at full precision."""
        return {k: getattr(self, k) for k in ("value", "spread", "points", "low", "high")}


@dataclass(frozen=True)
class Column:
    """What stands in a column, and which end of it is better (0: neither)."""

    key: str
    title: str
    better: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a table; an entry may have several, told apart by `part`."""

    entry: str
    cells: tuple[Cell, ...]
    part: str = ""
    control: bool = False  # the noise floor, which does not compete


@dataclass(frozen=True)
class Table:
    """A table with what must be said under it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    digits: int = 1  # where space is scarce; documents have room for two
    head: str = "algorithm"

    @property
    def has_parts(self) -> bool:
        return any(line.part for line in self.lines)

    def with_best(self) -> "Table":
        """The best of every column marked, the noise floor aside."""
        lines = list(self.lines)
        for k, column in enumerate(self.columns):
            values = {i: x.cells[k].value for i, x in enumerate(lines) if not x.control}
            known = [v for v in values.values() if v is not None]
            top = max(known, key=lambda v: column.better * v, default=None) if column.better else None
            for i in (i for i, v in values.items() if v is not None and v == top):
                cells = list(lines[i].cells)
                cells[k] = replace(cells[k], best=True)
                lines[i] = replace(lines[i], cells=tuple(cells))
        return replace(self, lines=tuple(lines))


def title(key: str) -> str:
    """A key as a reader sees it."""
    return TITLES.get(key, key)


def accuracy_on(judge: str) -> str:
    """What the figures are: on test data, or on those set aside for choosing."""
    return "VALIDATION accuracy" if judge == "validation" else "Test accuracy"


def when(findings: Findings, late: bool) -> str:
    told = f"average of the last {findings.last_rounds} rounds" if late else "last round"
    return f"{told}, clients judged on {findings.min_test} examples or more" if findings.min_test else told


def name_of(kind: str, late: bool) -> str:
    return f"{kind}-{'average' if late else 'last'}"


def judged_by(late: bool) -> tuple[str, ...]:
    """The metrics that entries are set against FedAvg in; one round alone has no clients' averages."""
    return ("mean", "worst10", LASTING, "std") if late else ("mean", "worst10", "std")


METRIC_COLUMNS = tuple(Column(m, title(m), -1 if m in LOWER_IS_BETTER else +1) for m in METRICS)


def lines_of(findings: Findings, cells: Callable[[Row], tuple[Cell, ...]], first: int = 0) -> tuple[Line, ...]:
    """A line an entry, the noise floor's last."""
    return tuple(
        Line(e.label, cells(findings.rows[e.label]), control=e.repeats is not None) for e in findings.everyone[first:]
    )


def detailed(findings: Findings, late: bool) -> Table:
    """The paper's detailed table: every metric of every entry, with its spread over seeds."""
    told = (
        f"{accuracy_on(findings.judge)} in % over clients, {spread_of(findings)}; best in bold. {floor_note(findings)}"
    )
    return Table(
        name_of("detailed", late),
        f"Accuracy and fairness, {when(findings, late)}",
        METRIC_COLUMNS,
        lines_of(findings, lambda row: tuple(measured(row, late, m) for m in METRICS)),
        (told.strip(), *tiny(findings.judged_sizes)),
    ).with_best()


OVERVIEW_COLUMNS = (
    *(c for c in METRIC_COLUMNS if c.key in ("mean", "std", "worst10", "best10")),
    Column(LASTING, title(LASTING), +1),
    Column("improved", "improved"),
    Column("degraded", "degraded"),
    Column("moved", "weight moved"),
    Column("oscillation", "oscillation"),
)


def overview(findings: Findings, late: bool) -> Table:
    """What most readers want of all tables: one line an entry."""

    def cells(row: Row) -> tuple[Cell, ...]:
        against = [Cell() if row.label == BASELINE else measured(row, late, k) for k in ("improved", "degraded")]
        own = [measured(row, late, c.key) for c in OVERVIEW_COLUMNS[:5]]
        return (*own, *(replace(c, spread=None) for c in against), share(row.moved), correlation(row.oscillation))

    told = (
        f"{accuracy_on(findings.judge)} in % over clients, {spread_of(findings)}; best in bold. {LASTING_NOTE} "
        "Improved: share of the clients below FedAvg's mean that gain. Degraded: share of those above it that lose. "
        "Weight moved: how much of it stands elsewhere than with FedAvg, in %; near 0 an entry differs by its "
        "learning rate or its local loss alone. Oscillation: lag-1 correlation of the clients' losses; below -0.85 "
        f"the weights over-correct. {floor_note(findings)}"
    )
    name, head = name_of("overview", late), f"At a glance, {when(findings, late)}"
    return Table(name, head, OVERVIEW_COLUMNS, lines_of(findings, cells), (told.strip(),)).with_best()


def share(value: float) -> Cell:
    """In %; weights that grew without bound move more than there is."""
    if value > 10:
        return Cell(verdict="> 1000")
    return Cell() if np.isnan(value) else Cell(100 * value, digits=1)


def correlation(value: float) -> Cell:
    return Cell() if np.isnan(value) else Cell(value, signed=True, digits=2)


def runs(findings: Findings) -> Table:
    """Every run by itself: how far seeds are apart, and which runs oscillate."""
    columns = (
        *(Column(f"{m}-{w}", f"{w} {title(m)}") for m in judged_by(late=False) for w in ("average", "last")),
        Column(LASTING, title(LASTING)),
        Column("moved", "weight moved"),
        Column("oscillation", "oscillation"),
        Column("negative", "negative rounds"),
        Column("skipped", "skipped rounds"),
    )
    lines = []
    for entry in findings.everyone:
        for seed, run in entry.runs.items():
            fair = {"average": run.late_fairness, "last": run.fairness}
            figures = [Cell(100 * getattr(fair[w], m)) for m in judged_by(late=False) for w in ("average", "last")]
            figures.append(Cell(100 * run.lasting) if run.lasting is not None else Cell())
            counts = [Cell(float(n), digits=0) for n in (run.negative_rounds, run.skipped_rounds)]
            cells = (*figures, share(run.moved), correlation(run.oscillation), *counts)
            lines.append(Line(entry.label, cells, f"seed {seed}", control=entry.repeats is not None))
    told = (
        f"{accuracy_on(findings.judge)} in %: average of the last {findings.last_rounds} rounds, and last round. "
        f"{LASTING_NOTE} Weight moved: half the sum of absolute differences from FedAvg's weights in %, average over "
        "rounds. Oscillation: lag-1 correlation over the later half of the rounds of each client's loss minus the mean "
        "loss, averaged over clients; below -0.85 the weights chase last round's losses. Negative rounds: those with "
        "a negative weight."
    )
    return Table("runs", "Every run", columns, tuple(lines), (told,))


SUPPRESSION_COLUMNS = (
    Column("improved", "improved suffering", +1),
    Column("degraded", "degraded well-performing", -1),
    Column("mean_gain", "mean, points", +1),
)


def suppression_cells(row: Row, late: bool) -> tuple[Cell, ...]:
    """What stands in those columns for one entry."""
    return (
        measured(row, late, "improved", points="suffering_gain"),
        measured(row, late, "degraded", points="well_gain"),
        replace(measured(row, late, "mean_gain"), signed=True),
    )


def suppression(findings: Findings, late: bool) -> Table:
    """The paper's Table 2: what happens to the clients FedAvg serves below and above its mean."""
    lines = lines_of(findings, lambda row: suppression_cells(row, late), first=1)
    own = findings.rows[findings.baseline.label]
    below, above = ((own.late if late else own.last)[k][0] for k in ("suffering", "well_performing"))
    told = (
        f"In % of the clients, {spread_of(findings)}; in brackets the mean change of those clients in points. "
        f"Suffering: clients below FedAvg's mean with the same seed ({below:.1f} on average), improved if they gain. "
        f"Well-performing: those above it ({above:.1f}), degraded if they lose. {floor_note(findings)}"
    )
    name, head = name_of("suppression", late), f"Clients against FedAvg, {when(findings, late)}"
    return Table(name, head, SUPPRESSION_COLUMNS, lines, (told.strip(),)).with_best()


def measured(row: Row, late: bool, name: str, points: str | None = None) -> Cell:
    """A figure in % with its spread over seeds, of which one seed has none; empty where it is unknown."""
    figures = row.late if late else row.last
    mean, spread = figures.get(name, (float("nan"), float("nan")))
    if np.isnan(mean):
        return Cell()
    amount = None if points is None else 100 * figures[points][0]
    return Cell(100 * mean, 100 * spread if row.seeds > 1 else None, amount)


def spread_of(findings: Findings) -> str:
    count = len(findings.seeds)
    return f"mean ± spread over {count} seeds" if count > 1 else "one seed, so no spread"


def floor_note(findings: Findings) -> str:
    """What the lines that do not compete are."""
    told = ["Chance alone: FedAvg again with other seeds."] if findings.floor else []
    told += [
        f"{e.label}: {e.repeats} in {e.precision} instead of {findings.baseline.precision}{_seeds(e, findings)}."
        for e in findings.controls
        if e is not findings.floor
    ]
    return " ".join(told)


def _seeds(entry: Entry, findings: Findings) -> str:
    """Which, where they are not all."""
    return f", {seeds_named(entry.runs)} alone" if len(entry.runs) < len(findings.seeds) else ""


def tiny(judged: Sequence[int]) -> Sequence[str]:
    """A word on clients with so few examples that their accuracy is a toss."""
    few = sum(0 < count < 10 for count in judged)
    if not few:
        return ()
    known = sum(count > 0 for count in judged)
    return (f"{few} of {known} clients are judged on fewer than 10 examples: `worst` hangs on those.",)
