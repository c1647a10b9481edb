"""One's own arrays or table, split into clients: `evenfed.federate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .. import trees
from ..clients import data_checks, examples
from ..clients.client import Client
from ..core.errors import InputError, check_choice, check_whole, first_line
from ..core.scalars import is_number, unwrapped
from . import partition as partitions
from .options import PARTITIONS, DataSettings
from .partition import Parts, Rows

FEWEST_REPEATS = 2  # float targets count as classes if each occurs this often on average: 0.0 and 1.0 of a binary task


def federate(
    x: Any,
    y: Any = None,
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
    frame, Hugging Face dataset) and `y` names its target column, unless it is called label, labels, target or y. Or
    `x` is a torch Dataset or DataLoader that has targets of its own, without `y`.
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
    check_choice("partition", partition, PARTITIONS)
    _check_target(x, y)
    clients = check_whole("clients", clients, 1)
    shards_per_client = check_whole("shards_per_client", shards_per_client, 1)
    seed = check_whole("seed", seed, 0)
    concentration = unwrapped(concentration)
    _check_concentration(concentration)
    test = unwrapped(test)
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
    def of(
        cls,
        x: Any,
        y: Any,
        where: str = "x",
    ) -> "Examples":
        """From a pair, or from a table and the name of its target."""
        if isinstance(y, str) or y is None:
            inputs, targets = examples.pair(x, where, y)
        else:
            inputs, targets = examples.pair((x, y), where)
        inputs = trees.mapped(partial(_array, where=where), inputs)
        targets = _array(targets, where="y")
        if not trees.leaves(inputs):
            raise InputError(f"{where}: no array at all; give at least one, with one row per example")
        count = len(targets)
        for part in trees.leaves(inputs):
            if len(part) != count:
                raise InputError(f"x has {len(part)} rows, y has {count}; give one target for each input")
        if count == 0:
            raise InputError("x and y have no rows; give at least one example")
        return cls(inputs, targets, _labels(targets))

    def __len__(self) -> int:
        return len(self.targets)

    def client(
        self,
        name: str,
        rows: Rows,
        test: float,
        seed: int,
    ) -> Client:
        """Some of the rows as one client. Memory-mapped data are read when the client is drawn."""
        train, tested = held_out(rows, self.labels, test, seed)
        arrays = trees.leaves(self.inputs)
        is_mapped = any(map(examples.is_mapped, arrays))
        if is_mapped and len(train):
            load_train = partial(self.rows, train)
            load_test = partial(self.rows, tested) if len(tested) else None
            return Client(load_train, load_test, name, size=len(train), test_size=len(tested))
        test_part = self.rows(tested) if test else None
        return Client(self.rows(train), test_part, name)

    def rows(self, rows: Rows) -> tuple[Any, Any]:
        """(inputs, targets) of these rows."""
        take = partial(_taken, rows=rows)
        inputs = trees.mapped(take, self.inputs)
        return inputs, take(self.targets)


def held_out(
    rows: Rows,
    labels: Rows | None,
    share: float,
    seed: int,
) -> tuple[Rows, Rows]:
    """Training and test rows: about `share` of each class is for testing, but one row of two or more, and never all.

    >>> train, test = held_out(np.arange(10), np.repeat([0, 1], [8, 2]), 0.5, seed=0)
    >>> len(test), (test >= 8).tolist().count(True)
    (5, 1)
    """
    _check_share(share)
    if share == 0 or len(rows) < 2:
        return rows, rows[:0]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(rows)
    classes = np.zeros_like(rows)
    if labels is not None:
        classes = labels[rows]
    _, members, counts = np.unique(
        classes,
        return_inverse=True,
        return_counts=True,
    )
    is_test = np.zeros(len(rows), bool)
    for label, quota in enumerate(_quotas(counts, share)):
        of_class = np.flatnonzero(members == label)
        chosen = of_class[:quota]
        is_test[chosen] = True
    train = np.sort(rows[~is_test])
    test = np.sort(rows[is_test])
    return train, test


def _quotas(counts: Rows, share: float) -> Rows:
    """How many rows of each class are for testing: whole numbers that add up, the largest remainders rounded up."""
    total = int(counts.sum())
    wanted = round(share * total)
    wanted = max(wanted, 1)
    wanted = min(wanted, total - 1)
    exact = counts * (wanted / total)
    quotas = exact.astype(np.int64)
    by_remainder = np.argsort(quotas - exact, kind="stable")
    missing = wanted - quotas.sum()
    rounded_up = by_remainder[:missing]
    quotas[rounded_up] += 1
    return quotas


def _check_target(x: Any, y: Any) -> None:
    """Refuse a partition given in place of the targets, and targets beside a data set that has its own."""
    has_own = isinstance(x, Dataset | DataLoader)
    if isinstance(y, str):
        if y in PARTITIONS and y not in _columns(x):
            raise InputError(f"y='{y}' is a partition, given where the targets are expected; write partition='{y}'")
    elif y is not None and has_own:
        kind = type(x).__name__
        raise InputError(
            f"y beside a {kind}, whose items hold their own targets; leave y out, or give x as an array of inputs"
        )
    elif y is None and isinstance(x, Tensor | np.ndarray):
        raise InputError(f"y is missing beside a {type(x).__name__}; give one target for each row of x")


def _columns(x: Any) -> Sequence[str]:
    """The names of a table's columns; none of what is no table."""
    if isinstance(x, Mapping):
        return list(x)
    names = getattr(x, "column_names", getattr(x, "columns", ()))
    return list(map(str, names))


