"""Rounds as a tidy table: one row per entry, seed, round and client."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from ...core.server import Record

if TYPE_CHECKING:
    import pandas

_COLUMNS = {"loss": "losses", "weight": "weights", "accuracy": "accuracy", "test_loss": "test_losses"}
_RARE = {"unpadded": "unpadded", "current": "current", "current_loss": "current_losses"}  # only where there are any

Rounds = tuple[str, int, Sequence[str], Sequence[Record]]  # label, seed, clients' names, records


def frame(runs: Iterable[Rounds]) -> "pandas.DataFrame":
    """label, seed, round (from 1), client, loss, weight, accuracy, test_loss; NaN where nothing was measured.

    Where a run has them also unpadded, and current and current_loss: of the model whose average is deployed. Of very
    many clients, a round has rows of those alone that took part or were evaluated.
    """
    pandas = pandas_for("a data frame needs")
    every_run = list(runs)
    measured = _measured(every_run)
    columns: dict[str, list[Any]] = {}
    for name in ("label", "seed", "round", "client", *measured):
        columns[name] = []
    for label, seed, names, records in every_run:
        for record in records:
            ids = _clients_of(record, len(names), measured)
            rows = len(ids)
            columns["label"] += [label] * rows
            columns["seed"] += [seed] * rows
            columns["round"] += [record.index + 1] * rows
            columns["client"] += [names[client] for client in ids]
            for name, attribute in measured.items():
                values = getattr(record, attribute)
                known = [np.nan] * rows
                if values is not None:
                    known = values[ids].tolist()
                columns[name] += known
    return pandas.DataFrame(columns)


def _clients_of(record: Record, clients: int, measured: Mapping[str, str]) -> NDArray[np.int64]:
    """Everyone; where the round keeps numbers of a few clients, those that have one."""
    ids = []
    for attribute in measured.values():
        kept = record.kept(attribute)
        if isinstance(kept, np.ndarray):
            return np.arange(clients)
        if kept is not None:
            ids.append(kept.ids)
    return np.unique(np.concatenate(ids))


def _measured(runs: Sequence[Rounds]) -> dict[str, str]:
    """The columns of figures, with the field of a record that each is from."""
    measured = dict(_COLUMNS)
    for name, attribute in _RARE.items():
        for _, _, _, records in runs:
            if _has(records, attribute):
                measured[name] = attribute
    return measured


def _has(records: Sequence[Record], attribute: str) -> bool:
    return any(getattr(record, attribute) is not None for record in records)


def pandas_for(purpose: str) -> Any:
    """The module, which comes with evenfed[pandas] only; `purpose`: the beginning of the error without it."""
    try:
        import pandas
    except ImportError:
        raise InputError(f"{purpose} pandas; install it with: pip install 'evenfed[pandas]'") from None
    return pandas
