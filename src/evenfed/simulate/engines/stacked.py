"""Clients of one or many runs stacked on a leading axis: one vectorised step trains all of them.

Unequal clients cost nothing: a stack is sorted by steps, and each step works on the prefix that still
has one to do. Short batches are padded with examples of weight zero, which is exact for models whose
examples do not see each other (checked before the first round).
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from ...client import Pool
from ...core import streams
from ...core.server import Update
from ..layers.tracing import Traced
from ..problem import LossFunction, Problem, Question, Task, per_example, slope
from .vectorised import Vectorised


class Stacked(Vectorised):
    """Trains `slots` clients at a time in lock step."""

    def __init__(self, problem: Problem, slots: int) -> None:
        super().__init__(problem, slots)
        self.gradients = Traced(self._gradients)
        self.shared_values: dict[LossFunction, Traced] = {}

    @property
    def how(self) -> str:
        return f"clients stacked, up to {self.slots} at once"

    def train(self, orders: Sequence[Task]) -> Iterator[tuple[int, Update]]:
        """Stacks of whole runs where they fit, so that each run's updates come back together."""
        if not any(len(o.ids) for o in orders):
            return
        which = np.repeat(np.arange(len(orders)), [len(o.ids) for o in orders])
        position = np.concatenate([np.arange(len(o.ids)) for o in orders])
        for cut in range(0, len(which), self.slots):
            here = slice(cut, cut + self.slots)
            yield from Stack(self, orders, which[here], position[here]).updates()

    def _gradients(self, thetas: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient [c, D] and value [c] of each slot's batch loss; `rows` [c, b] of the pool, `mask` 0 or 1."""

        def batch_loss(theta: Tensor, x: Tensor, y: Tensor, m: Tensor) -> Tensor:
            return self.problem.batch_loss(self._outputs(theta, x), y, m)

        pool, at = self.problem.train, thetas.detach().requires_grad_()
        with torch.enable_grad(), self.rewritten():
            losses = vmap(batch_loss)(at, pool.inputs[rows], pool.targets[rows], mask)
            (gradient,) = torch.autograd.grad(losses.sum(), at)
        return gradient, losses.detach()

    def _outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        parameters = self.problem.layout.unflatten(theta)
        assert isinstance(parameters, dict)
        outputs: Tensor = functional_call(self.model, parameters, (inputs,))
        return outputs

    def _values(self, of: LossFunction, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return per_example(of(self._outputs(theta, inputs), targets))

    def _shared_values(self, of: LossFunction) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """[runs, rows]: the value of every example under every run's model."""
        return vmap(lambda theta, x, y: self._values(of, theta, x, y), in_dims=(0, None, None))

    def _shared_data(self, thetas: Tensor, ids: Tensor, pool: Pool, of: LossFunction) -> Tensor:
        """[runs, len(ids)]: every run's model on the same rows."""
        values = self.shared_values.setdefault(of, Traced(self._shared_values(of)))
        everyone = len(ids) == len(pool.sizes)
        rows = None if everyone else pool.rows(ids).to(pool.inputs.device)
        inputs = pool.inputs if rows is None else pool.inputs[rows]
        targets = pool.targets if rows is None else pool.targets[rows]
        owner = torch.repeat_interleave(torch.arange(len(ids)), pool.sizes[ids]).to(inputs.device)
        totals = torch.zeros(len(thetas), len(ids), dtype=torch.float64, device=inputs.device)
        at_once = max(1, min(len(thetas), ROWS // 256))
        length = max(1, ROWS // at_once)
        for some in torch.arange(len(thetas)).split(at_once):
            for start in range(0, len(inputs), length):
                part = slice(start, start + length)
                totals[some[0] : some[-1] + 1].index_add_(
                    1, owner[part], values(thetas[some], inputs[part], targets[part]).double()
                )
        return (totals / pool.sizes[ids].to(totals)).cpu()

    def _own_models(self, question: Question, pool: Pool, of: LossFunction) -> Tensor:
        """[len(ids)]: each client's own model on its own rows, padded to the longest of a stack."""
        means = torch.full((len(question.ids),), torch.nan, dtype=torch.float64)
        values = vmap(lambda theta, x, y: self._values(of, theta, x, y))
        held = pool.sizes[question.ids]
        by_size = held.argsort(descending=True)
        for some in by_size[held[by_size] > 0].split(max(1, min(self.slots, ROWS // max(1, int(held.max()))))):
            ids, sizes = question.ids[some], held[some]
            column = torch.arange(int(sizes.max()))
            rows = (pool.starts[ids][:, None] + column.clamp(max=sizes[:, None] - 1)).to(pool.inputs.device)
            found = values(question.models[ids], pool.inputs[rows], pool.targets[rows]).double().cpu()
            means[some] = (found * (column < sizes[:, None])).sum(1) / sizes
        return means


ROWS = 1 << 15  # examples in one forward pass of a measurement


class Stack:
    """One stack of clients through all their local steps."""

    def __init__(self, engine: Stacked, orders: Sequence[Task], which: np.ndarray, position: np.ndarray) -> None:
        pool, problem = engine.problem.train, engine.problem
        self.engine, self.orders = engine, orders
        clients = self._column([o.ids for o in orders], which, position)
        sizes = pool.sizes.numpy()[clients]
        steps = streams.local_steps(sizes, problem.batch_size, problem.local_epochs)
        # more steps first, then larger: each step then works on a prefix, whose first is its widest
        sort = np.lexsort((-sizes, -steps))
        self.which, self.position, self.clients, self.steps = which[sort], position[sort], clients[sort], steps[sort]
        self.back = np.argsort(sort)
        seeds = np.array([o.seed for o in orders])[self.which]
        table = streams.batches(
            seeds, orders[0].index, self.clients, sizes[sort], problem.batch_size, problem.local_epochs
        )
        self.mask = torch.from_numpy(table >= 0).to(orders[0].theta)
        self.width = (table >= 0).sum(2).max(0)
        starts = pool.starts.numpy()[self.clients]
        self.rows = torch.from_numpy(np.maximum(table, 0) + starts[:, None, None]).to(problem.device)
        incoming = torch.stack([o.theta for o in orders])
        self.incoming = incoming[torch.from_numpy(self.which).to(incoming.device)]
        self.thetas = self.incoming.clone()
        for w, order in enumerate(orders):
            if order.starts is not None:
                own = self._slots(w)
                self.thetas[own] = order.starts[torch.from_numpy(self.position[self.which == w])]
        self.lr, self.prox = (
            torch.tensor([getattr(o, name) for o in orders], dtype=incoming.dtype, device=incoming.device)[
                torch.from_numpy(self.which).to(incoming.device)
            ][:, None]
            for name in ("lr", "prox")
        )
        self.pulled = bool((self.prox > 0).any())

    def updates(self) -> Iterator[tuple[int, Update]]:
        """Train, then hand each run its own rows."""
        self.engine.model.train()
        slopes = self._slopes()
        snapshots = self._snapshot_steps()
        kept = torch.zeros_like(self.thetas) if snapshots is not None else None
        for step in range(int(self.steps.max())):
            active = int((self.steps > step).sum())
            self._step(step, active, slopes)
            if snapshots is not None and kept is not None:
                now = torch.from_numpy(np.flatnonzero(snapshots == step + 1)).to(kept.device)
                kept[now] = self.incoming[now] - self.thetas[now]
        back = torch.from_numpy(self.back).to(self.thetas.device)
        deltas = (self.incoming - self.thetas)[back]
        which, clients = self.which[self.back], torch.from_numpy(self.clients[self.back])
        for w in np.unique(which):
            own = slice(int(np.searchsorted(which, w)), int(np.searchsorted(which, w, side="right")))
            snapshot = None
            if kept is not None and self.orders[w].snapshot_steps is not None:
                snapshot = kept[back][own]
            yield int(w), Update(clients[own], deltas[own], snapshot)

    def _step(self, step: int, active: int, slopes: Sequence[tuple[Tensor, Callable[[Tensor], Tensor]]]) -> None:
        """One SGD step of the first `active` slots."""
        width = int(self.width[step])
        rows, mask = self.rows[:active, step, :width], self.mask[:active, step, :width]
        gradient, losses = self.engine.gradients(self.thetas[:active], rows, mask)
        for slots, local_loss in slopes:  # the chain rule through a changed local loss: one factor a slot
            own = slots[slots < active]
            gradient[own] *= slope(local_loss, losses[own])[:, None]
        if self.pulled:
            gradient += self.prox[:active] * (self.thetas[:active] - self.incoming[:active])
        self.thetas[:active].addcmul_(gradient, self.lr[:active], value=-1)

    def _slopes(self) -> list[tuple[Tensor, Callable[[Tensor], Tensor]]]:
        return [
            (self._slots(w), o.local_loss)
            for w, o in enumerate(self.orders)
            if o.local_loss is not None and bool((self.which == w).any())
        ]

    def _snapshot_steps(self) -> np.ndarray | None:
        if all(o.snapshot_steps is None for o in self.orders):
            return None
        never = [torch.full_like(o.ids, -1) if o.snapshot_steps is None else o.snapshot_steps for o in self.orders]
        return self._column(never, self.which, self.position)

    @staticmethod
    def _column(of: Sequence[Tensor], which: np.ndarray, position: np.ndarray) -> np.ndarray:
        """[c] the entry of each slot in its own orders' column."""
        begins = np.cumsum([0, *map(len, of[:-1])])
        column: np.ndarray = torch.cat(list(of)).numpy()[begins[which] + position]
        return column

    def _slots(self, which: int) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.which == which)).to(self.engine.problem.device)
