"""columns.bin: numbers of rounds with very many clients, one array after another; the lines say where each lies.

Read one with `np.fromfile("columns.bin", type, count, offset=at)`. A line holds the checksum of each of its arrays, so
the digest of the lines covers this file too.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DamageError
from ...core.files import plain_file
from ...core.sparse import Vector, scattered

Place = Mapping[str, Any]  # at, count, type and sha256 of one array
_TYPES = ("<f8", "<i8")


@dataclass(frozen=True)
class ColumnsFile:
    """The file of one run."""

    path: Path

    def append(self, array: NDArray[Any]) -> Place:
        """Add an array; it is on disk when this returns."""
        kind = "<f8" if array.dtype.kind == "f" else "<i8"
        content = np.ascontiguousarray(array, dtype=kind).tobytes()
        with self.path.open("ab") as file:
            at = file.tell()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return {
            "at": at,
            "count": len(array),
            "type": kind,
            "sha256": _checksum(content),
        }

    def read(self, place: Place) -> NDArray[Any]:
        """The array that lies there, if it is what was written."""
        try:
            position = _TYPES.index(place["type"])
            kind = np.dtype(_TYPES[position])
            count = int(place["count"])
            size = count * kind.itemsize
            with plain_file(self.path).open("rb") as file:
                file.seek(int(place["at"]))
                content = file.read(size)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise self._damage(f"{type(error).__name__}: {error}") from None
        is_whole = len(content) == size
        if not is_whole or _checksum(content) != place.get("sha256"):
            raise self._damage("a checksum is not that of what was written")
        return np.frombuffer(content, dtype=kind)

    def cut(self, end: int) -> None:
        """Forget what lies behind `end`: of rounds that will be run again."""
        if self.path.exists():
            if end == 0:
                self.path.unlink()
            else:
                os.truncate(self.path, end)

    def _damage(self, reason: str) -> DamageError:
        return DamageError(f"{self.path} is damaged: {reason}; make the same comparison again to train that run anew")


@dataclass(frozen=True)
class ColumnInFile:
    """The numbers of clients that lie in a file; read when asked for."""

    columns: ColumnsFile
    clients: int
    places: tuple[Place | None, Place]  # of the ids, None: everyone's; of the values
    rest: float

    @property
    def values(self) -> Vector:
        """[k] those there are."""
        return self.columns.read(self.places[1])

    @property
    def ids(self) -> NDArray[np.int64]:
        """[k] whose they are."""
        ids = self.places[0]
        return np.arange(self.clients) if ids is None else self.columns.read(ids)

    def dense(self) -> Vector:
        return scattered(self.clients, self.ids, self.values, self.rest)


def places_in(line: Mapping[str, Any]) -> Iterator[Place]:
    """Of all arrays of a line that lie in the file."""
    for value in line.values():
        if not isinstance(value, Mapping):
            continue
        for key in ("ids", "values"):
            part = value.get(key)
            if isinstance(part, Mapping):
                yield part


def end_of(place: Place) -> int:
    begin = int(place["at"])
    count = int(place["count"])
    return begin + count * np.dtype(place["type"]).itemsize


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
