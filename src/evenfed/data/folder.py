"""A folder of one's own: one `.npz` or `.parquet` file a client."""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from . import store
from .dataset import Dataset

Arrays = tuple[NDArray[Any], NDArray[Any]]  # of one client: inputs, targets


def read_folder(path: Path) -> Dataset:
    """Each file a client of the file's name: `.npz` with arrays x and y, or `.parquet` with columns y and features.

    Classes are whole numbers from 0; y of a sequence task has one for each position. x stays as it is, but for floats
    of double precision, which models do not take; features of parquet become float32, in the order of the first
    file's columns.
    """
    kind, files = _client_files(path)
    parts: list[Arrays] = []
    for file in files:
        parts.append(_READERS[kind](file, files[0]))
        _check(file, *parts[-1])
        _check_alike(files[0], parts[0], file, parts[-1])
    targets = np.concatenate([y for _, y in parts]).astype(np.int64)
    return Dataset(
        name=path.resolve().name,
        inputs=np.concatenate([x for x, _ in parts]),
        targets=targets,
        classes=int(targets.max()) + 1,
        owners=np.repeat(np.arange(len(parts), dtype=np.int64), [len(y) for _, y in parts]),
        owner_names=tuple(file.stem for file in files),
    )


def convert_folder(source: Path, destination: Path) -> None:
    """A folder of one's own to the stored form, under its destination's name."""
    store.save(replace(read_folder(source), name=destination.name), destination)


def _client_files(path: Path) -> tuple[str, list[Path]]:
    by_kind = {kind: sorted(path.glob(f"*{kind}")) for kind in _READERS}
    found = [(kind, files) for kind, files in by_kind.items() if files]
    if len(found) != 1:
        what = "files of both kinds" if found else "no such file" if path.is_dir() else "no folder there"
        raise InputError(f"{path}: {what}; expected is one .npz or one .parquet file a client, all of one kind, in it")
    return found[0]


def _read_npz(file: Path, _: Path) -> Arrays:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            names = list(arrays)
            if "x" in names and "y" in names:
                x = arrays["x"]
                return x.astype(np.float32) if x.dtype == np.float64 else x, arrays["y"]
    # A TypeError: the file holds one bare array, which is no context manager.
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{file} cannot be read ({error}); expected are plain arrays, as np.savez(file, x=..., y=...) writes them: "
            "write it again"
        ) from error
    raise InputError(f"{file} has the arrays {', '.join(names) or '(none)'}; it must have x and y: rename them")


def _read_parquet(file: Path, first: Path) -> Arrays:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InputError(
            f"{file} is parquet, which needs the package pyarrow, and it is not installed; "
            "run `pip install 'evenfed[data]'`, or use .npz files"
        ) from error
    try:
        expected = pq.read_schema(first).names
        table = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file} is not a whole parquet file ({error}); write it again") from error
    if "y" not in table.column_names or len(table.column_names) < 2:
        raise InputError(
            f"{file} has the columns {table.column_names}; it must have y and at least one feature: add them"
        )
    if sorted(table.column_names) != sorted(expected):
        raise InputError(
            f"{file} has the columns {table.column_names}, {first.name} has {expected}: make them the same"
        )
    columns = {name: _numbers(file, name, table.column(name).to_numpy()) for name in expected}
    targets = columns.pop("y")
    return np.stack(list(columns.values()), axis=1).astype(np.float32), targets


def _numbers(file: Path, name: str, column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind not in "biuf":
        raise InputError(f"{file}: column '{name}' is {column.dtype}; only numbers can be used: encode or remove it")
    return column


def _check(file: Path, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
    if inputs.dtype.kind not in "biuf":
        raise InputError(f"{file}: x is {inputs.dtype}; it must be of whole numbers or floats: convert it")
    if targets.dtype.kind not in "iu":
        raise InputError(
            f"{file}: y is {targets.dtype}; it must be of whole numbers from 0, without gaps (a column with gaps is "
            "read as floats): convert or fill it"
        )
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets) or not len(targets):
        raise InputError(
            f"{file}: x has shape {inputs.shape}, y has {targets.shape}; both must have the same number of rows, "
            "one at least: complete or remove the file"
        )
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise InputError(f"{file}: x holds values that are not finite; fill the gaps or leave those rows out")
    if targets.min() < 0:
        raise InputError(f"{file}: y has {targets.min()} in it; classes are counted from 0: shift them")


def _check_alike(first_file: Path, first: Arrays, file: Path, here: Arrays) -> None:
    for name, expected, given in zip("xy", first, here, strict=True):
        if given.dtype != expected.dtype or given.shape[1:] != expected.shape[1:]:
            raise InputError(
                f"{file}: rows of {name} are {given.dtype} of shape {given.shape[1:]}, in {first_file.name} they are "
                f"{expected.dtype} of shape {expected.shape[1:]}; all clients must have the same: convert one of them"
            )


_READERS: dict[str, Callable[[Path, Path], Arrays]] = {".npz": _read_npz, ".parquet": _read_parquet}
