"""One number per client where most clients have none: only the others are stored; the full array is made on demand."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
MANY = 2000  # clients; the numbers of fewer are always written out


class StoredNumbers(Protocol):
    """Numbers of all clients, kept in another form than one array."""

    @property
    def clients(self) -> int:
        """How many there are."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """[k] those whose numbers are known."""

    @property
    def values(self) -> Vector:
        """[k] their numbers."""

    def dense(self) -> Vector:
        """[n] of everyone."""


@dataclass(frozen=True)
class SparseNumbers:
    """The numbers of a few of many clients."""

    clients: int  # of how many
    ids: NDArray[np.int64]  # [k]
    values: Vector  # [k]
    rest: float  # the number of everyone else

    @classmethod
    def of(cls, numbers: Vector, rest: float) -> "SparseNumbers":
        """The numbers [n] that are not `rest`."""
        is_rest = np.isnan(numbers) if np.isnan(rest) else numbers == rest
        ids = np.flatnonzero(~is_rest)
        return cls(len(numbers), ids, numbers[ids], rest)

    def among(self, ids: NDArray[np.int64]) -> Vector:
        """The numbers of these clients, in ascending order, who are all that have one and maybe more."""
        table = np.full(len(ids), self.rest)
        table[np.searchsorted(ids, self.ids)] = self.values
        return table

    def dense(self) -> Vector:
        """[n] of everyone."""
        return scattered(self.clients, self.ids, self.values, self.rest)


def scattered(clients: int, ids: NDArray[np.int64], values: Vector, rest: float) -> Vector:
    """[n] the numbers `values` [k] of the clients `ids` [k], and `rest` for everyone else."""
    table = np.full(clients, rest)
    table[ids] = values
    return table


def per_client(clients: int, ids: ArrayLike, values: ArrayLike, rest: float) -> Any:
    """The numbers `values` [k] of the clients `ids` [k], for a field of a `Record`: an array [n], or `Few` of many."""
    positions = np.asarray(ids)
    numbers = np.asarray(values, dtype=np.float64)
    few = SparseNumbers(clients, positions, numbers, rest)
    if clients <= MANY or 2 * len(few.ids) > clients:
        return few.dense()
    return few


class NumbersField:
    """A field that is read as an array [n], in whichever form it is kept."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: object, owner: type) -> Any:
        if record is None:
            return None
        kept = vars(record)[self.name]
        if kept is None or isinstance(kept, np.ndarray):
            return kept
        return kept.dense()

    def __set__(self, record: object, value: object) -> None:
        vars(record)[self.name] = value


def written_out(names: Iterable[str], cls: type) -> None:
    """Let these fields of a dataclass take numbers in other forms than an array."""
    for name in names:
        setattr(cls, name, NumbersField(name))
