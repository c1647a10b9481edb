"""What the device's memory holds: clients' inputs as rows, and attempts that may not fit."""

import gc
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ... import trees
from ...trees import Inputs
from ..layers.recurrent import wherever_weights_lie
from ..module_modes import private_copy
from ..problem import Problem

Made = TypeVar("Made")


def none_if_out_of_memory(make: Callable[[], Made]) -> Made | None:
    """What `make` makes. None if the device runs out of memory, once everything it allocated is freed."""
    try:
        return make()
    except torch.OutOfMemoryError:
        pass  # and forgotten here: its traceback holds what was made
    gc.collect()
    torch.cuda.empty_cache()
    return None


CPU_ACTIVATIONS = 1 << 31  # bytes that a stack may keep for its gradients; of a GPU's memory, half


def examples_at_once(problem: Problem) -> int:
    """Whose activations fit into memory. A small trained part says little of a large frozen base's.

    Other models are stacked by their number of parameters alone.
    """
    has_base = any(not parameter.requires_grad for parameter in problem.model.parameters())
    if not has_base and isinstance(problem.train.inputs, Tensor):
        return sys.maxsize
    available = CPU_ACTIVATIONS
    if problem.device.type == "cuda":
        _, total = torch.cuda.mem_get_info(problem.device)
        available = total // 2
    per_example = max(1, activations(problem))
    return max(1, available // per_example)


def activations(problem: Problem) -> int:
    """Bytes that autograd keeps of one example's forward pass."""
    model = private_copy(problem.model).eval()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in parameters:
            kept[place] = storage.nbytes()
        return tensor

    inputs, targets = problem.train.at(slice(2))
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with hooks, wherever_weights_lie():
        outputs = trees.outputs(model, inputs)
        loss = problem.loss(outputs, targets)
    del loss
    return sum(kept.values()) // len(targets)


Shapes = tuple[torch.Size, ...]  # of one example, for each input


def example_shapes(inputs: Inputs) -> Shapes:
    """The shapes of one example."""
    return tuple(tensor.shape[1:] for tensor in trees.leaves(inputs))


@dataclass(frozen=True)
class DeviceInputs:
    """A pool's inputs as rows, gathered at the speed of memory. Images lie channels last, as patches do."""

    rows: tuple[Tensor, ...]  # [N, numbers per example], for each input
    shapes: Shapes  # as the model takes them
    structure: Inputs  # one tensor, a dict or a tuple: what `rows` are rebuilt to

    @classmethod
    def of(cls, inputs: Inputs) -> "DeviceInputs":
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
        images = rows.view(*leading, height, width, channels)
        return images.movedim(-1, -3)
    return rows.view(*leading, *shape)
