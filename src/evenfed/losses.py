"""Losses per example. Give one of them, its name, or a function of your own as `loss`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .core.errors import InputError

LossFunction = Callable[[Tensor, Tensor], Tensor]
Functions = tuple[LossFunction, ...]  # of the same outputs and targets
_IGNORED = -100  # torch's target of an example that does not count
_SHOWN = 5  # values that an error lists


def per_example(values: Tensor) -> Tensor:
    """[b, ...] -> [b]: an example's value is the mean over its positions. Whole numbers and yes or no are counted."""
    if not (values.is_floating_point() or values.is_complex()):
        values = values.double()
    if values.ndim == 1:
        return values
    return values.flatten(1).mean(1)


def values(functions: Functions, outputs: Tensor, targets: Tensor) -> Tensor:
    """[b, len(functions)]: several values of each example, from the same outputs."""
    columns = []
    for function in functions:
        column = per_example(function(outputs, targets))
        columns.append(column.double())
    return torch.stack(columns, dim=1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per-example (and per-position) cross entropy of class scores [b, classes, ...].

    As torch has it, written out on a CPU: under vmap torch's own form imports its compiler, which takes two seconds.
    """
    shape = outputs.shape
    without_classes = (*shape[:1], *shape[2:])
    are_classes = targets.dtype == torch.int64 and targets.shape == without_classes
    if not are_classes or not outputs.is_cpu:  # likelihoods of classes, what torch refuses, or a GPU
        return F.cross_entropy(outputs, targets, reduction="none")
    counts = targets != _IGNORED
    classes = torch.where(counts, targets, 0)
    likelihoods = F.log_softmax(outputs, dim=1)
    of_targets = likelihoods.gather(1, classes.unsqueeze(1))
    return torch.where(counts, -of_targets.squeeze(1), 0)


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of one logit per example; targets are 0 or 1, of any type.

    >>> import torch
    >>> binary(torch.tensor([[0.0], [9.0]]), torch.tensor([1, 1])).round(decimals=4)
    tensor([0.6931, 0.0001])
    """
    logits = _one_each(outputs, targets)
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared errors."""
    errors = _one_each(outputs, targets) - targets
    return errors.square()


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Absolute errors."""
    errors = _one_each(outputs, targets) - targets
    return errors.abs()


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """One output per example, [b, 1] or [b], in the shape of the targets: else they would broadcast to [b, b].

    >>> import torch
    >>> aligned(torch.zeros(3, 1), torch.zeros(3)).shape, aligned(torch.zeros(3), torch.zeros(3, 1)).shape
    (torch.Size([3]), torch.Size([3, 1]))
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        return outputs.squeeze(-1)
    if targets.ndim == outputs.ndim + 1 and targets.shape[-1] == 1:
        return outputs.unsqueeze(-1)
    return outputs


def _one_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs in the targets' shape; others would broadcast, and are refused."""
    outputs = aligned(outputs, targets)
    if outputs.shape != targets.shape:
        raise InputError(f"{list(outputs.shape)} outputs for {list(targets.shape)} targets; give one output per target")
    return outputs


NAMED: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "binary": binary,
    "mse": mse,
    "mae": mae,
}


_NAMES_IN_TORCH: dict[str, str] = {
    "CrossEntropyLoss": "cross_entropy",
    "cross_entropy": "cross_entropy",
    "BCEWithLogitsLoss": "binary",
    "binary_cross_entropy_with_logits": "binary",
    "MSELoss": "mse",
    "mse_loss": "mse",
    "L1Loss": "mae",
    "l1_loss": "mae",
}


def name_of(loss: object) -> str | None:
    """The name of the shipped loss that does what this one of torch does.

    >>> name_of(nn.MSELoss()), name_of(F.cross_entropy), name_of(print)
    ('mse', 'cross_entropy', None)
    """
    kind = loss if isinstance(loss, type) else type(loss)
    name = getattr(loss, "__name__", kind.__name__)
    module = getattr(loss, "__module__", "")
    return _NAMES_IN_TORCH.get(name) if module.startswith("torch.nn") else None


def takes_logits(loss: LossFunction) -> bool:
    """Whether the loss is known to take one logit per example."""
    return loss is binary or isinstance(loss, nn.BCEWithLogitsLoss)


def predicts_numbers(loss: LossFunction) -> bool:
    """Whether the loss is known to compare numbers."""
    of_torch = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
    return loss in (mse, mae) or isinstance(loss, of_torch)


def beyond_unit(targets: Tensor) -> Tensor:
    """Where targets are neither 0 nor 1 nor between them.

    >>> import torch
    >>> beyond_unit(torch.tensor([0.0, 0.3, 1.0, 2.0, -1.0])).tolist()
    [False, False, False, True, True]
    """
    if targets.dtype == torch.bool or targets.is_complex():
        return torch.zeros_like(targets, dtype=torch.bool)
    if not targets.is_floating_point():
        targets = targets.long()  # torch does not compare every type of whole numbers
    return (targets < 0) | (targets > 1)


def check_binary_targets(targets: Tensor, where: str) -> None:
    """Refuse values that a loss of one logit does not take."""
    if not bool(beyond_unit(targets).any()):
        return
    raise InputError(
        f"{where}: targets are {listed(targets)}; a binary loss takes 0 and 1, or floats between them: number the two "
        "classes 0 and 1, or for more classes leave `loss` out and give the model one output per class"
    )


def listed(targets: Tensor) -> str:
    """The values that occur, and their type.

    >>> import torch
    >>> listed(torch.tensor([2, 1, 2]))
    '1, 2 (int64)'
    """
    kind = str(targets.dtype).removeprefix("torch.")
    values = torch.unique(targets if targets.is_floating_point() else targets.long()).tolist()
    shown = ", ".join(f"{value:.4g}" for value in values[:_SHOWN])
    if len(values) > _SHOWN:
        shown += ", ..."
    return f"{shown} ({kind})"
