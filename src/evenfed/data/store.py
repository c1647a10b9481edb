"""Where data sets live: one folder each of .npy arrays and a meta.json, mapped into memory when read."""

import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, first_line, unknown
from ..core.files import ARRAY_DAMAGES
from .catalogue import SOURCES
from .dataset import Dataset, digits

Array = NDArray[Any]
DType = np.dtype[Any]
Shape = tuple[int, ...]
Chunks = Iterator[Array]  # of an array, one after the other
Rows = Array | Sequence[int] | Chunks
Fields = dict[str, Any]
Header = Fields  # shape, dtype and sha256 of an array
INTEGER = np.dtype(np.int64)  # of targets and owners
META = "meta.json"
FORMAT = 1  # of the folder; a reader that knows another one says so instead of guessing
ABANDONED_AFTER = 24 * 3600  # seconds after which a half-written folder is nobody's
BLOCK = 1 << 20  # bytes hashed at a time


def root() -> Path:
    """The cache folder: `EVENFED_DATA`, or evenfed/ in the user's cache folder."""
    chosen = os.environ.get("EVENFED_DATA")
    if chosen:
        return Path(chosen).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME")
    if not user_cache and os.name == "nt":
        user_cache = os.environ.get("LOCALAPPDATA")
    if not user_cache:
        return Path.home() / ".cache" / "evenfed"
    return Path(user_cache) / "evenfed"


def folder(name: str) -> Path:
    """Where the data set of that name lives, or would live."""
    return root() / name


def names() -> list[str]:
    added = []
    for meta in root().glob(f"*/{META}"):
        name = meta.parent.name
        if not name.startswith("."):
            added.append(name)
    return sorted(added)


