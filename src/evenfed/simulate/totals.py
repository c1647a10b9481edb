"""Per-example values added up: means per client, totals per class."""

import torch
from torch import Tensor

from ..clients.client import Pool, owners
from ..clients.lazy import why_visited

MOST_CLASSES = 1000
MANY_ROWS = 2000  # from here on torch adds a matrix faster column by column
MOST_COUNTS = 200_000  # entries of a table of examples per client and class


def client_means(values: Tensor, sizes: Tensor) -> Tensor:
    """[n, ...] the mean of each client's values, which are stored client after client."""
    rest = values.shape[1:]
    totals = values.new_zeros(len(sizes), *rest)
    add_by_client(totals[None], values[None], owners(sizes).to(values.device))
    inner = [1] * len(rest)
    counts = sizes.to(totals)
    means = totals / counts.view(-1, *inner)
    return means.cpu()


def class_count(train: Pool, judged: Pool) -> int | None:
    """The number of classes, from the targets. None: an example's target is not one whole class, or unknown yet."""
    if why_visited(train) is not None or why_visited(judged) is not None:
        return None
    targets = judged.targets
    is_whole = not targets.is_floating_point() and targets.dtype != torch.bool
    if not is_whole or targets.ndim != 1:
        return None
    highest = -1
    for pool in (train, judged):
        if len(pool) == 0:
            continue
        if int(pool.targets.min()) < 0:
            return None
        highest = max(highest, int(pool.targets.max()))
    classes = highest + 1
    if not 1 < classes <= MOST_CLASSES:
        return None
    return classes


def class_totals(pool: Pool, classes: int, ids: Tensor) -> Tensor:
    """[classes] how many examples these clients have of each, on the CPU."""
    targets = pool.targets
    if len(ids) < len(pool.sizes):
        rows = pool.rows(ids).to(targets.device)
        targets = targets[rows]
    return targets.bincount(minlength=classes).cpu()


def label_counts(pool: Pool, classes: int | None) -> Tensor | None:
    """[n, classes] of each client's examples, on the CPU; None if they have no classes, or if there are too many."""
    if classes is None or classes * len(pool.sizes) > MOST_COUNTS:
        return None
    clients = len(pool.sizes)
    cells = owners(pool.sizes) * classes + pool.targets.cpu()
    counts = cells.bincount(minlength=clients * classes)
    return counts.view(clients, classes)


def add_by_client(totals: Tensor, values: Tensor, owner: Tensor) -> None:
    """Add the values [runs, b, ...] of examples to the totals [runs, n, ...] of their owners [b], in their order."""
    if values.ndim != 3 or len(owner) < MANY_ROWS or not values.is_cpu:
        totals.index_add_(1, owner, values)
        return
    runs, _, columns = values.shape
    for run in range(runs):
        for column in range(columns):
            total = totals[run, :, column]
            value = values[run, :, column]
            total.index_add_(0, owner, value)


def add_by_class(totals: Tensor, values: Tensor, targets: Tensor) -> None:
    """Add the values [..., b] of examples to the totals [..., C] (float64) of their classes.

    Shares of right answers are 0 or 1, so that the totals are exact in any order.
    """
    totals.index_add_(-1, targets, values.to(totals))
