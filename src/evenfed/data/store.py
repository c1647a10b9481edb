"""Where data sets live: one folder each of .npy arrays and a meta.json, mapped into memory when read."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..core.errors import InputError, unknown
from .catalogue import SOURCES
from .dataset import Dataset

Rows = NDArray[Any] | Sequence[int] | Iterator[NDArray[Any]]  # an array, or its chunks one after the other
META = "meta.json"
FORMAT = 1  # of the folder; a reader that knows another one says so instead of guessing
ABANDONED_AFTER = 24 * 3600  # seconds after which a half-written folder is nobody's


def root() -> Path:
    """The cache folder: `EVENFED_DATA`, or evenfed/ in the user's cache folder."""
    if given := os.environ.get("EVENFED_DATA"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else Path.home() / ".cache") / "evenfed"


def folder(name: str) -> Path:
    """Where the data set of that name lives, or would live."""
    return root() / name


def names() -> list[str]:
    """The data sets that were added, whole ones only."""
    return sorted(p.parent.name for p in root().glob(f"*/{META}") if not p.parent.name.startswith("."))


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
    splits: Mapping[str, tuple[Rows, Rows]] | None = None,
) -> None:
    """Write a data set to the folder `destination`, whole or not at all.

    Arrays may come as iterators of chunks, so that no more than a chunk is ever in memory. `inputs` are drawn to the
    end before anything else is looked at: an iterator may fill the lists given as targets, owners, owner_names and
    notes as it goes. `splits` holds further official parts, e.g. {"test": (inputs, targets)}, kept beside.
    """
    with _whole_or_nothing(destination) as fresh:
        arrays = _save_part(fresh, name, "", inputs, targets, owners)
        for part, (part_inputs, part_targets) in (splits or {}).items():
            arrays |= _save_part(fresh, name, f"{part}_", part_inputs, part_targets, None)
        meta = {
            "format": FORMAT,
            "name": name,
            "classes": classes,
            "padding": padding,
            "notes": list(notes),
            "arrays": arrays,
            "owner_names": list(owner_names),
        }
        (fresh / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def read(name: str) -> Dataset:
    """The data set of that name, its arrays mapped from disk: nothing is copied, pages come as they are touched."""
    if name in SOURCES and SOURCES[name].bundled:
        return SOURCES[name].load()
    meta = _meta(name)

    def array(which: str) -> NDArray[Any]:
        return _mapped(folder(name) / f"{which}.npy", meta["arrays"][which])

    return Dataset(
        name=name,
        inputs=array("inputs"),
        targets=array("targets"),
        classes=meta["classes"],
        owners=array("owners") if "owners" in meta["arrays"] else None,
        owner_names=tuple(meta["owner_names"]),
        padding=meta["padding"],
        notes=tuple(meta["notes"]),
    )


def read_split(name: str, part: str) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """A further official part, e.g. "test", as (inputs, targets); None where it was not among the files added."""
    arrays = _meta(name)["arrays"]
    if f"{part}_inputs" not in arrays:
        return None
    found = [_mapped(folder(name) / f"{part}_{w}.npy", arrays[f"{part}_{w}"]) for w in ("inputs", "targets")]
    return found[0], found[1]


def size(name: str) -> tuple[int, int]:
    """(examples, bytes on disk) of a data set that was added."""
    meta = _meta(name)
    return meta["arrays"]["inputs"]["shape"][0], sum(p.stat().st_size for p in folder(name).iterdir())


def damage(name: str) -> list[str]:
    """What is wrong with a data set on disk: arrays missing or changed since they were written."""
    found = []
    for which, told in _meta(name)["arrays"].items():
        path = folder(name) / f"{which}.npy"
        if not path.is_file():
            found.append(f"{path} is missing")
        elif file_digest(path, "sha256") != told["sha256"]:
            found.append(f"{path} is not what was written")
    return found


def place(fresh: Path, destination: Path) -> None:
    """Move a finished folder to where it belongs, in place of what was there."""
    old = Path(tempfile.mkdtemp(prefix=f".{destination.name}-old-", dir=destination.parent))
    if destination.exists():
        destination.rename(old / "was")
    fresh.rename(destination)
    shutil.rmtree(old)


def file_digest(path: Path, algorithm: str, progress: Callable[[int], object] = lambda _: None) -> str:
    """The hash of a file, in hexadecimal; `progress` is told the bytes of each block."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


@contextmanager
def workplace(prefix: str) -> Iterator[Path]:
    """A folder inside the cache for work in progress, gone afterwards; those a killed process left are removed."""
    root().mkdir(parents=True, exist_ok=True)
    for left in root().glob(".*-*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > ABANDONED_AFTER:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{prefix}-", dir=root()) as place_to_work:
        yield Path(place_to_work)


@contextmanager
def _whole_or_nothing(destination: Path) -> Iterator[Path]:
    destination.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield fresh
        fresh.chmod(0o755)  # mkdtemp's own is for one user; a cache may be shared
        place(fresh, destination)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _save_part(
    fresh: Path, name: str, prefix: str, inputs: Rows, targets: Rows, owners: Rows | None
) -> dict[str, dict[str, Any]]:
    arrays = {f"{prefix}inputs": _save(fresh / f"{prefix}inputs.npy", inputs)}
    arrays[f"{prefix}targets"] = _save(fresh / f"{prefix}targets.npy", targets, np.int64)
    if owners is not None:
        arrays[f"{prefix}owners"] = _save(fresh / f"{prefix}owners.npy", owners, np.int64)
    _check_lengths(name, arrays)
    return arrays


def _save(path: Path, rows: Rows, dtype: DTypeLike | None = None) -> dict[str, Any]:
    """Write an .npy file chunk by chunk; its header is written again when the number of rows is known."""
    chunks: Iterable[NDArray[Any]] = rows if isinstance(rows, Iterator) else [np.asarray(rows)]
    shape: tuple[int, ...] = (0,)
    kind = np.dtype(dtype if dtype is not None else np.uint8)
    with path.open("w+b") as file:
        for chunk in chunks:
            if not file.tell():
                kind, shape = np.dtype(dtype if dtype is not None else chunk.dtype), (0, *chunk.shape[1:])
                _header(file, shape, kind)
            if chunk.shape[1:] != shape[1:]:
                raise InputError(
                    f"{path.stem}: rows of shape {chunk.shape[1:]} follow rows of shape {shape[1:]}; "
                    "all rows of a data set have one shape: check the source files"
                )
            file.write(np.ascontiguousarray(chunk, dtype=kind).data)
            shape = (shape[0] + len(chunk), *shape[1:])
        file.seek(0)
        _header(file, shape, kind)
    return {"shape": list(shape), "dtype": kind.str, "sha256": file_digest(path, "sha256")}


def _header(file: Any, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    # NumPy pads this header so that the first axis can grow without moving the data.
    header = {"shape": shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(kind)}
    np.lib.format.write_array_header_1_0(file, header)


def _check_lengths(name: str, arrays: Mapping[str, Mapping[str, Any]]) -> None:
    lengths = {which: about["shape"][0] for which, about in arrays.items()}
    if 0 in lengths.values() or len(set(lengths.values())) > 1:
        told = ", ".join(f"{count} {which}" for which, count in lengths.items())
        raise InputError(
            f"{name}: found {told}; every example needs all of them, and there must be one at least: "
            "check that the path holds the official files"
        )


def _meta(name: str) -> dict[str, Any]:
    path = folder(name) / META
    if not path.is_file():
        if name not in SOURCES:
            raise unknown("data set", name, sorted({*SOURCES, *names()}))
        raise InputError(f"data set '{name}' is not in {root()}; {SOURCES[name].how_to_get}")
    meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if meta.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {meta.get('format')}, this version reads {FORMAT}: "
            f"remove {path.parent} and add the data set again"
        )
    return meta


def _mapped(path: Path, about: Mapping[str, Any]) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if list(array.shape) != about["shape"] or array.dtype.str != about["dtype"]:
        raise _damaged(path, f"its shape is {array.shape}, {tuple(about['shape'])} was written")
    return array


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged ({why}); remove {path.parent} and add the data set again")


def save(data: Dataset, destination: Path) -> None:
    """Write a data set in the stored form."""
    write(
        destination,
        name=data.name,
        inputs=data.inputs,
        targets=data.targets,
        classes=data.classes,
        owners=data.owners,
        owner_names=data.owner_names,
        padding=data.padding,
        notes=data.notes,
    )
