"""The fields of a reply from a client that is not trusted: each is read with its type and range, or refused."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from logging import WARNING
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError
from ..core.printable import printable
from ..core.scalars import is_number
from ..core.words import first_of
from .logs import log

Kind = TypeVar("Kind", MetricRecord, ArrayRecord)
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]  # shape, order and type
Facts = Mapping[str, Any]  # what a client tells of itself

LARGEST_SIZE = 1e15  # of a client, in examples: sums of shares stay exact far beyond
LARGEST_LOSS = 1e12  # its square must stay a number that others can be added to
_FIRST_VERSION = b"\x93NUMPY\x01\x00"  # of numpy's format
_KIND = re.compile(r"\b[A-Za-z_]*(?:Error|Exception|Interrupt|Exit)\b")


class MissingMetricError(InputError):
    """A reply has no metric of the name that was asked for."""

    def __init__(self, name: str, values: MetricRecord) -> None:
        self.name = name
        self.present = first_of([str(key) for key in values], 6) or "nothing"
        super().__init__(f"the reply holds no '{name}'; it has {self.present}")


def check_flag(name: str, value: Any) -> bool:
    """Refuse what is neither true nor false: "false" in quotes would count as true."""
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}: give true or false, without quotes")
    return value


def refuse_failure(reply: Message, tell_errors: bool = False) -> None:
    """Refuse a reply that reports a failure. Only the type of error is repeated: the text may quote data."""
    if reply.has_error():
        raise InputError(failure(reply.error, tell_errors))
    if not reply.has_content():
        raise InputError("the reply is empty")


def failure(error: Error, tell_errors: bool = False) -> str:
    """A client's failure in words; its own text only where that is asked for.

    >>> failure(Error(code=1, reason="<class 'ValueError'>:<'patient 4711'>"))
    'it failed (ValueError); its own log says why'
    """
    text = str(error.reason)
    if tell_errors:
        return f"it failed: {printable(text)}"
    match = _KIND.search(text)
    kind = match.group() if match else f"code {error.code}"
    return f"it failed ({kind}); its own log says why"


def metrics(reply: Message) -> MetricRecord:
    return _only(reply, MetricRecord, "records of metrics")


def model(reply: Message) -> ArrayRecord:
    return _only(reply, ArrayRecord, "models")


def _only(reply: Message, kind: type[Kind], called: str) -> Kind:
    """The reply's only record of a kind; `called`: several of them, in an error."""
    records = [record for record in reply.content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise InputError(f"the reply holds {len(records)} {called}, not one")
    return records[0]


def number(
    values: MetricRecord,
    name: str,
    least: float = -math.inf,
    most: float = math.inf,
) -> float | None:
    """One of the metrics: a finite number within its range; None where there is none of that name."""
    value = values.get(name)
    if value is None:
        return None
    if not is_number(value):
        kind = type(value).__name__
        raise InputError(f"{name} is a {kind}, not a number")
    if not math.isfinite(value):
        raise InputError(f"{name}={value} is not finite")
    if not least <= value <= most:
        raise InputError(f"{name}={value:g} is not within {least:g} .. {most:g}")
    return float(value)


def size(values: MetricRecord, name: str) -> float:
    """How many examples a client trains on."""
    count = number(values, name, least=0, most=LARGEST_SIZE)
    if count is None:
        raise MissingMetricError(name, values)
    if count == 0:
        raise InputError(f"{name}=0: it trained on nothing")
    return count


def loss(values: MetricRecord, name: str, least: float) -> float:
    """A client's loss, at least what the algorithm can weigh."""
    value = number(values, name, least=least, most=LARGEST_LOSS)
    if value is None:
        raise MissingMetricError(name, values)
    return value


def aggregated(aggregate: Any, contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """The user's aggregation of metrics; where one client's metrics break it, of those that all clients have."""
    reason = ""
    for reduce in (list, _common):
        try:
            record: MetricRecord = aggregate(reduce(contents), weighted_by)
            return record
        except Exception as error:  # the user's function, on what clients sent
            reason = type(error).__name__
    log(WARNING, "the clients' metrics could not be aggregated (%s)", reason)
    return MetricRecord()


def _common(contents: list[RecordDict]) -> list[RecordDict]:
    """The same with those metrics only that are plain numbers in every reply."""
    records = []
    for content in contents:
        record = next(iter(content.metric_records.values()))
        records.append(record)
    names = set(records[0])
    for record in records:
        names &= set(record)
        for name, value in record.items():
            if isinstance(value, list):
                names.discard(name)
    reduced = []
    for content, record in zip(contents, records, strict=True):
        kept = {}
        for name, value in record.items():
            if name in names:
                kept[name] = value
        metrics_left = MetricRecord(kept)
        reduced.append(RecordDict({**content.array_records, "metrics": metrics_left}))
    return reduced


def tensor(name: str, array: Array) -> Tensor:
    """The numbers of an array that came from elsewhere."""
    try:
        values = _numbers(array)
        numbers = torch.from_numpy(values)
    except Exception as error:  # whatever unknown bytes may cause
        kind = type(error).__name__
        raise InputError(f"{name} cannot be read as numbers ({kind})") from None
    dtype = str(values.dtype)
    shape = tuple(array.shape)
    if dtype != array.dtype or values.shape != shape:
        raise InputError(f"{name} is of another type or shape than it says")
    return numbers


def _numbers(array: Array) -> NDArray[Any]:
    """As `array.numpy()`; a header that was read before is known by its bytes, since all clients send the same."""
    data = array.data
    if array.stype != "numpy.ndarray" or data[:8] != _FIRST_VERSION:
        return array.numpy()
    begin = 10 + int.from_bytes(data[8:10], "little")
    shape, is_fortran, dtype = _header(data[:begin])
    if dtype.hasobject or is_fortran:
        return array.numpy()
    values = np.frombuffer(data, dtype, math.prod(shape), begin)
    return values.reshape(shape).copy()


@lru_cache(maxsize=1024)
def _header(text: bytes) -> Header:
    file = BytesIO(text)
    file.seek(len(_FIRST_VERSION))
    header: Header = np.lib.format.read_array_header_1_0(file)
    return header


def whole(facts: Facts, name: str, most: int) -> int:
    """A whole number from 0 to `most` that a client tells of itself."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        kind = type(value).__name__
        raise InputError(f"{name} is a {kind}, not a whole number")
    if not 0 <= value <= most:
        raise InputError(f"{name}={value} is not within 0 .. {most}")
    return value


def names(facts: Facts, name: str) -> list[str]:
    values = facts.get(name)
    if not isinstance(values, list):
        raise InputError(f"{name} is no list of names")
    for value in values:
        if not isinstance(value, str):
            raise InputError(f"{name} is no list of names")
    return list(values)
