"""Models measured on data that stay on the device: one recorded graph of one size, pass after pass."""

import torch
from torch import Tensor

from ..layers.replay import Replay
from ..problem import LossFunction, per_example
from .memory import Resident
from .network import Network


class Measure:
    """A model's outputs over pools of examples like those of `resident`, `length` at a time, and a value of each."""

    def __init__(self, network: Network, resident: Resident, length: int) -> None:
        self.network = network
        self.resident = resident
        self.length = length
        trained_on = network.problem.train.inputs.shape[1:]
        self.live = network.live(crop=resident.shape == trained_on)  # other taps may meet an image of another size
        self.theta = torch.zeros(len(self.live), dtype=network.dtype, device=network.problem.device)
        self.inputs = resident.rows.new_zeros((length, resident.rows.shape[1]))
        network.model.eval()
        with torch.no_grad():
            self.replay = Replay(self._outputs, (self.theta, self.inputs))

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor, rows: Tensor, of: LossFunction) -> Tensor:
        """[len(rows)] the value of each of these rows of `inputs`."""
        self.theta.copy_(theta[self.live.columns])
        values = torch.empty(len(rows), dtype=self.theta.dtype, device=rows.device)
        for start in range(0, len(rows), self.length):
            end = start + self.length
            part = rows[start:end]
            torch.index_select(inputs, 0, part, out=self.inputs[: len(part)])
            outputs = self.replay()[: len(part)]
            values[start:end].copy_(per_example(of(outputs, targets[part])))
        return values

    def _outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        network = self.network
        weights, rest = self.live.split(theta)
        examples = self.resident.examples(inputs)
        return network.outputs(self.live, weights.to(network.compute), rest, examples, stacked=False)
