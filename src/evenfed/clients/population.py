"""`evenfed.Clients`: many clients in a few arrays. Per client, only the position of its rows is kept."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from .. import trees
from ..core.errors import InputError
from . import examples
from .client import Client, Examples, Pool, Pools, like_training, row_starts, tensors
from .tables import Heading


class NumberedNames(Sequence[str]):
    """The names of clients that have none: their positions, computed when needed.

    >>> NumberedNames(3) == ["0", "1", "2"], NumberedNames(1000)[998:]
    (True, ['998', '999'])
    """

    def __init__(self, total: int) -> None:
        self.total = total

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        numbers = range(self.total)[position]
        if isinstance(numbers, int):
            return str(numbers)
        return list(map(str, numbers))

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.total))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberedNames):
            return self.total == other.total
        if not isinstance(other, Sequence):
            return False
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"NumberedNames({self.total})"


class Clients(Sequence[Client]):
    """Clients whose rows lie one after another: `sizes` [n] says how many rows of `train` each of them has.

    `train` and `test` are pairs (inputs, targets) as for `evenfed.Client`, of all clients together. A million clients
    take no more memory than their rows: a single client is a view, made when needed.

    >>> clients = Clients((torch.randn(9, 4), torch.arange(9) % 3), sizes=[2, 3, 4])
    >>> len(clients), clients[1]
    (3, <Client without a name: train 3, test none>)
    """

    def __init__(
        self,
        train: Examples,
        sizes: Any,
        test: Examples | None = None,
        test_sizes: Any = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.train = _pair(train, "train")
        self.sizes = _counts(sizes, self.train, "sizes", "train")
        count = len(self.sizes)
        self.test = None
        self.test_sizes = torch.zeros(count, dtype=torch.int64)
        if (test is None) != (test_sizes is None):
            raise InputError("Clients: test and test_sizes belong together; give both or none")
        if test is not None:
            self.test = _pair(test, "test")
            self.test_sizes = _counts(test_sizes, self.test, "test_sizes", "test")
            if len(self.test_sizes) != count:
                raise InputError(f"Clients: {len(self.test_sizes)} test_sizes for {count} clients; give one for each")
        if names is not None and len(names) != count:
            raise InputError(f"Clients: {len(names)} names for {count} clients; give one for each")
        self.given_names = names
        self.starts = row_starts(self.sizes)
        self.test_starts = row_starts(self.test_sizes)

    @property
    def names(self) -> Sequence[str]:
        """Their names, or their positions."""
        if self.given_names is None:
            return NumberedNames(len(self))
        return self.given_names

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, position: int) -> Client: ...
    @overload
    def __getitem__(self, position: slice) -> list[Client]: ...
    def __getitem__(self, position: int | slice) -> Client | list[Client]:
        places = range(len(self))[position]
        if isinstance(places, int):
            return self._client(places)
        return list(map(self._client, places))

    def _client(self, position: int) -> Client:
        train = _rows(self.train, self.starts[position], self.sizes[position])
        test = None
        if self.test is not None:
            test = _rows(self.test, self.test_starts[position], self.test_sizes[position])
        name = None
        if self.given_names is not None:
            name = self.given_names[position]
        return Client(train, test, name)

    @property
    def is_mapped(self) -> bool:
        """Whether rows are read from disk when they are used."""
        arrays = examples.arrays(self.train)
        if self.test is not None:
            arrays += examples.arrays(self.test)
        return any(map(examples.is_mapped, arrays))

    def pools(self, dtype: torch.dtype, heading: Heading) -> Pools:
        """Training and test examples, as the engines take them."""
        inputs, targets = tensors(self.train, "train", dtype, heading=heading)
        train = Pool(inputs, targets, self.starts, self.sizes)
        if self.test is None:
            return train, None
        inputs, targets = tensors(self.test, "test", dtype, heading=heading)
        test = Pool(inputs, targets, self.test_starts, self.test_sizes)
        return train, like_training(test, train)


def _pair(data: Examples, what: str) -> tuple[Any, Any]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        kind = type(data).__name__
        raise InputError(f"Clients: {what} is a {kind}; give a pair (inputs, targets) with the rows of all clients")
    inputs, targets = data
    return inputs, targets


def _counts(
    sizes: Any,
    pair: tuple[Any, Any],
    name: str,
    what: str,
) -> Tensor:
    """Each client's number of rows; together they must be all rows."""
    counts = np.asarray(sizes)
    are_whole = counts.ndim == 1 and counts.dtype.kind in "iu"
    if not are_whole or len(counts) == 0 or counts.min() < 0:
        raise InputError(f"Clients: {name} must be whole numbers of at least 0, one for each client")
    rows = len(pair[1])
    total = int(counts.sum())
    if total != rows:
        raise InputError(f"Clients: {name} add up to {total}, but {what} has {rows} rows; give all of them")
    return torch.from_numpy(counts.astype(np.int64))


def _rows(pair: tuple[Any, Any], start: Tensor, size: Tensor) -> tuple[Any, Any]:
    inputs, targets = pair
    end = int(start + size)
    rows = slice(int(start), end)
    return trees.rows(inputs, rows), targets[rows]
