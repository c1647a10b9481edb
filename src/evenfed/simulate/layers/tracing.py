"""Repeated calls without Python's overhead.

After some calls with the same shapes a function is traced to its bare tensor operations, which are replayed from then
on. The operations are the same, and so are the results, bit for bit.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

PAYS_OFF_AFTER = 64  # calls: a trace costs about as much as the overhead of 150
PAYS_OFF_WITH_COMPILER = 4000  # calls: the first trace of a process imports torch's compiler, which takes seconds
KEPT = 32  # traces: shapes that change every round are not worth keeping


def trace(function: Callable[..., Any], tensors: Sequence[Tensor], **how: Any) -> GraphModule:
    """The bare tensor operations of `function(*tensors)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracer = make_fx(lambda *t: function(*t), **how)
        return tracer(*tensors)


def _least_calls() -> int:
    has_compiler = "torch._dynamo" in sys.modules
    return PAYS_OFF_AFTER if has_compiler else PAYS_OFF_WITH_COMPILER


class Traced:
    """`function` of tensors only, with gradients computed inside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: Counter[Any] = Counter()
        self.tried: set[Any] = set()
        self.traces: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        forms = [(t.shape, t.stride()) for t in tensors]
        key = tuple(forms)
        replay = self.traces.get(key)
        if replay is not None:
            with torch.no_grad():
                return replay(*tensors)
        self.calls[key] += 1
        pays_off = self.calls[key] >= _least_calls()
        if pays_off and key not in self.tried and len(self.traces) < KEPT:
            self.tried.add(key)
            with suppress(Exception):  # what cannot be traced is called as it is, and not tried again
                self.traces[key] = trace(self.function, tensors)
        return self.function(*tensors)
