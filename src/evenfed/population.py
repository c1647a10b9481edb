"""Many clients in a few arrays: nothing is kept per client but where its rows begin."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from . import examples
from .client import Client, Examples, Pool, Pools, like_training, tensors
from .core.errors import InputError
from .heading import Heading


class Numbered(Sequence[str]):
    """The names of clients that have none: their positions, written when asked for.

    >>> Numbered(3) == ["0", "1", "2"], Numbered(1000)[998:]
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
        return str(numbers) if isinstance(numbers, int) else list(map(str, numbers))

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.total))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Numbered):
            return self.total == other.total
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Numbered({self.total})"


class Clients(Sequence[Client]):
    """Clients whose rows lie one after another: `sizes` [n] says how many rows of `train` each of them has.

    `train` and `test` are pairs (inputs, targets) as for `evenfed.Client`, of all clients together. A million clients
    take no more memory than their rows: single clients are views, made when they are asked for.

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
        self.starts = _starts(self.sizes)
        self.test_starts = _starts(self.test_sizes)

    @property
    def names(self) -> Sequence[str]:
        """Their names, or their positions."""
        return Numbered(len(self)) if self.given_names is None else self.given_names

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, position: int) -> Client: ...
    @overload
    def __getitem__(self, position: slice) -> list[Client]: ...
    def __getitem__(self, position: int | slice) -> Client | list[Client]:
        places = range(len(self))[position]
        return self._client(places) if isinstance(places, int) else list(map(self._client, places))

    def _client(self, position: int) -> Client:
        test = None
        if self.test is not None:
            test = _rows(self.test, self.test_starts[position], self.test_sizes[position])
        name = None if self.given_names is None else self.given_names[position]
        return Client(_rows(self.train, self.starts[position], self.sizes[position]), test, name)

    @property
    def is_mapped(self) -> bool:
        """Whether rows are read from disk when they are used."""
        arrays = [*_leaves(self.train[0]), self.train[1]]
        if self.test is not None:
            arrays += [*_leaves(self.test[0]), self.test[1]]
        return any(map(examples.is_mapped, arrays))

    def pools(self, dtype: torch.dtype, heading: Heading) -> Pools:
        """As the engines want them."""
        inputs, targets = tensors(self.train, "train", dtype, heading=heading)
        if len(targets) == 0:
            raise InputError(f"all {len(self)} clients are without training data; give at least one that has some")
        train = Pool(inputs, targets, self.starts, self.sizes)
        if self.test is None:
            return train, None
        test_inputs, test_targets = tensors(self.test, "test", dtype, heading=heading)
        return train, like_training(Pool(test_inputs, test_targets, self.test_starts, self.test_sizes), train)


def _pair(given: Examples, what: str) -> tuple[Any, Any]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        kind = type(given).__name__
        raise InputError(f"Clients: {what} is a {kind}; give a pair (inputs, targets) with the rows of all clients")
    inputs, targets = given
    return inputs, targets


def _counts(
    sizes: Any,
    pair: tuple[Any, Any],
    name: str,
    what: str,
) -> Tensor:
    """The rows of each client, which together are all there are."""
    counts = np.asarray(sizes)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or len(counts) == 0 or counts.min() < 0:
        raise InputError(f"Clients: {name} must be whole numbers of at least 0, one for each client")
    rows = len(pair[1])
    if int(counts.sum()) != rows:
        raise InputError(f"Clients: {name} add up to {int(counts.sum())}, but {what} has {rows} rows; give all of them")
    return torch.from_numpy(counts.astype(np.int64))


def _starts(sizes: Tensor) -> Tensor:
    return sizes.cumsum(0) - sizes


def _rows(pair: tuple[Any, Any], start: Tensor, size: Tensor) -> tuple[Any, Any]:
    """Of one client, as views."""
    inputs, targets = pair
    rows = slice(int(start), int(start + size))
    if isinstance(inputs, dict):
        return {name: values[rows] for name, values in inputs.items()}, targets[rows]
    if isinstance(inputs, tuple):
        return tuple(values[rows] for values in inputs), targets[rows]
    return inputs[rows], targets[rows]


def _leaves(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return inputs if isinstance(inputs, tuple) else [inputs]
