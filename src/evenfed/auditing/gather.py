"""Figures of clients from a table's rows, checked: by algorithm, seed, round and client."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.words import counted
from ..fairness import Vector
from . import column_roles
from .column_roles import Roles
from .sheet import InputTable, Row, is_nothing, number

MOST_ROWS = 20_000_000  # 40 bytes each
LARGEST = 1e100  # squares of larger ones overflow
ONLY = "results"  # the algorithm of a table that names none
Codes = NDArray[np.int64]  # places in a list of names


@dataclass(frozen=True)
class Figures:
    """One metric of a table: a number per row, and which algorithm, seed, round and client it is of."""

    sheet: str  # its name
    algorithms: Sequence[str]
    seeds: Sequence[str]
    clients: Sequence[str]
    groups: Mapping[int, str]  # client -> group
    sizes: Mapping[int, float]  # client -> examples; the first if rows differ
    sizes_differ: bool
    algorithm: Codes  # [rows]
    seed: Codes
    round: Codes
    client: Codes
    values: Vector  # NaN where a cell is empty

    @classmethod
    def of(cls, sheet: InputTable, columns: Roles, metric: str | None) -> "Figures":
        """The figures in the column `metric`, or in one column per algorithm."""
        reader = _Reader(sheet, columns, metric)
        figures = reader.figures()
        figures._check_infinite()
        figures._check_duplicates()
        return figures

    def describe(self, row: int) -> str:
        """A row in words."""
        client = self.clients[self.client[row]]
        parts = [f"client {client}"]
        if len(self.algorithms) > 1:
            parts.append(self.algorithms[self.algorithm[row]])
        if len(self.seeds) > 1:
            seed = self.seeds[self.seed[row]]
            parts.append(f"seed {seed}")
        if self.round.max() > 0:
            parts.append(f"round {self.round[row]}")
        return ", ".join(parts)

    def _check_infinite(self) -> None:
        magnitudes = np.abs(self.values)
        infinite = np.flatnonzero(magnitudes > LARGEST)
        count = len(infinite)
        if count == 0:
            return
        row = int(infinite[0])
        first = self.describe(row)
        raise InputError(
            f"{self.sheet}: the figure of {first} is infinite, or beyond {LARGEST:g} "
            f"({counted(count, 'such figure')}); put in the worst possible value, or remove these runs"
        )

    def _check_duplicates(self) -> None:
        columns = [
            self.algorithm,
            self.seed,
            self.round,
            self.client,
        ]
        keys = np.stack(columns)
        order = np.lexsort(keys)
        ordered = keys[:, order]
        is_same = ordered[:, 1:] == ordered[:, :-1]
        repeated = np.flatnonzero(is_same.all(axis=0))
        count = len(repeated)
        if count == 0:
            return
        place = int(repeated[0])
        one = int(order[place])
        other = int(order[place + 1])
        row = self.describe(other)
        first_value = self.values[one]
        second_value = self.values[other]
        raise InputError(
            f"{self.sheet}: {row} appears more than once ({first_value:g} and {second_value:g}; "
            f"{counted(count, 'extra row')}); give one row per client. If rows differ in a column that was not read, "
            "name it: --seed, --round or --algorithm COLUMN"
        )


class _Names:
    """Names as whole numbers, in order of appearance."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.codes: dict[str, int] = {}
        self._cells: dict[str, int] = {}  # by cell as written, so that equal cells are parsed once

    def code(self, cell: Any, where: str, line: int) -> int:
        """Of the name in a cell."""
        if isinstance(cell, str):
            known = self._cells.get(cell)
            if known is not None:
                return known
        if is_nothing(cell):
            raise InputError(f"{where}, row {line}: the {self.role} is empty; fill it in, or remove the row")
        name = text(cell)
        next_code = len(self.codes)
        code = self.codes.setdefault(name, next_code)
        if isinstance(cell, str):
            self._cells[cell] = code
        return code


