"""What every source gives, whatever it came from: arrays on disk, mapped into memory, with natural owners if any."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """One data set, whole. Arrays may be memory-mapped and are never changed."""

    name: str
    inputs: NDArray[Any]  # [N, channels, height, width] uint8 images, or [N, time] int64 symbols, or [N, ...] floats
    targets: NDArray[np.int64]  # [N] classes, or [N, time] the next symbol at every position
    classes: int  # number of classes or symbols
    owners: NDArray[np.int64] | None = None  # [N] the natural client of each row: a user, a speaking role
    owner_names: tuple[str, ...] = ()
    padding: int | None = None  # the target symbol that only fills up sequences
    notes: tuple[str, ...] = ()  # what was left out and why, for people (e.g. "321 images are not RGB")
