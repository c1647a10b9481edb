"""`evenfed.federate`: your own arrays or table, split into clients."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
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
    groups: Any = None,
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
    `groups`: a label per row, such as an age group, for `Result.groups`: an array, or a column's name. Groups are no
    inputs, and no clients.
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
    if groups is not None and owners is None and partition is None:
        raise InputError(
            "groups= labels the examples inside clients, and does not make clients; for one client per value give "
            "owners=, else name the partition too, e.g. partition='iid'"
        )
    if partition is None:
        partition = "dirichlet" if owners is None else "natural"
    check_choice("partition", partition, PARTITIONS)
    if examples.is_path(x):
        examples.refuse_file(Path(x), "x")
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
    _check_owners(owners, partition)
    x, owners = _without_column(x, owners, "owners")
    x, groups = _without_column(x, groups, "groups")
    data = Examples.of(x, y).in_groups(groups)
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
    groups: NDArray[Any] | None = None  # a label for each row

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

    def in_groups(self, groups: NDArray[Any] | None) -> "Examples":
        """The same with a group for each row."""
        if groups is not None and groups.shape != (len(self),):
            raise InputError(f"groups has the shape {groups.shape} for {len(self)} examples; give one label for each")
        return replace(self, groups=groups)

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
        groups = None
        if self.groups is not None and len(tested):
            groups = self.groups[tested]
        arrays = trees.leaves(self.inputs)
        is_mapped = any(map(examples.is_mapped, arrays))
        if is_mapped and len(train):
            load_train = partial(self.rows, train)
            load_test = partial(self.rows, tested) if len(tested) else None
            test_size = len(tested) or None
            return Client(load_train, load_test, name, size=len(train), test_size=test_size, groups=groups)
        test_part = self.rows(tested) if test else None
        return Client(self.rows(train), test_part, name, groups=groups)

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
    elif _names_columns(y, x):
        raise InputError(
            f"y={y!r} names several columns, and federate takes one target column; give the targets themselves, "
            f"federate(table.drop(columns={y!r}), table[{y!r}], ...), or one table per client, "
            f"evenfed.Client(train, test, target={y!r})"
        )
    elif y is not None and has_own:
        kind = type(x).__name__
        raise InputError(
            f"y with a {kind}, whose items hold their own targets; leave y out, or give x as an array of inputs"
        )
    elif y is None and isinstance(x, Tensor | np.ndarray):
        raise InputError(f"y is missing for a {type(x).__name__}; give one target for each row of x")


def _names_columns(y: Any, x: Any) -> bool:
    """Whether this is a list of columns of the table."""
    if not isinstance(y, list | tuple) or not y:
        return False
    columns = _columns(x)
    return all(isinstance(name, str) and name in columns for name in y)


def _columns(x: Any) -> Sequence[str]:
    """The names of a table's columns; none for other data."""
    if isinstance(x, Mapping):
        return list(x)
    names = getattr(x, "column_names", getattr(x, "columns", ()))
    return list(map(str, names))


def _check_owners(owners: Any, partition: str) -> None:
    has_owners = owners is not None
    is_natural = partition == "natural"
    if has_owners != is_natural:
        has = "owners=" if has_owners else "no owners="
        raise InputError(f"partition='{partition}' with {has}: owners go with 'natural', and 'natural' needs them")


def _without_column(x: Any, values: Any, argument: str) -> tuple[Any, Any]:
    """The table without the column that `values` names, and the values as an array. `argument`: owners or groups."""
    if values is None:
        return x, None
    if not isinstance(values, str):
        _refuse_missing(values, argument)
        data_checks.check_alignment([*trees.leaves(x), values], f"x and {argument}")
        return x, np.asarray(_array(values, where=argument))
    names = _columns(x)
    if values not in names:
        listed = ", ".join(names) or "none"
        raise InputError(f"{argument}='{values}' names no column of x; its columns are: {listed}")
    column = x[values]
    _refuse_missing(column, f"{argument}: column '{values}'")
    if isinstance(x, Mapping):
        columns = dict(x)
        del columns[values]
        return columns, np.asarray(column)
    if hasattr(x, "remove_columns"):
        return x.remove_columns(values), np.asarray(column)
    return x.drop(columns=values), np.asarray(column)


def _refuse_missing(values: Any, where: str) -> None:
    """Refuse rows without an owner or a group: together they would become one called nan."""
    missing = data_checks.missing(values)
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
