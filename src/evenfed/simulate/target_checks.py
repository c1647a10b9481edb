"""Targets that a loss does not take: refused before round 1, with the client they belong to."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import losses, scores
from ..clients.client import Pool
from ..core.errors import InputError
from ..losses import LossFunction, cross_entropy
from . import remedies

Whose = Callable[[int], str]  # the examples of a client, by its position


def scores_classes(loss: LossFunction | None, pool: Pool) -> bool:
    """Whether targets are classes; cross entropy by name also takes the likelihoods of classes."""
    if loss is None:
        return True
    return loss is cross_entropy and pool.targets.dtype == torch.int64


def owner_of(pool: Pool, row: int, whose: Whose) -> str:
    """Whose a row of the pool is; of a pool that is read client by client only some rows are at hand."""
    if len(pool.targets) != int(pool.sizes.sum()):
        return "some client"
    ends = pool.sizes.cumsum(0)
    client = int(torch.searchsorted(ends, row, right=True))
    return whose(client)


def check_class_targets(pool: Pool, whose: Whose) -> None:
    """Refuse targets that are no class numbers."""
    targets = pool.targets
    if targets.dtype != torch.int64:
        kind = str(targets.dtype).removeprefix("torch.")
        cure = 'convert them, or give `loss` for another kind of target ("mse" for numbers, "binary" for 0 or 1)'
        if remedies.are_one_hot(targets):
            cure = remedies.ONE_HOT
        raise InputError(f"targets are {kind}; cross entropy takes whole class numbers (int64): {cure}")
    lowest = int(targets.min())
    if lowest < 0:
        row = _row_of(targets, targets.argmin())
        raise InputError(
            f"{owner_of(pool, row, whose)}: targets go down to {lowest}; class numbers start at 0 (to leave some out, "
            "give a loss and a score of your own)"
        )


def check_counted(score: LossFunction | None, pool: Pool | None, whose: Whose) -> None:
    """Refuse targets below 0 where top-1 is the score: it would count each of them as a wrong answer."""
    if score is not scores.top1 or pool is None or len(pool.targets) == 0:
        return
    targets = pool.targets
    lowest = targets.min()
    if lowest < 0:
        row = _row_of(targets, targets.argmin())
        raise InputError(
            f"{owner_of(pool, row, whose)}: targets go down to {int(lowest)}, and top-1 counts every target below 0 as "
            "a wrong answer; drop such test examples, or, for positions of a sequence, give a score of your own: the "
            "mean over the positions that count"
        )


def highest_target(pool: Pool, whose: Whose) -> tuple[int, str]:
    """The highest class number, and whose it is."""
    targets = pool.targets
    row = _row_of(targets, targets.argmax())
    return int(targets.max()), owner_of(pool, row, whose)


def _row_of(targets: Tensor, place: Tensor) -> int:
    """The row of an entry, from its place in the flat tensor."""
    width = targets.numel() // len(targets)
    return int(place) // width


def check_binary_pool(pool: Pool, whose: Whose) -> None:
    """Refuse a pool with targets that are neither 0 nor 1 nor between them."""
    targets = pool.targets
    is_beyond = losses.beyond_unit(targets)
    wrong = is_beyond.reshape(len(targets), -1).any(1)
    if not bool(wrong.any()):
        return
    first_wrong = int(wrong.nonzero()[0])
    ends = pool.sizes.cumsum(0)
    client = int(torch.searchsorted(ends, first_wrong, right=True))
    start = int(pool.starts[client])
    end = int(ends[client])
    losses.check_binary_targets(targets[start:end], whose(client))
