"""What the device's memory holds: clients' inputs as rows, and attempts that may not fit."""

import gc
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ... import trees
from ...trees import Inputs

Made = TypeVar("Made")


def fitting(make: Callable[[], Made]) -> Made | None:
    """What `make` makes. None if the device runs out of memory, once everything it allocated is freed."""
    try:
        return make()
    except torch.OutOfMemoryError:
        pass  # and forgotten here: its traceback holds what was made
    gc.collect()
    torch.cuda.empty_cache()
    return None


Shapes = tuple[torch.Size, ...]  # of one example, for each input


def example_shapes(inputs: Inputs) -> Shapes:
    """The shapes of one example."""
    return tuple(tensor.shape[1:] for tensor in trees.leaves(inputs))


@dataclass(frozen=True)
class Resident:
    """A pool's inputs as rows, gathered at the speed of memory. Images lie channels last, as patches do."""

    rows: tuple[Tensor, ...]  # [N, numbers per example], for each input
    shapes: Shapes  # as the model takes them
    structure: Inputs  # one tensor, a dict or a tuple: what `rows` are rebuilt to

    @classmethod
    def of(cls, inputs: Inputs) -> "Resident":
        rows = tuple(_as_rows(tensor) for tensor in trees.leaves(inputs))
        return cls(rows, example_shapes(inputs), trees.rows(inputs, slice(0)))

    def __len__(self) -> int:
        return len(self.rows[0])

    @property
    def form(self) -> Hashable:
        """Equal where one recorded graph can serve both."""
        dtypes = tuple(rows.dtype for rows in self.rows)
        return self.shapes, dtypes

    def empty(self, count: int) -> tuple[Tensor, ...]:
        """Room for `count` examples."""
        return tuple(rows.new_zeros(count, rows.shape[1]) for rows in self.rows)

    def gather(self, chosen: Tensor, into: Sequence[Tensor]) -> None:
        """The chosen examples, written into such room."""
        for rows, buffer in zip(self.rows, into, strict=True):
            torch.index_select(rows, 0, chosen, out=buffer)

    def examples(self, rows: Sequence[Tensor]) -> Inputs:
        """[..., numbers] -> [..., *shape], as the model takes them."""
        tensors = []
        for tensor, shape in zip(rows, self.shapes, strict=True):
            tensors.append(_as_examples(tensor, shape))
        return trees.rebuilt(self.structure, tensors)


def _as_rows(inputs: Tensor) -> Tensor:
    is_image = inputs.ndim == 4
    ordered = inputs.permute(0, 2, 3, 1) if is_image else inputs
    return ordered.reshape(len(inputs), -1).contiguous()


def _as_examples(rows: Tensor, shape: torch.Size) -> Tensor:
    leading = rows.shape[:-1]
    if len(shape) == 3:
        channels, height, width = shape
        return rows.view(*leading, height, width, channels).movedim(-1, -3)
    return rows.view(*leading, *shape)
