"""Ways to split one data set across clients, and each client's rows into train, validation and test.

A partition is a list with the rows of each client; splits are stratified by class within each client.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError

Rows = NDArray[np.int64]
Parts = list[Rows]  # one per client
_LARGEST_SEED = 2**32 - 1  # that numpy's legacy generator takes


@dataclass(frozen=True)
class Split:
    """One client's rows of the data set."""

    train: Rows
    validation: Rows
    test: Rows


class UndrawnError(InputError):
    """The random generator gave no numbers that can be used: with another seed it may."""


def dirichlet(labels: Rows, clients: int, concentration: float, seed: int) -> Parts:
    """Label shift, class by class, bit-exact to the authors' generator.

    For each class in order, proportions over clients ~ Dirichlet(concentration); counts are rounded down and one
    client drawn uniformly gets the remainder; rows are handed out in the data set's order. A small concentration
    gives few classes per client, unequal sizes and empty clients.

    >>> labels = np.repeat(np.arange(100), 500)
    >>> splits = [split(rows, labels, 0.8) for rows in dirichlet(labels, 50, 0.05, seed=0)]
    >>> sum(len(s.train) for s in splits), sum(len(s.test) for s in splits)
    (39445, 10555)
    >>> [len(s.train) for s in splits[:10]]
    [1129, 960, 285, 693, 1044, 889, 587, 1596, 705, 567]
    """
    if seed > _LARGEST_SEED:
        raise InputError(f"seed={seed} of a dirichlet partition: give a whole number of at most {_LARGEST_SEED}")
    rng = np.random.RandomState(seed)  # the legacy generator: the authors' splits come from it
    prior = np.full(clients, concentration)
    parts: list[Parts] = [[] for _ in range(clients)]  # of each client, class by class
    for label in np.unique(labels):
        is_of_class = labels == label
        rows = np.flatnonzero(is_of_class)
        with np.errstate(all="ignore"):
            proportions = rng.dirichlet(prior)
        if not np.isfinite(proportions).all():
            raise UndrawnError(
                f"concentration={concentration:g}: nothing can be drawn from it with this seed; give e.g. 0.01 to 100"
            )
        shares = proportions * len(rows)
        counts = np.floor(shares).astype(np.int64)
        remainder = len(rows) - counts.sum()
        lucky = rng.choice(clients)
        counts[lucky] += remainder
        ends = counts.cumsum()[:-1]
        cells = np.split(rows, ends)
        for part, cell in zip(parts, cells, strict=True):
            part.append(cell)
    return [np.concatenate(part) for part in parts]


def shards(labels: Rows, clients: int, shards_per_client: int, seed: int) -> Parts:
    """Rows sorted by class and cut into equal shards, of which each client draws the same number (McMahan et al.).

    >>> parts = shards(np.repeat(np.arange(10), 20), clients=10, shards_per_client=2, seed=0)
    >>> [len(p) for p in parts] == [20] * 10
    True
    """
    by_class = np.argsort(labels, kind="stable")
    total = clients * shards_per_client
    if total > len(labels):
        raise InputError(
            f"{clients} clients with {shards_per_client} shards each, of {len(labels):,} examples; give fewer clients "
            "or shards_per_client, at most one shard per example"
        )
    pieces = np.array_split(by_class, total)
    rng = np.random.default_rng(seed)
    order = rng.permutation(total)
    parts = []
    for drawn in order.reshape(clients, shards_per_client):
        own = [pieces[k] for k in drawn]
        parts.append(np.concatenate(own))
    return parts


