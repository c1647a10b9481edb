"""Augmentation as engines apply it, tried out before the first round."""

import copy
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from ... import trees
from ...augment import Augmentation
from ...core.errors import InputError, first_line
from ...core.streams import AUGMENTATION, HashedNumbers
from ...trees import Inputs
from ..layers.recurrent import wherever_weights_lie
from ..problem import Problem


def augmented(augment: Augmentation | None, inputs: Inputs, key: Tensor) -> Inputs:
    """One client's batch as it is trained on in the step with this key."""
    if augment is None:
        return inputs
    changed: Inputs = augment(inputs, HashedNumbers(key, AUGMENTATION))
    if trees.length(changed) != trees.length(inputs):
        raise InputError(
            f"augment made {trees.length(changed)} examples of {trees.length(inputs)}; it must return a batch of the "
            "same length"
        )
    return changed


def check_augmentation(problem: Problem, augment: Augmentation) -> None:
    """A small batch goes through."""
    inputs, _ = problem.train.at(slice(2))
    key = torch.zeros((), dtype=torch.int64, device=problem.device)
    try:
        changed = augmented(augment, inputs, key)
    except InputError:
        raise
    except Exception as error:  # whatever a function of the user's raises
        raise InputError(
            f"augment fails on a batch of inputs {trees.shapes(inputs)} ({type(error).__name__}: {first_line(error)}); "
            "it takes a batch and a draw, and returns the batch"
        ) from error
    _check_model_takes(problem, inputs, changed)


def _check_model_takes(problem: Problem, inputs: Inputs, changed: Inputs) -> None:
    """Refuse a batch of another shape or type than the model takes."""
    probe = copy.deepcopy(problem.model).eval()
    try:
        with torch.no_grad(), wherever_weights_lie():
            trees.call(probe, changed)
    except Exception as error:
        raise InputError(
            f"the model fails on what augment makes, inputs {trees.shapes(changed)} of {trees.shapes(inputs)} "
            f"({first_line(error)}); it must return the batch in a shape and type that the model takes"
        ) from error


def why_not_stacked(problem: Problem, augments: Iterable[Augmentation]) -> str | None:
    """What keeps clients' batches from being augmented in a stack; None if nothing does."""
    rows = torch.zeros((2, 2), dtype=torch.int64, device=problem.device)
    inputs, _ = problem.train.at(rows)
    for augment in augments:
        of_stack = vmap(partial(augmented, augment))
        try:
            of_stack(inputs, rows[0])
        except Exception as error:  # what torch.vmap cannot do has many types
            return f"its augmentation cannot be vectorised: {first_line(error)}"
    return None
