"""Ways to split one data set over clients."""

import numpy as np
from numpy.typing import NDArray


def dirichlet(
    labels: NDArray[np.int64], clients: int, concentration: float, train_fraction: float, seed: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(train rows, test rows) of each client: label shift, class by class, as in the authors' generator.

    For each class in order, proportions over clients ~ Dirichlet(concentration); counts are rounded down
    and one client drawn uniformly gets the remainder. Inside each (class, client) cell the first
    `train_fraction` are train, the rest test. Small concentration: few classes a client, unequal sizes.

    >>> parts = dirichlet(np.repeat(np.arange(100), 500), 50, 0.05, 0.8, seed=0)
    >>> sum(len(train) for train, _ in parts), sum(len(test) for _, test in parts)
    (39445, 10555)
    >>> [len(train) for train, _ in parts[:10]]
    [1129, 960, 285, 693, 1044, 889, 587, 1596, 705, 567]
    """
    rng = np.random.RandomState(seed)  # the legacy generator: the authors' splits come from it
    train: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    test: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        counts = np.floor(rng.dirichlet(np.full(clients, concentration)) * len(rows)).astype(np.int64)
        counts[rng.choice(clients)] += len(rows) - counts.sum()
        for i, cell in enumerate(np.split(rows, counts.cumsum()[:-1])):
            cut = int(train_fraction * len(cell))
            train[i].append(cell[:cut])
            test[i].append(cell[cut:])
    return [(np.concatenate(a), np.concatenate(b)) for a, b in zip(train, test, strict=True)]
