"""A round's record as JSON that every reader takes: arrays as lists, NaN as null."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.guard import Clip
from ..core.server import Record
from ..fairness import Vector

Numbers = Sequence[float | None]
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


def to_json(record: Record) -> dict[str, Any]:
    """The fields of a record; those that most runs do not have only where there is something in them."""
    data = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name in _GUARDED and not value:
            continue
        if field.name not in _RARE or value is not None:
            data[field.name] = _plain(value)
    return data


def from_json(data: Mapping[str, Any]) -> Record:
    """The record that `to_json` wrote, of this version or an older one."""
    return Record(
        index=data["index"],
        losses=_array(data["losses"]),
        weights=_array(data["weights"]),
        objective=_number(data["objective"]),
        negative_weights=data["negative_weights"],
        dropped=tuple(data["dropped"]),
        skipped=data["skipped"],
        reason=data.get("reason"),
        caused_by=tuple(data.get("caused_by", ())),
        refused=tuple(data.get("refused", ())),
        clipped=_clips(data.get("clipped", ())),
        seconds=_number(data["seconds"]),
        accuracy=_array_or_none(data.get("accuracy")),
        test_losses=_array_or_none(data.get("test_losses")),
        current=_array_or_none(data.get("current")),
        current_losses=_array_or_none(data.get("current_losses")),
        unseen=_array_or_none(data.get("unseen")),
        unseen_losses=_array_or_none(data.get("unseen_losses")),
        global_accuracy=data.get("global_accuracy"),
        global_loss=data.get("global_loss"),
        recalls=_array_or_none(data.get("recalls")),
        unpadded=_array_or_none(data.get("unpadded")),
        scores=_numbers_or_none(data.get("scores")),
        central=_numbers_or_none(data.get("central")),
    )


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
        clips.append(Clip(client, what, _number(reported), _number(counted)))
    return tuple(clips)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _numbers_or_none(values: Mapping[str, float | None] | None) -> dict[str, float] | None:
    if values is None:
        return None
    return {name: _number(value) for name, value in values.items()}


def _array(values: Numbers) -> Vector:
    return np.array(values, dtype=np.float64)  # turns None into NaN


def _array_or_none(values: Numbers | None) -> Vector | None:
    return None if values is None else _array(values)
