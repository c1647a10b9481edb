"""Layers of torch replaced by forms that can be stacked over clients, without a change to the user's module."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

Rules = Mapping[Any, Callable[..., Any]]


class Rewritten(TorchFunctionMode):
    """Inside this mode a rule takes the place of a torch function; a rule that returns None leaves it to torch."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def rule(self, function: Any) -> Callable[..., Any] | None:
        """What takes the place of a function."""
        return self.rules.get(function)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        rule = self.rule(func)
        if rule is not None:
            result = rule(*args, **kwargs)
            if result is not None:
                return result
        body = _BODIES.get(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        return func(*args, **kwargs)


def _body(function: Any) -> FunctionType:
    """The same function of torch without its question whether a mode wants to replace it."""
    names = dict(function.__globals__)
    names["has_torch_function"] = names["has_torch_function_unary"] = lambda tensors: False
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


# written in Python, they end in functions that rules replace: the mode stays on inside them
_COMPOSED = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    F.multi_head_attention_forward,
)
_BODIES = {function: _body(function) for function in _COMPOSED}
