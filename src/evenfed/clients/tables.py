"""Tables of named columns as inputs and targets: data frames, Hugging Face datasets and dicts of columns.

A model takes columns by position, so `Heading` compares their names between tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, first_line
from ..core.words import first_of

TARGETS = ("label", "labels", "target", "y")  # usual names of a target column
NUMBERS = "biuf"  # numpy's kinds
SHOWN = 8  # columns that an error lists
CLASS_NUMBERS = "give class numbers from 0, the same for all clients"

Target = str | Sequence[str] | None  # the column to predict, or several of them


class NoTargetError(InputError):
    """No column of a table has a usual target name, and none was named."""


@dataclass(frozen=True)
class Table:
    """Inputs and targets. `columns`: the names of the inputs, if they are a matrix made of named columns."""

    inputs: Any
    targets: Any
    columns: tuple[str, ...] = ()
    target: str | None = None  # the name of the target's column


class Heading:
    """The column names of the first table of a federation: all others must have the same, in the same order."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.where = ""
        self.target: str | None = None
        self.where_target = ""

    def refuse_without_target(self, where: str) -> None:
        """Refuse a table without a target column, if another table has one."""
        if self.target is not None:
            raise InputError(
                f"{where}: the table has no column '{self.target}', the target in {self.where_target}; add it"
            )

    def check(self, table: Table, where: str) -> None:
        """Refuse other column names, or another order. Columns without names cannot be compared."""
        if self.target is None and table.target is not None:
            self.target = table.target
            self.where_target = where
        columns = table.columns
        if not columns:
            return
        if not self.columns:
            self.columns = columns
            self.where = where
            return
        one_is_numbered = _are_numbers(columns) != _are_numbers(self.columns)
        if columns == self.columns or one_is_numbered:
            return
        missing = _absent(self.columns, columns)
        added = _absent(columns, self.columns)
        differences = []
        if missing:
            differences.append(f"{_listed(missing)} missing")
        if added:
            differences.append(f"{_listed(added)} added")
        if differences:
            raise InputError(
                f"{where}: the table has other columns than {self.where} ({', '.join(differences)}); give all tables "
                "the same columns"
            )
        raise InputError(
            f"{where}: the table's columns are {_listed(columns)}, but {self.where} has {_listed(self.columns)}; a "
            "model takes them by position: give all tables one order, e.g. test = test[train.columns]"
        )


def of_frame(frame: Any, where: str, target: Target) -> Table:
    """A data frame: all columns but the targets become a float matrix."""
    names = [str(name) for name in getattr(frame, "columns", ())]
    if not names:
        raise InputError(f"{where}: a {type(frame).__name__} is no table; give a DataFrame with a target column")
    chosen = _targets_of(names, target, where)
    labels = []
    for name in chosen:
        place = names.index(name)
        labels.append(frame.columns[place])
    if len(names) == len(chosen):
        raise InputError(f"{where}: the table has no column but its target {_quoted(chosen)}; add inputs")
    features = features_of(frame.drop(columns=labels), where)
    for name in chosen:
        if names.count(name) > 1:
            raise _repeated(name, where)
    first = chosen[0]
    if len(labels) == 1:
        targets = _numbers(frame[labels[0]], where, is_target=True)
    else:
        targets = features_of(frame[labels], where, are_targets=True)
    columns = _absent(names, chosen)
    return Table(features, targets, tuple(columns), first)


def features_of(frame: Any, where: str, are_targets: bool = False) -> Any:
    """The columns of a data frame as a float matrix; of a Series, its numbers."""
    if frame.ndim == 1:
        return _numbers(frame, where, are_targets)
    features = []
    for label in frame.columns:
        column = frame[label]
        if column.ndim != 1:
            raise _repeated(label, where)
        values = _numbers(column, where, are_targets)
        features.append(values.astype(np.float32))
    return np.stack(features, axis=1)


