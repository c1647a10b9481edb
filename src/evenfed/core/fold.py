"""An open round, and the fold that takes its updates one by one and ends in the new server state."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .algorithm import Plan, Round
from .average import Average
from .errors import InputError, first_line
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


class _Check(NamedTuple):
    """What is known of some updates, still on their device."""

    positions: Tensor
    finite: Tensor
    sq_norms: Tensor | None


class Fold:
    """Takes updates one by one, in any order, and ends in the new server state."""

    def __init__(self, turn: Turn) -> None:
        server = turn.server
        plan = turn.plan
        self.turn = turn
        self.server = server
        self.plan = plan
        self.needs = server.algorithm.needs
        clients = len(server.sizes)
        count = len(plan.ids)
        self.position = torch.full((clients,), -1)
        self.position[plan.ids] = torch.arange(count)
        self.replied = torch.zeros(count, dtype=torch.bool)
        self.arrived = torch.zeros(count, dtype=torch.bool)  # and usable; known once the round closes
        self.sq_norms = torch.zeros(count, dtype=torch.float64)
        self.checks: list[_Check] = []
        self.buffers: dict[str, Tensor] = {}

        theta = server.theta
        accumulator = torch.promote_types(theta.dtype, torch.float32)
        self.total = torch.zeros_like(theta, dtype=accumulator)
        if self.needs == "gram":
            self.total = self.total.repeat(count, 1)
        self.snapshot: Tensor | None = None
        if plan.snapshot_steps is not None:
            self.snapshot = torch.zeros_like(theta, dtype=accumulator)

    def add(self, update: Update) -> None:
        """Fold one update in; non-finite ones are left out and named in the record.

        Nothing here waits for a device: which updates were finite is read when the round closes.
        """
        ids = torch.as_tensor(update.ids)
        ids = ids.reshape(-1)
        count = len(ids)
        positions = self._positions(ids)
        dtype = self.total.dtype
        delta = self._rows(update, count)
        delta = delta.to(dtype)
        finite = delta.sum(1).isfinite()
        usable = finite[:, None]
        delta = torch.where(usable, delta, 0)
        sq_norms = None
        if self.needs == "norms":
            norms = torch.linalg.vector_norm(delta, dim=1, dtype=torch.float64)
            sq_norms = norms.square()
        check = _Check(positions, finite, sq_norms)
        self.checks.append(check)

        columns: Tensor | slice = slice(None)
        if update.columns is not None:
            columns = update.columns
        weights = self.plan.weights[positions]
        weights = weights.to(dtype)
        weights = weights.to(delta.device, non_blocking=True)
        if self.needs == "gram":
            self._store_rows(positions, columns, delta)
        else:
            self.total[columns] += weights @ delta
        snapshot = update.snapshot
        if self.snapshot is not None and snapshot is not None:
            snapshot = snapshot.reshape(count, -1)
            snapshot = snapshot.to(dtype)
            snapshot = torch.where(usable, snapshot, 0)
            self.snapshot[columns] += weights @ snapshot
        if update.buffers is not None:
            self._add_buffers(ids, update.buffers, finite)

    def _store_rows(self, positions: Tensor, columns: Tensor | slice, delta: Tensor) -> None:
        """Keep each update for itself, for algorithms that mix them."""
        rows = zip(positions.tolist(), delta, strict=True)
        for position, row in rows:
            self.total[position, columns] = row

    def _positions(self, ids: Tensor) -> Tensor:
        """Where these clients stand in the plan; from now on they have replied."""
        positions = self.position[ids]
        refused = bool((positions < 0).any())
        if not refused:  # a plan of nobody has no entry to look up
            refused = bool(self.replied[positions].any())
        if refused:
            senders = ids.tolist()
            raise InputError(f"an update came from client {senders}, which was not asked to train or has replied")
        self.replied[positions] = True
        return positions

    def _rows(self, update: Update, count: int) -> Tensor:
        """The update as rows [c, D]: a stack of flat vectors, or one client's model in its own structure or flat."""
        delta = update.delta
        server = self.server
        if isinstance(delta, Tensor):
            ids = update.ids
            columns = update.columns
            if columns is not None:
                return delta.reshape(count, len(columns))
            stacked = isinstance(ids, Tensor) and ids.ndim == 1
            flat = delta.ndim == 1
            numbers = count * len(server.theta)
            whole = delta.numel() == numbers
            if whole and (stacked or flat):
                return delta.reshape(count, -1)
        row = server.layout.flatten(delta)
        return row[None]

    def _add_buffers(
        self,
        ids: Tensor,
        buffers: Mapping[str, Tensor],
        finite: Tensor,
    ) -> None:
        sizes = self.server.sizes[ids]
        sizes = sizes.double()
        for name, rows in buffers.items():
            if not rows.is_floating_point():
                self.buffers[name] = rows[0]  # counters are copied, never averaged
                continue
            axes = rows.ndim - 1
            trailing = [1] * axes
            usable = finite.to(rows.device)
            usable = usable.view(-1, *trailing)
            clean = torch.where(usable, rows, 0)
            weights = sizes.to(rows)
            total = torch.tensordot(weights, clean, dims=1)
            if name in self.buffers:
                total = total + self.buffers[name]
            self.buffers[name] = total

    def close(self, losses_at: LossesAt | None = None) -> tuple[Server, Record]:
        """The new server state and the round's record."""
        self._read_checks()
        turn = self.turn
        server = self.server
        plan = self.plan
        round = turn.round
        arrived = self.arrived
        planned = float(plan.weights.sum())
        arrived_weights = plan.weights[arrived]
        survived = float(arrived_weights.sum())
        lost = plan.ids[~arrived].tolist()
        usable = survived > 0
        clients = len(server.sizes)
        weights = torch.zeros(clients, dtype=torch.float64)
        if usable:
            rescue = planned / survived
            if lost:
                plan = _restricted(plan, arrived, rescue)
                round = _among(round, plan.ids)
            if self.needs == "gram":
                applied, step, server = self._mixed(round, plan)
            else:
                applied, step = self._scaled(round, plan)
            weights[plan.ids] = applied
            server = moved(server, step)
            snapshot = self.snapshot
            if plan.probe is not None and snapshot is not None:
                snapshot = snapshot * rescue
                server = self._probed(server, round, plan, snapshot, losses_at)
            averaged = self._averaged_buffers(plan.ids)
            buffers = server.buffers | averaged
            server = dataclasses.replace(server, buffers=buffers)
        negative = weights < -1e-12
        record = Record(
            index=round.index,
            losses=turn.losses.numpy(),
            weights=weights.numpy(),
            objective=_objective(turn),
            negative_weights=int(negative.sum()),
            dropped=(*turn.dropped, *lost),
            skipped=not usable,
        )
        next_index = server.index + 1
        server = dataclasses.replace(server, index=next_index)
        return with_average(server, self.server.average), record

    def _read_checks(self) -> None:
        """Read what was left on the device: whose updates were finite, and their norms."""
        for positions, finite, sq_norms in self.checks:
            self.arrived[positions] = finite.cpu()
            if sq_norms is not None:
                self.sq_norms[positions] = sq_norms.cpu()
        self.checks.clear()

    def _scaled(self, round: Round, plan: Plan) -> tuple[Tensor, Tensor]:
        """Applied weights [k] and the step Delta [D] from the sum of the updates."""
        arrived = self.arrived
        factor = 1.0
        if self.needs == "norms":
            sq_norms = self.sq_norms[arrived]
            algorithm = self.server.algorithm
            factor = algorithm.rescale(round, plan, sq_norms)
        folded = self.plan.weights[arrived].sum()
        wanted = plan.weights.sum()
        rescue = float(wanted / folded)
        scale = factor * rescue
        step = self.total * scale
        applied = plan.weights * factor
        return applied, step

    def _mixed(self, round: Round, plan: Plan) -> tuple[Tensor, Tensor, Server]:
        """Applied weights [k], the step Delta [D], and the server with its new memory, from the single updates."""
        server = self.server
        algorithm = server.algorithm
        past = server.past
        ids = plan.ids
        ages = torch.zeros_like(ids)
        device = self.total.device
        arrived = self.arrived.to(device)
        rows = self.total[arrived]
        span = algorithm.remembers()
        if past is not None and span:
            taking_part = torch.isin(past.ids, ids)
            young = past.ages < span
            recalled = young & ~taking_part
            old_ids = past.ids[recalled]
            old_ages = past.ages[recalled] + 1
            old_rows = past.deltas[recalled.to(device)]
            ids = torch.cat([ids, old_ids])
            ages = torch.cat([ages, old_ages])
            rows = torch.cat([rows, old_rows])
        gram = rows @ rows.T
        gram = gram.double().cpu()
        mixture, memory = algorithm.mix(
            round,
            plan,
            gram,
            ages,
            server.memory,
        )
        past = None
        if span:
            past = Past(ids, rows, ages)
        server = dataclasses.replace(server, memory=memory, past=past)
        count = len(plan.ids)
        applied = mixture[:count]
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
        finite = losses.isfinite()
        if not bool(finite.all()):
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
    incoming = server.theta
    step = step.to(incoming)
    if server.optimizer is None:
        theta = incoming - server.server_lr * step
        return dataclasses.replace(server, theta=theta)
    layout = server.layout
    theta = incoming.clone()
    tensors = layout.views(theta)
    gradients = layout.views(step)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = gradient
    optimizer = server.optimizer(tensors)
    if not hasattr(optimizer, "step"):
        made = type(optimizer).__name__
        raise InputError(f"server_optimizer made a value of type {made}; it must make an optimiser of torch")
    if server.optimizer_state is not None:
        state = copy.deepcopy(server.optimizer_state)  # the optimiser changes it in place
        optimizer.load_state_dict(state)
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        made = type(optimizer).__name__
        raise InputError(
            f"server_optimizer: {made} cannot take a step ({first_line(error)}); give an optimiser that steps on a "
            "dense gradient without a closure, such as adam"
        ) from error
    return dataclasses.replace(
        server,
        theta=theta,
        optimizer_state=optimizer.state_dict(),
    )


def with_average(server: Server, before: Average | None) -> Server:
    """The server after a round, with its model in the average that stood `before` it."""
    average = None
    if before is not None:
        average = before.including(server.current, server.index)
    return dataclasses.replace(server, average=average)


def _objective(turn: Turn) -> float:
    """F at the measured losses: the curve a report draws, even where the weights came from smoothed ones."""
    round = turn.round
    measured = turn.losses[round.ids]
    if len(measured) == 0:
        return float("nan")
    algorithm = turn.server.algorithm
    objective = algorithm.objective(measured, round.shares)
    return float(objective)
