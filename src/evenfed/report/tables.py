"""A report's tables, free of any format: the paper's detailed table, its Table 2, and paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..history import METRICS, Row
from ..simulate.api import FLOOR_LABEL
from .findings import Findings
from .statistics import LOWER_IS_BETTER, Pairs

TITLES = {"worst10": "worst 10 %", "worst20": "worst 20 %", "best10": "best 10 %", FLOOR_LABEL: "chance alone"}
PAIRED_METRICS = ("mean", "worst10")
ONE_SEED = "One seed: the interval knows of clients only and nothing is judged, as seeds alone move figures as much."


@dataclass(frozen=True)
class Cell:
    """One place of a table; all numbers in per cent or points."""

    value: float | None = None
    spread: float | None = None  # over seeds
    points: float | None = None  # the amount that goes with a share of clients
    low: float | None = None  # of a 95 % interval
    high: float | None = None
    verdict: str = ""
    signed: bool = False
    best: bool = False

    def text(self, digits: int) -> str:
        """As a reader sees it.

        >>> Cell(65.4, spread=6.29, points=1.47).text(1), Cell(1.5, low=-0.25, high=3, signed=True).text(1)
        ('65.4±6.3 (+1.5)', '+1.5 [-0.2, +3.0]')
        """
        if self.value is None:
            return self.verdict or "-"
        sign = "+" if self.signed else ""
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
        """The best of every column marked; the noise floor does not compete."""
        lines = list(self.lines)
        for k, column in enumerate(self.columns):
            values = {i: x.cells[k].value for i, x in enumerate(lines) if x.entry != FLOOR_LABEL}
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


def when(findings: Findings, late: bool) -> str:
    return f"average of the last {findings.last_rounds} rounds" if late else "last round"


def name_of(kind: str, late: bool) -> str:
    return f"{kind}-{'average' if late else 'last'}"


METRIC_COLUMNS = tuple(Column(m, title(m), -1 if m in LOWER_IS_BETTER else +1) for m in METRICS)


def detailed(findings: Findings, late: bool) -> Table:
    """The paper's detailed table: every metric of every entry, with its spread over seeds."""
    lines = [Line(label, tuple(measured(row, late, m) for m in METRICS)) for label, row in findings.rows.items()]
    told = f"Test accuracy in % over clients, {_spread(findings)}; best in bold. {_floor_note(findings)}"
    return Table(
        name_of("detailed", late),
        f"Accuracy and fairness, {when(findings, late)}",
        METRIC_COLUMNS,
        tuple(lines),
        (told.strip(), *_tiny(findings)),
    ).with_best()


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
    others = findings.everyone[1:]
    lines = [Line(entry.label, suppression_cells(findings.rows[entry.label], late)) for entry in others]
    own = findings.rows[findings.baseline.label]
    below, above = ((own.late if late else own.last)[k][0] for k in ("suffering", "well_performing"))
    told = (
        f"In % of the clients, {_spread(findings)}; in brackets the mean change of those clients in points. Suffering: "
        f"clients below FedAvg's mean with the same seed ({below:.1f} on average), improved if they gain. "
        f"Well-performing: those above it ({above:.1f}), degraded if they lose. {_floor_note(findings)}"
    )
    return Table(
        name_of("suppression", late),
        f"Clients against FedAvg, {when(findings, late)}",
        SUPPRESSION_COLUMNS,
        tuple(lines),
        (told.strip(),),
    ).with_best()


def paired(findings: Findings, pairs: Pairs) -> Table:
    """Each entry against FedAvg over clients and seeds; "better" is said only where the interval excludes zero."""
    lines = []
    for entry in findings.everyone[1:]:
        for metric in PAIRED_METRICS:
            gap = pairs.between(entry, findings.baseline, metric)
            shown = Cell(gap.points, low=gap.low, high=gap.high, signed=True)
            lines.append(Line(entry.label, (shown, Cell(verdict=gap.verdict)), metric))
    told = (
        "Points of accuracy, entry minus FedAvg with the same seeds, and the 95 % bootstrap interval over clients and "
        "seeds. No correction for the number of lines: of 20 without any effect one is expected to show a difference. "
        + ONE_SEED
        * (len(findings.seeds) == 1)
    )
    return Table(
        name_of("paired", pairs.late),
        f"Paired difference from FedAvg, {when(findings, pairs.late)}",
        (Column("difference", "difference [95 %]"), Column("verdict", "")),
        tuple(lines),
        (told.strip(),),
    )


def measured(row: Row, late: bool, name: str, points: str | None = None) -> Cell:
    """A figure in % with its spread over seeds, of which one seed has none; empty where it is unknown."""
    figures = row.late if late else row.last
    mean, spread = figures.get(name, (float("nan"), float("nan")))
    if np.isnan(mean):
        return Cell()
    amount = None if points is None else 100 * figures[points][0]
    return Cell(100 * mean, 100 * spread if row.seeds > 1 else None, amount)


def _spread(findings: Findings) -> str:
    count = len(findings.seeds)
    return f"mean ± spread over {count} seeds" if count > 1 else "one seed, so no spread"


def _floor_note(findings: Findings) -> str:
    return "Chance alone: FedAvg again with other seeds." if findings.floor else ""


def _tiny(findings: Findings) -> Sequence[str]:
    tests = findings.header["clients"]["test"]
    tiny = sum(0 < t < 10 for t in tests)
    if not tiny:
        return ()
    return (f"{tiny} of {len(tests)} clients have fewer than 10 test examples: `worst` hangs on those.",)
