"""One client's work with an ordinary torch module: the loss before training, local training, its score."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor

from ... import trees
from ...clients.client import Pool
from ...core import streams
from ...core.server import OptimizerStates, Update
from ...local.optimizer import clip_factor
from ...losses import Functions, LossFunction, per_example, values
from ..layers.dropout import Masks
from ..module_modes import own_random_numbers, private_copy
from ..problem import Problem, Task
from ..totals import add_by_class
from .augmenting import augmented

Trained = tuple[Tensor, Tensor | None]  # weights after training, and at the snapshot step

ROWS_AT_ONCE = 1024  # examples in one forward pass of a measurement


class Worker:
    """A private copy of the model, loaded with whatever is to be trained or measured.

    `alone`: no other worker shares torch's random numbers, so that a model that draws some by itself (dropout does not)
    can have a stream of its own for each (seed, round, client), and in evaluation for each client.
    """

    def __init__(
        self,
        problem: Problem,
        alone: bool = True,
    ) -> None:
        self.problem = problem
        self.alone = alone
        self.model = private_copy(problem.model)
        by_name = dict(self.model.named_parameters())
        self.parameters = [by_name[name] for name in problem.layout.names or ()]
        self.moments: OptimizerStates  # of the last training's optimiser
        self.model_buffers = dict(self.model.named_buffers())

    def load(
        self,
        theta: Tensor,
        buffers: Mapping[str, Tensor],
    ) -> None:
        values = theta.split(self.problem.layout.sizes)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value.view_as(parameter))
            for name, value in buffers.items():
                self.model_buffers[name].copy_(value)

    def vector(self) -> Tensor:
        flat = [parameter.detach().reshape(-1) for parameter in self.parameters]
        return torch.cat(flat)

    def mean(
        self,
        of: LossFunction,
        pool: Pool,
        client: int,
    ) -> float:
        """Of one function alone."""
        (mean,) = self.means((of,), pool, client)
        return mean

    def means(
        self,
        of: Functions,
        pool: Pool,
        client: int,
        by_class: Tensor | None = None,
    ) -> list[float]:
        """Means over one client's rows at the loaded model, in evaluation mode, summed in float64.

        Totals of the last function by class are added to `by_class` [classes].
        """
        inputs, targets = pool.of(client)
        examples = len(targets)
        if examples == 0:
            return [float("nan")] * len(of)
        self.model.eval()
        totals = torch.zeros(len(of), dtype=torch.float64, device=targets.device)
        with torch.no_grad(), self._evaluated(client):
            for start in range(0, examples, ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                outputs = trees.outputs(self.model, trees.rows(inputs, part))
                table = values(of, outputs, targets[part])
                totals += table.T.contiguous().sum(1)
                if by_class is not None:
                    add_by_class(by_class, table[:, -1], targets[part])
        return [total / examples for total in totals.tolist()]

    def outputs(
        self,
        pool: Pool,
        client: int,
    ) -> Tensor:
        """[rows, ...] the loaded model's outputs for one client's rows, in evaluation mode."""
        inputs, targets = pool.of(client)
        self.model.eval()
        parts = []
        with torch.no_grad(), self._evaluated(client):
            for start in range(0, len(targets), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                parts.append(trees.outputs(self.model, trees.rows(inputs, part)))
        return torch.cat(parts)

    def train(
        self,
        task: Task,
        position: int,
    ) -> Update:
        """Local training of the task's client at `position`, as the difference it makes to the incoming model."""
        trained, snapshot = self.weights_after(task, position)
        if snapshot is not None:
            snapshot = (task.theta - snapshot)[None]
        delta = (task.theta - trained)[None]
        ids = task.ids[position].reshape(1)
        moments = None
        if task.moments is not None:
            moments = OptimizerStates(self.moments.values[None], self.moments.taken[None])
        return Update(ids, delta, snapshot, self.buffers(), moments)

    def weights_after(
        self,
        task: Task,
        position: int,
    ) -> Trained:
        """The same as new weights [D], and those at the snapshot step: what travels between machines."""
        if not self.alone:
            return self._local_steps(task, position)
        client = int(task.ids[position])
        with self._seeded(task.seed, task.index, client):
            return self._local_steps(task, position)

    @contextmanager
    def _seeded(self, *identity: int) -> Iterator[None]:
        """The model draws random numbers that depend on these alone."""
        key = streams.hashed(*identity)
        with own_random_numbers(self.problem.device):
            torch.manual_seed(int(key) >> 1)
            yield

    def _evaluated(self, client: int) -> AbstractContextManager[None]:
        """For one client's measurement: a model that draws random numbers draws the same ones every time."""
        if self.alone and self.problem.draws_when_evaluated:
            return self._seeded(client)
        return nullcontext()

    def buffers(self) -> dict[str, Tensor]:
        """The buffers as the last training left them, with a leading client axis."""
        copies = {}
        for name, buffer in self.model_buffers.items():
            copies[name] = buffer.detach().clone()[None]
        return copies

    def _local_steps(
        self,
        task: Task,
        position: int,
    ) -> Trained:
        problem = self.problem
        client = int(task.ids[position])
        inputs, targets = problem.train.of(client)
        start = task.theta
        if task.starts is not None:
            start = task.starts[position]
        self.load(start, task.buffers or {})
        problem.in_training(self.model)
        moments = task.local.optimizer.fresh(start)
        if task.moments is not None:
            values = task.moments.values[position]
            taken = task.moments.taken[position]
            moments = OptimizerStates(values.clone(), taken.clone())
        snapshot = None
        snapshot_step = 0  # never
        if task.snapshot_steps is not None:
            snapshot_step = int(task.snapshot_steps[position])
        (batches,) = streams.batches(
            seeds=task.seed,
            index=task.index,
            clients=np.array([client]),
            sizes=np.array([len(targets)]),
            batching=task.local.batching,
        )
        steps = np.arange(len(batches))
        keys = streams.step_keys(task.seed, task.index, client, steps)
        step_keys = torch.from_numpy(keys).to(problem.device)
        for step, rows in enumerate(batches, start=1):
            real = rows[rows >= 0]  # a short batch ends in -1
            batch = torch.from_numpy(real).to(problem.device)
            key = step_keys[step - 1]
            x = augmented(task.local.augment, trees.rows(inputs, batch), key)
            with Masks(key):
                outputs = trees.outputs(self.model, x)
            losses = problem.loss(outputs, targets[batch])
            loss = per_example(losses).mean()
            if task.local_loss is not None:
                loss = task.local_loss(loss)
            self._descend(loss, task, moments)
            if step == snapshot_step:
                snapshot = self.vector()
        self.moments = moments
        return self.vector(), snapshot

    def _descend(
        self,
        loss: Tensor,
        task: Task,
        moments: OptimizerStates,
    ) -> None:
        """One step of the optimiser down the local loss and prox / 2 |theta_i - theta|^2."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        sizes = self.problem.layout.sizes
        anchors = task.theta.split(sizes)
        local = task.local
        with torch.no_grad():
            steps = []
            for parameter, gradient, anchor in zip(self.parameters, gradients, anchors, strict=True):
                step = torch.zeros_like(parameter) if gradient is None else gradient
                if local.prox:
                    moved = parameter - anchor.view_as(parameter)
                    step = step + local.prox * moved
                steps.append(step)
            if local.clip is not None:
                factor = clip_factor([step.flatten() for step in steps], local.clip)
                steps = [factor * step for step in steps]
            states = moments.values.split(sizes, dim=-1)  # [M, d] of each parameter
            for parameter, gradient, step, state in zip(self.parameters, gradients, steps, states, strict=True):
                if gradient is None and not local.prox:
                    continue  # nor does torch.optim decay it
                own = [row.view_as(parameter) for row in state]
                direction = local.optimizer.direction(parameter, step, own, moments.taken)
                parameter.sub_(local.lr * direction)
            moments.taken.add_(1)
