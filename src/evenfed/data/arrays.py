"""One's own arrays or table, split into clients: `evenfed.federate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import examples
from ..client import Client
from ..core.errors import InputError, check_whole, unknown
from . import partition as partitions
from .options import PARTITIONS, DataSettings
from .partition import Parts, Rows

FEWEST_REPEATS = 2  # float targets count as classes if each occurs this often on average: 0.0 and 1.0 of a binary task


def federate(
    x: Any,
    y: Any,
    partition: str | None = None,
    *,
    clients: int = 10,
    concentration: float = 0.1,
    shards_per_client: int = 2,
    owners: Any = None,
    test: float = 0.2,
    seed: int = 0,
) -> list[Client]:
    """Split one's own examples into clients, each with a training and a test part.

    `x`, `y`: arrays or tensors with one row per example; `x` may be a dict or tuple of them. Or `x` is a table (data
    frame, Hugging Face dataset) and `y` names its target column.
    `partition`: "dirichlet" (few classes per client, as `concentration` says), "shards" (`shards_per_client` classes
    or so), "iid" (everyone the same), or "natural": one client per value of `owners`, an array or a column's name.
    Natural if `owners` is given, else dirichlet.
    `clients`: how many; natural clients are as many as there are owners.
    `test`: the share of each client's examples kept for testing, class by class; at least one where it has two.

    For the data sets that evenfed knows by name, see `evenfed.data.federate(DataSettings(...))`.

    >>> x, y = torch.randn(300, 4), torch.arange(300) % 3
    >>> clients = federate(x, y, "dirichlet", clients=5, concentration=0.5)
    >>> [client.name for client in clients], sum(len(client.train[1]) for client in clients)
    (['client-0', 'client-1', 'client-2', 'client-3', 'client-4'], 240)
    """
    if isinstance(x, DataSettings):
        raise InputError("evenfed.federate splits your own arrays; for DataSettings use evenfed.data.federate")
    if partition is None:
        partition = "dirichlet" if owners is None else "natural"
    if partition not in PARTITIONS:
        raise unknown("partition", str(partition), PARTITIONS)
    check_whole("clients", clients, 1)
    check_whole("shards_per_client", shards_per_client, 1)
    check_whole("seed", seed, 0)
    if not concentration > 0:
        raise InputError(f"concentration={concentration!r}: it must be a number above 0")
    x, owners = _without_owners(x, owners, partition)
    data = Examples.of(x, y)
    if partition == "natural":
        parts, names = _natural(data, owners)
    else:
        parts = _artificial(data, partition, clients, concentration, shards_per_client, seed)
        names = [f"client-{k}" for k in range(clients)]
    federated = []
    for position, rows in enumerate(parts):
        client = data.client(names[position], rows, test, seed + position)
        federated.append(client)
    return federated


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, and the class of each row if the targets are classes."""

    inputs: Any
    targets: Any
    labels: Rows | None

    @classmethod
    def of(cls, x: Any, y: Any, where: str = "x") -> "Examples":
        """From a pair, or from a table and the name of its target."""
        if isinstance(y, str) or y is None:
            inputs, targets = examples.pair(x, where, y)
        else:
            inputs, targets = examples.pair((x, y), where)
        inputs = _each(_array, inputs)
        targets = _array(targets)
        count = len(targets)
        for part in _arrays(inputs):
            if len(part) != count:
                raise InputError(f"x has {len(part)} rows, y has {count}; give one target for each input")
        if count == 0:
            raise InputError("x and y have no rows; give at least one example")
        return cls(inputs, targets, _labels(targets))

    def __len__(self) -> int:
        return len(self.targets)

    def client(self, name: str, rows: Rows, test: float, seed: int) -> Client:
        """Some of the rows as one client. Memory-mapped data are read when the client is drawn."""
        train, tested = held_out(rows, self.labels, test, seed)
        is_mapped = any(map(examples.is_mapped, _arrays(self.inputs)))
        if is_mapped and len(train):
            load_train = partial(self.rows, train)
            load_test = partial(self.rows, tested) if len(tested) else None
            return Client(load_train, load_test, name, size=len(train), test_size=len(tested))
        test_part = self.rows(tested) if test else None
        return Client(self.rows(train), test_part, name)

    def rows(self, rows: Rows) -> tuple[Any, Any]:
        """(inputs, targets) of these rows."""
        return _each(partial(_taken, rows=rows), self.inputs), _taken(self.targets, rows)


