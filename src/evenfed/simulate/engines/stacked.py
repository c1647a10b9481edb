"""Clients of one or many runs stacked on a leading axis: one vectorised step trains all of them.

Unequal clients cost nothing: a stack is sorted by steps, and each step works on the prefix that still
has one to do. Short batches are padded with examples of weight zero, which is exact for models whose
examples do not see each other (checked before the first round).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ... import trees
from ...augment import Augmentation
from ...clients.client import Pool, owners
from ...core import streams
from ...core.maths import slope
from ...core.server import Update
from ...local.optimizer import clip_factor
from ...losses import Functions, values
from ...trees import Inputs
from .. import optimizer_states
from ..layers.dropout import Masks
from ..layers.replay import Traced
from ..problem import EvalRequest, EvalResult, LocalLoss, Problem, Task, Updates
from ..totals import add_by_class, add_by_client
from .augmenting import augmented
from .jobs import ClientJobs, of_equal_form
from .vectorised import Vectorised, fetched

ROWS = 1 << 15  # examples in one forward pass of a measurement


class Stacked(Vectorised):
    """Trains `slots` clients at a time in lock step; measures up to `rows` examples at a time."""

    def __init__(
        self,
        problem: Problem,
        slots: int,
        rows: int = ROWS,
    ) -> None:
        super().__init__(problem, slots)
        self.rows = min(rows, ROWS)
        self.traced: dict[Augmentation | None, Traced] = {}
        self.shared_values: dict[Functions, Traced] = {}

    @property
    def how(self) -> str:
        return f"clients stacked, up to {self.slots} at once"

    def train(self, tasks: Sequence[Task]) -> Updates:
        """Stacks of whole runs where they fit, so that each run's updates come back together."""
        every = ClientJobs.of(tasks, self.problem.train)
        for members in of_equal_form(tasks):
            jobs = every.subset(np.isin(every.task, members))
            for start in range(0, len(jobs), self.slots):
                part = slice(start, start + self.slots)
                stack = Stack(self, tasks, jobs.subset(part))
                yield from stack.updates()

    def gradients(
        self,
        thetas: Tensor,
        rows: Tensor,
        mask: Tensor,
        keys: Tensor,
        augment: Augmentation | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradient [c, D] and value [c] of each slot's batch loss.

        `rows` [c, b] of the pool, `mask` 0 or 1, `keys` [c] of the slots' steps.
        """
        if augment not in self.traced:
            self.traced[augment] = Traced(partial(self._gradients, augment))
        gradient, losses = self.traced[augment](thetas, rows, mask, keys)
        return gradient, losses

    def _gradients(
        self,
        augment: Augmentation | None,
        thetas: Tensor,
        rows: Tensor,
        mask: Tensor,
        keys: Tensor,
    ) -> tuple[Tensor, Tensor]:
        problem = self.problem

        def batch_loss(
            theta: Tensor,
            x: Inputs,
            y: Tensor,
            mask: Tensor,
            key: Tensor,
        ) -> Tensor:
            x = augmented(augment, x, key)
            with Masks(key):
                outputs = self._outputs(theta, x)
            return problem.batch_loss(outputs, y, mask)

        at = thetas.detach().requires_grad_()
        x, y = problem.train.at(rows)
        with torch.enable_grad(), self.rewritten():
            losses = vmap(batch_loss)(at, x, y, mask, keys)
            (gradient,) = torch.autograd.grad(losses.sum(), at)
        return gradient, losses.detach()

    def _outputs(
        self,
        theta: Tensor,
        inputs: Inputs,
    ) -> Any:
        parameters = self.problem.layout.unflatten(theta)
        assert isinstance(parameters, dict)
        return trees.outputs(self.model, inputs, parameters)

    def values(self, of: Functions) -> Callable[..., Tensor]:
        """The values [b, len(of)] of each example under a model, as a function of the model, inputs and targets."""

        def values_of(
            theta: Tensor,
            inputs: Inputs,
            targets: Tensor,
        ) -> Tensor:
            outputs = self._outputs(theta, inputs)
            return values(of, outputs, targets)

        return values_of

    def _shared_data(
        self,
        thetas: Tensor,
        ids: Tensor,
        pool: Pool,
        of: Functions,
        classes: int | None,
    ) -> list[EvalResult]:
        if of not in self.shared_values:
            many_models = vmap(self.values(of), in_dims=(0, None, None))

            def of_tensors(thetas: Tensor, targets: Tensor, *tensors: Tensor) -> Tensor:
                return many_models(thetas, trees.rebuilt(pool.inputs, tensors), targets)

            self.shared_values[of] = Traced(of_tensors)
        values_of = self.shared_values[of]
        inputs = pool.inputs
        targets = pool.targets
        device = targets.device
        if len(ids) < len(pool.sizes):
            rows = pool.rows(ids).to(device)
            inputs, targets = pool.at(rows)
        count = len(thetas)
        sizes = pool.sizes[ids]
        owner = owners(sizes).to(device)
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        totals = zeros(count, len(ids), len(of))
        by_class = zeros(count, classes or 0)
        most_runs = max(1, self.rows // 256)
        runs_at_once = min(max(1, count), most_runs)
        rows_at_once = max(1, self.rows // runs_at_once)
        for first_run in range(0, count, runs_at_once):
            runs = slice(first_run, first_run + runs_at_once)
            for first_row in range(0, len(targets), rows_at_once):
                part = slice(first_row, first_row + rows_at_once)
                x = trees.leaves(trees.rows(inputs, part))
                table = values_of(thetas[runs], targets[part], *x)  # [runs, rows, len(of)]
                add_by_client(totals[runs], table, owner[part])
                if classes is not None:
                    right = table[:, :, -1]
                    add_by_class(by_class[runs], right, targets[part])
        means = totals.mT / sizes.to(totals)
        return fetched(means, by_class, classes)

    def _own_models(
        self,
        question: EvalRequest,
        pool: Pool,
        of: Functions,
        classes: int | None,
    ) -> EvalResult:
        """Of each client's own model on its own rows, padded to the longest of a stack."""
        values_of = vmap(self.values(of))
        all_sizes = pool.sizes[question.ids]
        shape = (len(of), len(all_sizes))
        means = torch.full(shape, torch.nan, dtype=torch.float64)
        by_class = torch.zeros(classes or 0, dtype=torch.float64)
        longest = max(1, int(all_sizes.max()))
        clients_at_once = min(self.slots, self.rows // longest)
        by_size = all_sizes.argsort(descending=True)
        with_data = by_size[all_sizes[by_size] > 0]
        for stack in with_data.split(max(1, clients_at_once)):
            ids = question.ids[stack]
            sizes = all_sizes[stack]
            last = sizes[:, None] - 1
            first_row = pool.starts[ids][:, None]
            column = torch.arange(int(sizes.max()))
            rows = first_row + column.clamp(max=last)
            x, y = pool.at(rows.to(pool.targets.device))
            table = values_of(question.models[ids], x, y).cpu()  # [clients, rows, len(of)]
            is_real = column <= last
            totals = (table.mT * is_real[:, None]).sum(2)
            means[:, stack] = totals.T / sizes
            if classes is not None:
                right = table[is_real][:, -1]
                labels = y.cpu()[is_real]
                add_by_class(by_class, right, labels)
        return EvalResult(means, None if classes is None else by_class)


class Stack:
    """One stack of clients, whose local training has the same form, through all their local steps.

    Slots are sorted by steps, then by size, the largest first: each step then works on a prefix, whose first slot
    has the widest batch.
    """

    def __init__(
        self,
        engine: Stacked,
        tasks: Sequence[Task],
        jobs: ClientJobs,
    ) -> None:
        self.engine = engine
        self.tasks = tasks
        self.local = tasks[jobs.task[0]].local.form
        batching = self.local.batching
        steps = batching.local_steps(jobs.examples)
        order = np.lexsort([-jobs.examples, -steps])
        self.original_order = np.argsort(order)
        self.jobs = jobs.subset(order)
        self.steps = steps[order]
        table = streams.batches(
            seeds=self.jobs.seed,
            index=tasks[0].index,
            clients=self.jobs.client,
            sizes=self.jobs.examples,
            batching=batching,
        )
        keys = streams.step_keys(
            seeds=self.jobs.seed[:, None],
            index=tasks[0].index,
            clients=self.jobs.client[:, None],
            steps=np.arange(table.shape[1]),
        )
        is_real = table >= 0
        first_row = self.jobs.first_row[:, None, None]
        rows = first_row + np.maximum(table, 0)
        thetas = torch.stack([task.theta for task in tasks])
        owner = self._on_device(self.jobs.task)
        self.rows = self._on_device(rows)
        self.keys = self._on_device(keys)  # [c, steps]
        self.mask = torch.from_numpy(is_real).to(thetas)
        self.width = is_real.sum(2).max(0)  # [steps] of the widest batch
        self.incoming = thetas[owner]
        self.thetas = self.incoming.clone()
        lr = self._on_device(self.jobs.lr)
        prox = self._on_device(self.jobs.prox)
        self.lr = lr[:, None].to(thetas)
        self.prox = prox[:, None].to(thetas)
        self.moments = self.local.optimizer.fresh(self.thetas)
        for which, task in enumerate(tasks):
            if task.starts is None and task.moments is None:
                continue
            own = np.flatnonzero(self.jobs.task == which)
            positions = torch.from_numpy(self.jobs.position[own])
            slots = self._on_device(own)
            if task.starts is not None:
                self.thetas[slots] = task.starts[positions]
            if task.moments is not None:
                self.moments.values[slots] = task.moments.values[positions]
                self.moments.taken[slots] = task.moments.taken[positions]
        self.pulled = bool((self.jobs.prox > 0).any())
        self.idle = self._without_gradient()
        has_snapshots = bool((self.jobs.snapshot_step > 0).any())
        self.snapshots = torch.zeros_like(self.thetas) if has_snapshots else None

    def _without_gradient(self) -> Tensor | None:
        """[c, D] the entries that no optimiser moves; None where it would not move them anyway."""
        unused = self.engine.problem.unused if self.local.optimizer.weight_decay else None
        return None if unused is None else unused & (self.prox == 0)

    def updates(self) -> Updates:
        """Train, then hand each run its own rows."""
        self._train()
        original = self._on_device(self.original_order)
        deltas = (self.incoming - self.thetas)[original]
        snapshots = None if self.snapshots is None else self.snapshots[original]
        jobs = self.jobs.subset(self.original_order)
        for which in np.unique(jobs.task).tolist():
            task = self.tasks[which]
            bounds = np.searchsorted(jobs.task, [which, which + 1])
            own = slice(*bounds)
            snapshot = None
            if snapshots is not None and task.snapshot_steps is not None:
                snapshot = snapshots[own]
            ids = torch.from_numpy(jobs.client[own])
            moments = None
            if task.moments is not None:
                moments = optimizer_states.select(self.moments, original[own])
            update = Update(ids, deltas[own], snapshot, moments=moments)
            yield which, update

    def _train(self) -> None:
        self.engine.problem.in_training(self.engine.model)
        local_losses = self._local_losses()
        for step in range(int(self.steps.max())):
            active = int((self.steps > step).sum())
            self._step(step, active, local_losses)
            if self.snapshots is not None:
                due = np.flatnonzero(self.jobs.snapshot_step == step + 1)
                slots = self._on_device(due)
                moved = self.incoming[slots] - self.thetas[slots]
                self.snapshots[slots] = moved

    def _step(
        self,
        step: int,
        active: int,
        local_losses: list[tuple[Tensor, LocalLoss]],
    ) -> None:
        width = int(self.width[step])
        thetas = self.thetas[:active]
        rows = self.rows[:active, step, :width]
        mask = self.mask[:active, step, :width]
        keys = self.keys[:active, step]
        engine = self.engine
        gradient, losses = engine.gradients(thetas, rows, mask, keys, self.local.augment)
        for slots, local_loss in local_losses:
            own = slots[slots < active]
            factors = slope(local_loss, losses[own])  # the chain rule
            gradient[own] *= factors[:, None]
        if self.pulled:
            moved = thetas - self.incoming[:active]
            gradient += self.prox[:active] * moved
        if self.local.clip is not None:
            gradient *= clip_factor([gradient], self.local.clip)
        taken = self.moments.taken[:active, None]
        optimizer = self.local.optimizer
        values = self.moments.values[:active]
        moments = [values[:, m] for m in range(optimizer.moments)]
        direction = optimizer.direction(thetas, gradient, moments, taken)
        if self.idle is not None:
            direction = direction.masked_fill(self.idle[:active], 0)
        thetas.addcmul_(direction, self.lr[:active], value=-1)
        taken += 1

    def _local_losses(self) -> list[tuple[Tensor, LocalLoss]]:
        """Slots whose local loss is changed, with that loss."""
        changed = []
        for which, task in enumerate(self.tasks):
            own = np.flatnonzero(self.jobs.task == which)
            if task.local_loss is not None and len(own):
                changed.append((self._on_device(own), task.local_loss))
        return changed

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        device = self.engine.problem.device
        return torch.from_numpy(numbers).to(device)
