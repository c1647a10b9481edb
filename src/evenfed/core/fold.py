"""The fold of an open round: takes its updates one by one and ends in the new server state."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .algorithm import Plan, Round
from .clipping import ArrivedUpdates, Clipping, lengths_of
from .errors import InputError
from .guard import Clip
from .maths import gram_matrix
from .open_round import NO_WEIGHT, NOT_FINITE, NOTHING, REFUSED, LossesAt, OpenRound, clients_at_fault, objective
from .server import PastUpdates, Record, Server, Update
from .server_step import BufferSums, is_finite, moved, with_average
from .sparse import per_client


class _Check(NamedTuple):
    """What is known of some updates, still on their device."""

    positions: Tensor
    usable: Tensor
    norms: Tensor | None
    drifts: Tensor | None


class Fold:
    """Takes updates one by one, in any order, and ends in the new server state."""

    def __init__(self, opened: OpenRound) -> None:
        server = opened.server
        plan = opened.plan
        self.opened = opened
        self.server = server
        self.plan = plan
        self.needs = server.algorithm.needs
        count = len(plan.ids)
        self.position: dict[int, int] = {}  # by client
        for position, client in enumerate(plan.ids.tolist()):
            self.position[client] = position
        self.replied = torch.zeros(count, dtype=torch.bool)
        self.arrived = torch.zeros(count, dtype=torch.bool)  # and usable; known once the round closes
        self.norms = torch.zeros(count, dtype=torch.float64)  # as reported
        self.drifts = torch.full((count,), torch.nan, dtype=torch.float64)
        self.clipping: Clipping | None = None
        if server.guard is not None and server.heard is not None:
            self.clipping = Clipping(server, server.guard, server.heard)
        self.checks: list[_Check] = []
        self.buffers = BufferSums()

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
        clipping = self.clipping
        norms = None
        drifts = None
        if self.needs == "norms":
            norms = lengths_of(delta)
        if clipping is not None:
            norms = torch.where(finite, lengths_of(delta), torch.nan)
            drifts = clipping.drifts(update)
        arrived = ArrivedUpdates(
            ids,
            positions,
            delta,
            usable=finite,
            norms=norms,
            drifts=drifts,
            update=update,
        )
        if clipping is None:
            self._fold(arrived)
            return
        for ready in clipping.admit(arrived):
            self._fold(ready)

    def _fold(self, arrived: ArrivedUpdates) -> None:
        update = arrived.update
        positions = arrived.positions
        delta = arrived.delta
        buffers = update.buffers
        clipping = self.clipping
        if clipping is not None:
            arrived = clipping.judged(arrived)
            delta = arrived.delta
            buffers = clipping.buffers(arrived)
        check = _Check(positions, arrived.usable, arrived.norms, arrived.drifts)
        if arrived.usable.is_cpu:
            self._read(check)  # kept, small tensors would break up the memory that large ones leave free
        else:
            self.checks.append(check)
        dtype = delta.dtype
        columns: Tensor | slice = slice(None)
        if update.columns is not None:
            columns = update.columns
        weights = self.plan.weights[positions]
        weights = weights.to(dtype)
        weights = weights.to(delta.device, non_blocking=True)
        if self.needs == "gram":
            for position, row in zip(positions.tolist(), delta, strict=True):
                self.total[position, columns] = row
        else:
            self.total[columns] += weights @ delta
        snapshot = update.snapshot
        if self.snapshot is not None and snapshot is not None:
            snapshot = snapshot.reshape(len(delta), -1)
            snapshot = snapshot.to(dtype)
            if clipping is None:
                usable = arrived.usable[:, None]
                snapshot = torch.where(usable, snapshot, 0)
            else:
                snapshot = clipping.snapshot(arrived, snapshot)
            self.snapshot[columns] += weights @ snapshot
        if buffers is not None:
            sizes = self.server.sizes[arrived.ids]
            self.buffers.add(buffers, sizes, arrived.usable)

    def _positions(self, ids: Tensor) -> Tensor:
        """The positions of these clients in the plan; they now count as having replied."""
        senders = ids.tolist()
        places = [self.position.get(sender, -1) for sender in senders]
        positions = torch.tensor(places, dtype=torch.int64)
        refused = -1 in places
        if not refused:  # a plan of nobody has no entry to look up
            refused = bool(self.replied[positions].any())
        if refused:
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

    def take_sum(self, total: Tensor, norms: Tensor) -> None:
        """All planned updates at once: the sum of them times their weights, and their lengths [k]."""
        self.replied[:] = True
        self.arrived[:] = True
        self.norms = norms
        self.total += total

    def close(self, losses_at: LossesAt | None = None) -> tuple[Server, Record]:
        """The new server state and the round's record."""
        clipped = [*self.opened.clipped, *self._read_checks()]
        opened = self.opened
        server = self.server
        plan = self.plan
        arrived = self.arrived
        survived = float(plan.weights[arrived].sum())
        lost = plan.ids[~arrived].tolist()
        weights = torch.zeros(0, dtype=torch.float64)  # of those that arrived
        reason = self._unusable(survived)
        if reason is None:
            server, applied, outweighed = self._stepped(survived, losses_at)
            clipped += outweighed
            if is_finite(server):
                weights = applied
            else:
                server = self.server
                reason = NOT_FINITE
        negative = weights < -1e-12
        clients = len(server.sizes)
        weighed = plan.ids[arrived] if len(weights) else plan.ids[:0]
        record = Record(
            index=opened.round.index,
            losses=per_client(clients, opened.round.ids, opened.measured, rest=math.nan),
            weights=per_client(clients, weighed, weights, rest=0.0),
            objective=objective(opened),
            negative_weights=int(negative.sum()),
            dropped=(*opened.dropped, *lost),
            skipped=reason is not None,
            reason=reason,
            caused_by=clients_at_fault(opened, reason, arrived, self.norms),
            clipped=tuple(clipped),
        )
        server = dataclasses.replace(server, index=server.index + 1)
        server = with_average(server, self.server.average, record.skipped)
        return server, record

    def _unusable(self, survived: float) -> str | None:
        if survived > 0:
            return None
        if not bool(self.arrived.any()):
            refused = self.replied & ~self.norms.isnan()
            is_refused = self.clipping is not None and bool(refused.any())
            return REFUSED if is_refused else NOTHING
        if math.isnan(survived):
            return NOT_FINITE
        is_bounded = self.server.guard is not None  # a guard cannot cap weights without a positive sum
        if self.server.algorithm.any_sum and bool(self.arrived.all()) and not is_bounded:
            return None
        return NO_WEIGHT

    def _stepped(
        self,
        survived: float,
        losses_at: LossesAt | None,
    ) -> tuple[Server, Tensor, tuple[Clip, ...]]:
        """The server after the step, the applied weights of those that arrived, and whose weight was capped."""
        server = self.server
        plan = self.plan
        round = self.opened.round
        arrived = self.arrived
        rescue = 1.0
        if not bool(arrived.all()):
            rescue = float(plan.weights.sum()) / survived
            if server.guard is not None:
                rescue = min(rescue, server.guard.rescue)
            plan = plan.only(arrived)
            plan = dataclasses.replace(plan, weights=plan.weights * rescue)
            round = round.only(plan.ids)
        outweighed: tuple[Clip, ...] = ()
        if self.needs == "gram":
            applied, step, server, outweighed = self._mixed(round, plan)
        else:
            applied, step = self._scaled(round, plan, rescue)
        server = moved(server, step)
        snapshot = self.snapshot
        if plan.probe is not None and snapshot is not None:
            snapshot = snapshot * rescue
            server = self._probed(server, round, plan, snapshot, losses_at)
        averaged = self.buffers.averaged(server.sizes[plan.ids])
        buffers = server.buffers | averaged
        server = dataclasses.replace(server, buffers=buffers)
        return server, applied, outweighed

    def _read_checks(self) -> list[Clip]:
        """Read what was left on the device: whose updates were finite, and their norms. Who was clipped."""
        clipping = self.clipping
        if clipping is not None:
            for ready in clipping.rest():
                self._fold(ready)
        for check in self.checks:
            self._read(check)
        self.checks.clear()
        if clipping is None:
            return []
        heard_from = self.replied & ~self.norms.isnan()
        ids = self.plan.ids[heard_from]
        norms = self.norms[heard_from]
        drifts = self.drifts[heard_from]
        heard = clipping.heard_of(clipping.heard, ids, norms, drifts)
        self.server = dataclasses.replace(self.server, heard=heard)
        clipped = clipping.clips(ids, norms, drifts)
        for clip in clipped:
            if clip.what == "update":
                position = self.position[clip.client]
                self.norms[position] = clip.counted
        return clipped

    def _read(self, check: _Check) -> None:
        self.arrived[check.positions] = check.usable.cpu()
        if check.norms is not None:
            self.norms[check.positions] = check.norms.cpu()
        if check.drifts is not None:
            self.drifts[check.positions] = check.drifts.cpu()

    def _scaled(self, round: Round, plan: Plan, rescue: float) -> tuple[Tensor, Tensor]:
        """Applied weights [k] and the step Delta [D] from the sum of the updates."""
        arrived = self.arrived
        factor = 1.0
        if self.needs == "norms":
            sq_norms = self.norms[arrived].square()
            algorithm = self.server.algorithm
            factor = algorithm.rescale(round, plan, sq_norms)
        scale = factor * rescue
        step = self.total * scale
        applied = plan.weights * factor
        return applied, step

    def _mixed(
        self,
        round: Round,
        plan: Plan,
    ) -> tuple[Tensor, Tensor, Server, tuple[Clip, ...]]:
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
        gram = gram_matrix(rows)
        mixture, memory = algorithm.mix(
            round,
            plan,
            gram,
            ages,
            server.memory,
        )
        past = None
        if span:
            past = PastUpdates(ids, rows, ages)
        server = dataclasses.replace(server, memory=memory, past=past)
        count = len(plan.ids)
        outweighed: tuple[Clip, ...] = ()
        if server.guard is not None and algorithm.sums_to_one:  # the others bound the step by its length
            shares = server.shares_of(plan.ids)
            current = mixture[:count]
            remembered = mixture[count:]
            capped, outweighed = server.guard.outweighing(plan.ids, current, shares)
            mixture = torch.cat([capped, remembered])
        applied = mixture[:count]
        step = mixture.to(rows) @ rows
        return applied, step, server, outweighed

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
        guard = server.guard
        if guard is not None and server.heard is not None:
            losses = guard.probed(losses, server.heard)
        finite = losses.isfinite()
        if not bool(finite.all()):
            return server
        memory = algorithm.learn(round, plan, losses, server.memory)
        if guard is not None:
            memory = guard.capped_mixture(memory, algorithm.mixture, server.sizes)
        return dataclasses.replace(server, memory=memory)