def held_out(rows: Rows, labels: Rows | None, share: float, seed: int) -> tuple[Rows, Rows]:
    """Training and test rows: about `share` of each class is for testing, but one row of two or more, and never all.

    >>> train, test = held_out(np.arange(10), np.repeat([0, 1], [8, 2]), 0.5, seed=0)
    >>> len(test), sum(test >= 8)
    (5, 1)
    """
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if not is_number or not 0 <= share < 1:
        raise InputError(f"test={share!r}: it must be at least 0 and below 1, e.g. 0.2")
    if share == 0 or len(rows) < 2:
        return rows, rows[:0]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(rows)
    classes = np.zeros(len(rows)) if labels is None else labels[rows]
    wanted = round(share * len(rows))
    wanted = min(max(wanted, 1), len(rows) - 1)
    _, members, counts = np.unique(classes, return_inverse=True, return_counts=True)
    shares = counts * (wanted / len(rows))
    quotas = shares.astype(np.int64)
    by_remainder = np.argsort(quotas - shares, kind="stable")
    missing = wanted - quotas.sum()
    quotas[by_remainder[:missing]] += 1
    is_test = np.zeros(len(rows), bool)
    for label, quota in enumerate(quotas):
        of_class = np.flatnonzero(members == label)
        is_test[of_class[:quota]] = True
    return np.sort(rows[~is_test]), np.sort(rows[is_test])


def _natural(data: Examples, owners: Any) -> tuple[Parts, list[str]]:
    values, members = np.unique(owners, return_inverse=True)
    if len(owners) != len(data):
        raise InputError(f"owners has {len(owners)} entries for {len(data)} examples; give one for each")
    parts, ids = partitions.natural(members, clients=0, least=1, seed=0)
    return parts, [str(values[k]) for k in ids]


def _artificial(
    data: Examples,
    partition: str,
    clients: int,
    concentration: float,
    shards_per_client: int,
    seed: int,
) -> Parts:
    count = len(data)
    if clients > count:
        raise InputError(f"clients={clients} of {count} examples; give at most one client per example")
    if partition == "iid":
        parts = partitions.iid(count, clients, seed)
        return list(map(np.sort, parts))
    if data.labels is None:
        raise InputError(
            f"partition='{partition}' splits by class, and these targets are no classes (one whole number per "
            "example); use 'iid', or give owners= for 'natural'"
        )
    if partition == "shards":
        return partitions.shards(data.labels, clients, shards_per_client, seed)
    return partitions.dirichlet(data.labels, clients, concentration, seed)


def _without_owners(x: Any, owners: Any, partition: str) -> tuple[Any, Any]:
    """The table without the column that `owners` names, and the owners as an array."""
    if (owners is not None) != (partition == "natural"):
        has = "owners=" if owners is not None else "no owners="
        raise InputError(f"partition='{partition}' with {has}: owners go with 'natural', and 'natural' needs them")
    if not isinstance(owners, str):
        return x, np.asarray(owners)
    names = [str(name) for name in getattr(x, "columns", getattr(x, "column_names", ()))]
    if owners not in names:
        listed = ", ".join(names) or "none"
        raise InputError(f"owners='{owners}' names no column of x; its columns are: {listed}")
    values = np.asarray(x[owners])
    if hasattr(x, "remove_columns"):
        return x.remove_columns(owners), values
    return x.drop(columns=owners), values


def _labels(targets: Any) -> Rows | None:
    """The class of each row: whole numbers, also as floats if they repeat; None for sequences and for quantities."""
    values = np.asarray(targets)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in examples.NUMBERS:
        return None
    is_whole = np.equal(np.mod(values, 1), 0).all() if values.dtype.kind == "f" else True
    distinct = len(np.unique(values))
    if not is_whole or (values.dtype.kind == "f" and distinct * FEWEST_REPEATS > len(values)):
        return None
    return values.astype(np.int64)


def _array(values: Any) -> Any:
    if isinstance(values, Tensor | np.ndarray):
        return values
    return np.asarray(values)


def _arrays(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return inputs if isinstance(inputs, tuple) else [inputs]


def _each(change: Any, inputs: Any) -> Any:
    """Of every array of a dict or tuple, or of the one there is."""
    if isinstance(inputs, Mapping):
        return {name: change(values) for name, values in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map(change, inputs))
    return change(inputs)


def _taken(values: Any, rows: Rows) -> Any:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(rows)]
    taken = np.asarray(values[rows])
    examples.release(values)
    return taken
