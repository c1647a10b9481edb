"""Waiting updates: kept in memory up to a number of bytes, beyond that in a temporary file."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from .errors import InputError

MOST_HELD = 256 * 2**20  # bytes in memory; the rest wait in a file


class SpooledUpdates:
    """Tables of tensors by key. What is on a GPU stays there."""

    def __init__(self) -> None:
        self._tables: dict[int, Mapping[str, Any]] = {}
        self._bytes = 0  # in memory
        self._file: IO[bytes] | None = None
        self._places: dict[int, int] = {}  # key -> where its table begins in the file

    def put(self, key: int, table: Mapping[str, Any]) -> None:
        size = _bytes_of(table.values())
        if not size or self._bytes + size <= MOST_HELD:
            self._bytes += size
            self._tables[key] = table
            return
        try:
            self._write(key, table)
        except OSError as error:
            raise InputError(
                f"updates wait in a file in {tempfile.gettempdir()}, which cannot be written ({error.strerror}); make "
                "room there, or let TMPDIR name a folder with more"
            ) from None

    def _write(self, key: int, table: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when all is taken
        self._places[key] = self._file.seek(0, os.SEEK_END)
        torch.save(dict(table), self._file)

    def take(self, key: int) -> Mapping[str, Any]:
        """A table, which waits no longer."""
        if key in self._tables:
            table = self._tables.pop(key)
            self._bytes -= _bytes_of(table.values())
            return table
        assert self._file is not None
        self._file.seek(self._places.pop(key))
        read: dict[str, Any] = torch.load(self._file, weights_only=True)
        if not self._places:
            self._close()
        return read

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()  # which removes it
            self._file = None

    def __del__(self) -> None:
        self._close()


def _bytes_of(values: Iterable[object]) -> int:
    """Of the tensors among them that are in the machine's memory."""
    size = 0
    for value in values:
        if isinstance(value, Tensor) and value.is_cpu:
            size += value.nbytes
        elif isinstance(value, Mapping):
            size += _bytes_of(value.values())
    return size
