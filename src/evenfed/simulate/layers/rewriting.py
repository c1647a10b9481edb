"""Layers of torch replaced by forms that can be stacked over clients, without a change to the user's module."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

Rules = Mapping[Any, Callable[..., Any]]


class Rewritten(TorchFunctionMode):
    """Inside this mode a rule takes the place of a torch function; a rule that returns None leaves it to torch."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        rule = self.rules.get(func)
        if rule is not None:
            result = rule(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)