class _Reader:
    """Reads a table row by row into arrays."""

    def __init__(self, sheet: InputTable, columns: Roles, metric: str | None) -> None:
        self.sheet = sheet
        place = {column: k for k, column in enumerate(sheet.columns)}
        self.places: dict[str, int] = {}  # of roles
        self.wide: dict[str, int] = {}  # of algorithms
        for role, column in columns.columns.items():
            self.places[role] = place[column]
        for algorithm, column in columns.wide.items():
            self.wide[algorithm] = place[column]
        self.metric = place.get(metric or "")
        self.algorithms = _Names(column_roles.ALGORITHM)
        self.seeds = _Names(column_roles.SEED)
        self.clients = _Names(column_roles.CLIENT)
        self.groups: dict[int, str] = {}
        self.sizes: dict[int, float] = {}
        self.sizes_differ = False
        self.codes = array("q")  # algorithm, seed, round and client of each row, one after another
        self.values = array("d")

    def figures(self) -> Figures:
        for line, row in self.sheet.lines():
            if line > MOST_ROWS:
                raise InputError(
                    f"{self.sheet.name} has more than {MOST_ROWS:,} rows; keep the last rounds, or one file per "
                    "algorithm"
                )
            self._read(row, line)
        codes = np.array(self.codes, dtype=np.int64)
        codes = codes.reshape(-1, 4)
        algorithm, seed, round_number, client = codes.T
        return Figures(
            sheet=self.sheet.name,
            algorithms=list(self.algorithms.codes),
            seeds=list(self.seeds.codes),
            clients=list(self.clients.codes),
            groups=self.groups,
            sizes=self.sizes,
            sizes_differ=self.sizes_differ,
            algorithm=algorithm,
            seed=seed,
            round=round_number,
            client=client,
            values=np.array(self.values),
        )

    def _read(self, row: Row, line: int) -> None:
        where = self.sheet.name
        client_cell = self._cell(row, column_roles.CLIENT)
        seed_cell = self._cell(row, column_roles.SEED, "0")
        client = self.clients.code(client_cell, where, line)
        seed = self.seeds.code(seed_cell, where, line)
        round_number = self._round(row, line)
        self._note_size(client, row, line)
        self._note_group(client, row, line)
        for name, column in self._algorithms(row):
            algorithm = self.algorithms.code(name, where, line)
            codes = (algorithm, seed, round_number, client)
            figure = self._figure(row, column, line)
            self.codes.extend(codes)
            self.values.append(figure)

    def _algorithms(self, row: Row) -> Sequence[tuple[Any, int]]:
        """The algorithms of a row, and the place of each one's figure."""
        if self.wide:
            return list(self.wide.items())
        assert self.metric is not None
        algorithm = self._cell(row, column_roles.ALGORITHM, ONLY)
        return [(algorithm, self.metric)]

    def _cell(self, row: Row, role: str, otherwise: str | None = None) -> Any:
        place = self.places.get(role)
        if place is None:
            return otherwise
        return row[place]

    def _figure(self, row: Row, column: int, line: int) -> float:
        cell = row[column]
        figure = number(cell)
        if figure is None and is_nothing(cell):
            return float("nan")
        if figure is None:
            name = self.sheet.columns[column]
            content = text(cell)
            raise InputError(f"{self.sheet.name}, row {line}: {name} is '{content}'; give a number")
        return figure

    def _round(self, row: Row, line: int) -> int:
        place = self.places.get(column_roles.ROUND)
        if place is None:
            return 0
        cell = row[place]
        figure = number(cell)
        is_whole = figure is not None and figure.is_integer() and 0 <= figure < 2**53
        if figure is None or not is_whole:
            content = text(cell)
            raise InputError(
                f"{self.sheet.name}, row {line}: round is '{content}'; give whole numbers from 0. If the "
                "column does not hold rounds, rename it, or name another: --round COLUMN"
            )
        return int(figure)

    def _note_size(self, client: int, row: Row, line: int) -> None:
        cell = self._cell(row, column_roles.SIZE)
        if is_nothing(cell):
            return
        size = number(cell)
        if size is None or not np.isfinite(size) or size < 0:
            content = text(cell)
            raise InputError(f"{self.sheet.name}, row {line}: the size is '{content}'; give the number of examples")
        before = self.sizes.setdefault(client, size)
        if before != size:
            self.sizes_differ = True

    def _note_group(self, client: int, row: Row, line: int) -> None:
        cell = self._cell(row, column_roles.GROUP)
        if is_nothing(cell):
            return
        group = text(cell)
        before = self.groups.setdefault(client, group)
        if before != group:
            raise InputError(
                f"{self.sheet.name}, row {line}: a client is in group '{group}', but above in '{before}'; each "
                "belongs to one group"
            )


def text(value: Any) -> str:
    """A name; a whole number that a spreadsheet made a float is one again.

    >>> text(3.0), text(" site-1 "), text(7)
    ('3', 'site-1', '7')
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()
