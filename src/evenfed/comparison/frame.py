"""Rounds as a tidy table: one row per entry, seed, round and client."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.server import Record

if TYPE_CHECKING:
    import pandas

_COLUMNS = {"loss": "losses", "weight": "weights", "accuracy": "accuracy", "test_loss": "test_losses"}
_RARE = {"unpadded": "unpadded"}  # only where there are any

Rounds = tuple[str, int, Sequence[str], Sequence[Record]]  # label, seed, clients' names, records


def frame(runs: Iterable[Rounds]) -> "pandas.DataFrame":
    """label, seed, round (from 1), client, loss, weight, accuracy, test_loss; NaN where nothing was measured."""
    pandas = _pandas()
    every_run = list(runs)
    measured = dict(_COLUMNS)
    for name, attribute in _RARE.items():
        if any(_has(records, attribute) for *_, records in every_run):
            measured[name] = attribute
    keys: dict[str, list[Any]] = {"label": [], "seed": [], "round": [], "client": []}
    values: dict[str, list[NDArray[np.float64]]] = {name: [] for name in measured}
    for label, seed, names, records in every_run:
        nothing = np.full(len(names), np.nan)
        for record in records:
            keys["label"] += [label] * len(names)
            keys["seed"] += [seed] * len(names)
            keys["round"] += [record.index + 1] * len(names)
            keys["client"] += names
            for name, attribute in measured.items():
                per_client = getattr(record, attribute)
                values[name].append(nothing if per_client is None else per_client)
    columns = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in values.items()}
    return pandas.DataFrame({**keys, **columns})


def _has(records: Sequence[Record], attribute: str) -> bool:
    return any(getattr(record, attribute) is not None for record in records)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise InputError("a data frame needs pandas; install it with: pip install evenfed[pandas]") from None
    return pandas
