"""A round's record as JSON that every reader takes: arrays as lists, NaN as null.

Of many clients, a field says whose numbers it holds: {"clients": n, "ids": [...], "values": [...], "rest": null}. Long
lists lie in a file of columns, and the line holds their places.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.guard import WHAT, Clip
from ...core.server import PER_CLIENT, Record
from ...core.sparse import MANY, SparseNumbers, StoredNumbers, per_client
from ...fairness import Vector
from .columns_file import ColumnInFile, ColumnsFile

INLINE = 4096  # numbers of a field that a line holds; more lie in a file of columns
_EVALUATED = ("accuracy", "unpadded")  # null in a round that was not evaluated
_HELD_OUT = ("unseen", "unseen_losses", "global_accuracy", "global_loss")
_CURRENT = ("current", "current_losses")
_GUARDED = ("reason", "caused_by", "refused", "clipped")  # left out where there is nothing to say
_RARE = (
    "test_losses",
    "recalls",
    *_CURRENT,
    *_HELD_OUT,
    "scores",
    "central",
)  # left out of such a round, and of older runs


def to_json(record: Record, columns: ColumnsFile | None = None) -> dict[str, Any]:
    """The fields of a record; those that most runs do not have only where there is something in them.

    `columns`: takes long lists; None: they stay in the line.
    """
    data = {}
    for field in dataclasses.fields(record):
        value = vars(record)[field.name]
        if field.name in PER_CLIENT:
            value = _of_clients(field.name, value, columns)
        if field.name in _GUARDED and not value:
            continue
        if field.name not in _RARE or value is not None:
            data[field.name] = _plain(value)
    return data


def from_json(data: Mapping[str, Any], columns: ColumnsFile | None = None) -> Record:
    """The record that `to_json` wrote, of this version or an older one."""

    optional: dict[str, Any] = {}
    for field in PER_CLIENT:
        value = data.get(field)
        if isinstance(value, Mapping):
            optional[field] = _kept(value, columns)
        else:
            optional[field] = _read(_array, value)
    for field, read in _OPTIONAL.items():
        optional[field] = _read(read, data.get(field))
    return Record(
        index=int(data["index"]),
        objective=_number(data["objective"]),
        negative_weights=int(data["negative_weights"]),
        dropped=_clients(data["dropped"]),
        skipped=bool(data["skipped"]),
        caused_by=_clients(data.get("caused_by", ())),
        refused=tuple(map(str, data.get("refused", ()))),
        clipped=_clips(data.get("clipped", ())),
        seconds=_number(data["seconds"]),
        **optional,
    )


def _of_clients(field: str, kept: Vector | StoredNumbers | None, columns: ColumnsFile | None) -> Any:
    """Numbers of clients as JSON: a list of few clients' numbers, else whose they are and what they are."""
    if kept is None:
        return None
    rest = 0.0 if field == "weights" else np.nan
    if isinstance(kept, np.ndarray):
        if len(kept) <= MANY:
            return kept
        kept = SparseNumbers.of(kept, rest)
    everyone = len(kept.ids) == kept.clients
    return {
        "clients": kept.clients,
        "ids": None if everyone else _list_or_place(kept.ids, columns),
        "values": _list_or_place(kept.values, columns),
        "rest": rest,
    }


def _list_or_place(numbers: NDArray[Any], columns: ColumnsFile | None) -> Any:
    if columns is None or len(numbers) <= INLINE:
        return tuple(numbers.tolist())
    return columns.append(numbers)


def _kept(data: Mapping[str, Any], columns: ColumnsFile | None) -> Any:
    """The numbers that `_of_clients` wrote."""
    clients = int(data["clients"])
    rest = _number(data["rest"])
    ids = data["ids"]
    values = data["values"]
    if isinstance(values, Mapping):
        if columns is None:
            raise ValueError("numbers in a file of columns")
        return ColumnInFile(columns, clients, (ids, values), rest)
    numbers = _array(values)
    if ids is None:
        return numbers
    return per_client(clients, np.array(ids, dtype=np.int64), numbers, rest)


def unevaluated(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same round's JSON as if its model had not been evaluated."""
    unevaluated: dict[str, Any] = {}
    for key, value in data.items():
        if key in _EVALUATED:
            unevaluated[key] = None
        elif key not in _RARE:
            unevaluated[key] = value
    return unevaluated


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(number) for number in value.tolist()]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    if isinstance(value, Mapping):
        return {name: _plain(number) for name, number in value.items()}
    return value


def _clips(rows: Sequence[Sequence[Any]]) -> tuple[Clip, ...]:
    clips = []
    for client, what, reported, counted in rows:
        if what not in WHAT:
            raise ValueError(f"the guard bounds no {what}")
        clip = Clip(
            client=int(client),
            what=what,
            reported=_number(reported),
            counted=_number(counted),
        )
        clips.append(clip)
    return tuple(clips)


def _clients(ids: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(int, ids))


def _read(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: _number(value) for name, value in values.items()}


def _array(values: Sequence[float | None]) -> Vector:
    return np.array(values, dtype=np.float64)  # turns None into NaN


_OPTIONAL: dict[str, Callable[[Any], Any]] = {  # fields that a line may lack, and how they are read
    "reason": str,
    "unseen": _array,
    "unseen_losses": _array,
    "global_accuracy": float,
    "global_loss": float,
    "recalls": _array,
    "scores": _numbers,
    "central": _numbers,
}