def _numbers(column: Any, where: str, is_target: bool) -> Any:
    """The numbers of a data frame's column; True and False become 1 and 0."""
    what = f"column '{column.name}'"
    if column.name is None:
        what = "the target column" if is_target else "the input column"
    gaps = int(column.isna().sum())
    if gaps:
        raise InputError(f"{where}: {what} has {gaps} missing values; fill them or drop those rows")
    values = column.to_numpy()
    if values.dtype == object or getattr(column.dtype, "kind", "O") not in NUMBERS:
        values = np.array(column.tolist())
    if values.dtype.kind not in NUMBERS or str(column.dtype) == "category":
        cure = "encode it (pandas.get_dummies) or drop it"
        if is_target:
            cure = f"{CLASS_NUMBERS}, e.g. frame['y'].map({{'no': 0, 'yes': 1}})"
        raise InputError(f"{where}: {what} is {column.dtype}, not numbers; {cure}")
    if values.dtype.kind in "bu":
        return values.astype(np.int64)
    return values


def hugging_face_columns(dataset: Any, where: str, target: Target) -> Mapping[str, Any]:
    """A dataset's columns as tensors; images are bytes, channels first. A transform set by the user is kept."""
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset))
        raise InputError(f"{where}: a dict of datasets ({splits}); give one of them, e.g. data['train']")
    if not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise InputError(f"{where}: {kind} is a stream; load the dataset without streaming=True")
    names = list(dataset.format["columns"] or dataset.column_names)
    _targets_of(names, target, where)
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


def of_columns(columns: Mapping[str, Any], where: str, target: Target) -> Table:
    """A dict of columns: numbers become a matrix, one column of arrays the input, several a dict of inputs."""
    names = list(columns)
    if not names:
        raise InputError(f"{where}: a table without columns; give one with a target column and inputs")
    chosen = _targets_of(names, target, where)
    inputs = {}
    for name in _absent(names, chosen):
        inputs[name] = _column(columns[name], name, where)
    answers = []
    for name in chosen:
        answer = _column(columns[name], name, where, is_target=True)
        answers.append(answer)
    if not inputs:
        raise InputError(f"{where}: the table has no column but its target {_quoted(chosen)}; add inputs")
    targets = answers[0]
    if len(answers) > 1:
        if any(column.ndim != 1 for column in answers):
            raise InputError(f"{where}: target={list(chosen)}: each must be a column with one number per example")
        targets = _matrix(answers)
    values = list(inputs.values())
    first = chosen[0]
    if all(column.ndim == 1 for column in values):
        return Table(_matrix(values), targets, tuple(inputs), first)
    if len(values) == 1:
        return Table(values[0], targets, target=first)
    return Table(inputs, targets, target=first)


def _matrix(columns: Sequence[Any]) -> Tensor:
    floats = [torch.as_tensor(column).to(torch.float32) for column in columns]
    return torch.stack(floats, dim=1)


def _column(
    values: Any,
    name: str,
    where: str,
    is_target: bool = False,
) -> Any:
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
        cure = CLASS_NUMBERS if is_target else "encode it or leave it out"
        raise InputError(f"{where}: column '{name}' is {array.dtype}, not numbers; {cure}")
    return array


def _targets_of(names: Sequence[str], target: Target, where: str) -> tuple[str, ...]:
    """The columns to predict: those named, or the only one with a usual name."""
    listed = ", ".join(names)
    if target is not None:
        chosen = (target,) if isinstance(target, str) else tuple(target)
        absent = _absent(chosen, names)
        if absent or not chosen:
            raise InputError(f"{where}: there is no column {_quoted(absent)} for target=; the columns are {listed}")
        return chosen
    usual = [name for name in names if name in TARGETS]
    if len(usual) == 1:
        return (usual[0],)
    question = f"{where}: which of the columns {listed} is to be predicted? Name it: evenfed.Client(..., target="
    error = InputError if usual else NoTargetError
    raise error(f"{question}'{names[-1]}')")


def _absent(names: Sequence[str], among: Sequence[str]) -> list[str]:
    return [name for name in names if name not in among]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _repeated(name: str, where: str) -> InputError:
    return InputError(f"{where}: several columns are called '{name}'; rename or drop all but one")


def _listed(names: Sequence[str]) -> str:
    quoted = list(map(repr, names))
    return first_of(quoted, SHOWN)


def _are_numbers(columns: tuple[str, ...]) -> bool:
    return all(name.isdigit() for name in columns)
