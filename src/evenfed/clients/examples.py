"""The forms in which users give data, each turned into a pair (inputs, targets) of arrays.

pandas and Hugging Face's datasets are not imported: `comes_from` recognises their objects by their class.
"""

import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate
from torch.utils.data.sampler import SubsetRandomSampler

from .. import trees
from ..core.errors import InputError, first_line
from ..core.files import ARRAY_DAMAGES, plain_file
from .data_checks import (
    MASKED,
    check_alignment,
    comes_from,
    draws_each_once,
    is_masked,
    refuse_target,
    refuse_targets_among,
)
from .tables import NUMBERS, Table, Target, features_of, hugging_face_columns, of_columns, of_frame

FORMS = (
    "a pair (inputs, targets), a torch or Hugging Face dataset, a data frame, a folder with x.npy and y.npy, or a "
    "function that loads one of them"
)

TABLE_FILES = (".csv", ".tsv", ".parquet", ".xlsx", ".json")  # how the names of files with a table end

Pair = tuple[Any, Any]


def pair(part: Any, where: str, target: Target = None) -> Pair:
    """Inputs and targets of data in any form; `target` names the column (or columns) of a table to predict."""
    table = read(part, where, target)
    return table.inputs, table.targets


def read(part: Any, where: str, target: Target = None) -> Table:
    """The same, with the names of a table's columns."""
    if is_path(part):
        refuse_target(target, "a folder of arrays", where)
        return _mapped(Path(part), where)
    if isinstance(part, DataLoader):
        return _of_loader(part, where, target)
    if comes_from("pandas", part):
        return of_frame(part, where, target)
    if comes_from("datasets", part):
        columns = hugging_face_columns(part, where, target)
        return of_columns(columns, where, target)
    if isinstance(part, Dataset):
        return _of_dataset(part, where, target)
    if isinstance(part, Mapping):
        check_alignment(part.values(), where)
        return of_columns(part, where, target)
    is_text = isinstance(part, bytes)
    is_sequence = isinstance(part, Sequence) and not is_text
    if not is_sequence or len(part) != 2:
        kind = type(part).__name__
        raise InputError(f"{where}: a {kind}; give {FORMS}")
    refuse_target(target, "a pair", where)
    inputs, targets = part
    check_alignment([*trees.leaves(inputs), targets], where)
    names: tuple[str, ...] = ()
    if comes_from("pandas", inputs):
        names = tuple(map(str, getattr(inputs, "columns", ())))
        refuse_targets_among(inputs, targets, where)
        inputs = features_of(inputs, where)
    if comes_from("pandas", targets):
        targets = features_of(targets, where, are_targets=True)
    return Table(inputs, targets, names)


def is_loader(part: Any) -> bool:
    """Whether this is a function that loads examples."""
    is_data = isinstance(part, Dataset | DataLoader | Mapping)
    return callable(part) and not is_data


def is_path(part: Any) -> bool:
    """Whether this names a folder."""
    return isinstance(part, str | Path)


def is_mapped(values: Any) -> bool:
    """Whether an array lies in a file that is mapped into memory."""
    return getattr(values, "_mmap", None) is not None


def release(values: Any) -> None:
    """Free the memory that a mapped file's pages take; they are read again when needed. Other arrays are left alone."""
    is_shared = getattr(values, "mode", None) in ("r", "r+")  # private pages may hold the user's changes
    if is_mapped(values) and is_shared and hasattr(mmap, "MADV_DONTNEED"):
        values._mmap.madvise(mmap.MADV_DONTNEED)


def loaded(load: Callable[[], Any], where: str) -> Any:
    """Call the user's function."""
    try:
        part = load()
    except Exception as error:  # whatever it may raise
        kind = type(error).__name__
        raise InputError(
            f"{where}: the function that loads it failed ({kind}: {first_line(error)}); let it give (inputs, targets)"
        ) from error
    if is_loader(part):
        raise InputError(f"{where}: the function gave another function; let it give (inputs, targets)")
    return part


def is_pair(part: Any) -> bool:
    """Whether this is (inputs, targets)."""
    return isinstance(part, tuple | list) and len(part) == 2


def arrays(part: Any) -> list[Any]:
    """The inputs and the targets of a pair, one by one; none of another form."""
    if not is_pair(part):
        return []
    inputs, targets = part
    return [*trees.leaves(inputs), targets]


def tables(part: Any) -> list[Any]:
    """What may be pandas' in data: a data frame, the columns of a dict, or the inputs and targets of a pair."""
    if is_pair(part):
        return arrays(part)
    if isinstance(part, Mapping):
        return list(part.values())
    return [part]


def count(part: Any) -> int | None:
    """The number of examples, or None if it is unknown before they are read."""
    rows = part
    if is_path(part) or is_loader(part):
        return None
    if isinstance(part, DataLoader):  # which counts batches
        rows = part.sampler if isinstance(part.sampler, SubsetRandomSampler) else part.dataset
    elif comes_from("pandas", part) or isinstance(part, Dataset):
        rows = part
    elif isinstance(part, Mapping):
        rows = next(iter(part.values()), ())
    elif isinstance(part, Sequence) and len(part) == 2:
        rows = part[1]
    try:
        return len(rows)
    except (TypeError, NotImplementedError):
        return None


