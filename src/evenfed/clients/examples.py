"""The forms in which people have their data, each turned into a pair (inputs, targets) of arrays.

No package is imported for it: a data frame or a Hugging Face dataset is known by the package its class comes from.
"""

import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

TARGETS = ("label", "labels", "target", "y")  # what a target column is called if nobody says
NUMBERS = "biuf"  # numpy's kinds
FORMS = (
    "a pair (inputs, targets), a torch or Hugging Face dataset, a data frame, a folder with x.npy and y.npy, or a "
    "function that loads one of them"
)

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Table:
    """Inputs and targets, and the names of the inputs' columns where they are a matrix made of named ones."""

    inputs: Any
    targets: Any
    columns: tuple[str, ...] = ()


def pair(part: Any, where: str, target: str | None = None) -> Pair:
    """The inputs and targets of whatever a user gives; `target` names the column of a table to predict."""
    table = read(part, where, target)
    return table.inputs, table.targets


def read(part: Any, where: str, target: str | None = None) -> Table:
    """The same with the names of columns."""
    if is_path(part):
        refuse_target(target, "a folder of arrays", where)
        return _mapped(Path(part), where)
    if isinstance(part, DataLoader):
        return _of_loader(part, where, target)
    if comes_from("pandas", part):
        return _of_frame(part, where, target)
    if comes_from("datasets", part):
        columns = _hugging_face_columns(part, where, target)
        return _of_columns(columns, where, target)
    if isinstance(part, Dataset):
        return _of_dataset(part, where, target)
    if isinstance(part, Mapping):
        return _of_columns(part, where, target)
    is_text = isinstance(part, bytes)
    is_sequence = isinstance(part, Sequence) and not is_text
    if not is_sequence or len(part) != 2:
        kind = type(part).__name__
        raise InputError(f"{where}: a {kind}; give {FORMS}")
    refuse_target(target, "a pair", where)
    inputs, targets = part
    check_alignment(inputs, targets, where)
    names: tuple[str, ...] = ()
    if comes_from("pandas", inputs):
        names = tuple(map(str, getattr(inputs, "columns", ())))
        refuse_targets_among(inputs, targets, where)
        inputs = _features(inputs, where)
    if comes_from("pandas", targets):
        targets = _column_or_matrix(targets, where)
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
    """Let go of the pages read of a mapped file; they are read again when needed. Nothing else holds pages."""
    is_shared = getattr(values, "mode", None) in ("r", "r+")  # private pages may hold the user's changes
    if is_mapped(values) and is_shared and hasattr(mmap, "MADV_DONTNEED"):
        values._mmap.madvise(mmap.MADV_DONTNEED)


def loaded(load: Callable[[], Any], where: str) -> Any:
    """What the user's function loads."""
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
    """Whether it is (inputs, targets), without columns to choose from."""
    return isinstance(part, tuple | list) and len(part) == 2


def arrays(part: Any) -> list[Any]:
    """The inputs and the targets of a pair, one by one; none of another form."""
    if not is_pair(part):
        return []
    inputs, targets = part
    return [*trees.leaves(inputs), targets]


def count(part: Any) -> int | None:
    """How many examples there are, as far as can be told without reading them."""
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
    """Without a copy where that is possible: of a mapped array no row is read."""
    if isinstance(values, Tensor):
        return values
    if is_masked(values):
        raise ValueError(MASKED)
    array = np.asarray(values)
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


def _mapped(folder: Path, where: str) -> Table:
    """x.npy and y.npy of a folder, mapped into memory: rows are read when they are used."""
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


def _of_loader(loader: "DataLoader[Any]", where: str, target: str | None) -> Table:
    """The loader's dataset, collated by the loader; its batch size and order do not matter here."""
    dataset = loader.dataset
    sampler = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        dataset = Subset(dataset, list(sampler.indices))
    elif loader.batch_size is None or not draws_each_once(sampler):
        kind = type(sampler).__name__
        raise InputError(
            f"{where}: a DataLoader whose {kind} may repeat or leave out items, or one without batches; give its "
            "dataset, or a torch Subset of it"
        )
    return _of_dataset(dataset, where, target, loader.collate_fn)


def _of_dataset(
    dataset: Any,
    where: str,
    target: str | None,
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
        return Table(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))  # nothing to tell its shapes from
    items = [dataset[position] for position in range(len(dataset))]
    try:
        batch = collate(items)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{where}: the items of {kind} do not make one batch ({first_line(error)}); let it give tensors or numbers "
            "of one shape, e.g. with transform=ToTensor()"
        ) from None
    if isinstance(batch, Mapping):
        return _of_columns(batch, where, target)
    return _last_is_target(batch, where, target)


def _last_is_target(parts: Any, where: str, target: str | None) -> Table:
    """(inputs, ..., targets): several inputs stay a tuple."""
    refuse_target(target, "a dataset whose items are tuples", where)
    if isinstance(parts, Tensor) or len(parts) < 2:
        raise InputError(f"{where}: the dataset's items have no target; let each item be (input, target)")
    *inputs, targets = parts
    if len(inputs) == 1:
        return Table(inputs[0], targets)
    return Table(tuple(inputs), targets)


