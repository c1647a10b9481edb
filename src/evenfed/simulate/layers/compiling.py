"""Models that look at their data while they compute, except where they are compiled.

Hugging Face's models ask whether an attention mask hides anything at all, to leave it out. A stack of clients has no
single answer. In a compiler's hands they do not ask, and always use the mask: the same numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

ASKING = ("transformers.",)  # packages whose models do so


def make_stackable(model: nn.Module) -> None:
    """Each outermost module of such a package then runs as if it were compiled."""
    outermost: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(outer) for outer in outermost)
        if is_inside or not type(module).__module__.startswith(ASKING):
            continue
        outermost.append(f"{name}." if name else "")
        as_if_compiled = _compiler_flag()
        module.forward = as_if_compiled(module.forward)


@contextmanager
def _compiler_flag() -> Iterator[None]:
    """What `torch.compiler.is_compiling()` answers."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
