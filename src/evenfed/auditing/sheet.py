"""A table of unknown origin: its columns' names, and its rows one at a time."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..core.words import counted

_SAMPLE = 1000  # rows that tell what a column holds
Row = Sequence[Any]
_NOTHING = {"", "nan", "none", "null", "na", "n/a", "<na>"}


@dataclass(frozen=True)
class InputTable:
    """Columns and rows. `rows` may be called again, and need not be in memory."""

    name: str  # of the file, as errors have it
    columns: Sequence[str]
    rows: Callable[[], Iterable[Row]]
    facts: tuple[str, ...] = ()  # what was done to get here

    def __post_init__(self) -> None:
        seen = set()
        for column in self.columns:
            if column in seen:
                raise InputError(f"{self.name}: two columns are named '{column}'; rename or remove one")
            seen.add(column)

    @classmethod
    def of_records(cls, name: str, records: Sequence[dict[str, Any]], facts: tuple[str, ...] = ()) -> "InputTable":
        """Of dicts, which need not have the same keys."""
        columns = list(dict.fromkeys(itertools.chain.from_iterable(records)))

        def rows() -> Iterator[Row]:
            for record in records:
                yield [record.get(column) for column in columns]

        return cls(name, columns, rows, facts)

    def lines(self) -> Iterator[tuple[int, Row]]:
        """The rows by number, from 1."""
        for line, row in enumerate(self.rows(), start=1):
            if len(row) != len(self.columns):
                cells = counted(len(row), "cell")
                raise InputError(
                    f"{self.name}, row {line}: {cells} for {len(self.columns)} columns; is the file cut off, or a "
                    "comma not quoted?"
                )
            yield line, row

    def numeric(self) -> list[str]:
        """The columns that hold numbers, as far as the first rows tell."""
        lines = itertools.islice(self.lines(), _SAMPLE)
        sample = [row for _, row in lines]
        if not sample:
            raise InputError(f"{self.name} has no rows; give one row per client, with a column `client` and a metric")
        columns = []
        for k, column in enumerate(self.columns):
            cells = [row[k] for row in sample]
            values = list(itertools.filterfalse(is_nothing, cells))
            if values and all(number(value) is not None for value in values):
                columns.append(column)
        return columns


def is_nothing(value: Any) -> bool:
    """Whether a cell is empty."""
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, int):
        return False
    return str(value).strip().lower() in _NOTHING  # pandas' own kind of nothing is "<NA>"


def number(value: Any) -> float | None:
    """A cell as a number; None if it is none. A percent sign is left out.

    >>> number("81.5 %"), number("0,5"), number("high"), number(True)
    (81.5, None, None, 1.0)
    """
    if isinstance(value, str):
        value = value.strip().removesuffix("%")
        if "_" in value:  # Python would read 1_000
            return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
