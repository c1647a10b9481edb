"""Attention by its equation, where torch's fused kernels cannot be stacked or their dropout cannot be replaced."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .rewriting import Rules

Drop = Callable[[Tensor, float], Tensor]  # what becomes of attention weights, with a probability


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    drop: Drop = F.dropout,
) -> Tensor:
    """torch's scaled_dot_product_attention; a place that sees nothing gets zeros."""
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if enable_gqa:
        heads = query.shape[-3]
        per_key = heads // key.shape[-3]
        per_value = heads // value.shape[-3]
        key = key.repeat_interleave(per_key, -3)
        value = value.repeat_interleave(per_value, -3)
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        places = scores.shape[-2:]
        all_pairs = torch.ones(places, dtype=torch.bool, device=scores.device)
        attn_mask = all_pairs.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        sees_nothing = scores.isneginf().all(-1, keepdim=True)
        weights = scores.masked_fill(sees_nothing, 0).softmax(-1)
        weights = weights.masked_fill(sees_nothing, 0)
    if dropout_p > 0:
        weights = drop(weights, dropout_p)
    return weights.to(value.dtype) @ value


def _stacked(query: Tensor, *args: object, **kwargs: object) -> Tensor | None:
    """On a CPU torch's kernel has no batching rule."""
    if query.device.type != "cpu":
        return None
    return attention(query, *args, **kwargs)  # type: ignore[arg-type]


RULES: Rules = {F.scaled_dot_product_attention: _stacked}
