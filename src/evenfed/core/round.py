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

import torch
from torch import Tensor

from . import streams
from .algorithm import Plan, Round
from .errors import InputError
from .server import Past, Record, Server, Update


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
    everyone = torch.arange(len(server.sizes))
    ids = everyone if ids is None else torch.as_tensor(ids, dtype=torch.int64)
    measured = torch.as_tensor(losses, dtype=torch.float64)
    if measured.shape != ids.shape:
        raise InputError(f"{len(measured)} losses for {len(ids)} participants; give one loss for each, in order")
    with_data = server.sizes[ids] > 0
    finite = measured.isfinite()
    dropped = tuple(ids[with_data & ~finite].tolist())
    ids, measured = ids[with_data & finite], measured[with_data & finite]
    table = torch.full((len(server.sizes),), torch.nan).double()
    table[ids] = measured
    if server.smoothed is not None:
        server, measured = _smooth(server, ids, measured)
    sizes = server.sizes.double()
    round = Round(
        index=server.index,
        ids=ids,
        losses=measured,
        shares=sizes[ids] / sizes[ids].sum(),
        population=sizes / sizes.sum(),
        local_steps=server.local_steps,
        lr=server.lr,
        rng=streams.generator(server.seed, server.index, streams.PLANNING),
    )
    if len(ids) == 0:
        return Turn(server, round, Plan(ids, measured), table, dropped)
    plan, memory = server.algorithm.plan(round, server.memory)
    if server.algorithm.needs != "gram" and plan.personal is None:
        plan = _without_idle(plan)
    return Turn(dataclasses.replace(server, memory=memory), round, plan, table, dropped)


def close_round(
    turn: Turn, updates: Iterable[Update], losses_at: Callable[[Tensor, Tensor], Tensor] | None = None
) -> tuple[Server, Record]:
    """Updates in, new model out; each update is folded as it comes and freed.

    `losses_at(theta, ids)` measures the losses of `ids` at a flat model, for plans with a `probe` (DRFA).
    """
    fold = Fold(turn)
    for update in updates:
        fold.add(update)
    return fold.close(losses_at)


