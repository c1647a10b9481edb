"""What the device's memory holds: clients' inputs as rows, and attempts that may not fit."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

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


@dataclass(frozen=True)
class Resident:
    """A pool's inputs as rows, gathered at the speed of memory. Images lie channels last, as patches do."""

    rows: Tensor  # [N, numbers per example]
    shape: torch.Size  # of an example, as the model takes it

    @classmethod
    def of(cls, inputs: Tensor) -> "Resident":
        is_image = inputs.ndim == 4
        ordered = inputs.permute(0, 2, 3, 1) if is_image else inputs
        rows = ordered.reshape(len(inputs), -1).contiguous()
        return cls(rows, inputs.shape[1:])

    def examples(self, rows: Tensor) -> Tensor:
        """[..., numbers] -> [..., *shape]."""
        leading = rows.shape[:-1]
        if len(self.shape) == 3:
            channels, height, width = self.shape
            return rows.view(*leading, height, width, channels).movedim(-1, -3)
        return rows.view(*leading, *self.shape)
