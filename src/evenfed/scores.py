"""Scores per example, or of a whole client. Give one of them, its name, or a function of your own as `score`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .core.errors import InputError, unknown
from .losses import LossFunction, aligned, beyond_unit, listed, predicts_numbers, takes_logits
from .metrics import Metric


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


def auroc(outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    """The area under the ROC curve of all test examples of a client; by its name `score="auroc"`.

    `outputs`: one number per example, or one per class. Of more than two classes, the mean over the classes that the
    targets hold, each against all others, of likelihoods. NaN if they hold one class alone.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    targets = targets.reshape(len(targets))  # which may be a column
    classes = np.unique(targets)
    if len(classes) < 2:
        return float("nan")
    table = np.asarray(outputs, dtype=np.float64).reshape(len(targets), -1)
    if table.shape[1] == 1:
        return _area(table[:, 0], targets > 0.5)
    if table.shape[1] == 2:
        return _area(table[:, 1] - table[:, 0], targets == 1)
    likelihoods = np.exp(table - table.max(1, keepdims=True))
    likelihoods /= likelihoods.sum(1, keepdims=True)
    areas = []
    for label in classes.astype(np.int64).tolist():
        areas.append(_area(likelihoods[:, label], targets == label))
    return float(np.mean(areas))


def _area(values: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> float:
    """How often a positive example's value is above a negative one's; equal ones count half."""
    _, positions, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = last - (counts - 1) / 2
    positive = int(is_positive.sum())
    negative = len(values) - positive
    of_positive = ranks[positions][is_positive]
    lowest_sum = positive * (positive + 1) / 2  # of so many ranks
    above = of_positive.sum() - lowest_sum
    return float(above / (positive * negative))


AUROC = Metric(auroc, name="AUROC", whole_client=True)
NAMED: dict[str, LossFunction | Metric] = {
    "top1": top1,
    "accuracy": top1,  # its usual name
    "binary": binary,
    "auroc": AUROC,
}


def named(name: str) -> LossFunction | Metric:
    """The score of this name."""
    chosen = NAMED.get(name.lower())
    if chosen is None:
        raise unknown("score", name, NAMED)
    return chosen


def counts_right_answers(score: LossFunction | None) -> bool:
    """Whether a score is known to be 1 for a right answer and 0 for a wrong one."""
    return score in (top1, binary)


def check_targets(
    score: LossFunction | Metric | None,
    loss: LossFunction,
    outputs: Any,
    targets: Tensor,
) -> None:
    """Refuse a score for classes where the targets are numbers to predict."""
    name = _name_of(score)
    if name is None or targets.is_complex():
        return
    if name == "auroc" and targets[0].numel() > 1:
        raise InputError(
            f"score='auroc' takes one target per example, and targets are {list(targets.shape)}; for several labels "
            "give evenfed.Metric of your own with whole_client=True, e.g. of sklearn.metrics.roc_auc_score, or leave "
            "`score` out"
        )
    is_whole = not targets.is_floating_point() or bool((targets == targets.round()).all())
    is_one_number = isinstance(outputs, Tensor) and (outputs.ndim == 1 or outputs.shape[1] == 1)
    may_be_numbers = targets.is_floating_point()
    if name == "auroc":
        may_be_numbers = not is_whole
    are_numbers = may_be_numbers and predicts_numbers(loss)
    needs_two_classes = name == "binary" or (name == "auroc" and is_one_number)
    are_classes = is_whole
    if needs_two_classes:
        are_classes = _are_of_two_classes(targets)
    if are_numbers or not are_classes:
        raise InputError(
            f"score='{name}' is for classes, and the targets are {listed(targets)}; for numbers to predict leave "
            "`score` out, which judges by the loss, or give a function or evenfed.Metric of your own; for classes give "
            "whole targets and no `loss` (score 'top1' or 'auroc'), or targets 0 and 1 and loss='binary' (score "
            "'binary' or 'auroc')"
        )
    if name == "top1" and is_one_number:
        raise InputError(
            "score='top1' takes one output per class, and the model gives one number per example; give score='binary' "
            "for targets 0 and 1, or leave `score` out"
        )


def _are_of_two_classes(targets: Tensor) -> bool:
    """0 and 1 or between them, or -1 and 1."""
    are_signs = bool((targets.double().abs() == 1).all())
    return are_signs or not bool(beyond_unit(targets).any())


def _name_of(score: LossFunction | Metric | None) -> str | None:
    function = score.function if isinstance(score, Metric) else score
    if function is top1:
        return "top1"
    if function is binary:
        return "binary"
    return "auroc" if function is auroc else None


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
