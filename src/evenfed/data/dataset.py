"""A data set: arrays, usually mapped from disk, and the natural owner of each row if there is one."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """One whole data set. Its arrays may be memory-mapped and are never changed."""

    name: str
    inputs: NDArray[Any]  # [N, channels, height, width] uint8 images, or [N, time] int64 symbols, or [N, ...] floats
    targets: NDArray[Any]  # [N] classes, [N, time] the next symbol at every position, or [N, ...] floats to predict
    classes: int  # number of classes or symbols; of floats, the numbers per row
    owners: NDArray[np.int64] | None = None  # [N] the natural client of each row: a user, a speaking role
    owner_names: tuple[str, ...] = ()
    padding: int | None = None  # the target symbol that only fills up sequences
    notes: tuple[str, ...] = ()  # what was left out and why, for people (e.g. "321 images are not RGB")
    is_test: NDArray[np.bool_] | None = None  # [N] rows that their owner gave as test data; None: nobody gave any

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """[N] the classes; None for sequences and for numbers to predict."""
        if self.targets.ndim > 1 or self.targets.dtype.kind == "f":
            return None
        return self.targets


def digits() -> Dataset:
    """The handwritten digits bundled with scikit-learn: 1,797 images of 8x8 in [0, 1], 10 classes."""
    rows = _rows_of_digits()
    images = (rows[:, :-1] / 16).astype(np.float32)
    return Dataset(
        name="digits",
        inputs=images.reshape(-1, 1, 8, 8),
        targets=rows[:, -1].astype(np.int64),
        classes=10,
    )


def _rows_of_digits() -> NDArray[np.float64]:
    """[1797, 65] pixels and class. Read from scikit-learn's file: importing its loader would bring SciPy and pandas."""
    package = importlib.util.find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