def as_tensor(values: Any) -> Tensor:
    """A tensor, without a copy if possible; rows of a mapped array are not read."""
    if isinstance(values, Tensor):
        return values
    if is_masked(values):
        raise ValueError(MASKED)
    array = np.asarray(values)
    if array.dtype.kind not in NUMBERS + "c":
        kind = "text" if array.dtype.kind in "US" else array.dtype
        raise ValueError(f"its values are {kind}, not numbers")
    if any(stride < 0 for stride in array.strides):  # reversed rows, which torch does not take
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it here
        return torch.as_tensor(array)


def check_rows(tensor: Tensor, where: str) -> None:
    """Refuse a tensor that is not dense, holds no values, or has no rows."""
    if tensor.is_meta:
        raise InputError(f"{where}: a tensor on the meta device, which holds no values; give one with values")
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise InputError(f"{where}: a sparse or nested tensor; give a dense one: to_dense(), or padded to one length")
    if tensor.ndim == 0:
        raise InputError(f"{where}: a single number; give one row per example")


def refuse_file(path: Path, where: str) -> None:
    """Refuse the path of a file: of paths, only folders of arrays are read."""
    if path.is_file() or path.suffix.lower() in TABLE_FILES:
        reader = "read_parquet" if path.suffix == ".parquet" else "read_csv"
        raise InputError(
            f"{where}: '{path}' is the path of a file, and of paths only folders with x.npy and y.npy are read; load "
            f"the table first, e.g. pandas.{reader}('{path}')"
        )


def _mapped(folder: Path, where: str) -> Table:
    """x.npy and y.npy of a folder, mapped into memory: rows are read when they are used."""
    refuse_file(folder, where)
    arrays = []
    for name in ("x.npy", "y.npy"):
        file = folder / name
        try:
            array = np.load(plain_file(file), mmap_mode="r", allow_pickle=False)
        except ARRAY_DAMAGES as error:
            raise InputError(
                f"{where}: {file} cannot be read ({first_line(error)}); give a folder with x.npy and y.npy, as "
                "np.save writes them"
            ) from None
        if array.ndim == 0:
            raise InputError(f"{where}: {file} holds a single number; give one row per example")
        arrays.append(array)
    inputs, targets = arrays
    return Table(inputs, targets)


def _of_loader(loader: "DataLoader[Any]", where: str, target: Target) -> Table:
    """A DataLoader's dataset, collated by the loader; its batch size and order are not used."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return _of_dataset(dataset, where, target)  # which refuses it
    sampler = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        dataset = Subset(dataset, list(sampler.indices))
    elif loader.batch_size is None or not draws_each_once(sampler):
        reason = f"whose {type(sampler).__name__} may repeat or leave out items"
        if loader.batch_sampler is None:
            reason = "without batches (batch_size=None)"
        elif loader.batch_size is None:
            kind = type(loader.batch_sampler).__name__
            reason = f"with a batch_sampler of its own ({kind}), which may leave out items"
        raise InputError(f"{where}: a DataLoader {reason}; give its dataset, or a torch Subset of it")
    return _of_dataset(dataset, where, target, loader.collate_fn)


def _of_dataset(
    dataset: Any,
    where: str,
    target: Target,
    collate: Any = default_collate,
) -> Table:
    """All items of a map-style dataset: (input, target), several inputs and a target, or a dict."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(f"{where}: {kind} is a stream; give a dataset with a length, or a list of its items' arrays")
    rows = None
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, TensorDataset):
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        dataset = dataset.dataset
    if isinstance(dataset, TensorDataset) and collate is default_collate:
        tensors = list(dataset.tensors)
        if rows is not None:
            tensors = [tensor[rows] for tensor in tensors]
        return _last_is_target(tensors, where, target)
    if len(dataset) == 0:
        return Table(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))  # its shapes are unknown
    items = _items(dataset, where)
    try:
        batch = collate(items)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{where}: the items of {kind} do not make one batch ({first_line(error)}); let it give tensors or numbers "
            "of one shape, e.g. with transform=ToTensor()"
        ) from None
    if isinstance(batch, Mapping):
        return of_columns(batch, where, target)
    return _last_is_target(batch, where, target)


def _items(dataset: Any, where: str) -> list[Any]:
    items = []
    for position in range(len(dataset)):
        try:
            item = dataset[position]
        except Exception as error:  # the user's code may raise anything
            failure = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(
                f"{where}: item {position} of {type(dataset).__name__} cannot be read ({failure}); let every item from "
                f"0 to {len(dataset) - 1} be (input, target)"
            ) from error
        items.append(item)
    return items


def _last_is_target(parts: Any, where: str, target: Target) -> Table:
    """(inputs, ..., targets): several inputs stay a tuple."""
    refuse_target(target, "a dataset whose items are tuples", where)
    if isinstance(parts, Tensor) or len(parts) < 2:
        raise InputError(f"{where}: the dataset's items have no target; let each item be (input, target)")
    *inputs, targets = parts
    if len(inputs) == 1:
        return Table(inputs[0], targets)
    return Table(tuple(inputs), targets)
