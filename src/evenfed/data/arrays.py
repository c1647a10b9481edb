"""`evenfed.federate`: your own arrays or table, split into clients."""

import warnings
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
from ..clients.tables import CLASS_NUMBERS, NUMBERS
from ..core.choices import known_keywords
from ..core.errors import InputError, check_choice, first_line
from . import partition as partitions
from .array_split import ArraySplit, drawn_shares, least_tests, refuse_ignored
from .options import PARTITIONS, DataSettings
from .partition import Rows

FEWEST_REPEATS = 2  # float targets are classes (0.0 and 1.0) if each occurs this often on average


@known_keywords(
    alpha="concentration",
    n_clients="clients",
    num_clients="clients",
    num_partitions="clients",
    num_shards="shards_per_client",
    groups="owners",
    test_size="test",
    min_partition_size="min_train",
    random_state="seed",
)
def federate(
    x: Any,
    y: Any = None,
    partition: str | None = None,
    *,
    clients: int | None = None,
    concentration: float | None = None,
    shards_per_client: int | None = None,
    owners: Any = None,
    test: float = 0.2,
    small: str = "keep",
    min_train: int = 1,
    min_test: int | None = None,
    seed: int = 0,
) -> list[Client]:
    """Split your own examples into clients, each with a training and a test part.

    `x`, `y`: arrays or tensors with one row per example; `x` may be a dict or tuple of them. Or `x` is a table (data
    frame, Hugging Face dataset) and `y` names its target column, unless it is called label, labels, target or y. Or
    `x` is a torch Dataset or DataLoader that has targets of its own, without `y`.
    `partition`: "dirichlet" (few classes per client; `concentration`, 0.1), "shards" (about `shards_per_client`, 2,
    classes each), "iid" (the same distribution for all), or "natural": one client per value of `owners`, an array or
    a column's name. Default: natural if `owners` is given, else dirichlet.
    `clients`: how many (10); natural clients are as many as there are owners.
    `test`: the share of each client's examples kept for testing, class by class; at least one where it has two.
    `small`: what to do with clients that have fewer than `min_train` training or `min_test` test examples (1 each):
    "keep" them with a warning, "drop" them, or "redraw" with the next seed until there are none.

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
    options = {"clients": clients, "concentration": concentration, "shards_per_client": shards_per_client}
    refuse_ignored(partition, options)
    split = ArraySplit(
        partition=partition,
        clients=10 if clients is None else clients,
        concentration=0.1 if concentration is None else concentration,
        shards_per_client=2 if shards_per_client is None else shards_per_client,
        test=test,
        small=small,
        min_train=min_train,
        min_test=least_tests(min_test, test),
        seed=seed,
    )
    x, owners = _without_owners(x, owners, partition)
    data = Examples.of(x, y)
    shares, drawn_seed = drawn_shares(len(data), data.labels, split, owners)
    caution = split.caution([len(share.rows) for share in shares])
    if caution is not None:
        warnings.warn(caution, stacklevel=3)
    federated = []
    for position, share in enumerate(shares):
        client = data.client(share.name, share.rows, split.test, drawn_seed + position)
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
        if data_checks.is_text(targets):
            raise InputError(f"y is text; {CLASS_NUMBERS}, e.g. np.unique(y, return_inverse=True)[1]")
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
        train, tested = partitions.held_out(rows, self.labels, test, seed)
        arrays = trees.leaves(self.inputs)
        is_mapped = any(map(examples.is_mapped, arrays))
        if is_mapped and len(train):
            load_train = partial(self.rows, train)
            load_test = partial(self.rows, tested) if len(tested) else None
            return Client(load_train, load_test, name, size=len(train), test_size=len(tested) or None)
        test_part = self.rows(tested) if test else None
        return Client(self.rows(train), test_part, name)

    def rows(self, rows: Rows) -> tuple[Any, Any]:
        take = partial(_taken, rows=rows)
        inputs = trees.mapped(take, self.inputs)
        return inputs, take(self.targets)


def _check_target(x: Any, y: Any) -> None:
    """Refuse a partition in place of the targets, and targets for a data set that has its own."""
    has_own = isinstance(x, Dataset | DataLoader)
    if isinstance(y, str):
        if y in PARTITIONS and y not in _columns(x):
            raise InputError(f"y='{y}' is a partition, given where the targets are expected; write partition='{y}'")
    elif y is not None and has_own:
        kind = type(x).__name__
        raise InputError(
            f"y with a {kind}, whose items hold their own targets; leave y out, or give x as an array of inputs"
        )
    elif y is None and isinstance(x, Tensor | np.ndarray):
        raise InputError(f"y is missing for a {type(x).__name__}; give one target for each row of x")


def _columns(x: Any) -> Sequence[str]:
    """The names of a table's columns; none for other data."""
    if isinstance(x, Mapping):
        return list(x)
    names = getattr(x, "column_names", getattr(x, "columns", ()))
    return list(map(str, names))


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
        columns = dict(x)
        del columns[owners]
        return columns, values
    if hasattr(x, "remove_columns"):
        return x.remove_columns(owners), values
    return x.drop(columns=owners), values


def _refuse_missing(owners: Any, where: str) -> None:
    """Refuse rows without an owner: together they would become a client called nan."""
    missing = data_checks.missing(owners)
    if missing:
        raise InputError(f"{where} has {missing} missing values; fill them or drop those rows")


def _labels(targets: Any) -> Rows | None:
    """The class of each row: whole numbers, or floats that are whole and repeat. None for sequences and quantities."""
    values = np.asarray(targets)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    kind = values.dtype.kind
    if values.ndim != 1 or kind not in NUMBERS:
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
    data_checks.refuse_sparse(values, where)
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
