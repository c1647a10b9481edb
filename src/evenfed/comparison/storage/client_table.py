"""The table of clients in a run's header: names and numbers of examples. Large tables have a file, clients.npz.

The file is written once. The header then holds its checksum, the number of clients and the rest of the table.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from ...clients.population import NumberedNames
from ...core.errors import DamageError
from ...core.files import plain_file, replacing

Table = Mapping[str, Any]
MOST_INLINE = 5000  # clients whose names and sizes are in the header itself
FILE = "clients.npz"
_MOST_BYTES = 20_000  # of one client: its name, and numbers of examples of a thousand classes, twice
_NUMBERS = ("train", "test", "classes", "judged_classes")
_COLUMNS = ("names", *_NUMBERS)  # one entry per client
_NAMES = "names_as_json"
_PROSE = ("notes",)


class ManyClients(Mapping[str, Any]):
    """A table of clients whose columns are arrays, not lists."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        rest: Table,
    ) -> None:
        self.given_columns = columns
        self.rest = dict(rest)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        return self.given_columns

    @cached_property
    def digest(self) -> str:
        return _digest(_arrays(self.columns))

    def __getitem__(self, key: str) -> Any:
        if key in _COLUMNS:
            return self.columns[key]
        return self.rest[key]

    def __iter__(self) -> Iterator[str]:
        return iter((*_COLUMNS, *self.rest))

    @property
    def label_counts(self) -> NDArray[np.int64] | None:
        """[n, classes] of the examples that clients are judged on, if they are known."""
        counts: NDArray[np.int64] | None = self.columns["judged_classes"]
        return counts

    def __len__(self) -> int:
        return len(_COLUMNS) + len(self.rest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return False
        if len(other.get("names", ())) != len(self["names"]):
            return False
        theirs = many(other)
        return self.digest == theirs.digest and self.rest == theirs.rest

    __hash__ = None  # type: ignore[assignment]


class _TableInFile(ManyClients):
    """A table in a file, which is read when a column is first used."""

    def __init__(
        self,
        path: Path,
        reference: Table,
        rest: Table,
    ) -> None:
        super().__init__({}, rest)
        self.path = path
        self.reference = reference

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        try:
            arrays = _read(self.path, int(self.reference["count"]))
        except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
            raise DamageError(f"{self.path} cannot be read ({error}); {_ADVICE}") from None
        if _digest(arrays) != self.reference["sha256"]:
            raise DamageError(f"{self.path} is damaged: its checksum is not that of what was written; {_ADVICE}")
        return _columns(arrays)

    @cached_property
    def digest(self) -> str:
        return str(self.reference["sha256"])


_ADVICE = "make the same comparison again in another folder"


def many(table: Table) -> ManyClients:
    """A table of lists as a table of arrays."""
    if isinstance(table, ManyClients):
        return table
    columns = {"names": table["names"]}
    for name in _NUMBERS:
        numbers = table.get(name)
        if numbers is not None:
            numbers = np.asarray(numbers, dtype=np.int64)
        columns[name] = numbers
    return ManyClients(columns, _without(table, _COLUMNS))


def are_same_clients(table: Table, other: Table) -> bool:
    """Whether two tables have the same clients. Notes on them are prose, which a newer version may word differently."""
    theirs = many(other)
    ours = many(table)
    return ours.digest == theirs.digest and _without(ours.rest, _PROSE) == _without(theirs.rest, _PROSE)


def client_table(
    names: Sequence[str],
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    classes: NDArray[np.int64] | None = None,
    split_seed: int | None = None,
    notes: Sequence[str] = (),
    unseen: Sequence[str] = (),
) -> Table:
    """The table: each client's name, its numbers of training and test examples and of each class, and the split.

    `unseen`: the names of clients that never train.
    """
    rest: dict[str, Any] = {"split_seed": split_seed, "notes": list(notes)}
    if unseen:
        rest["unseen"] = list(unseen)
    clients = ManyClients(
        {
            "names": names,
            "train": train,
            "test": test,
            "classes": classes,
            "judged_classes": None,
        },
        rest,
    )
    if len(names) > MOST_INLINE:
        return clients
    return inline(clients)


def stored(table: Table, folder: Path, label_counts: NDArray[np.int64] | None = None) -> Table | None:
    """Write the file of a large table, unless it exists; returns the reference to it, None for a small table.

    `label_counts` [n, classes] of the examples that clients are judged on are stored in the file too.
    """
    path = folder / FILE
    if isinstance(table, _TableInFile) and table.path == path:
        return {**table.rest, **table.reference}
    if len(table["names"]) <= MOST_INLINE:
        return None
    clients = many({**table, "judged_classes": label_counts})
    reference = {
        "file": FILE,
        "sha256": clients.digest,
        "count": len(clients["names"]),
    }
    if not path.exists() or not _holds(path, reference):
        with replacing(path) as unfinished, unfinished.open("xb") as file:
            np.savez_compressed(file, allow_pickle=False, **_arrays(clients.columns))
    return {**clients.rest, **reference}


def resolved(table: Table, folder: Path) -> Table:
    """The table of a header in `folder`: a reference is replaced by the table in its file."""
    if "sha256" not in table:
        return table
    reference = {key: table[key] for key in ("file", "sha256", "count")}
    return _TableInFile(folder / FILE, reference, _without(table, reference))


def _without(table: Table, keys: Collection[str]) -> Table:
    rest = {}
    for key, value in table.items():
        if key not in keys:
            rest[key] = value
    return rest


def inline(table: Table) -> Table:
    """The table with lists as columns, however long."""
    if not isinstance(table, ManyClients):
        return table
    lists = {}
    for name in ("names", "train", "test", "classes"):
        column = table.columns[name]
        if column is not None:
            column = column.tolist() if isinstance(column, np.ndarray) else list(column)
        lists[name] = column
    return {**lists, **table.rest}


def _read(path: Path, clients: int) -> dict[str, NDArray[Any]]:
    """The arrays of a file; refused if they are larger than this number of clients can need."""
    with plain_file(path).open("rb") as handle, ZipFile(handle) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > _MOST_BYTES * (clients + 1):
            raise ValueError(f"{size} bytes for {clients} clients")
        handle.seek(0)
        with np.load(handle, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def _holds(path: Path, reference: Table) -> bool:
    """Whether the file has the content that the reference names."""
    try:
        return bool(_TableInFile(path, reference, {}).columns)
    except DamageError:
        return False


def _arrays(columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Columns as arrays for the file: names as JSON, left out if they are just positions."""
    arrays = {}
    for name in _NUMBERS:
        if columns[name] is not None:
            arrays[name] = np.ascontiguousarray(columns[name], dtype=np.int64)
    names = columns["names"]
    if not isinstance(names, NumberedNames):
        text = json.dumps(list(names))
        arrays[_NAMES] = np.frombuffer(text.encode(), dtype=np.uint8)
    return arrays


def _columns(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    names: Sequence[str] = NumberedNames(len(arrays["train"]))
    if _NAMES in arrays:
        names = json.loads(arrays[_NAMES].tobytes())
    numbers = {name: arrays.get(name) for name in _NUMBERS}
    return {"names": names, **numbers}


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        shape = list(array.shape)
        digest.update(f"{name}{shape}{array.dtype};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
