"""Targets that a loss or a score does not take: whose they are, and what to change."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import losses, scores
from ..clients.client import Pool
from ..core.errors import InputError
from ..losses import LossFunction, cross_entropy

ONE_HOT = "they are one-hot, so give the class numbers: y.argmax(1)"
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
        if are_one_hot(targets):
            cure = ONE_HOT
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


def remedy(name: str, function: LossFunction, outputs: Any, targets: Tensor) -> str:
    """What to change, from the function and the shapes and types of outputs and targets."""
    if has_classes_last(outputs, targets):
        return (
            "classes lie on the last axis, and cross entropy takes them on axis 1: use outputs.movedim(-1, 1) "
            "in the model or in the loss"
        )
    if _has_column_of_classes(outputs, targets):
        return (
            f"targets are a column {list(targets.shape)}, and classes are numbers [{len(targets)}], one per "
            "example: give y.squeeze(1)"
        )
    if name == "loss" and _are_several_labels(outputs, targets):
        return (
            f"if each example has {targets.shape[1]} labels, each 0 or 1 by itself, give loss='binary'; for classes "
            f"give one class number per example, targets [{len(targets)}]"
        )
    if are_one_hot(targets):
        return f"if targets are classes, {ONE_HOT}"
    if isinstance(outputs, Tensor) and losses.aligned(outputs, targets) is not outputs:
        shipped = "evenfed.losses.mse and evenfed.losses.binary take"
        if name == "score":
            shipped = "evenfed.scores.binary takes"
        return (
            "give outputs and targets one shape (end the model with nn.Flatten(0), or reshape the targets); "
            f"{shipped} either"
        )
    if name == "loss" and not targets.is_floating_point():
        return _for_whole_targets(function, outputs)
    return f"give outputs and targets of the shape and type that your {name} takes"


def _for_whole_targets(loss: LossFunction, outputs: Any) -> str:
    """Whole numbers may be classes, or numbers to predict."""
    has_several = isinstance(outputs, Tensor) and outputs.ndim > 1 and outputs.shape[1] > 1
    if not has_several:
        return "if it takes numbers instead of classes, give float targets, or use evenfed.losses.binary"
    if losses.takes_logits(loss):
        return (
            "it takes one logit per example: end the model with one output, or, with one output per class, leave "
            "`loss` out (cross entropy)"
        )
    if losses.predicts_numbers(loss):
        return (
            "for classes leave `loss` out (cross entropy); to predict a number, end the model with one output and give "
            "float targets"
        )
    if loss is cross_entropy:
        return "for classes give one class number per example, [examples]; for other targets give another `loss`"
    return "give outputs and targets of the shape and type that your loss takes, or leave `loss` out (cross entropy)"


def are_one_hot(targets: Tensor) -> bool:
    """Whether each row holds a single 1 among zeros.

    >>> import torch
    >>> are_one_hot(torch.eye(3)), are_one_hot(torch.tensor([0, 1, 1]))
    (True, False)
    """
    if targets.ndim != 2 or targets.shape[1] < 2 or targets.is_complex():
        return False
    values = targets.double()
    has_one_each = ((values == 1).sum(1) == 1).all()
    has_zeros = ((values == 0).sum(1) == targets.shape[1] - 1).all()
    return bool(has_one_each and has_zeros)


def _are_several_labels(outputs: Any, targets: Tensor) -> bool:
    """Whether targets are whole numbers 0 and 1, several per example, with an output for each."""
    if not isinstance(outputs, Tensor) or targets.is_floating_point() or targets.is_complex():
        return False
    is_table = targets.ndim == 2 and targets.shape[1] > 1 and outputs.shape == targets.shape
    return is_table and not are_one_hot(targets) and not bool(losses.beyond_unit(targets).any())


def could_broadcast(outputs: Any, targets: Tensor) -> bool:
    """Whether outputs and targets have other shapes that torch would stretch to each other."""
    if not isinstance(outputs, Tensor) or outputs.shape == targets.shape:
        return False
    try:
        np.broadcast_shapes(outputs.shape, targets.shape)  # torch's own imports its compiler
    except ValueError:
        return False
    return True


def has_classes_last(outputs: Any, targets: Tensor) -> bool:
    """Whether outputs are [b, positions, classes] for targets [b, positions]."""
    if not isinstance(outputs, Tensor) or outputs.ndim < 3:
        return False
    shape = outputs.shape
    wanted = (shape[0], *shape[2:])
    return targets.shape == shape[:-1] and targets.shape != wanted


def _has_column_of_classes(outputs: Any, targets: Tensor) -> bool:
    """Whether targets [b, 1] are class numbers, for outputs [b, classes]."""
    if not isinstance(outputs, Tensor) or targets.is_floating_point():
        return False
    has_classes = outputs.ndim == 2 and outputs.shape[1] > 1
    has_column = targets.ndim == 2 and targets.shape[1] == 1
    return has_classes and has_column
