"""Models measured on data that stay on the device: one recorded graph of one size, pass after pass."""

import torch
from torch import Tensor

from ...client import Pool
from ...losses import LossFunction, per_example
from ..layers.replay import Replay
from .memory import Resident
from .network import Network


class Measure:
    """A model's outputs over pools of examples like those of `resident`, `length` at a time, and a value of each."""

    def __init__(self, network: Network, resident: Resident, length: int) -> None:
        problem = network.problem
        self.network = network
        self.resident = resident
        self.length = length
        like_training = resident.shape == problem.train.inputs.shape[1:]
        self.live = network.live(crop=like_training)  # other taps may meet an image of another size
        self.theta = network.zeros(len(self.live))
        numbers = resident.rows.shape[1]
        self.inputs = resident.rows.new_zeros(length, numbers)
        network.model.eval()
        with torch.no_grad():
            self.replay = Replay(self._outputs, (self.theta, self.inputs))

    def __call__(self, theta: Tensor, pool: Pool, inputs: Tensor, rows: Tensor, of: LossFunction) -> Tensor:
        """[len(rows)] the value of each of these rows of the pool, whose inputs lie in `inputs`."""
        self.theta.copy_(theta[self.live.columns])
        values = self.network.zeros(len(rows))
        for start in range(0, len(rows), self.length):
            end = start + self.length
            part = rows[start:end]
            count = len(part)
            torch.index_select(inputs, 0, part, out=self.inputs[:count])
            outputs = self.replay()[:count]
            losses = of(outputs, pool.targets[part])
            values[start:end] = per_example(losses)
        return values

    def _outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        network = self.network
        weights, rest = self.live.split(theta)
        weights = weights.to(network.compute)
        examples = self.resident.examples(inputs)
        return network.outputs(self.live, weights, rest, examples, stacked=False)
