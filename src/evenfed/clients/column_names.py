"""Names of columns, compared between tables: a model takes columns by position."""

from collections.abc import Sequence

from ..core.errors import InputError
from ..core.words import first_of

SHOWN = 8  # columns that an error lists


class Heading:
    """The column names of the first table of a federation: all others must have the same, in the same order."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.where = ""

    def check(self, columns: tuple[str, ...], where: str) -> None:
        """Refuse other names, or another order; columns without names cannot be compared."""
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
