"""Opening and closing a round: the only aggregation code, shared by every engine and by Flower.

Losses come first, so the weights are known before any update arrives; updates are then folded one by
one, in any order, and freed. Memory is one model and n numbers, except where an algorithm's definition
needs all updates at once (`needs = "gram"`).

>>> import torch, evenfed
>>> def loss(theta, data):                              # any model, any framework's training loop
...     return ((data - theta) ** 2).sum(1).mean()
>>> def train(theta, data, lr=0.1):                     # one local step, done by hand
...     return theta - lr * 2 * (theta - data.mean(0))
>>> clients = [torch.randn(size, 2, generator=torch.Generator().manual_seed(size)) for size in (5, 20, 40)]
>>> algorithm = evenfed.algorithms.get("semi_vred")
>>> server = evenfed.Server.start(algorithm, torch.zeros(2), sizes=[len(c) for c in clients], lr=0.1)
>>> for _ in range(3):
...     turn = evenfed.open_round(server, losses=[float(loss(server.params, c)) for c in clients])
...     updates = (
...         evenfed.Update(int(i), server.params - train(server.params, clients[i])) for i in turn.plan.ids
...     )
...     server, record = evenfed.close_round(turn, updates)
>>> record.index, record.weights.round(2).tolist(), server.params.shape
(2, [0.08, 0.32, 0.6], torch.Size([2]))
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import streams
from .algorithm import Plan, Round
from .errors import InputError
from .server import Past, Record, Server, Update

LossesAt = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Turn:
    """An open round: who trains with which weight, and what closing it needs to know."""

    server: Server
    round: Round
    plan: Plan
    losses: Tensor  # [n] as measured
    dropped: tuple[int, ...]


def open_round(server: Server, losses: Sequence[float] | Tensor, ids: Tensor | None = None) -> Turn:
    """Losses in, plan out. `losses` [m] belong to the clients `ids` [m] that take part (None: everyone)."""
    clients = len(server.sizes)
    if ids is None:
        ids = torch.arange(clients)
    ids = torch.as_tensor(ids, dtype=torch.int64)
    measured = torch.as_tensor(losses, dtype=torch.float64)
    if measured.shape != ids.shape:
        raise InputError(f"{len(measured)} losses for {len(ids)} participants; give one loss for each, in order")
    with_data = server.sizes[ids] > 0
    finite = measured.isfinite()
    failed = ids[with_data & ~finite]
    usable = with_data & finite
    ids = ids[usable]
    measured = measured[usable]
    table = torch.full((clients,), torch.nan).double()
    table[ids] = measured
    if server.smoothed is not None:
        server, measured = _smooth(server, ids, measured)
    round = _round_of(server, ids, measured)
    plan = Plan(ids, measured)
    if len(ids):
        algorithm = server.algorithm
        plan, memory = algorithm.plan(round, server.memory)
        server = dataclasses.replace(server, memory=memory)
        if algorithm.needs != "gram" and plan.personal is None:
            plan = _without_idle(plan)
    dropped = tuple(failed.tolist())
    return Turn(server, round, plan, table, dropped)


def close_round(turn: Turn, updates: Iterable[Update], losses_at: LossesAt | None = None) -> tuple[Server, Record]:
    """Updates in, new model out; each update is folded as it comes and freed.

    `losses_at(theta, ids)` measures the losses of `ids` at a flat model, for plans with a `probe` (DRFA).
    """
    fold = Fold(turn)
    for update in updates:
        fold.add(update)
    return fold.close(losses_at)


class _Check(NamedTuple):
    """What is known of some updates, still on their device."""

    positions: Tensor
    finite: Tensor
    sq_norms: Tensor | None


class Fold:
    """Takes updates one by one, in any order, and ends in the new server state."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.server = turn.server
        self.plan = turn.plan
        self.needs = self.server.algorithm.needs
        clients = len(self.server.sizes)
        count = len(self.plan.ids)
        self.position = torch.full((clients,), -1)
        self.position[self.plan.ids] = torch.arange(count)
        self.replied = torch.zeros(count, dtype=torch.bool)
        self.arrived = torch.zeros(count, dtype=torch.bool)  # and usable; known once the round closes
        self.sq_norms = torch.zeros(count, dtype=torch.float64)
        self.checks: list[_Check] = []
        self.buffers: dict[str, Tensor] = {}

        theta = self.server.theta
        accumulator = torch.promote_types(theta.dtype, torch.float32)
        shape = theta.shape
        if self.needs == "gram":
            shape = torch.Size([count, len(theta)])
        self.total = torch.zeros(shape, dtype=accumulator, device=theta.device)
        self.snapshot: Tensor | None = None
        if self.plan.snapshot_steps is not None:
            self.snapshot = torch.zeros_like(theta, dtype=accumulator)

    def add(self, update: Update) -> None:
        """Fold one update in; non-finite ones are left out and named in the record.

        Nothing here waits for a device: which updates were finite is read when the round closes.
        """
        ids = torch.as_tensor(update.ids).reshape(-1)
        positions = self._positions(ids)
        delta = self._rows(update, len(ids))
        delta = delta.to(self.total.dtype)
        finite = delta.sum(1).isfinite()
        usable = finite[:, None]
        delta = torch.where(usable, delta, 0)
        sq_norms = None
        if self.needs == "norms":
            norms = torch.linalg.vector_norm(delta, dim=1, dtype=torch.float64)
            sq_norms = norms.square()
        check = _Check(positions, finite, sq_norms)
        self.checks.append(check)

        columns = slice(None) if update.columns is None else update.columns
        weights = self.plan.weights[positions].to(delta.dtype)
        weights = weights.to(delta.device, non_blocking=True)
        if self.needs == "gram":
            for position, row in zip(positions.tolist(), delta, strict=True):
                self.total[position, columns] = row
        else:
            self.total[columns] += weights @ delta
        if self.snapshot is not None and update.snapshot is not None:
            snapshot = update.snapshot.reshape(len(ids), -1)
            snapshot = torch.where(usable, snapshot.to(delta.dtype), 0)
            self.snapshot[columns] += weights @ snapshot
        if update.buffers is not None:
            self._add_buffers(ids, update.buffers, finite)

    def _positions(self, ids: Tensor) -> Tensor:
        """Where these clients stand in the plan; from now on they have replied."""
        positions = self.position[ids]
        unplanned = bool((positions < 0).any())
        if unplanned or bool(self.replied[positions].any()):
            raise InputError(f"an update came from client {ids.tolist()}, which was not asked to train or has replied")
        self.replied[positions] = True
        return positions

    def _rows(self, update: Update, count: int) -> Tensor:
        """The update as rows [c, D]: a stack of flat vectors, or one client's model in its own structure or flat."""
        delta = update.delta
        if isinstance(delta, Tensor):
            if update.columns is not None:
                return delta.reshape(count, len(update.columns))
            stacked = isinstance(update.ids, Tensor) and update.ids.ndim == 1
            numbers = count * len(self.server.theta)
            if delta.numel() == numbers and (stacked or delta.ndim == 1):
                return delta.reshape(count, -1)
        row = self.server.layout.flatten(delta)
        return row[None]

    def _add_buffers(self, ids: Tensor, buffers: Mapping[str, Tensor], finite: Tensor) -> None:
        sizes = self.server.sizes[ids].double()
        for name, rows in buffers.items():
            if not rows.is_floating_point():
                self.buffers[name] = rows[0]  # counters are copied, never averaged
                continue
            trailing = [1] * (rows.ndim - 1)
            usable = finite.to(rows.device)
            usable = usable.view(-1, *trailing)
            clean = torch.where(usable, rows, 0)
            total = torch.tensordot(sizes.to(rows), clean, dims=1)
            if name in self.buffers:
                total = total + self.buffers[name]
            self.buffers[name] = total

    def close(self, losses_at: LossesAt | None = None) -> tuple[Server, Record]:
        """The new server state and the round's record."""
        self._read_checks()
        server = self.server
        plan = self.plan
        round = self.turn.round
        planned = float(plan.weights.sum())
        survived = float(plan.weights[self.arrived].sum())
        lost = plan.ids[~self.arrived]
        usable = survived > 0
        weights = torch.zeros(len(server.sizes), dtype=torch.float64)
        if usable:
            rescue = planned / survived
            if len(lost):
                plan = _restricted(plan, self.arrived, rescue)
                round = _among(round, plan.ids)
            if self.needs == "gram":
                applied, step, server = self._mixed(round, plan)
            else:
                applied, step = self._scaled(round, plan)
            weights[plan.ids] = applied
            server = moved(server, step)
            if plan.probe is not None and self.snapshot is not None:
                snapshot = self.snapshot * rescue
                server = self._probed(server, round, plan, snapshot, losses_at)
            buffers = self._averaged_buffers(plan.ids)
            server = dataclasses.replace(server, buffers=server.buffers | buffers)
        negative = weights < -1e-12
        record = Record(
            index=round.index,
            losses=self.turn.losses.numpy(),
            weights=weights.numpy(),
            objective=_objective(self.turn),
            negative_weights=int(negative.sum()),
            dropped=self.turn.dropped + tuple(lost.tolist()),
            skipped=not usable,
        )
        server = dataclasses.replace(server, index=server.index + 1)
        return server, record

    def _read_checks(self) -> None:
        """Read what was left on the device: whose updates were finite, and their norms."""
        for positions, finite, sq_norms in self.checks:
            self.arrived[positions] = finite.cpu()
            if sq_norms is not None:
                self.sq_norms[positions] = sq_norms.cpu()
        self.checks.clear()

    def _scaled(self, round: Round, plan: Plan) -> tuple[Tensor, Tensor]:
        """Applied weights [k] and the step Delta [D] from the sum of the updates."""
        factor = 1.0
        if self.needs == "norms":
            sq_norms = self.sq_norms[self.arrived]
            factor = self.server.algorithm.rescale(round, plan, sq_norms)
        survived = self.plan.weights[self.arrived].sum()
        rescue = float(plan.weights.sum() / survived)
        step = self.total * (factor * rescue)
        return plan.weights * factor, step

    def _mixed(self, round: Round, plan: Plan) -> tuple[Tensor, Tensor, Server]:
        """Applied weights [k], the step Delta [D], and the server with its new memory, from the single updates."""
        server = self.server
        algorithm = server.algorithm
        past = server.past
        ids = plan.ids
        ages = torch.zeros_like(ids)
        device = self.total.device
        rows = self.total[self.arrived.to(device)]
        span = algorithm.remembers()
        if past is not None and span:
            absent = ~torch.isin(past.ids, ids)
            recalled = absent & (past.ages < span)
            old_ages = past.ages[recalled] + 1
            old_rows = past.deltas[recalled.to(device)]
            ids = torch.cat([ids, past.ids[recalled]])
            ages = torch.cat([ages, old_ages])
            rows = torch.cat([rows, old_rows])
        gram = rows @ rows.T
        gram = gram.double().cpu()
        mixture, memory = algorithm.mix(round, plan, gram, ages, server.memory)
        past = Past(ids, rows, ages) if span else None
        server = dataclasses.replace(server, memory=memory, past=past)
        applied = mixture[: len(plan.ids)]
        step = mixture.to(rows) @ rows
        return applied, step, server

    def _probed(
        self,
        server: Server,
        round: Round,
        plan: Plan,
        snapshot: Tensor,
        losses_at: LossesAt | None,
    ) -> Server:
        """The server after it has learnt from the losses at the averaged snapshot, if all are finite."""
        assert plan.probe is not None
        algorithm = server.algorithm
        if losses_at is None:
            raise InputError(f"{algorithm.name} asks for losses at a snapshot; give close_round `losses_at`")
        incoming = self.server.theta
        theta = incoming - snapshot.to(incoming)
        losses = losses_at(theta, plan.probe)
        losses = losses.double().cpu()
        if not bool(losses.isfinite().all()):
            return server
        memory = algorithm.learn(round, plan, losses, server.memory)
        return dataclasses.replace(server, memory=memory)

    def _averaged_buffers(self, ids: Tensor) -> dict[str, Tensor]:
        """By share of the clients that trained: fairness weights may be negative and are no average."""
        sizes = self.server.sizes[ids]
        size = float(sizes.sum())
        averaged = dict(self.buffers)
        for name, total in averaged.items():
            if total.is_floating_point():
                averaged[name] = total / size
        return averaged


