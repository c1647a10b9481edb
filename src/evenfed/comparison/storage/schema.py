"""What a run's files must look like: checked once when they are read, so that no reader has to doubt them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.server import PER_CLIENT, Record

Check = Callable[[Any, str], None]  # raises ValueError with the place, if the value is not of its kind
_DIGITS = 16  # of a number of examples
_ALWAYS = ("losses", "weights")


def _kind(name: str, *types: type) -> Check:
    def check(value: Any, place: str) -> None:
        is_flag = isinstance(value, bool)
        if not isinstance(value, types) or is_flag != (types == (bool,)):
            raise ValueError(f"{place}: {type(value).__name__} instead of {name}")

    return check


text = _kind("text", str)
whole = _kind("a whole number", int)
number = _kind("a number", int, float)
flag = _kind("true or false", bool)
table = _kind("a table", dict)


def count(value: Any, place: str) -> None:
    """A whole number that is not negative and not absurd."""
    whole(value, place)
    if not 0 <= value < 1 << 53:
        raise ValueError(f"{place}: {value}")


def optional(check: Check) -> Check:
    """The same, or null."""

    def checked(value: Any, place: str) -> None:
        if value is not None:
            check(value, place)

    return checked


def list_of(check: Check) -> Check:
    """A list of these."""

    def checked(value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise ValueError(f"{place}: {type(value).__name__} instead of a list")
        for index, member in enumerate(value):
            check(member, f"{place}[{index}]")

    return checked


def with_keys(required: Mapping[str, Check], others: Mapping[str, Check] = {}) -> Check:
    """A table with these keys; it may have more."""

    def checked(value: Any, place: str) -> None:
        table(value, place)
        missing = sorted(required.keys() - value.keys())
        if missing:
            raise ValueError(f"{place}: {', '.join(missing)} missing")
        for key, check in {**required, **others}.items():
            if key in value:
                inside = f"{place}.{key}" if place else key
                check(value[key], inside)

    return checked


_TRAIN = with_keys({"rounds": count}, {"evaluate_every": count, "last_rounds": count})
_MACHINE = with_keys({}, {"cpu": text, "gpu": optional(text)})
_SOURCE = {"versions": with_keys({"evenfed": text}), "started": text}
_SOURCE_TOO = {"commit": optional(text), "command": text, "hardware": _MACHINE}
_CLIENTS = with_keys({"names": list_of(text), "train": list_of(count), "test": list_of(count)})
_REFERENCE = with_keys({"file": text, "sha256": text, "count": count})
_header = with_keys(
    {
        "config": with_keys(
            {"data": table, "train": _TRAIN},
            {"algorithm": text, "hyper_parameters": table, "model": table},
        ),
        "clients": table,
        **_SOURCE,
    },
    {
        "label": text,
        "seed": whole,
        "selected_on": optional(text),
        "engine": optional(text),
        "device": optional(text),
        "finished": flag,
        "seconds": optional(number),
        "resumed_at": list_of(count),
        "earlier": list_of(with_keys({"from_round": count, **_SOURCE}, _SOURCE_TOO)),
        "layers": optional(text),
        "stopped": optional(text),
        "model_round": optional(count),
        "metric": optional(with_keys({"name": text, "higher_is_better": flag})),
        "judged_classes": optional(list_of(text)),
        "lines_digest": optional(text),
        "taken_from": optional(text),
        **_SOURCE_TOO,
    },
)


def check_header(data: Any) -> None:
    """Raise ValueError, naming the place, where a header is not what evenfed writes."""
    _header(data, "")
    clients = data["clients"]
    if "names" not in clients:  # they lie in a file of their own
        _REFERENCE(clients, "clients")
        return
    _CLIENTS(clients, "clients")
    lengths = {len(clients[key]) for key in ("names", "train", "test")}
    if len(lengths) > 1:
        raise ValueError("clients: names, train and test have different lengths")
    rows = data.get("judged_classes")
    if rows is None:
        return
    widths = set()
    for row in rows:
        numbers = row.split()
        widths.add(len(numbers))
        if not all(map(_is_count, numbers)):
            raise ValueError("judged_classes: other than whole numbers")
    if len(widths) > 1 or len(rows) not in lengths:
        raise ValueError("judged_classes: not one number per client and class")


def _is_count(text: str) -> bool:
    is_whole = text.isdecimal() and text.isascii()
    return is_whole and len(text) < _DIGITS


def check_records(records: Sequence[Record], clients: int, classes: int | None) -> None:
    """Raise ValueError where a round is not of so many clients and classes, where these are known."""
    for record in records:
        place = f"round {record.index + 1}"
        for field in PER_CLIENT:
            kept = record.kept(field)
            if kept is None and field in _ALWAYS:
                raise ValueError(f"{place}: without {field}")
            if isinstance(kept, np.ndarray) and kept.shape != (clients,):
                raise ValueError(f"{place}: {field} of shape {kept.shape} for {clients} clients")
        recalls = record.recalls
        if recalls is not None and recalls.shape != (classes or recalls.size,):
            raise ValueError(f"{place}: recalls of shape {recalls.shape} for {classes} classes")
        held = [clip.client for clip in record.clipped]
        named = (*record.dropped, *record.caused_by, *held)
        for client in named:
            if not 0 <= client < clients:
                raise ValueError(f"{place}: client {client} of {clients}")
