"""Data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..client import Client
from ..core.errors import InputError, unknown
from .partition import dirichlet

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def digits() -> Arrays:
    """scikit-learn's bundled handwritten digits: 1,797 images of 8x8 in [0, 1], 10 classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return (bunch.images / 16).astype(np.float32)[:, None], bunch.target.astype(np.int64)


SOURCES: dict[str, Callable[[], Arrays]] = {"digits": digits}


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how they are split over clients."""

    name: str = "digits"
    clients: int = 30
    concentration: float = 0.1  # of the Dirichlet label shift; small: few classes a client, unequal sizes
    train_fraction: float = 0.5  # of each client's examples of each class
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        if self.name not in SOURCES:
            raise unknown("data set", self.name, SOURCES)
        if not isinstance(self.clients, int) or self.clients < 1:
            raise InputError(f"data.clients={self.clients!r}: give a whole number, at least 1")
        if not isinstance(self.concentration, int | float) or not self.concentration > 0:
            raise InputError(f"data.concentration={self.concentration!r}: it must be a number above 0")
        if not isinstance(self.train_fraction, float) or not 0 < self.train_fraction < 1:
            raise InputError(f"data.train_fraction={self.train_fraction!r}: it must lie between 0 and 1, both excluded")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise InputError(f"data.seed={self.seed!r}: give a whole number from 0 to 2**32 - 1")


def load(settings: DataSettings) -> tuple[list[Client], int]:
    """The clients, and the number of classes.

    >>> clients, classes = load(DataSettings(clients=20))
    >>> len(clients), classes, tuple(clients[0].train[0].shape[1:])
    (20, 10, (1, 8, 8))
    """
    images, labels = (torch.from_numpy(a) for a in SOURCES[settings.name]())
    parts = dirichlet(labels.numpy(), settings.clients, settings.concentration, settings.train_fraction, settings.seed)
    clients = [
        Client(train=(images[a], labels[a]), test=(images[b], labels[b]), name=f"{settings.name}-{i}")
        for i, (a, b) in enumerate(parts)
    ]
    return clients, int(labels.max()) + 1