def _smooth(server: Server, ids: Tensor, measured: Tensor) -> tuple[Server, Tensor]:
    """s_i <- (1 - a) s_i + a f_i for those who take part; a client's first loss starts its average."""
    assert server.smoothed is not None and server.smooth is not None
    a = server.smooth
    before = server.smoothed[ids]
    average = (1 - a) * before + a * measured
    average = torch.where(before.isnan(), measured, average)
    smoothed = server.smoothed.clone()
    smoothed[ids] = average
    return dataclasses.replace(server, smoothed=smoothed), average


def _round_of(server: Server, ids: Tensor, losses: Tensor) -> Round:
    sizes = server.sizes.double()
    taking_part = sizes[ids]
    return Round(
        index=server.index,
        ids=ids,
        losses=losses,
        shares=taking_part / taking_part.sum(),
        population=sizes / sizes.sum(),
        local_steps=server.local_steps,
        lr=server.lr,
        rng=streams.generator(server.seed, server.index, streams.PLANNING),
    )


def _without_idle(plan: Plan) -> Plan:
    """Clients of weight zero need not train."""
    busy = plan.weights != 0
    ids = plan.ids[busy]
    weights = plan.weights[busy]
    steps = plan.snapshot_steps
    if steps is not None:
        steps = steps[busy]
    return dataclasses.replace(
        plan,
        ids=ids,
        weights=weights,
        snapshot_steps=steps,
    )


