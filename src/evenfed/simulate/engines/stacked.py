"""Clients of one or many runs stacked on a leading axis: one vectorised step trains all of them.

Unequal clients cost nothing: a stack is sorted by steps, and each step works on the prefix that still
has one to do. Short batches are padded with examples of weight zero, which is exact for models whose
examples do not see each other (checked before the first round).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from ...client import Pool
from ...core import streams
from ...core.server import Update
from ..layers.tracing import Traced
from ..problem import LocalLoss, LossFunction, Problem, Question, Task, Updates, per_example, slope
from .schedule import Integers
from .vectorised import Vectorised

ROWS = 1 << 15  # examples in one forward pass of a measurement


class Stacked(Vectorised):
    """Trains `slots` clients at a time in lock step."""

    def __init__(self, problem: Problem, slots: int) -> None:
        super().__init__(problem, slots)
        self.gradients = Traced(self._gradients)
        self.shared_values: dict[LossFunction, Traced] = {}

    @property
    def how(self) -> str:
        return f"clients stacked, up to {self.slots} at once"

    def train(self, tasks: Sequence[Task]) -> Updates:
        """Stacks of whole runs where they fit, so that each run's updates come back together."""
        if not any(len(task.ids) for task in tasks):
            return
        lengths = [len(task.ids) for task in tasks]
        owner = np.repeat(np.arange(len(tasks)), lengths)
        position = np.concatenate([np.arange(length) for length in lengths])
        for start in range(0, len(owner), self.slots):
            end = start + self.slots
            yield from Stack(self, tasks, owner[start:end], position[start:end]).updates()

    def _gradients(self, thetas: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient [c, D] and value [c] of each slot's batch loss; `rows` [c, b] of the pool, `mask` 0 or 1."""

        def batch_loss(theta: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            return self.problem.batch_loss(self._outputs(theta, x), y, mask)

        pool = self.problem.train
        at = thetas.detach().requires_grad_()
        with torch.enable_grad(), self.rewritten():
            losses = vmap(batch_loss)(at, pool.inputs[rows], pool.targets[rows], mask)
            (gradient,) = torch.autograd.grad(losses.sum(), at)
        return gradient, losses.detach()

    def _outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        parameters = self.problem.layout.unflatten(theta)
        assert isinstance(parameters, dict)
        outputs: Tensor = functional_call(self.model, parameters, (inputs,))
        return outputs

    def _values(self, of: LossFunction) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The value of each example under a model, as a function of the model, inputs and targets."""

        def values(theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            return per_example(of(self._outputs(theta, inputs), targets))

        return values

    def _shared_data(self, thetas: Tensor, ids: Tensor, pool: Pool, of: LossFunction) -> Tensor:
        """[runs, len(ids)]: every run's model on the same rows."""
        if of not in self.shared_values:
            self.shared_values[of] = Traced(vmap(self._values(of), in_dims=(0, None, None)))
        values = self.shared_values[of]  # [runs, rows]
        inputs = pool.inputs
        targets = pool.targets
        if len(ids) < len(pool.sizes):
            rows = pool.rows(ids).to(inputs.device)
            inputs = inputs[rows]
            targets = targets[rows]
        sizes = pool.sizes[ids]
        owner = torch.repeat_interleave(torch.arange(len(ids)), sizes).to(inputs.device)
        totals = torch.zeros(len(thetas), len(ids), dtype=torch.float64, device=inputs.device)
        runs_at_once = max(1, min(len(thetas), ROWS // 256))
        rows_at_once = max(1, ROWS // runs_at_once)
        for first_run in range(0, len(thetas), runs_at_once):
            runs = slice(first_run, first_run + runs_at_once)
            for first_row in range(0, len(inputs), rows_at_once):
                part = slice(first_row, first_row + rows_at_once)
                found = values(thetas[runs], inputs[part], targets[part])
                totals[runs].index_add_(1, owner[part], found.double())
        return (totals / sizes.to(totals)).cpu()

    def _own_models(self, question: Question, pool: Pool, of: LossFunction) -> Tensor:
        """[len(ids)]: each client's own model on its own rows, padded to the longest of a stack."""
        means = torch.full((len(question.ids),), torch.nan, dtype=torch.float64)
        values = vmap(self._values(of))
        all_sizes = pool.sizes[question.ids]
        longest = max(1, int(all_sizes.max()))
        clients_at_once = max(1, min(self.slots, ROWS // longest))
        by_size = all_sizes.argsort(descending=True)
        with_data = by_size[all_sizes[by_size] > 0]
        for stack in with_data.split(clients_at_once):
            ids = question.ids[stack]
            sizes = all_sizes[stack]
            column = torch.arange(int(sizes.max()))
            rows = pool.starts[ids][:, None] + column.clamp(max=sizes[:, None] - 1)
            rows = rows.to(pool.inputs.device)
            found = values(question.models[ids], pool.inputs[rows], pool.targets[rows]).double().cpu()
            is_real = column < sizes[:, None]
            means[stack] = (found * is_real).sum(1) / sizes
        return means


class Stack:
    """One stack of clients through all their local steps.

    Slots are sorted by steps, then by size, the largest first: each step then works on a prefix, whose first slot
    has the widest batch.
    """

    def __init__(self, engine: Stacked, tasks: Sequence[Task], owner: Integers, position: Integers) -> None:
        problem = engine.problem
        pool = problem.train
        self.engine = engine
        self.tasks = tasks
        clients = _column([task.ids for task in tasks], owner, position)
        sizes = pool.sizes.numpy()[clients]
        steps = streams.local_steps(sizes, problem.batch_size, problem.local_epochs)
        order = np.lexsort((-sizes, -steps))
        self.owner = owner[order]
        self.position = position[order]
        self.clients = clients[order]
        self.steps = steps[order]
        self.original_order = np.argsort(order)
        seeds = np.array([task.seed for task in tasks])
        table = streams.batches(
            seeds[self.owner], tasks[0].index, self.clients, sizes[order], problem.batch_size, problem.local_epochs
        )
        is_real = table >= 0
        starts = pool.starts.numpy()[self.clients]
        rows = np.maximum(table, 0) + starts[:, None, None]
        self.rows = self._on_device(rows)
        self.mask = torch.from_numpy(is_real).to(tasks[0].theta)
        self.width = is_real.sum(2).max(0)  # [steps]
        self.incoming = torch.stack([task.theta for task in tasks])[self._on_device(self.owner)]
        self.thetas = self.incoming.clone()
        for which, task in enumerate(tasks):
            if task.starts is not None:
                own = self.position[self.owner == which]
                self.thetas[self._slots_of(which)] = task.starts[torch.from_numpy(own)]
        lr = np.array([task.lr for task in tasks])[self.owner]
        prox = np.array([task.prox for task in tasks])[self.owner]
        self.lr = torch.from_numpy(lr)[:, None].to(self.incoming)
        self.prox = torch.from_numpy(prox)[:, None].to(self.incoming)
        self.pulled = bool((prox > 0).any())

    def updates(self) -> Updates:
        """Train, then hand each run its own rows."""
        self.engine.model.train()
        local_losses = self._local_losses()
        snapshot_steps = self._snapshot_steps()
        has_snapshots = bool((snapshot_steps > 0).any())
        snapshots = torch.zeros_like(self.thetas) if has_snapshots else None
        for step in range(int(self.steps.max())):
            active = int((self.steps > step).sum())
            self._step(step, active, local_losses)
            if snapshots is not None:
                due = self._on_device(np.flatnonzero(snapshot_steps == step + 1))
                snapshots[due] = self.incoming[due] - self.thetas[due]
        original = self.original_order
        owner = self.owner[original]
        clients = torch.from_numpy(self.clients[original])
        deltas = (self.incoming - self.thetas)[self._on_device(original)]
        if snapshots is not None:
            snapshots = snapshots[self._on_device(original)]
        for which in np.unique(owner).tolist():
            own = slice(*np.searchsorted(owner, (which, which + 1)))
            snapshot = None
            if snapshots is not None and self.tasks[which].snapshot_steps is not None:
                snapshot = snapshots[own]
            yield which, Update(clients[own], deltas[own], snapshot)

    def _step(self, step: int, active: int, local_losses: Sequence[tuple[Tensor, LocalLoss]]) -> None:
        """One SGD step of the first `active` slots."""
        width = int(self.width[step])
        thetas = self.thetas[:active]
        rows = self.rows[:active, step, :width]
        mask = self.mask[:active, step, :width]
        gradient, losses = self.engine.gradients(thetas, rows, mask)
        for slots, local_loss in local_losses:  # the chain rule: one factor per slot
            own = slots[slots < active]
            gradient[own] *= slope(local_loss, losses[own])[:, None]
        if self.pulled:
            gradient += self.prox[:active] * (thetas - self.incoming[:active])
        thetas.addcmul_(gradient, self.lr[:active], value=-1)

    def _local_losses(self) -> list[tuple[Tensor, LocalLoss]]:
        """Slots whose local loss is changed, with that loss."""
        changed = []
        for which, task in enumerate(self.tasks):
            slots = self._slots_of(which)
            if task.local_loss is not None and len(slots):
                changed.append((slots, task.local_loss))
        return changed

    def _snapshot_steps(self) -> Integers:
        """[c] after how many steps each slot's snapshot is due, -1 for never."""
        steps = []
        for task in self.tasks:
            never = torch.full_like(task.ids, -1)
            steps.append(never if task.snapshot_steps is None else task.snapshot_steps)
        return _column(steps, self.owner, self.position)

    def _slots_of(self, which: int) -> Tensor:
        """[...] the slots of one task's clients, on the device."""
        return self._on_device(np.flatnonzero(self.owner == which))

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.engine.problem.device)


def _column(per_task: Sequence[Tensor], owner: Integers, position: Integers) -> Integers:
    """[c] the entry of each slot in its task's own column."""
    begins = np.cumsum([0, *map(len, per_task[:-1])])
    entries: Integers = torch.cat(list(per_task)).numpy()
    return entries[begins[owner] + position]
