"""A model as one flat vector, so that aggregation is one line whatever the model is."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InputError
from .words import first_of

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
        names = tuple(params)
        shapes = tuple(tensor.shape for tensor in params.values())
        return cls(names, shapes)

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    def flatten(self, params: Parameters) -> Tensor:
        """[D], a copy; parameters of another structure are refused.

        >>> layout = Layout.of({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        >>> layout.flatten({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        tensor([1., 1., 1., 1., 0.])
        """
        names = self.names
        if isinstance(params, Mapping) and names is not None and set(params) == set(names):
            params = {name: params[name] for name in names}
        layout = Layout.of(params)
        if layout != self:
            got = layout.describe()
            expected = self.describe()
            raise InputError(f"parameters of shape {got} were given where {expected} is expected")
        if isinstance(params, Tensor):
            params = {"tensor": params}
        rows = []
        for tensor in params.values():
            row = tensor.detach().flatten()
            rows.append(row)
        return torch.cat(rows)

    def views(self, vector: Tensor) -> list[Tensor]:
        """The tensors as views of `vector` [D]; a single split, so that its gradient is a single cat."""
        views = []
        parts = vector.split(self.sizes)
        for part, shape in zip(parts, self.shapes, strict=True):
            view = part.view(shape)
            views.append(view)
        return views

    def unflatten(self, vector: Tensor) -> Tensor | dict[str, Tensor]:
        """The views of `vector` [D] by name, or the one view of a bare tensor."""
        views = self.views(vector)
        if self.names is None:
            return views[0]
        return dict(zip(self.names, views, strict=True))

    def describe(self) -> str:
        names = self.names or ("tensor",)
        tensors = []
        for name, shape in zip(names, self.shapes, strict=True):
            size = list(shape)
            tensors.append(f"{name}{size}")
        return first_of(tensors, 4)