def iid(rows: int, clients: int, seed: int) -> Parts:
    """The same distribution for everyone: a random permutation cut into equal parts, each in the data set's order."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(rows)
    return list(map(np.sort, np.array_split(shuffled, clients)))


def natural(
    owners: Rows,
    clients: int,
    least: int,
    seed: int,
) -> tuple[Parts, list[int]]:
    """Rows of `clients` owners drawn uniformly among those with at least `least` rows (0 clients: all of them).

    >>> natural(np.array([0, 0, 1, 2, 2, 2]), clients=0, least=2, seed=0)[1]
    [0, 2]
    """
    by_owner = np.argsort(owners, kind="stable")
    ids, starts, counts = np.unique(
        owners[by_owner],
        return_index=True,
        return_counts=True,
    )
    is_large_enough = counts >= max(least, 1)
    chosen = np.flatnonzero(is_large_enough)
    if clients and clients < len(chosen):
        rng = np.random.default_rng(seed)
        drawn = rng.choice(chosen, clients, replace=False)
        chosen = np.sort(drawn)
    parts = []
    for k in chosen:
        start = starts[k]
        end = start + counts[k]
        parts.append(by_owner[start:end])
    chosen_ids = ids[chosen]
    return parts, chosen_ids.tolist()


def split(
    rows: Rows,
    labels: Rows | None,
    train_fraction: float,
    validation_fraction: float = 0.0,
    shuffle: int | None = None,
) -> Split:
    """Train, validation and test rows of one client, class by class (`labels` None: all rows as one class).

    The first `train_fraction` of a class's rows are train (rounded down, as in the authors' code), the rest
    test; the last `validation_fraction` of the train rows is then set aside for choosing hyper-parameters.
    `shuffle` draws a new order with this seed; None keeps the data set's.
    """
    if shuffle is not None:
        rng = np.random.default_rng(shuffle)
        rows = rng.permutation(rows)
    classes = np.zeros_like(rows)
    if labels is not None:
        classes = labels[rows]
    none = rows[:0]
    train = [none]
    validation = [none]
    test = [none]
    for label in np.unique(classes):
        is_of_class = classes == label
        cell = rows[is_of_class]
        test_start = int(train_fraction * len(cell))
        validation_size = int(validation_fraction * test_start)
        validation_start = test_start - validation_size
        train.append(cell[:validation_start])
        validation.append(cell[validation_start:test_start])
        test.append(cell[test_start:])
    return Split(
        train=np.concatenate(train),
        validation=np.concatenate(validation),
        test=np.concatenate(test),
    )


def held_out(
    rows: Rows,
    labels: Rows | None,
    share: float,
    seed: int,
) -> tuple[Rows, Rows]:
    """Training and test rows: about `share` of each class is for testing, at least one row of two, and never all.

    >>> train, test = held_out(np.arange(10), np.repeat([0, 1], [8, 2]), 0.5, seed=0)
    >>> len(test), (test >= 8).tolist().count(True)
    (5, 1)
    """
    tests = test_count(len(rows), share)
    if not tests:
        return rows, rows[:0]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(rows)
    classes = np.zeros_like(rows)
    if labels is not None:
        classes = labels[rows]
    _, members, counts = np.unique(
        classes,
        return_inverse=True,
        return_counts=True,
    )
    is_test = np.zeros(len(rows), bool)
    for label, quota in enumerate(_quotas(counts, tests)):
        of_class = np.flatnonzero(members == label)
        chosen = of_class[:quota]
        is_test[chosen] = True
    train = np.sort(rows[~is_test])
    test = np.sort(rows[is_test])
    return train, test


def test_count(rows: int, share: float) -> int:
    """How many of a client's rows are for testing.

    >>> test_count(10, 0.2), test_count(2, 0.9), test_count(1, 0.5)
    (2, 1, 0)
    """
    if share == 0 or rows < 2:
        return 0
    wanted = max(round(share * rows), 1)
    return min(wanted, rows - 1)


def _quotas(counts: Rows, wanted: int) -> Rows:
    """How many rows of each class are for testing: whole numbers that add up, the largest remainders rounded up."""
    exact = counts * (wanted / counts.sum())
    quotas: Rows = exact.astype(np.int64)
    by_remainder = np.argsort(quotas - exact, kind="stable")
    missing = wanted - quotas.sum()
    rounded_up = by_remainder[:missing]
    quotas[rounded_up] += 1
    return quotas
