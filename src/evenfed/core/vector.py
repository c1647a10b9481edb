"""A model as one flat vector, so that aggregation is one line whatever the model is."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InputError

Parameters = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the flat vector; `names` is None for a bare tensor."""

    names: tuple[str, ...] | None
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, params: Parameters) -> "Layout":
        if isinstance(params, Tensor):
            return cls(None, (params.shape,))
        if not params:
            raise InputError("the model has no parameters; nothing can be trained: give a model with at least one")
        return cls(tuple(params), tuple(p.shape for p in params.values()))

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    def flatten(self, params: Parameters) -> Tensor:
        """[D], a copy; parameters of another structure are refused.

        >>> layout = Layout.of({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        >>> layout.flatten({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        tensor([1., 1., 1., 1., 0.])
        """
        found = Layout.of(params)
        if isinstance(params, Mapping) and self.names is not None and set(params) == set(self.names):
            params = {name: params[name] for name in self.names}
            found = Layout.of(params)
        if found != self:
            raise InputError(f"parameters of shape {found.describe()} were given where {self.describe()} is expected")
        tensors = [params] if isinstance(params, Tensor) else list(params.values())
        return torch.cat([t.detach().reshape(-1) for t in tensors])

    def unflatten(self, vector: Tensor) -> Tensor | dict[str, Tensor]:
        """The tensors as views of `vector` [D]; a single split, so that its gradient is a single cat."""
        parts = [p.view(s) for p, s in zip(vector.split(self.sizes), self.shapes, strict=True)]
        return parts[0] if self.names is None else dict(zip(self.names, parts, strict=True))

    def describe(self) -> str:
        names = self.names or ("tensor",)
        shown = [f"{n}{list(s)}" for n, s in zip(names, self.shapes, strict=True)]
        return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
