"""The partitions of `flwr-datasets` as clients. The package itself is not imported."""

from typing import Any

import numpy as np

from ..clients.client import Client
from ..core.errors import InputError
from .arrays import Examples


def from_flwr(
    source: Any,
    split: str | None = None,
    *,
    target: str | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> list[Client]:
    """One client per partition of a flwr-datasets `Partitioner` (with its `dataset` set) or `FederatedDataset`.

    `split`: which split of a FederatedDataset, if several are partitioned.
    `target`: the column to predict; guessed if only one is called label, labels, target or y.
    `test`: the share of each client's examples kept for testing, class by class.
    """
    partitioner = _partitioner(source, split)
    try:
        count = int(partitioner.num_partitions)
        partitions = [partitioner.load_partition(position) for position in range(count)]
    except AttributeError as error:
        raise InputError(
            f"the partitioner has no data ({error}); set partitioner.dataset to a Hugging Face dataset first"
        ) from None
    owners = getattr(partitioner, "partition_id_to_natural_id", {})
    owner_column = getattr(partitioner, "_partition_by", None)  # it has no public name
    clients = []
    for position, table in enumerate(partitions):
        name = f"partition-{position}"
        if position in owners:
            name = str(owners[position])
            if owner_column in table.column_names:
                table = table.remove_columns(owner_column)
        data = Examples.of(table, target, name)
        everything = np.arange(len(data))
        client = data.client(name, everything, test, seed + position)
        clients.append(client)
    return clients


def _partitioner(source: Any, split: str | None) -> Any:
    if not hasattr(source, "load_partition"):
        kind = type(source).__name__
        raise InputError(
            f"from_flwr got a {kind}; give a Partitioner or FederatedDataset of flwr-datasets "
            "(pip install 'flwr-datasets')"
        )
    partitioners = getattr(source, "partitioners", None)
    if partitioners is None:
        return source
    if split is None and len(partitioners) == 1:
        split = next(iter(partitioners))
    if split not in partitioners:
        known = ", ".join(partitioners)
        raise InputError(f"split={split!r}: name one of the partitioned splits: {known}")
    source.load_partition(0, split)  # gives the partitioner its data
    return partitioners[split]
