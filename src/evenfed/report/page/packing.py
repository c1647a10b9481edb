"""Rows of numbers as columns of bytes: a chart's data, small enough to travel inside a page.

Numbers of about one size become whole multiples of a power of ten, texts become their places in a list. All columns
follow each other in one string of bytes; `columns.js` makes rows of them again.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..charts.saving import drawable

Row = Mapping[str, Any]
_DIGITS = 6  # significant ones of a column's largest number
_WIDEST = 1e4  # times its median number that a column's largest may be, to share its last digit
_MOST_WHOLE = 2**40  # whole numbers below it are kept as they are
_NUMBER = (int, float, np.number)
_LEVEL = 9  # of compression


class Packer:
    """Collects columns of bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def rows(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Where the columns of these rows are, and how to read them."""
        names: dict[str, None] = {}
        for row in rows:
            names.update(dict.fromkeys(row))
        columns = {}
        for name in names:
            values = [row.get(name) for row in rows]
            columns[name] = self._column(values)
        return {"count": len(rows), "columns": columns}

    def text(self) -> str:
        """All columns, compressed, as letters that HTML leaves alone."""
        compressed = gzip.compress(bytes(self._bytes), _LEVEL, mtime=0)
        return base64.b64encode(compressed).decode("ascii")

    def _column(self, values: Sequence[Any]) -> dict[str, Any]:
        if all(isinstance(value, list | tuple) for value in values):
            return self._lists(values)
        if _are_same(values):
            first = _plain(values[0])
            return {"kind": "same", "value": first}
        numbers = _numbers(values)
        if numbers is None:
            return self._places(values)
        digits = _decimals(numbers)
        if digits is None:
            return self._floats(numbers)
        return self._multiples(numbers, digits)

    def _lists(self, values: Sequence[Any]) -> dict[str, Any]:
        """All lists end to end, and how long each is."""
        lengths = list(map(len, values))
        items: list[Any] = []
        for value in values:
            items += value
        if not items:
            return {"kind": "same", "value": []}
        return {
            "kind": "list",
            "lengths": self._column(lengths),
            "items": self._column(items),
            "count": len(items),
        }

    def _places(self, values: Sequence[Any]) -> dict[str, Any]:
        """Each value's place in the list of all that occur."""
        known: dict[str, int] = {}
        choices = []
        codes = []
        for value in values:
            plain = _plain(value)
            key = json.dumps(plain)
            if key not in known:
                known[key] = len(known)
                choices.append(plain)
            codes.append(known[key])
        column: dict[str, Any] = {"kind": "choice", "choices": choices}
        column |= self._whole(np.array(codes))
        return column

    def _multiples(self, numbers: NDArray[np.float64], digits: int) -> dict[str, Any]:
        """Whole multiples of 10 ** -digits above the least; 0 stands for a missing number."""
        is_known = ~np.isnan(numbers)
        known = numbers[is_known]
        unit = 10.0**digits
        multiples = np.round(known * unit)
        multiples = multiples.astype(np.int64)
        least = int(multiples.min())
        codes = np.zeros(len(numbers), np.int64)
        codes[is_known] = multiples - least + 1
        column: dict[str, Any] = {"kind": "number", "digits": digits, "least": least}
        column |= self._whole(codes)
        return column

    def _floats(self, numbers: NDArray[np.float64]) -> dict[str, Any]:
        start = len(self._bytes)
        singles = numbers.astype("<f4")
        self._bytes += singles.tobytes()
        return {"kind": "float", "start": start}

    def _whole(self, codes: NDArray[np.int64]) -> dict[str, int]:
        """Whole numbers from 0 in as few bytes each as hold them, the lowest bytes of all of them first."""
        largest = int(codes.max())
        bits = largest.bit_length()
        width = max(1, -(-bits // 8))
        start = len(self._bytes)
        for _ in range(width):
            lowest = (codes & 255).astype(np.uint8)
            self._bytes += lowest.tobytes()
            codes = codes >> 8
        return {"start": start, "width": width}


def _are_same(values: Sequence[Any]) -> bool:
    """Whether all are equal, and of one type: 1 is not True."""
    first = values[0]
    for value in values:
        is_same = _plain(value) == _plain(first)
        if not is_same or type(value) is not type(first):
            return False
    return True


def _plain(value: Any) -> Any:
    """A value as JSON knows it; what is not finite is not known."""
    if isinstance(value, str):
        return drawable(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def _numbers(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """The values as numbers, missing ones as NaN; None if they are not numbers."""
    numbers = np.full(len(values), np.nan)
    for place, value in enumerate(values):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, _NUMBER):
            return None
        if np.isfinite(value):
            numbers[place] = value
    return numbers


def _decimals(numbers: NDArray[np.float64]) -> int | None:
    """Digits after the point that all numbers of a column share; None if they are of too many sizes for that."""
    sizes = np.abs(numbers)
    sizes = sizes[sizes > 0]  # NaN is not
    if len(sizes) == 0:
        return 0
    largest = float(sizes.max())
    middle = float(np.median(sizes))
    are_whole = np.all(sizes == np.round(sizes))
    if are_whole and largest < _MOST_WHOLE:
        return 0
    if largest > _WIDEST * middle:
        return None
    magnitude = np.floor(np.log10(largest))
    return _DIGITS - 1 - int(magnitude)