def _restricted(plan: Plan, arrived: Tensor, rescue: float) -> Plan:
    """The plan of those whose update arrived, rescaled to the planned total."""
    ids = plan.ids[arrived]
    weights = plan.weights[arrived] * rescue
    return dataclasses.replace(plan, ids=ids, weights=weights)


def _among(round: Round, ids: Tensor) -> Round:
    """The round as if only `ids` had taken part."""
    taking_part = torch.isin(round.ids, ids)
    ids = round.ids[taking_part]
    losses = round.losses[taking_part]
    shares = round.shares[taking_part]
    shares = shares / shares.sum()
    return dataclasses.replace(
        round,
        ids=ids,
        losses=losses,
        shares=shares,
    )


def moved(server: Server, step: Tensor) -> Server:
    """theta - server_lr * step, or one step of the server's optimiser with `step` as the gradient."""
    if server.optimizer is None:
        step = step.to(server.theta)
        theta = server.theta - server.server_lr * step
        return dataclasses.replace(server, theta=theta)
    theta = server.theta.clone()
    tensors = server.layout.views(theta)
    gradients = server.layout.views(step.to(theta))
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = gradient
    optimizer = server.optimizer(tensors)
    if server.optimizer_state is not None:
        state = copy.deepcopy(server.optimizer_state)  # the optimiser changes it in place
        optimizer.load_state_dict(state)
    optimizer.step()
    return dataclasses.replace(server, theta=theta, optimizer_state=optimizer.state_dict())


def _objective(turn: Turn) -> float:
    """F at the measured losses: the curve a report draws, even where the weights came from smoothed ones."""
    measured = turn.losses[turn.round.ids]
    if len(measured) == 0:
        return float("nan")
    algorithm = turn.server.algorithm
    return float(algorithm.objective(measured, turn.round.shares))
