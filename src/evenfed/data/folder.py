"""Your own folder of data: one `.npz` or `.parquet` file per client."""

import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.files import ARRAY_DAMAGES, plain_file
from .archive import check_room
from .dataset import Dataset

Array = NDArray[Any]
Arrays = tuple[Array, Array]  # inputs, targets
Parts = dict[str, Arrays]  # of one client: "" for training, "_test" for testing if the file has it
Reader = Callable[[Path, Path], Parts]  # of a client's file, given the first client's
TEST = "_test"
MOST_CLASSES = 1_000_000  # more are identifiers or hashes
# What half a file raises; a TypeError: it holds one bare array, which is no context manager. NotImplementedError and
# RuntimeError: a zip method that Python lacks, and a password.
_DAMAGES = (
    *ARRAY_DAMAGES,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
)


def read_folder(path: Path) -> Dataset:
    """Each file is a client named after it: `.npz` with arrays x and y, or `.parquet` with columns y and features.

    An .npz may also have x_test and y_test: the client's test data.

    Classes are whole numbers from 0; y of a sequence task has one for each position. Floats are numbers to predict. x
    keeps its type, except that float64, which models do not take, becomes float32, as float targets do; features of
    parquet become float32, in the order of the first file's columns.
    """
    kind, files = _client_files(path)
    read = _READERS[kind]
    first = files[0]
    inputs = []
    targets = []
    owners: list[int] = []
    is_test: list[bool] = []
    for client, file in enumerate(files):
        for part, (x, y) in read(file, first).items():
            if y.dtype.kind == "f":
                y = y.astype(np.float32)
            inputs.append(x)
            targets.append(y)
            _check(file, part, x, y)
            _check_alike(f"x{part}", first, inputs[0], file, x)
            _check_alike(f"y{part}", first, targets[0], file, y)
            owners += [client] * len(y)
            is_test += [part == TEST] * len(y)
    all_targets = np.concatenate(targets)
    if all_targets.dtype.kind == "f":
        outputs = all_targets[0].size
    else:
        all_targets = all_targets.astype(np.int64)
        outputs = int(all_targets.max()) + 1
        if outputs > MOST_CLASSES:
            raise InputError(
                f"{path}: classes go up to {outputs - 1:,}, and a model would need as many outputs; number them from 0 "
                "without gaps, or store numbers to predict as floats"
            )
    return Dataset(
        name=path.resolve().name,
        inputs=np.concatenate(inputs),
        targets=all_targets,
        classes=outputs,
        owners=np.array(owners, np.int64),
        owner_names=tuple(file.stem for file in files),
        is_test=np.array(is_test) if any(is_test) else None,
    )


def _client_files(path: Path) -> tuple[str, list[Path]]:
    """The kind of the files, by their ending, and the files by name."""
    present = {}
    for kind in _READERS:
        files = sorted(path.glob(f"*{kind}"))
        if files:
            present[kind] = [plain_file(file) for file in files]
    if len(present) == 1:
        return present.popitem()
    if present:
        what = "files of both kinds"
    elif path.is_dir():
        what = "no .npz or .parquet file in this folder"
    elif path.exists():
        what = "not a folder"
    else:
        what = "no such folder"
    raise InputError(f"{path}: {what}; give a folder with one .npz or one .parquet file per client, one kind only")


def _read_npz(file: Path, _: Path) -> Parts:
    parts: Parts = {}
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            names = list(arrays)
            check_room(file, sum(member.file_size for member in arrays.zip.infolist()))
            for part in ("", TEST):
                x = f"x{part}"
                y = f"y{part}"
                if x not in names and y not in names and part:
                    continue
                if x not in names or y not in names:
                    present = ", ".join(names) or "(none)"
                    raise InputError(f"{file} has the arrays {present}; it must have {x} and {y}: rename or add them")
                inputs = arrays[x]
                if inputs.dtype == np.float64:
                    inputs = inputs.astype(np.float32)
                parts[part] = (inputs, arrays[y])
    except InputError:
        raise
    except _DAMAGES as error:
        raise InputError(
            f"{file} cannot be read ({error}); expected are plain arrays, as np.savez(file, x=..., y=...) writes them: "
            "write it again"
        ) from error
    return parts


def _read_parquet(file: Path, first: Path) -> Parts:
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
        described = pq.read_metadata(file)
        check_room(file, 8 * described.num_rows * described.num_columns)
        table = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file} is not a whole parquet file ({error}); write it again") from error
    names = table.column_names
    if "y" not in names or len(names) < 2:
        raise InputError(f"{file} has the columns {names}; it must have y and at least one feature: add them")
    if sorted(names) != sorted(expected):
        raise InputError(f"{file} has the columns {names}, {first.name} has {expected}: make them the same")
    columns = {}
    for name in expected:
        column = table.column(name).to_numpy()
        if column.dtype.kind not in "biuf":
            raise InputError(f"{file}: column '{name}' is {column.dtype}; it must hold numbers: encode or remove it")
        columns[name] = column
    targets = columns.pop("y")
    features = np.stack(list(columns.values()), axis=1)
    return {"": (features.astype(np.float32), targets)}


def _check(file: Path, part: str, inputs: Array, targets: Array) -> None:
    x = f"x{part}"
    y = f"y{part}"
    if inputs.dtype.kind not in "biuf":
        raise InputError(f"{file}: {x} is {inputs.dtype}; it must be of whole numbers or floats: convert it")
    if targets.dtype.kind not in "iuf":
        raise InputError(
            f"{file}: {y} is {targets.dtype}; it must be of whole numbers from 0 (classes) or of floats (numbers to "
            "predict): convert it"
        )
    has_rows = inputs.ndim and targets.ndim and len(targets)
    if not has_rows or len(inputs) != len(targets):
        raise InputError(
            f"{file}: {x} has shape {inputs.shape}, {y} has {targets.shape}; both must have the same number of rows, "
            "at least one: complete or remove the file"
        )
    is_float = inputs.dtype.kind == "f"
    if is_float and not np.isfinite(inputs).all():
        raise InputError(f"{file}: {x} holds values that are not finite; fill the gaps or leave those rows out")
    if targets.dtype.kind == "f":
        if not np.isfinite(targets).all():
            raise InputError(
                f"{file}: {y} holds values that are not finite; targets must be without gaps: fill them or leave those "
                "rows out"
            )
        return
    lowest = targets.min()
    if lowest < 0:
        raise InputError(
            f"{file}: {y} has {lowest} in it; classes are counted from 0: shift them, or store numbers to predict as "
            "floats"
        )


def _check_alike(
    name: str,
    first_file: Path,
    first: Array,
    file: Path,
    array: Array,
) -> None:
    rows = f"{array.dtype} of shape {array.shape[1:]}"
    expected = f"{first.dtype} of shape {first.shape[1:]}"
    if rows != expected:
        raise InputError(
            f"{file}: rows of {name} are {rows}, in {first_file.name} they are {expected}; "
            "all clients must have the same, for training and testing: convert one of them"
        )


_READERS: dict[str, Reader] = {".npz": _read_npz, ".parquet": _read_parquet}
