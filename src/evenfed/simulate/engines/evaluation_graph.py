"""Models measured on data that stay on the device: one recorded graph of one size, pass after pass."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...clients.client import Pool
from ...losses import Functions, values
from ..layers.replay import Replay
from .memory import DeviceInputs, example_shapes
from .network import SlotModel


def _first(outputs: Any, count: int) -> Any:
    """Of each tensor a model gave, the first rows."""
    return tree_map_only(Tensor, lambda output: output[:count], outputs)


class EvaluationGraph:
    """A model's outputs over pools of examples like those of `resident`, `length` at a time, and a value of each."""

    def __init__(self, network: SlotModel, resident: DeviceInputs, length: int) -> None:
        problem = network.problem
        self.network = network
        self.resident = resident
        self.length = length
        like_training = resident.shapes == example_shapes(problem.train.inputs)
        self.live = network.live(crop=like_training)  # other taps may meet an image of another size
        self.theta = network.zeros(len(self.live))
        self.inputs = resident.empty(length)
        network.model.eval()
        with torch.no_grad():
            self.replay = Replay(self._outputs, (self.theta, *self.inputs))

    def __call__(self, theta: Tensor, pool: Pool, inputs: DeviceInputs, rows: Tensor, of: Functions) -> Tensor:
        """[len(rows), len(of)] values of these rows of the pool, whose inputs lie in `inputs`."""
        self.theta.copy_(theta[self.live.columns])
        table = self.network.zeros(len(rows), len(of))
        for start in range(0, len(rows), self.length):
            end = start + self.length
            part = rows[start:end]
            count = len(part)
            buffers = [buffer[:count] for buffer in self.inputs]
            inputs.gather(part, buffers)
            outputs = _first(self.replay(), count)
            targets = pool.targets[part]
            table[start:end] = values(of, outputs, targets)
        return table

    def _outputs(self, theta: Tensor, *inputs: Tensor) -> Any:
        network = self.network
        weights, rest = self.live.split(theta)
        weights = weights.to(network.compute)
        examples = self.resident.examples(inputs)
        return network.outputs(self.live, weights, rest, examples, stacked=False)
