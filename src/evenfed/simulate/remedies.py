"""What to change where a loss or a score does not fit the model's outputs and the targets."""

from typing import Any

import numpy as np
from torch import Tensor

from .. import losses
from ..losses import LossFunction

ONE_HOT = "they are one-hot, so give the class numbers: y.argmax(1)"


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
    if loss is losses.cross_entropy:
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
