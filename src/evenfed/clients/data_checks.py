"""Checks for data layouts that would be accepted but misinterpreted."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data.sampler import RandomSampler, SequentialSampler

from ..core.errors import InputError

MASKED = "it has masked values; fill them (array.filled) or drop those rows"


def comes_from(package: str, part: Any) -> bool:
    """Whether its class, or a base class, is from this package, which need not be installed."""
    for base in type(part).__mro__:
        root = base.__module__.partition(".")[0]
        if root == package:
            return True
    return False


def refuse_sparse(values: Any, where: str) -> None:
    """Refuse SciPy's sparse matrices, of which NumPy makes an array of one object."""
    if comes_from("scipy", values) and hasattr(values, "toarray"):
        kind = type(values).__name__
        raise InputError(f"{where}: a sparse {kind}; give a dense array: .toarray()")


def refuse_target(target: str | Sequence[str] | None, kind: str, where: str) -> None:
    """Refuse `target=` for data that have no columns."""
    if target is not None:
        raise InputError(
            f"{where}: target={target!r} names a column, but {kind} has none: what comes last is the target; leave "
            "the name out, or give a table or a dict of columns"
        )


def check_alignment(parts: Iterable[Any], where: str) -> None:
    """Refuse pandas objects with the same labels in another order: rows are taken by position, not by label."""
    tables = [part for part in parts if comes_from("pandas", part)]
    for other in tables[1:]:
        _check_same_order(tables[0], other, where)


def _check_same_order(rows: Any, others: Any, where: str) -> None:
    labels = _row_labels(rows)
    other_labels = _row_labels(others)
    if labels is None or other_labels is None:
        return
    if len(labels) != len(other_labels) or labels.equals(other_labels):
        return
    if labels.is_unique and other_labels.is_unique and labels.isin(other_labels).all():
        raise InputError(
            f"{where}: two tables or columns have the same row labels in another order, and rows are paired by "
            "position; bring them into one order (b.loc[a.index]), or drop the labels (reset_index(drop=True))"
        )


def _row_labels(rows: Any) -> Any:
    """The pandas Index of a table, of a column, or itself; None for what has no row labels."""
    labels = getattr(rows, "index", rows)
    return labels if hasattr(labels, "equals") and hasattr(labels, "is_unique") else None


def missing(values: Any) -> int:
    """How many names or numbers of an array or list are None, NaN, NaT or pandas.NA."""
    if not isinstance(values, Tensor | np.ndarray):
        values = np.array(values, dtype=object)  # unchanged: among text, numpy turns NaN into text
    array = np.asarray(values)
    hidden = int(np.ma.getmaskarray(values).sum()) if is_masked(values) else 0
    if array.dtype.kind in "biuSU":
        return hidden
    return hidden + sum(map(_is_missing, array.ravel()))


def _is_missing(value: Any) -> bool:
    """Whether this is None, NaN, NaT or pandas.NA: NaN and NaT differ from themselves."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def is_text(values: Any) -> bool:
    """Whether an array or a list holds text."""
    if isinstance(values, Tensor):
        return False
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return False
    first = array.flat[0] if array.size else None
    return isinstance(first, str | bytes)


def is_masked(values: Any) -> bool:
    """Whether some values are masked. Tensors and plain arrays made from them would show the hidden values."""
    if not isinstance(values, np.ma.MaskedArray):
        return False
    mask = np.ma.getmaskarray(values)
    return bool(mask.any())


def refuse_targets_among(inputs: Any, targets: Any, where: str) -> None:
    """Refuse inputs that still contain the target column: the answer would be an input."""
    name = getattr(targets, "name", None)
    if name is None or name not in getattr(inputs, "columns", ()):
        return
    if np.array_equal(np.asarray(inputs[name]), np.asarray(targets)):
        raise InputError(
            f"{where}: the inputs still hold the targets, as column '{name}'; drop it, or give the table alone and "
            "name its target"
        )


def draws_each_once(sampler: Any) -> bool:
    """Whether every item comes up once in a pass."""
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return isinstance(sampler, SequentialSampler)
