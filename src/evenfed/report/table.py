"""What tables are made of, free of any format: cells, columns, lines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..comparison.intervals import Difference
from ..core.visible import visible

Shown = Callable[[str], str]  # text as a format shows it
MeansAndSpreads = Mapping[str, tuple[float, float]]  # metric -> (mean, spread over seeds)
NUMBERS = ("value", "spread", "points", "low", "high")  # of a cell


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

    def __post_init__(self) -> None:
        for name in NUMBERS:
            object.__setattr__(self, name, _same_everywhere(getattr(self, name)))

    @classmethod
    def of(cls, difference: Difference) -> "Cell":
        """A difference with its interval, if it has one."""
        if not difference.is_judged:
            return cls(difference.points, signed=True)
        return cls(
            difference.points,
            low=difference.low,
            high=difference.high,
            signed=True,
        )

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
            low = f"{self.low:+.{digits}f}"
            high = f"{self.high:+.{digits}f}"
            text += f" [{low}, {high}]"
        return text

    def numbers(self) -> dict[str, float | None]:
        """Every number, not rounded for readers."""
        return {name: getattr(self, name) for name in NUMBERS}


def _same_everywhere(number: float | None) -> float | None:
    """To twelve digits, and zero below: the rest is rounding, which differs from one processor to the next.

    >>> _same_everywhere(0.1 + 0.2), _same_everywhere(1e-15), _same_everywhere(None)
    (0.3, 0.0, None)
    """
    if number is None:
        return None
    if abs(number) < 1e-12:
        return 0.0
    return float(f"{number:.12g}")


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
    part_head: str = "part"  # of the column that tells lines of one entry apart, on the page

    @property
    def document_digits(self) -> int:
        """Where there is room: two for percentages, one more than here for what needs more."""
        return self.digits + 1 if self.digits > 2 else 2

    @property
    def has_parts(self) -> bool:
        return any(line.part for line in self.lines)

    def shown(self, name: Shown = visible, prose: Shown = visible) -> "Table":
        """As a format shows it: `name` for entries and parts, which may come from anywhere, `prose` for the rest."""
        lines = []
        for line in self.lines:
            entry = name(line.entry)
            part = name(line.part)
            lines.append(replace(line, entry=entry, part=part))
        columns = [replace(column, title=prose(column.title)) for column in self.columns]
        notes = list(map(prose, self.notes))
        return replace(self, title=prose(self.title), columns=columns, lines=lines, notes=notes)

    def with_best(self) -> "Table":
        """The best of every column marked, the noise floor aside."""
        best = []
        for k in range(len(self.columns)):
            best.append(self._best(k))
        lines = []
        for line in self.lines:
            cells = list(line.cells)
            for k, cell in enumerate(line.cells):
                is_best = cell.value is not None and cell.value == best[k]
                if is_best and not line.control:
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
