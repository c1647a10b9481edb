"""Clients of all runs in a fixed number of slots, refilled as they fall free: every step has the same shapes.

One step of all slots is one recorded graph, fed with batches gathered from data that stay on the device: it computes
the gradients of the stacked parameters, and moves these. It is the same for every federation, so that the compiler's
cache serves the next one. Nothing waits for the host until a round's end.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from ...client import Pool, holding
from ...core.errors import InputError, first_line
from ...core.server import Update
from ...settings import Precision
from ..layers import implicit
from ..layers.live import Live
from ..layers.replay import Replay
from ..problem import LossFunction, Problem, Question, Task, slope
from .measuring import Measure, Resident
from .memory import Made, fitting
from .schedule import Event, Schedule, examples
from .vectorised import Vectorised

LocalLoss = Callable[[Tensor], Tensor]

MEASURED_ROWS = 5120  # examples in one forward pass of a measurement


class Slots(Vectorised):
    """Trains `slots` clients at a time; parameters are kept in full, and computed with in `precision`."""

    def __init__(self, problem: Problem, slots: int, precision: Precision = "fp32") -> None:
        super().__init__(problem, slots)
        if precision == "bf16" and problem.theta.dtype != torch.float32:
            kind = str(problem.theta.dtype).removeprefix("torch.")
            raise InputError(
                f"the model's parameters are {kind}, and bf16 rounds float32; convert it, or use precision='fp32'"
            )
        self.precision, self.asked = precision, slots
        self.compute = torch.bfloat16 if precision == "bf16" else problem.theta.dtype
        self.width = problem.batch_width
        self.live = lru_cache(partial(Live.of, self.model, problem.layout, problem.train.inputs[:2]))
        self.schedule = lru_cache(maxsize=4)(self._schedule)
        self.steps: dict[tuple[bool, tuple[LocalLoss, ...]], Step] = {}
        self.known: dict[Any, LocalLoss] = {}
        self.measuring: dict[Hashable, Measure] = {}  # by what examples are like
        self.measured_rows = MEASURED_ROWS
        implicit.has_kernels(problem.device.type, self.compute)  # tried out now: inside a trace it could not be
        self.plain: set[str] = set()  # convolutions that have no form of their own here
        with holding(problem.train.inputs):
            self.resident = {id(pool): Resident.of(pool.inputs) for pool in (problem.train, problem.judged) if pool}

    @property
    def how(self) -> str:
        """What runs, and what was left out."""
        replays = [step.replay for step in self.steps.values()] + [made.replay for made in self.measuring.values()]
        notes = {note for replay in replays for note in replay.notes}
        if self.slots < self.asked:
            notes.add(f"{self.asked} did not fit into the device's memory")
        if self.measured_rows < MEASURED_ROWS:
            notes.add(f"measured {self.measured_rows} examples at a time, as more did not fit")
        if any(replay.has_kernels for replay in replays):
            notes.add("large convolutions by kernels of its own")
        if self.plain:
            notes.add(f"left to torch's own grouped form, which is slower: {', '.join(sorted(self.plain))}")
        done = {"traced": True}
        if self.problem.device.type == "cuda":
            recorded = all(replay.graph is not None for replay in replays)
            done = {"compiled": all(replay.compiled for replay in replays), "one CUDA graph a step": recorded}
        kinds = [self.precision, *(kind for kind, holds in done.items() if holds)]
        told = "; ".join([", ".join(kinds), *sorted(notes)])
        return f"{self.slots} slots refilled with clients of all runs, {told}"

    def train(self, orders: Sequence[Task]) -> Iterator[tuple[int, Update]]:
        """All orders in one queue; each run's updates come back together, when its last client has ended."""
        if not any(len(o.ids) for o in orders):
            return
        orders = [dataclasses.replace(o, local_loss=self._known(o.local_loss)) for o in orders]
        local_losses = tuple(dict.fromkeys(o.local_loss for o in orders if o.local_loss is not None))
        step = self._step(any(o.prox > 0 for o in orders), local_losses)
        yield from Shift(self, step, orders).updates()

    def _known(self, local_loss: LocalLoss | None) -> LocalLoss | None:
        """Methods of equal algorithms are one: a step is made for it once."""
        if local_loss is None:
            return None
        key = (getattr(local_loss, "__func__", local_loss), getattr(local_loss, "__self__", None))
        return self.known.setdefault(key, local_loss)

    def _schedule(self, sizes: bytes, slots: int) -> tuple[Schedule, Tensor, Tensor]:
        """The schedule with its table on the device; most rounds have the same."""
        p = self.problem
        made = Schedule.of(np.frombuffer(sizes, dtype=np.int64), slots, p.batch_size or self.width, p.local_epochs)
        return made, torch.from_numpy(made.first).to(p.device), torch.from_numpy(made.count).to(p.device)

    def _step(self, pulled: bool, local_losses: tuple[LocalLoss, ...]) -> "Step":
        """Made at first need; with fewer slots where the device's memory does not suffice."""
        while (pulled, local_losses) not in self.steps:
            made = self._fitting(lambda: Step(self, pulled, local_losses))
            if made is not None:
                self.steps[pulled, local_losses] = made
            elif not self.shrink():
                raise InputError(
                    f"the device's memory does not hold one client's training step ({len(self.problem.theta)} "
                    f"parameters, batch of {self.width}); use a smaller batch_size or model"
                )
        return self.steps[pulled, local_losses]

    def _fitting(self, make: Callable[[], Made]) -> Made | None:
        """None where memory does not suffice; what a model mixes and torch does not is told with the way out."""
        try:
            return fitting(make)
        except RuntimeError as error:
            if self.compute == self.problem.theta.dtype:
                raise
            told = f"the model cannot be computed in bf16 ({first_line(error)}); use precision='tf32' or 'fp32'"
            raise InputError(told) from error

    def shrink(self) -> bool:
        self.steps.clear()
        return super().shrink()

    def outputs(self, live: Live, weights: Tensor, rest: Tensor, x: Tensor, stacked: bool) -> Tensor:
        """The model's outputs for a batch, in full precision."""
        parameters = live.parameters(weights, rest)
        device = self.problem.device.type
        reduced = torch.autocast(device, self.compute) if self.precision == "bf16" else nullcontext()
        with live.rewriting(parameters, self.plain if stacked else None), reduced:
            found: Tensor = functional_call(self.model, parameters, (x,))
        return found.to(rest.dtype) if found.is_floating_point() else found

    def _shared_data(self, thetas: Tensor, ids: Tensor, pool: Pool, of: LossFunction) -> Tensor:
        """[runs, len(ids)]: one model after another over the same rows, in passes of one size."""
        sizes, device = pool.sizes[ids], pool.inputs.device
        everyone = len(ids) == len(pool.sizes)
        rows = torch.arange(len(pool.inputs), device=device) if everyone else pool.rows(ids).to(device)
        measure, inputs = self._measuring(pool), self.resident[id(pool)].rows
        found = torch.stack([measure(theta, inputs, pool.targets, rows, of) for theta in thetas], 1).double()
        lengths = sizes.to(found.device)
        totals = torch.segment_reduce(found, "sum", lengths=lengths, axis=0, initial=0.0, unsafe=True)
        return (totals.T / lengths).cpu()

    def _own_models(self, question: Question, pool: Pool, of: LossFunction) -> Tensor:
        """[len(ids)]: each client's own model on its own rows, by the same passes."""
        measure, inputs = self._measuring(pool), self.resident[id(pool)].rows
        means = torch.full((len(question.ids),), torch.nan, dtype=torch.float64, device=inputs.device)
        for k, client in enumerate(question.ids.tolist()):
            size, start = int(pool.sizes[client]), int(pool.starts[client])
            if size:
                rows = torch.arange(start, start + size, device=inputs.device)
                means[k] = measure(question.models[client], inputs, pool.targets, rows, of).double().mean()
        return means.cpu()

    def _measuring(self, pool: Pool) -> "Measure":
        """Made at first need; with shorter passes where the device's memory does not suffice."""
        resident = self.resident[id(pool)]
        alike = resident.shape, resident.rows.dtype
        while alike not in self.measuring:
            length = min(self.measured_rows, max(len(each.rows) for each in self.resident.values()))
            made = self._fitting(lambda: Measure(self, resident, length))  # noqa: B023  (called at once)
            if made is not None:
                self.measuring[alike] = made
            elif length == 1:
                raise InputError(
                    f"the device's memory does not hold the model's outputs for one example ({len(self.problem.theta)} "
                    "parameters); use a smaller model"
                )
            else:
                self.measured_rows = length // 2
        return self.measuring[alike]


