"""Scores per example. Give one of them, its name, or a function of your own as `score`."""

from typing import Any

from torch import Tensor

from .losses import LossFunction, aligned, takes_logits


def top1(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the target has the highest score, else 0. Scores that are not finite are wrong."""
    highest, predicted = outputs.max(1)
    hit = predicted == targets
    correct = hit & highest.isfinite()
    return correct.to(outputs.dtype)


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where one logit per example is on its target's side of 0. Logits that are not finite are wrong.

    >>> import torch
    >>> binary(torch.tensor([[-1.0], [2.0], [3.0]]), torch.tensor([0.0, 1.0, 0.0]))
    tensor([1., 1., 0.])
    """
    logits = aligned(outputs, targets)
    hit = (logits > 0) == (targets > 0.5)
    correct = hit & logits.isfinite()
    return correct.to(outputs.dtype)


NAMED: dict[str, LossFunction] = {"top1": top1, "binary": binary}


def counts_right_answers(score: LossFunction | None) -> bool:
    """Whether a score is known to be 1 for a right answer and 0 for a wrong one."""
    return score in NAMED.values()


def default(loss: LossFunction, outputs: Any, targets: Tensor) -> LossFunction | None:
    """Accuracy, where it is known how outputs stand for classes; None for other outputs and targets."""
    if not isinstance(outputs, Tensor):
        return None
    if takes_logits(loss):
        return binary
    if targets.is_floating_point():
        return None
    has_classes = outputs.ndim > 1 and outputs.shape[1] > 1
    return top1 if has_classes else None
