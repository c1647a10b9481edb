"""Models measured on data that stay on the device: one recorded graph of one size, pass after pass."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..layers.replay import Replay
from ..problem import LossFunction, per_example

if TYPE_CHECKING:
    from .slots import Slots


@dataclass(frozen=True)
class Resident:
    """A pool's inputs as rows, gathered at the speed of memory; images lie with their channels last, as patches do."""

    rows: Tensor  # [N, numbers of an example]
    shape: torch.Size  # of an example, as the model takes it

    @classmethod
    def of(cls, inputs: Tensor) -> "Resident":
        image = inputs.ndim == 4
        lying = inputs.permute(0, 2, 3, 1) if image else inputs
        return cls(lying.reshape(len(inputs), -1).contiguous(), inputs.shape[1:])

    def examples(self, rows: Tensor) -> Tensor:
        """[..., numbers] -> [..., *shape]."""
        if len(self.shape) == 3:
            channels, height, width = self.shape
            return rows.view(*rows.shape[:-1], height, width, channels).movedim(-1, -3)
        return rows.view(*rows.shape[:-1], *self.shape)


class Measure:
    """A model's outputs over pools of examples like those of `resident`, `length` at a time, and a value of each."""

    def __init__(self, engine: "Slots", resident: Resident, length: int) -> None:
        self.engine, self.resident, self.length = engine, resident, length
        problem = engine.problem
        alike = resident.shape == engine.resident[id(problem.train)].shape  # else other taps may meet the image
        self.live = engine.live(crop=alike)
        self.theta = torch.zeros(len(self.live), dtype=problem.theta.dtype, device=problem.device)
        self.inputs = torch.zeros_like(self.resident.rows[:1]).repeat(length, 1)
        engine.model.eval()
        with torch.no_grad():
            self.replay = Replay(self._outputs, (self.theta, self.inputs))

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor, rows: Tensor, of: LossFunction) -> Tensor:
        """[len(rows)] the value of each of these rows of `inputs`."""
        self.theta.copy_(theta[self.live.columns])
        found = torch.empty(len(rows), dtype=self.theta.dtype, device=rows.device)
        for start in range(0, len(rows), self.length):
            part = rows[start : start + self.length]
            torch.index_select(inputs, 0, part, out=self.inputs[: len(part)])
            outputs = self.replay()[: len(part)]
            found[start : start + self.length].copy_(per_example(of(outputs, targets[part])))
        return found

    def _outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        weights, rest = self.live.split(theta)
        examples = self.resident.examples(inputs)
        return self.engine.outputs(self.live, weights.to(self.engine.compute), rest, examples, stacked=False)