class Step:
    """One SGD step of all slots, in place."""

    def __init__(self, engine: Slots, pulled: bool, local_losses: tuple[LocalLoss, ...]) -> None:
        problem, count = engine.problem, engine.slots
        self.engine, self.pulled, self.local_losses = engine, pulled, local_losses
        self.live = engine.live(crop=not pulled)  # if pulled, those without gradient move too
        zeros = partial(torch.zeros, dtype=problem.theta.dtype, device=problem.device)
        self.weights, self.rest = (zeros((count, size)) for size in self.live.sizes)
        full = engine.compute == self.weights.dtype
        self.rounded = self.weights[:, :0] if full else self.weights.to(engine.compute)  # written with the weights
        self.anchor = zeros((count, len(self.live) if pulled else 0))
        self.resident, self.pool = engine.resident[id(problem.train)], problem.train
        self.inputs, self.targets = (
            torch.zeros_like(held[:1]).repeat(count * engine.width, *[1] * (held.ndim - 1))
            for held in (self.resident.rows, self.pool.targets)
        )
        self.mask = zeros((count, engine.width))
        self.lr, self.prox = zeros((2, count, 1))
        self.kind = torch.zeros(count, dtype=torch.int64, device=problem.device)
        engine.model.train()
        clients = (self.weights, self.rest, self.rounded, self.anchor, self.lr, self.prox, self.kind)
        self.replay = Replay(self._descend, (*clients, self.inputs, self.targets, self.mask))

    def __call__(self, rows: Tensor, mask: Tensor) -> None:
        """On these examples [slots, width] of the pool; `mask` is 0 for those that only fill a batch up."""
        torch.index_select(self.resident.rows, 0, rows.flatten(), out=self.inputs)
        torch.index_select(self.pool.targets, 0, rows.flatten(), out=self.targets)
        self.mask.copy_(mask)
        self.replay()

    def put(self, slots: Tensor | int, vectors: Tensor) -> None:
        """New parameters in some slots."""
        weights, rest = self.live.split(vectors)
        self.weights[slots], self.rest[slots] = weights, rest
        if self.rounded.numel():
            self.rounded[slots] = weights.to(self.rounded.dtype)

    def get(self, slots: Tensor | int) -> Tensor:
        """The parameters in some slots."""
        return torch.cat([self.weights[slots], self.rest[slots]], -1)

    def _descend(
        self,
        weights: Tensor,
        rest: Tensor,
        rounded: Tensor,
        anchor: Tensor,
        lr: Tensor,
        prox: Tensor,
        kind: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
    ) -> None:
        """theta_i <- theta_i - lr (gradient + prox (theta_i - theta)), in every slot."""
        used = rounded if rounded.numel() else weights
        x, y = (each.unflatten(0, mask.shape) for each in (inputs, targets))
        gradients, losses = self._gradients(used, rest, self.resident.examples(x), y, mask)
        factors = self._factors(losses, kind)[:, None] if self.local_losses else None
        anchors = self.live.split(anchor) if self.pulled else (None, None)
        for theta, gradient, origin in zip((weights, rest), gradients, anchors, strict=True):
            gradient = gradient.to(theta.dtype)
            if factors is not None:
                gradient = gradient * factors
            if origin is not None:
                gradient = gradient + prox * (theta - origin)
            after = theta - lr * gradient
            theta.copy_(after)
            if theta is weights and rounded.numel():
                rounded.copy_(after)

    def _gradients(
        self, weights: Tensor, rest: Tensor, x: Tensor, y: Tensor, mask: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Gradients of `weights` and `rest`, and the value [slots], of each slot's batch loss."""
        engine = self.engine

        def batch_loss(weights: Tensor, rest: Tensor, x: Tensor, y: Tensor, m: Tensor) -> Tensor:
            return engine.problem.batch_loss(engine.outputs(self.live, weights, rest, x, stacked=True), y, m)

        at = (weights.detach().requires_grad_(), rest.detach().requires_grad_())
        with torch.enable_grad():
            losses = vmap(batch_loss)(*at, x, y, mask)
            found = torch.autograd.grad(losses.sum(), at, allow_unused=True, materialize_grads=True)
        return found, losses.detach()

    def _factors(self, losses: Tensor, kind: Tensor) -> Tensor:
        """The chain rule through a changed local loss: one factor a slot."""
        factors = torch.ones_like(losses)
        for number, local_loss in enumerate(self.local_losses, start=1):
            factors = torch.where(kind == number, slope(local_loss, losses), factors)
        return factors


class Shift:
    """One round's work: the clients of all orders through the slots."""

    def __init__(self, engine: Slots, step: Step, orders: Sequence[Task]) -> None:
        problem, pool = engine.problem, engine.problem.train
        self.step, self.orders = step, orders
        held = pool.sizes.numpy()
        # run after run, so that few runs' updates are held at once; each run's largest client first
        queue = [np.argsort(-held[o.ids.numpy()], kind="stable") for o in orders]
        self.which = np.repeat(np.arange(len(orders)), [len(q) for q in queue])
        self.position = np.concatenate(queue)
        clients = np.concatenate([o.ids.numpy()[q] for o, q in zip(orders, queue, strict=True)])
        sizes = held[clients]
        self.schedule, first, count = engine.schedule(sizes.tobytes(), engine.slots)
        seeds = np.array([o.seed for o in orders])[self.which]
        begins, index = pool.starts.numpy()[clients], orders[0].index
        table = examples(seeds, index, clients, sizes, problem.local_epochs, begins, problem.device)
        column = torch.arange(engine.width, device=problem.device)
        last = (count - 1).clamp(min=0)[..., None]  # a short batch is filled up with its own last example
        self.rows = table[(first[..., None] + column.minimum(last)).clamp(max=len(table) - 1)]  # [steps, slots, width]
        self.mask = (column < count[..., None]).to(step.mask.dtype)
        columns = step.live.columns
        self.incoming = [o.theta[columns] for o in orders]
        self.starts = [None if o.starts is None else o.starts[:, columns] for o in orders]
        self.deltas: dict[int, Tensor] = {}
        self.kept: dict[int, Tensor] = {}
        self.left = np.bincount(self.which, minlength=len(orders))
        self.halfway = self._halfway()

    def updates(self) -> Iterator[tuple[int, Update]]:
        step, schedule = self.step, self.schedule
        for t in range(len(schedule)):
            if t in schedule.begin:
                self._begin(schedule.begin[t])
            step(self.rows[t], self.mask[t])
            for event in self.halfway.get(t, ()):
                self._note(event, self.kept)
            if t in schedule.end:
                yield from self._end(schedule.end[t])

    def _begin(self, event: Event) -> None:
        """New clients take over free slots."""
        for which, slots, positions in self._by_orders(event):
            order, start = self.orders[which], self.starts[which]
            self.step.put(slots, self.incoming[which] if start is None else start[positions])
            if self.step.pulled:
                self.step.anchor[slots] = self.incoming[which]
                self.step.prox[slots] = order.prox
            self.step.lr[slots] = order.lr
            if self.step.local_losses:
                self.step.kind[slots] = (
                    0 if order.local_loss is None else 1 + self.step.local_losses.index(order.local_loss)
                )

    def _end(self, event: Event) -> Iterator[tuple[int, Update]]:
        """Clients whose last step is done; a run's updates once all its clients are."""
        self._note(event, self.deltas)
        for which, count in zip(*np.unique(self.which[event.jobs], return_counts=True), strict=True):
            self.left[which] -= count
            if not self.left[which]:
                yield int(which), self._update(self.orders[which], self.deltas.pop(which), self.kept.pop(which, None))

    def _update(self, order: Task, deltas: Tensor, kept: Tensor | None) -> Update:
        columns = self.step.live.columns
        if order.starts is None:
            return Update(order.ids, deltas, kept, columns=columns)
        whole = order.theta - order.starts  # parameters that do not learn stay as far away as they were
        snapshot = None if kept is None else whole.index_copy(1, columns, kept)
        return Update(order.ids, whole.index_copy(1, columns, deltas), snapshot)

    def _note(self, event: Event, into: dict[int, Tensor]) -> None:
        """How far these clients have moved, in their run's rows."""
        for which, slots, positions in self._by_orders(event):
            incoming = self.incoming[which]
            if which not in into:
                into[which] = incoming.new_zeros(len(self.orders[which].ids), len(incoming))
            into[which][positions] = incoming - self.step.get(slots)

    def _by_orders(self, event: Event) -> Iterator[tuple[int, Tensor | int, Tensor | int]]:
        """(orders, slots, positions) of an event; single ones as numbers, which cost no transfer."""
        owners = self.which[event.jobs]
        for which in np.unique(owners):
            own = owners == which
            slots, positions = event.slots[own], self.position[event.jobs[own]]
            if len(slots) == 1:
                yield int(which), int(slots[0]), int(positions[0])
            else:
                yield int(which), self._moved(slots), self._moved(positions)

    def _moved(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.step.mask.device, non_blocking=True)

    def _halfway(self) -> dict[int, list[Event]]:
        """After which step which clients' snapshots are due."""
        due: dict[int, list[Event]] = {}
        planned = [None if o.snapshot_steps is None else o.snapshot_steps.numpy() for o in self.orders]
        if all(steps is None for steps in planned):
            return due
        for t, event in self.schedule.begin.items():
            for slot, job in zip(event.slots, event.jobs, strict=True):
                steps = planned[self.which[job]]
                if steps is not None:
                    at = t + int(steps[self.position[job]]) - 1
                    due.setdefault(at, []).append(Event(np.array([slot]), np.array([job])))
        return due
