"""Column names, compared between tables: a model takes columns by position."""

from collections.abc import Sequence

from ..core.errors import InputError
from ..core.words import first_of
from .tables import Table

SHOWN = 8  # columns that an error lists


class Heading:
    """The column names of the first table of a federation: all others must have the same, in the same order."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.where = ""
        self.target: str | None = None
        self.where_target = ""

    def refuse_without_target(self, where: str) -> None:
        """Refuse a table without a target column, if another table has one."""
        if self.target is not None:
            raise InputError(
                f"{where}: the table has no column '{self.target}', the target in {self.where_target}; add it"
            )

    def check(self, table: Table, where: str) -> None:
        """Refuse other column names, or another order. Columns without names cannot be compared."""
        if self.target is None and table.target is not None:
            self.target = table.target
            self.where_target = where
        columns = table.columns
        if not columns:
            return
        if not self.columns:
            self.columns = columns
            self.where = where
            return
        one_is_numbered = _are_numbers(columns) != _are_numbers(self.columns)
        if columns == self.columns or one_is_numbered:
            return
        missing = [name for name in self.columns if name not in columns]
        added = [name for name in columns if name not in self.columns]
        differences = []
        if missing:
            differences.append(f"{_listed(missing)} missing")
        if added:
            differences.append(f"{_listed(added)} added")
        if differences:
            raise InputError(
                f"{where}: the table has other columns than {self.where} ({', '.join(differences)}); give all tables "
                "the same columns"
            )
        raise InputError(
            f"{where}: the table's columns are {_listed(columns)}, but {self.where} has {_listed(self.columns)}; a "
            "model takes them by position: give all tables one order, e.g. test = test[train.columns]"
        )


def _listed(names: Sequence[str]) -> str:
    quoted = list(map(repr, names))
    return first_of(quoted, SHOWN)


def _are_numbers(columns: tuple[str, ...]) -> bool:
    """Whether columns are numbered, not named."""
    return all(name.isdigit() for name in columns)
