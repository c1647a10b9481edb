"""Dropout whose masks are hashed: every engine drops the same units of a client's step, and no two clients share them.

A mask is a function of the step's key (seed, round, client, step), the number of the call within the forward pass, and
each unit's place. Examples that only fill up a batch therefore change no other example's mask.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core import streams
from . import recurrent
from .attention import attention
from .rewriting import Rewritten

_ALPHA = 1.7580993408473766  # minus the value to which SELU saturates


class Masks(Rewritten):
    """Inside this mode, around one forward pass, torch's dropout takes its masks from `key` (int64, one number).

    Other sources of random numbers are left alone.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__(_RULES)
        self.key = key
        self.calls = 0

    def rule(self, function: Any) -> Callable[..., Any] | None:
        rule = _RULES.get(function)
        return None if rule is None else partial(rule, self)

    def kept(self, p: float, shape: Sequence[int]) -> Tensor:
        """[*shape] which units stay; each goes with probability `p`.

        The examples of a batch lie along the first or the second axis: a longer axis changes nothing before its end.
        """
        state = streams.mixed(self.key, torch.full_like(self.key, streams.DROPOUT))
        state = streams.mixed(state, torch.full_like(self.key, self.calls))
        self.calls += 1
        axes = [*shape[:2], math.prod(shape[2:])]
        for length in axes[: len(shape)]:
            place = torch.arange(length, device=self.key.device)
            state = streams.mixed(state[..., None], place)
        threshold = round(p * 2**64) - 2**63  # of whole numbers that are uniform over all of int64
        return (state >= threshold).view(*shape)


def _dropped(
    masks: Masks,
    input: Tensor,
    p: float,
    train: bool,
    axes: int | None = None,
) -> Tensor:
    """Units are dropped along so many axes, whole beyond; None: along all."""
    if not train or p == 0:
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    kept = _kept(masks, input, p, axes)
    return input * kept * (1 / (1 - p))  # a plain number is not rounded to the type of the input


def _alpha_dropped(
    masks: Masks,
    input: Tensor,
    p: float,
    train: bool,
    axes: int | None = None,
) -> Tensor:
    """Dropped units take the value to which SELU saturates; mean and variance stay (Klambauer et al. 2017)."""
    if not train or p in (0, 1):
        return _dropped(masks, input, p, train)
    variance = (_ALPHA**2 * p + 1) * (1 - p)
    scale = 1 / math.sqrt(variance)
    kept = _kept(masks, input, p, axes)
    shift = (kept - 1 + p) * (_ALPHA * scale)
    return input * kept * scale + shift


def _kept(masks: Masks, input: Tensor, p: float, axes: int | None) -> Tensor:
    """1 and 0 in the input's type, with its number of axes."""
    kept = masks.kept(p, input.shape[:axes])
    whole = [1] * (input.ndim - kept.ndim)
    return kept.view(*kept.shape, *whole).to(input.dtype)


def _in_place(rule: Any) -> Any:
    """The same, written into its input."""

    def written(masks: Masks, input: Tensor, p: float, train: bool) -> Tensor:
        result = rule(masks, input, p, train)
        return input if result is input else input.copy_(result)

    return written


def _attention(
    masks: Masks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor | None:
    """Without dropout it stays torch's own."""
    if dropout_p == 0:
        return None

    def drop(weights: Tensor, p: float) -> Tensor:
        return _dropped(masks, weights, p, train=True)

    return attention(query, key, value, attn_mask, dropout_p, is_causal, drop=drop, **options)


def _recurrent(function: Any) -> Any:
    """A recurrent layer with dropout between its layers is unrolled; without, it stays as it is."""
    rule = recurrent.RULES[function]

    def unrolled(masks: Masks, *args: Any) -> Any:
        if not recurrent.drops(*args):
            return None
        with masks:
            return rule(*args)

    return unrolled


_RULES: dict[Any, Any] = {F.scaled_dot_product_attention: _attention}
for _function, _in_its_place, _rule in (
    (torch.dropout, torch.dropout_, _dropped),
    (torch.feature_dropout, torch.feature_dropout_, partial(_dropped, axes=2)),
    (torch.alpha_dropout, torch.alpha_dropout_, _alpha_dropped),
    (torch.feature_alpha_dropout, torch.feature_alpha_dropout_, partial(_alpha_dropped, axes=2)),
):
    _RULES[_function] = _rule
    _RULES[_in_its_place] = _in_place(_rule)
for _function in recurrent.RULES:
    _RULES[_function] = _recurrent(_function)