def _check_share(share: Any) -> None:
    if not is_number(share) or not 0 <= share < 1:
        raise InputError(f"test={share!r}: it must be at least 0 and below 1, e.g. 0.2")


def _check_concentration(concentration: Any) -> None:
    if not is_number(concentration) or not concentration > 0:
        raise InputError(f"concentration={concentration!r}: it must be a number above 0")


def _natural(data: Examples, owners: Any) -> tuple[Parts, list[str]]:
    if owners.shape != (len(data),):
        raise InputError(f"owners has the shape {tuple(owners.shape)} for {len(data)} examples; give one for each")
    try:
        values, members = np.unique(owners, return_inverse=True)
    except TypeError as error:
        raise InputError(f"owners cannot be compared ({first_line(error)}); give one number or name each") from None
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
    has_owners = owners is not None
    is_natural = partition == "natural"
    if has_owners != is_natural:
        has = "owners=" if has_owners else "no owners="
        raise InputError(f"partition='{partition}' with {has}: owners go with 'natural', and 'natural' needs them")
    if owners is None:
        return x, None
    if not isinstance(owners, str):
        _refuse_missing(owners, "owners")
        data_checks.check_alignment(x, owners, "x and owners")
        return x, _array(owners, where="owners")
    names = _columns(x)
    if owners not in names:
        listed = ", ".join(names) or "none"
        raise InputError(f"owners='{owners}' names no column of x; its columns are: {listed}")
    _refuse_missing(x[owners], f"owners: column '{owners}'")
    values = np.asarray(x[owners])
    if isinstance(x, Mapping):
        return {name: column for name, column in x.items() if name != owners}, values
    if hasattr(x, "remove_columns"):
        return x.remove_columns(owners), values
    return x.drop(columns=owners), values


def _refuse_missing(owners: Any, where: str) -> None:
    """Rows without an owner; together they would look like one more client, called nan."""
    missing = data_checks.missing(owners)
    if missing:
        raise InputError(f"{where} has {missing} missing values; fill them or drop those rows")


def _labels(targets: Any) -> Rows | None:
    """The class of each row: whole numbers, also as floats if they repeat; None for sequences and for quantities."""
    values = np.asarray(targets)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    kind = values.dtype.kind
    if values.ndim != 1 or kind not in examples.NUMBERS:
        return None
    if kind == "f" and not _are_classes(values):
        return None
    return values.astype(np.int64)


def _are_classes(values: NDArray[Any]) -> bool:
    """Whether floats are whole numbers of which each occurs twice or more on average."""
    fractions = np.mod(values, 1)
    if fractions.any():
        return False
    distinct = np.unique(values)
    return len(distinct) * FEWEST_REPEATS <= len(values)


def _array(values: Any, where: str) -> Any:
    """An array or a tensor with a row for each example."""
    if isinstance(values, Tensor):
        examples.check_rows(values, where)
        return values
    if data_checks.is_masked(values):
        raise InputError(f"{where}: {data_checks.MASKED}")
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        reason = first_line(error)
        raise InputError(f"{where}: cannot become an array ({reason}); give one row per example") from None
    if array.ndim == 0:
        raise InputError(f"{where}: a single {type(values).__name__}; give an array with one row per example")
    return array


def _taken(values: Any, rows: Rows) -> Any:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(rows)]
    taken = np.asarray(values[rows])
    examples.release(values)
    return taken