class Fold:
    """Takes updates one by one, in any order, and ends in the new server state."""

    def __init__(self, turn: Turn) -> None:
        server, plan = turn.server, turn.plan
        self.turn = turn
        self.replied = torch.zeros(len(plan.ids), dtype=torch.bool)
        self.arrived = torch.zeros(len(plan.ids), dtype=torch.bool)  # and usable; known once the round closes
        self.sq_norms = torch.zeros(len(plan.ids), dtype=torch.float64)
        self.checks: list[tuple[Tensor, Tensor, Tensor | None]] = []  # positions, finite, squared norms
        self.position = torch.full((len(server.sizes),), -1)
        self.position[plan.ids] = torch.arange(len(plan.ids))
        self.by_row = server.algorithm.needs == "gram"
        accumulator = torch.float64 if server.theta.dtype == torch.float64 else torch.float32
        rows = (len(plan.ids), len(server.theta)) if self.by_row else server.theta.shape
        self.total = torch.zeros(rows, dtype=accumulator, device=server.theta.device)
        self.snapshot = torch.zeros_like(server.theta, dtype=accumulator) if plan.snapshot_steps is not None else None
        self.buffers: dict[str, Tensor] = {}

    def add(self, update: Update) -> None:
        """Fold one update in; non-finite ones are left out and named in the record.

        Nothing here waits for a device: what was finite is read when the round closes.
        """
        ids = torch.as_tensor(update.ids).reshape(-1)
        positions = self.position[ids]
        if bool((positions < 0).any()) or bool(self.replied[positions].any()):
            raise InputError(f"an update came from client {ids.tolist()}, which was not asked to train or has replied")
        self.replied[positions] = True
        delta = self._rows(update, len(ids)).to(self.total.dtype)
        finite = delta.sum(1).isfinite()
        delta = torch.where(finite[:, None], delta, 0)
        norms = None
        if self.turn.server.algorithm.needs == "norms":
            norms = torch.linalg.vector_norm(delta, dim=1, dtype=torch.float64).square()
        self.checks.append((positions, finite, norms))
        columns = slice(None) if update.columns is None else update.columns
        weights = self.turn.plan.weights[positions].to(delta.dtype).to(delta.device, non_blocking=True)
        if self.by_row:
            for position, row in zip(positions.tolist(), delta, strict=True):
                self.total[position, columns] = row
        else:
            self.total[columns] += weights @ delta
        if self.snapshot is not None and update.snapshot is not None:
            snapshot = torch.where(finite[:, None], update.snapshot.reshape(len(ids), -1).to(delta.dtype), 0)
            self.snapshot[columns] += weights @ snapshot
        self._add_buffers(ids, update.buffers or {}, finite)

    def _settle(self) -> None:
        """Read what was left on the device: whose updates were finite, and their norms."""
        for positions, finite, norms in self.checks:
            self.arrived[positions] = finite.cpu()
            if norms is not None:
                self.sq_norms[positions] = norms.cpu()
        self.checks.clear()

    def _rows(self, update: Update, count: int) -> Tensor:
        """The update as rows [c, D]: a stack of flat vectors, or one client's model in its own structure or flat."""
        server, delta = self.turn.server, update.delta
        if update.columns is not None:
            assert isinstance(delta, Tensor)
            return delta.reshape(count, len(update.columns))
        flat = isinstance(delta, Tensor) and delta.numel() == count * len(server.theta)
        stacked = isinstance(update.ids, Tensor) and update.ids.ndim == 1
        if isinstance(delta, Tensor) and flat and (stacked or delta.ndim == 1):
            return delta.reshape(count, -1)
        return server.layout.flatten(delta)[None]

    def close(self, losses_at: Callable[[Tensor, Tensor], Tensor] | None = None) -> tuple[Server, Record]:
        """The new server state and the round's record."""
        self._settle()
        turn, server, plan = self.turn, self.turn.server, self.turn.plan
        planned, survived = float(plan.weights.sum()), float(plan.weights[self.arrived].sum())
        lost = tuple(plan.ids[~self.arrived].tolist())
        usable = survived > 0
        weights = torch.zeros(len(server.sizes), dtype=torch.float64)
        if usable:
            kept = plan if not lost else _restricted(plan, self.arrived, planned / survived)
            round = turn.round if not lost else _among(turn.round, kept.ids)
            applied, step, server = self._step(server, round, kept)
            weights[kept.ids] = applied
            server = self._probe(moved(server, step), round, kept, planned / survived, losses_at)
            server = dataclasses.replace(server, buffers=self._averaged_buffers(server.buffers, kept.ids))
        record = Record(
            index=turn.round.index,
            losses=turn.losses.numpy(),
            weights=weights.numpy(),
            objective=_objective(turn),
            negative_weights=int((weights < -1e-12).sum()),
            dropped=turn.dropped + lost,
            skipped=not usable,
        )
        return dataclasses.replace(server, index=server.index + 1), record

    def _step(self, server: Server, round: Round, plan: Plan) -> tuple[Tensor, Tensor, Server]:
        """Applied weights [k], the step Delta [D], and the server with its new memory."""
        if not self.by_row:
            factor = 1.0
            if server.algorithm.needs == "norms":
                factor = server.algorithm.rescale(round, plan, self.sq_norms[self.arrived])
            rescue = float(plan.weights.sum() / self.turn.plan.weights[self.arrived].sum())
            return plan.weights * factor, self.total * (factor * rescue), server
        rows, ids = self.total[self.arrived.to(self.total.device)], plan.ids
        ages = torch.zeros(len(ids), dtype=torch.int64)
        span = server.algorithm.remembers()
        if server.past is not None and span:
            stale = ~torch.isin(server.past.ids, ids) & (server.past.ages < span)
            rows = torch.cat([rows, server.past.deltas[stale.to(rows.device)]])
            ids, ages = torch.cat([ids, server.past.ids[stale]]), torch.cat([ages, server.past.ages[stale] + 1])
        gram = (rows @ rows.T).double().cpu()
        mixed, memory = server.algorithm.mix(round, plan, gram, ages, server.memory)
        past = Past(ids, rows, ages) if span else None
        return mixed[: len(plan.ids)], mixed.to(rows) @ rows, dataclasses.replace(server, memory=memory, past=past)

    def _probe(
        self,
        server: Server,
        round: Round,
        plan: Plan,
        rescue: float,
        losses_at: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> Server:
        if plan.probe is None or self.snapshot is None:
            return server
        if losses_at is None:
            raise InputError(f"{server.algorithm.name} asks for losses at a snapshot; give close_round `losses_at`")
        before = self.turn.server.theta
        probe_losses = losses_at(before - (self.snapshot * rescue).to(before), plan.probe).double().cpu()
        if not bool(probe_losses.isfinite().all()):
            return server
        return dataclasses.replace(server, memory=server.algorithm.learn(round, plan, probe_losses, server.memory))

    def _add_buffers(self, ids: Tensor, buffers: Mapping[str, Tensor], finite: Tensor) -> None:
        shares = self.turn.server.sizes[ids].double()
        for name, rows in buffers.items():
            if not rows.is_floating_point():
                self.buffers[name] = rows[0]  # counters are copied, never averaged
                continue
            clean = torch.where(finite.to(rows.device).view(-1, *[1] * (rows.ndim - 1)), rows, 0)
            weighted = torch.tensordot(shares.to(rows), clean, dims=1)
            self.buffers[name] = weighted + self.buffers[name] if name in self.buffers else weighted

    def _averaged_buffers(self, before: dict[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """By share of the clients that trained: fairness weights may be negative and are no average."""
        size = float(self.turn.server.sizes[ids].sum())
        after = {k: v / size if v.is_floating_point() else v for k, v in self.buffers.items()}
        return before | after


def _smooth(server: Server, ids: Tensor, measured: Tensor) -> tuple[Server, Tensor]:
    """s_i <- (1 - a) s_i + a f_i for those who take part; a client's first loss starts its average."""
    assert server.smoothed is not None and server.smooth is not None
    before = server.smoothed[ids]
    now = torch.where(before.isnan(), measured, (1 - server.smooth) * before + server.smooth * measured)
    table = server.smoothed.clone()
    table[ids] = now
    return dataclasses.replace(server, smoothed=table), now


def _without_idle(plan: Plan) -> Plan:
    """Clients of weight zero need not train."""
    busy = plan.weights != 0
    steps = None if plan.snapshot_steps is None else plan.snapshot_steps[busy]
    return dataclasses.replace(plan, ids=plan.ids[busy], weights=plan.weights[busy], snapshot_steps=steps)


def _restricted(plan: Plan, arrived: Tensor, rescue: float) -> Plan:
    """The plan of those whose update arrived, rescaled to the planned total."""
    return dataclasses.replace(plan, ids=plan.ids[arrived], weights=plan.weights[arrived] * rescue)


def _among(round: Round, ids: Tensor) -> Round:
    """The round as if only `ids` had taken part."""
    keep = torch.isin(round.ids, ids)
    shares = round.shares[keep]
    return dataclasses.replace(round, ids=round.ids[keep], losses=round.losses[keep], shares=shares / shares.sum())


def moved(server: Server, step: Tensor) -> Server:
    """theta - server_lr * step, or one step of the server's optimiser with `step` as the gradient."""
    if server.optimizer is None:
        return dataclasses.replace(server, theta=server.theta - server.server_lr * step.to(server.theta))
    theta = server.theta.clone()
    named, grads = server.layout.unflatten(theta), server.layout.unflatten(step.to(theta))
    tensors = [named] if isinstance(named, Tensor) else list(named.values())
    gradients = [grads] if isinstance(grads, Tensor) else list(grads.values())
    for tensor, grad in zip(tensors, gradients, strict=True):
        tensor.grad = grad
    optimizer = server.optimizer(tensors)
    if server.optimizer_state is not None:
        optimizer.load_state_dict(copy.deepcopy(server.optimizer_state))  # it would change in place
    optimizer.step()
    return dataclasses.replace(server, theta=theta, optimizer_state=optimizer.state_dict())


def _objective(turn: Turn) -> float:
    """F at the measured losses: the curve a report draws, even where the weights came from smoothed ones."""
    measured = turn.losses[turn.round.ids]
    if len(measured) == 0:
        return float("nan")
    return float(turn.server.algorithm.objective(measured, turn.round.shares))
