"""What tables are made of, free of any format: cells, columns, lines."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..comparison.analysis.entry_figures import mean_and_spread
from ..comparison.analysis.findings import Entry
from ..comparison.analysis.intervals import Difference
from ..core.decimals import rounded
from ..core.printable import printable

Shown = Callable[[str], str]  # text as a format shows it
MeansAndSpreads = Mapping[str, tuple[float, float]]  # metric -> (mean, spread over seeds)
NUMBERS = ("value", "spread", "points", "low", "high")  # of a cell
STYLES = {"better": "green", "holds": "green", "worse": "red", "fails": "red"}  # of conclusions in a terminal
_DIGITS = 10  # of a cell's largest number


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
        numbers = self.numbers()
        largest = max((abs(number) for number in numbers.values() if number is not None), default=0.0)
        for name, number in numbers.items():
            object.__setattr__(self, name, _same_everywhere(number, largest))

    @classmethod
    def over_seeds(cls, values: Sequence[float], unit: float, digits: int | None = None) -> "Cell":
        """The mean over seeds, with their spread if there are several; empty if unknown."""
        mean, spread = mean_and_spread(values)
        if math.isnan(mean):
            return cls()
        if len(values) == 1:
            return cls(unit * mean, digits=digits)
        return cls(unit * mean, spread=unit * spread, digits=digits)

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
        """As a reader sees it: large numbers with fewer digits, very large ones with an exponent.

        >>> Cell(14135.428, spread=603.917).text(3)
        '14135±604'
        >>> Cell(65.4, spread=6.29, points=1.47).text(1), Cell(1.5, low=-0.25, high=3, signed=True).text(1)
        ('65.4±6.3 (+1.5)', '+1.5 [-0.2, +3.0]')
        """
        if self.value is None:
            return self.verdict or "-"
        if self.digits is not None:
            digits = self.digits
        among = [self.value, self.spread, self.low, self.high]
        text = rounded(self.value, digits, self.signed, among)
        if self.spread is not None:
            spread = rounded(self.spread, digits, False, among)
            text += f"±{spread}"
        if self.points is not None:
            points = rounded(self.points, digits, True)
            text += f" ({points})"
        if self.low is not None and self.high is not None:
            low = rounded(self.low, digits, True, among)
            high = rounded(self.high, digits, True, among)
            text += f" [{low}, {high}]"
        return text

    def numbers(self) -> dict[str, float | None]:
        """Every number, not rounded for readers."""
        return {name: getattr(self, name) for name in NUMBERS}


def _same_everywhere(number: float | None, largest: float) -> float | None:
    """To the tenth digit of the largest number of its cell: the rest is rounding, which differs between processors.

    >>> _same_everywhere(0.1 + 0.2, 0.3), _same_everywhere(0.000230344449259, 0.984), _same_everywhere(1e-15, 1e-15)
    (0.3, 0.0002303444, 0.0)
    """
    if number is None or not math.isfinite(largest):
        return number
    if abs(number) < 1e-12:
        return 0.0
    digits_before_point = math.floor(math.log10(largest)) + 1
    return round(number, _DIGITS - digits_before_point)


@dataclass(frozen=True)
class Column:
    """What a column holds, and which end of it is better (0: neither)."""

    key: str
    title: str
    better: int = 0

    @property
    def holds_words(self) -> bool:
        return self.key == "verdict"


@dataclass(frozen=True)
class Line:
    """One line of a table; an entry may have several, told apart by `part`."""

    entry: str
    cells: Sequence[Cell]
    part: str = ""
    control: bool = False  # the noise floor, which does not compete
    ranked: bool = True  # else it keeps one model per client, and does not compete with single models

    @classmethod
    def of(cls, entry: Entry, cells: Sequence[Cell], part: str = "") -> "Line":
        """Of an entry, or of the noise floor."""
        return cls(entry.label, cells, part, entry.is_control, ranked=not entry.is_personal)

    @property
    def competes(self) -> bool:
        """Whether its figures may be the best of their columns."""
        return self.ranked and not self.control


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

    def by_entry(self) -> Iterator[tuple[str, list[Line]]]:
        """Lines that follow each other and belong to the same entry."""
        groups = itertools.groupby(self.lines, key=lambda line: line.entry)
        for entry, lines in groups:
            yield entry, list(lines)

    def shown(self, name: Shown = printable, prose: Shown = printable) -> "Table":
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
        """The best of every column marked, the noise floor aside; a line that is alone is no best."""
        if len(self.lines) == 1:
            return self
        best = []
        for k in range(len(self.columns)):
            best.append(self._best(k))
        lines = []
        for line in self.lines:
            cells = list(line.cells)
            for k, cell in enumerate(line.cells):
                is_best = cell.value is not None and cell.value == best[k]
                if is_best and line.competes:
                    cells[k] = replace(cell, best=True)
            lines.append(replace(line, cells=cells))
        return replace(self, lines=lines)

    def _best(self, k: int) -> float | None:
        """Of the k-th column; None if neither end of it is better."""
        better = self.columns[k].better
        values = []
        for line in self.lines:
            value = line.cells[k].value
            if value is not None and line.competes:
                values.append(value)
        if better == 0 or not values:
            return None
        return max(values) if better > 0 else min(values)
