"""One client's work with an ordinary torch module: the loss before training, local training, its score."""

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...client import Pool
from ...core import streams
from ...core.server import Update
from ..problem import LossFunction, Problem, Task, per_example

ROWS_AT_ONCE = 1024  # examples in one forward pass of a measurement


class Worker:
    """A private copy of the model, loaded with whatever is to be trained or measured.

    `alone`: no other worker shares torch's random numbers, so that a model with dropout can have a stream
    of its own for each (seed, round, client).
    """

    def __init__(self, problem: Problem, alone: bool = True) -> None:
        self.problem = problem
        self.alone = alone
        self.model = copy.deepcopy(problem.model)
        parameters = dict(self.model.named_parameters())
        self.parameters = [parameters[name] for name in problem.layout.names or ()]
        self.model_buffers = dict(self.model.named_buffers())

    def load(self, theta: Tensor, buffers: Mapping[str, Tensor]) -> None:
        values = theta.split(self.problem.layout.sizes)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value.view_as(parameter))
            for name, value in buffers.items():
                self.model_buffers[name].copy_(value)

    def vector(self) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def mean(self, of: LossFunction, pool: Pool, client: int) -> float:
        """Mean of `of` over one client's rows at the loaded model, in evaluation mode, summed in float64."""
        inputs, targets = pool.of(client)
        if len(inputs) == 0:
            return float("nan")
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=inputs.device)
        with torch.no_grad():
            for x, y in zip(inputs.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True):
                values = per_example(of(self.model(x), y))
                total += values.double().sum()
        return float(total) / len(inputs)

    def train(self, task: Task, position: int) -> Update:
        """Local SGD of the task's client at `position`, as the difference it makes to the incoming model."""
        trained, snapshot = self.weights_after(task, position)
        return Update(
            ids=task.ids[position].reshape(1),
            delta=(task.theta - trained)[None],
            snapshot=None if snapshot is None else (task.theta - snapshot)[None],
            buffers=self.buffers(),
        )

    def weights_after(self, task: Task, position: int) -> tuple[Tensor, Tensor | None]:
        """The same as new weights [D], and those at the snapshot step: what travels between machines."""
        if not self.alone:
            return self._local_steps(task, position)
        device = self.problem.device
        client = int(task.ids[position])
        key = streams.hashed(task.seed, task.index, client)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(key >> np.uint64(1)))
            return self._local_steps(task, position)

    def buffers(self) -> dict[str, Tensor]:
        """The buffers as the last training left them, with a leading client axis."""
        return {name: buffer.detach().clone()[None] for name, buffer in self.model_buffers.items()}

    def _local_steps(self, task: Task, position: int) -> tuple[Tensor, Tensor | None]:
        problem = self.problem
        client = int(task.ids[position])
        inputs, targets = problem.train.of(client)
        start = task.theta if task.starts is None else task.starts[position]
        self.load(start, task.buffers or {})
        self.model.train()
        snapshot = None
        snapshot_step = -1 if task.snapshot_steps is None else int(task.snapshot_steps[position])
        (batches,) = streams.batches(
            task.seed, task.index, np.array([client]), np.array([len(inputs)]), problem.batch_size, problem.local_epochs
        )
        for step, rows in enumerate(batches, start=1):
            batch = torch.from_numpy(rows[rows >= 0]).to(problem.device)  # a short batch ends in -1
            outputs = self.model(inputs[batch])
            loss = per_example(problem.loss(outputs, targets[batch])).mean()
            if task.local_loss is not None:
                loss = task.local_loss(loss)
            self._descend(loss, task)
            if step == snapshot_step:
                snapshot = self.vector()
        return self.vector(), snapshot

    def _descend(self, loss: Tensor, task: Task) -> None:
        """theta_i <- theta_i - lr (gradient + prox (theta_i - theta))."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        anchors = task.theta.split(self.problem.layout.sizes)
        with torch.no_grad():
            for parameter, gradient, anchor in zip(self.parameters, gradients, anchors, strict=True):
                step = torch.zeros_like(parameter) if gradient is None else gradient
                if task.prox:
                    step = step + task.prox * (parameter - anchor.view_as(parameter))
                parameter.sub_(task.lr * step)