def write(
    destination: Path,
    *,
    name: str,
    inputs: Rows,
    targets: Rows,
    classes: int,
    owners: Rows | None = None,
    owner_names: Sequence[str] = (),
    padding: int | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write a data set to the folder `destination`, completely or not at all.

    Arrays may come as iterators of chunks, so that no more than one chunk is ever in memory. `inputs` are read to the
    end first: an iterator may fill the lists passed as targets, owners, owner_names and notes as it goes.
    """
    with _all_or_nothing(destination) as fresh:
        arrays = {"inputs": _save(fresh / "inputs.npy", inputs)}
        arrays["targets"] = _save(fresh / "targets.npy", targets, INTEGER)
        if owners is not None:
            arrays["owners"] = _save(fresh / "owners.npy", owners, INTEGER)
        _check_lengths(name, arrays)
        meta = {
            "format": FORMAT,
            "name": name,
            "classes": classes,
            "padding": padding,
            "notes": list(notes),
            "arrays": arrays,
            "owner_names": list(owner_names),
        }
        text = json.dumps(meta, indent=1)
        (fresh / META).write_text(text, encoding="utf-8")


def save(data: Dataset, destination: Path) -> None:
    fields = dict(vars(data))
    del fields["is_test"]  # only a folder of one's own marks test rows
    write(destination, **fields)


def read(name: str) -> Dataset:
    """The data set of that name, its arrays mapped from disk without a copy."""
    if name == "digits":
        return digits()
    meta = _meta(name)
    headers = meta["arrays"]
    owners = None
    if "owners" in headers:
        owners = _mapped(name, "owners", headers)
    return Dataset(
        name=name,
        inputs=_mapped(name, "inputs", headers),
        targets=_mapped(name, "targets", headers),
        classes=meta["classes"],
        owners=owners,
        owner_names=tuple(meta["owner_names"]),
        padding=meta.get("padding"),
        notes=tuple(meta["notes"]),
    )


def size(name: str) -> tuple[int, int]:
    """(examples, bytes on disk) of a data set that was added."""
    header = _meta(name)["arrays"]["inputs"]
    examples = header["shape"][0]
    on_disk = 0
    for path in folder(name).iterdir():
        on_disk += path.stat().st_size
    return examples, on_disk


def damage(name: str) -> list[str]:
    """What is wrong with a data set on disk: arrays missing or changed since they were written."""
    faults = []
    headers = _meta(name)["arrays"]
    for which, header in headers.items():
        path = folder(name) / f"{which}.npy"
        if not path.is_file():
            faults.append(f"{path} is missing")
        elif file_digest(path, "sha256") != header["sha256"]:
            faults.append(f"{path} is not what was written")
    return faults


def place(fresh: Path, destination: Path) -> None:
    """Move a finished folder to where it belongs, replacing what was there."""
    old = _hidden_sibling(destination, "-old")
    if destination.exists():
        destination.rename(old / "was")
    fresh.rename(destination)
    shutil.rmtree(old)


def file_digest(path: Path, algorithm: str) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return digest(file, algorithm)


def digest(stream: io.BufferedIOBase, algorithm: str) -> str:
    """The hash of a stream read to its end, in hexadecimal."""
    hashed = hashlib.new(algorithm, usedforsecurity=False)
    while block := stream.read(BLOCK):
        hashed.update(block)
    return hashed.hexdigest()


@contextmanager
def workplace(prefix: str) -> Iterator[Path]:
    """A temporary folder inside the cache. Leftovers of killed processes are removed, too."""
    root().mkdir(parents=True, exist_ok=True)
    for leftover in root().glob(".*-*"):
        if not leftover.is_dir():
            continue
        age = time.time() - leftover.stat().st_mtime
        if age > ABANDONED_AFTER:
            shutil.rmtree(leftover, ignore_errors=True)
    temporary = tempfile.TemporaryDirectory(prefix=f".{prefix}-", dir=root())
    with temporary as path:
        yield Path(path)


@contextmanager
def _all_or_nothing(destination: Path) -> Iterator[Path]:
    destination.parent.mkdir(parents=True, exist_ok=True)
    fresh = _hidden_sibling(destination)
    try:
        yield fresh
        fresh.chmod(0o755)  # mkdtemp's own is for one user; a cache may be shared
        place(fresh, destination)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _hidden_sibling(destination: Path, what: str = "") -> Path:
    path = tempfile.mkdtemp(
        prefix=f".{destination.name}{what}-",
        dir=destination.parent,
    )
    return Path(path)


def _save(path: Path, rows: Rows, dtype: DType | None = None) -> Header:
    """Write an .npy file chunk by chunk; its header is written again once the number of rows is known."""
    if isinstance(rows, Iterator):
        chunks = rows
    else:
        whole = np.asarray(rows)
        chunks = iter([whole])
    length = 0
    row_shape: Shape = ()
    kind = dtype or np.dtype(np.uint8)
    with path.open("w+b") as file:
        for chunk in chunks:
            if not file.tell():
                row_shape = chunk.shape[1:]
                if dtype is None:
                    kind = chunk.dtype
                _write_header(file, (0, *row_shape), kind)
            shape = chunk.shape[1:]
            if shape != row_shape:
                raise InputError(
                    f"{path.stem}: rows of shape {shape} follow rows of shape {row_shape}; "
                    "all rows of a data set have one shape: check the source files"
                )
            contiguous = np.ascontiguousarray(chunk, dtype=kind)
            file.write(contiguous.data)
            length += len(chunk)
        file.seek(0)
        _write_header(file, (length, *row_shape), kind)
    digest = file_digest(path, "sha256")
    return {
        "shape": [length, *row_shape],
        "dtype": kind.str,
        "sha256": digest,
    }


def _write_header(file: IO[bytes], shape: Shape, kind: DType) -> None:
    # NumPy pads this header so that the first axis can grow without moving the data.
    descr = np.lib.format.dtype_to_descr(kind)
    header = {
        "shape": shape,
        "fortran_order": False,
        "descr": descr,
    }
    np.lib.format.write_array_header_1_0(file, header)


def _check_lengths(name: str, arrays: Mapping[str, Header]) -> None:
    lengths = set()
    counts = []
    for which, header in arrays.items():
        length = header["shape"][0]
        lengths.add(length)
        counts.append(f"{length} {which}")
    if 0 in lengths or len(lengths) > 1:
        raise InputError(
            f"{name}: found {', '.join(counts)}; every example needs all of them, and at least one example is needed: "
            "check that the path holds the official files"
        )


def _meta(name: str) -> Fields:
    path = folder(name) / META
    if not path.is_file():
        source = SOURCES.get(name)
        if source is None:
            known = {*SOURCES, *names()}
            raise unknown("data set", name, sorted(known))
        raise InputError(f"data set '{name}' is not in {root()}; {source.how_to_get}")
    try:
        meta: Fields = json.loads(path.read_text(encoding="utf-8"))
        version = meta.get("format")
    except (ValueError, AttributeError) as error:
        raise _damaged(path, first_line(error)) from None
    if version != FORMAT:
        raise InputError(
            f"{path} has format {version}, this version reads {FORMAT}: remove {path.parent} and add the data set again"
        )
    _check_meta(meta, path)
    return meta


def _check_meta(meta: Fields, path: Path) -> None:
    """Refuse a description that lacks something that `write` writes."""
    kinds = {"classes": int, "owner_names": list, "notes": list, "arrays": dict}
    for key, kind in kinds.items():
        if not isinstance(meta.get(key), kind):
            raise _damaged(path, f"its part '{key}' is missing")
    headers = meta["arrays"]
    if not {"inputs", "targets"} <= headers.keys() <= {"inputs", "targets", "owners"}:
        raise _damaged(path, "it names other arrays")
    for header in headers.values():
        is_header = isinstance(header, dict) and {"shape", "dtype", "sha256"} <= header.keys()
        if not is_header or not isinstance(header["shape"], list):
            raise _damaged(path, "parts of an array's header are missing")


def _mapped(name: str, which: str, headers: Mapping[str, Header]) -> Array:
    path = folder(name) / f"{which}.npy"
    header = headers[which]
    try:
        array: Array = np.load(path, mmap_mode="r")
    except ARRAY_DAMAGES as error:
        raise _damaged(path, str(error)) from error
    shape = tuple(header["shape"])
    kind = array.dtype.str
    if array.shape != shape or kind != header["dtype"]:
        raise _damaged(path, f"its shape is {array.shape}, {shape} was written")
    return array


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged ({why}); remove {path.parent} and add the data set again")