def _of_frame(frame: Any, where: str, target: str | None) -> Table:
    """A float matrix of all columns but the target."""
    names = [str(name) for name in getattr(frame, "columns", ())]
    if not names:
        raise InputError(f"{where}: a {type(frame).__name__} is no table; give a DataFrame with a target column")
    target = _target_of(names, target, where)
    label = frame.columns[names.index(target)]
    if len(names) == 1:
        raise InputError(f"{where}: the table has no column beside its target '{target}'; add features")
    features = _features(frame.drop(columns=label), where)
    if names.count(target) > 1:
        raise InputError(f"{where}: several columns are called '{target}'; rename or drop all but one")
    columns = tuple(name for name in names if name != target)
    return Table(features, _numbers(frame[label], target, where, is_target=True), columns)


def _features(frame: Any, where: str) -> Any:
    """A table's columns as a float matrix."""
    if frame.ndim == 1:
        return _numbers(frame, str(frame.name), where, is_target=False)
    features = []
    for label in frame.columns:
        column = frame[label]
        if column.ndim != 1:
            raise InputError(f"{where}: several columns are called '{label}'; rename or drop all but one")
        values = _numbers(column, str(label), where, is_target=False)
        features.append(values.astype(np.float32))
    return np.stack(features, axis=1)


def _column_or_matrix(targets: Any, where: str) -> Any:
    """A pair's targets: a column, or several numbers per example."""
    if targets.ndim == 1:
        return _numbers(targets, str(targets.name), where, is_target=True)
    return _features(targets, where)


def _numbers(
    column: Any,
    name: str,
    where: str,
    is_target: bool,
) -> Any:
    """A data frame's column without gaps; yes and no become 1 and 0."""
    gaps = int(column.isna().sum())
    if gaps:
        raise InputError(f"{where}: column '{name}' has {gaps} missing values; fill them or drop those rows")
    values = column.to_numpy()
    if values.dtype == object or getattr(column.dtype, "kind", "O") not in NUMBERS:
        values = np.array(column.tolist())
    if values.dtype.kind not in NUMBERS or str(column.dtype) == "category":
        cure = "encode it (pandas.get_dummies) or drop it"
        if is_target:
            cure = "give class numbers from 0, the same for all clients, e.g. frame['y'].map({'no': 0, 'yes': 1})"
        raise InputError(f"{where}: column '{name}' is {column.dtype}, not numbers; {cure}")
    if values.dtype.kind in "bu":
        return values.astype(np.int64)
    return values


def _hugging_face_columns(dataset: Any, where: str, target: str | None) -> Mapping[str, Any]:
    """A dataset's columns as tensors; images are bytes, channels first. A transform of the user's stays in force."""
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset))
        raise InputError(f"{where}: a dict of datasets ({splits}); give one of them, e.g. data['train']")
    if not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise InputError(f"{where}: {kind} is a stream; load the dataset without streaming=True")
    names = list(dataset.format["columns"] or dataset.column_names)
    _target_of(names, target, where)
    if dataset.format["type"] != "custom":
        for name in names:
            kind = getattr(dataset.features[name], "dtype", "")
            if kind in ("string", "large_string"):
                raise InputError(
                    f"{where}: column '{name}' is text, not numbers; encode it with dataset.map(...), or leave it out "
                    f"with dataset.remove_columns('{name}')"
                )
        dataset = dataset.with_format("torch", columns=names)
    columns: Mapping[str, Any] = dataset[:]
    return columns


def _of_columns(columns: Mapping[str, Any], where: str, target: str | None) -> Table:
    """Columns of numbers become a matrix, one column of arrays the input, several a dict of inputs."""
    names = list(columns)
    if not names:
        raise InputError(f"{where}: a table without columns; give {FORMS}")
    target = _target_of(names, target, where)
    inputs = {}
    for name in names:
        if name != target:
            inputs[name] = _column(columns[name], name, where)
    targets = _column(columns[target], target, where)
    if not inputs:
        raise InputError(f"{where}: there is no column beside the target '{target}'; add inputs")
    values = list(inputs.values())
    if all(column.ndim == 1 for column in values):
        floats = [torch.as_tensor(column).to(torch.float32) for column in values]
        return Table(torch.stack(floats, dim=1), targets, tuple(inputs))
    if len(values) == 1:
        return Table(values[0], targets)
    return Table(inputs, targets)


def _column(values: Any, name: str, where: str) -> Any:
    """One tensor or array with a row per example."""
    if isinstance(values, Tensor):
        return values
    try:
        if isinstance(values, Sequence) and len(values) and isinstance(values[0], Tensor):
            return torch.stack(list(values))
        array = np.asarray(values)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"{where}: the rows of column '{name}' differ in shape ({first_line(error)}); pad or resize them to one"
        ) from None
    if array.dtype.kind not in NUMBERS:
        raise InputError(f"{where}: column '{name}' is {array.dtype}, not numbers; encode it or leave it out")
    return array


def _target_of(names: Sequence[str], target: str | None, where: str) -> str:
    """The column to predict: the one named, or the only one with a usual name."""
    listed = ", ".join(names)
    if target is not None:
        if target not in names:
            raise InputError(f"{where}: there is no column '{target}' for target=; the columns are {listed}")
        return target
    usual = [name for name in names if name in TARGETS]
    if len(usual) == 1:
        return usual[0]
    raise InputError(
        f"{where}: which of the columns {listed} is to be predicted? Name it: evenfed.Client(..., target='{names[-1]}')"
    )
