"""One client's work with an ordinary torch module: the loss before training, local training, its score."""

import copy
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...client import Pool
from ...core import streams
from ...core.server import Update
from ..problem import LossFunction, Problem, Task, per_example


class Worker:
    """A private copy of the model, loaded with whatever is to be trained or measured.

    `alone`: no other worker shares torch's random numbers, so a model with dropout can be given a stream
    of its own for each (seed, round, client).
    """

    def __init__(self, problem: Problem, alone: bool = True) -> None:
        self.problem, self.alone = problem, alone
        self.model = copy.deepcopy(problem.model)
        parameters = dict(self.model.named_parameters())
        self.parameters = [parameters[name] for name in problem.layout.names or ()]
        self.model_buffers = dict(self.model.named_buffers())

    def load(self, theta: Tensor, buffers: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, theta.split(self.problem.layout.sizes), strict=True):
                parameter.copy_(value.view_as(parameter))
            for name, value in buffers.items():
                self.model_buffers[name].copy_(value)

    def vector(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def mean(self, of: LossFunction, pool: Pool, client: int) -> float:
        """Mean of `of` over one client's rows at the loaded model, in evaluation mode, summed in float64."""
        inputs, targets = pool.of(client)
        if len(inputs) == 0:
            return float("nan")
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=inputs.device)
        with torch.no_grad():
            for x, y in zip(inputs.split(1024), targets.split(1024), strict=True):
                total += per_example(of(self.model(x), y)).double().sum()
        return float(total) / len(inputs)

    def train(self, orders: Task, position: int) -> Update:
        """Local SGD of the client at `position` of the orders, as the difference it makes to the incoming model."""
        after, snapshot = self.weights_after(orders, position)
        kept = None if snapshot is None else (orders.theta - snapshot)[None]
        return Update(orders.ids[position].reshape(1), (orders.theta - after)[None], kept, self.buffers())

    def weights_after(self, orders: Task, position: int) -> tuple[Tensor, Tensor | None]:
        """The same as new weights [D], and those at the snapshot step: what travels between machines."""
        if not self.alone:
            return self._steps(orders, position)
        with torch.random.fork_rng(devices=[self.problem.device] if self.problem.device.type == "cuda" else []):
            torch.manual_seed(int(streams.hashed(orders.seed, orders.index, int(orders.ids[position])) >> np.uint64(1)))
            return self._steps(orders, position)

    def buffers(self) -> dict[str, Tensor]:
        """The buffers as the last training left them, with a leading client axis."""
        return {name: b.detach().clone()[None] for name, b in self.model_buffers.items()}

    def _steps(self, orders: Task, position: int) -> tuple[Tensor, Tensor | None]:
        problem, client = self.problem, int(orders.ids[position])
        inputs, targets = problem.train.of(client)
        self.load(orders.theta if orders.starts is None else orders.starts[position], orders.buffers or {})
        self.model.train()
        snapshot, keep_at = None, -1 if orders.snapshot_steps is None else int(orders.snapshot_steps[position])
        for step, rows in enumerate(self._batches(orders, client, len(inputs)), start=1):
            batch = torch.from_numpy(rows[rows >= 0]).to(problem.device)
            loss = per_example(problem.loss(self.model(inputs[batch]), targets[batch])).mean()
            if orders.local_loss is not None:
                loss = orders.local_loss(loss)
            self._descend(loss, orders)
            if step == keep_at:
                snapshot = self.vector()
        return self.vector(), snapshot

    def _batches(self, orders: Task, client: int, size: int) -> NDArray[np.int64]:
        """[steps, batch] the client's own rows, -1 where there is none."""
        one, sizes = np.array([client]), np.array([size])
        p = self.problem
        rows: NDArray[np.int64] = streams.batches(orders.seed, orders.index, one, sizes, p.batch_size, p.local_epochs)[
            0
        ]
        return rows

    def _descend(self, loss: Tensor, orders: Task) -> None:
        """theta_i <- theta_i - lr (gradient + prox (theta_i - theta))."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        anchors = orders.theta.split(self.problem.layout.sizes)
        with torch.no_grad():
            for parameter, gradient, anchor in zip(self.parameters, gradients, anchors, strict=True):
                step = torch.zeros_like(parameter) if gradient is None else gradient
                if orders.prox:
                    step = step + orders.prox * (parameter - anchor.view_as(parameter))
                parameter.sub_(orders.lr * step)
