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
>>> sizes = [len(c) for c in clients]
>>> server = evenfed.Server.start(algorithm, torch.zeros(2), sizes, lr=0.1, average=0.9, weigh_at="average")
>>> for _ in range(3):
...     opened = evenfed.open_round(server, losses=[float(loss(server.weighed_params, c)) for c in clients])
...     updates = (
...         evenfed.Update(int(i), server.params - train(server.params, clients[i])) for i in opened.plan.ids
...     )
...     server, record = evenfed.close_round(opened, updates)
>>> record.index, record.weights.round(2).tolist(), server.deployed_params.shape
(2, [0.08, 0.32, 0.6], torch.Size([2]))

Clients measure losses at `server.weighed_params` and train `server.params`. `server.deployed_params` is the model to
judge, save and use. Without `average`, as is the default, all three are the current model.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from . import streams
from .algorithm import Memory, Plan, Round
from .errors import InputError
from .fold import Fold
from .guard import Clip, clips
from .open_round import LossesAt, OpenRound
from .server import Record, Server, Update

_SHOWN = 5  # losses in an error


def open_round(
    server: Server,
    losses: Sequence[float] | Tensor,
    ids: Tensor | None = None,
) -> OpenRound:
    """Losses in, plan out. `losses` [m] belong to the clients `ids` [m] that take part (None: everyone).

    They are measured at `server.weighed_params`: the current model, or the average with `weigh_at="average"`.
    """
    if ids is None:
        ids = torch.arange(len(server.sizes))
    ids = torch.as_tensor(ids, dtype=torch.int64)
    measured = torch.as_tensor(losses, dtype=torch.float64)
    if measured.shape != ids.shape:
        got = len(measured)
        wanted = len(ids)
        raise InputError(f"{got} losses for {wanted} participants; give one loss for each, in order")
    with_data = server.sizes[ids] > 0
    finite = measured.isfinite()
    usable = with_data & finite
    failed = with_data & ~finite
    dropped = ids[failed].tolist()
    ids = ids[usable]
    measured = measured[usable]
    counted = measured
    clipped: list[Clip] = []
    if server.guard is not None:
        server, counted, clipped = _guarded_losses(server, ids, measured)
    weighing = counted
    if server.smoothed is not None:
        weighing = smoothed_losses(server, ids, counted)
        server = dataclasses.replace(server, smoothed=server.smoothed.index_copy(0, ids, weighing))
    round = _round_of(server, ids, weighing)
    plan = Plan(ids, torch.zeros_like(weighing))
    if len(ids):
        algorithm = server.algorithm
        plan, memory = algorithm.plan(round, server.memory)
        if server.guard is not None:
            plan, memory, outweighing = _guarded_plan(server, plan, memory)
            clipped += outweighing
        server = dataclasses.replace(server, memory=memory)
        _check_first_weights(server, plan, weighing)
        needs_everyone = algorithm.needs == "gram" or plan.personal is not None
        if not needs_everyone:
            plan = plan.only(plan.weights != 0)  # clients of weight zero need not train
    return OpenRound(
        server=server,
        round=round,
        plan=plan,
        measured=measured,
        counted=counted,
        dropped=tuple(dropped),
        clipped=tuple(clipped),
    )


def _check_first_weights(server: Server, plan: Plan, losses: Tensor) -> None:
    """Refuse an algorithm that gives no finite weights from the start; in later rounds the record says so."""
    if server.index > 0 or bool(plan.weights.isfinite().all()):
        return
    shown = ", ".join(f"{loss:.3g}" for loss in losses[:_SHOWN].tolist())
    raise InputError(
        f"{server.algorithm.name}: the weights are not finite in round 1, from finite losses ({shown}, ...); mend its "
        "formula (the logarithm or the root of a negative number, a division by 0)"
    )


def close_round(
    opened: OpenRound,
    updates: Iterable[Update],
    losses_at: LossesAt | None = None,
) -> tuple[Server, Record]:
    """Updates in, new model out; each update is folded as it comes and freed.

    The server's `params` go into the next round. Its `deployed_params` serve clients: the average, if it keeps one.
    `losses_at(theta, ids)` measures the losses of `ids` at a flat model, for plans with a `probe` (DRFA).
    """
    fold = Fold(opened)
    for update in updates:
        fold.add(update)
    return fold.close(losses_at)


def _guarded_losses(
    server: Server,
    ids: Tensor,
    measured: Tensor,
) -> tuple[Server, Tensor, list[Clip]]:
    """The losses that count, and whose do not count as reported."""
    assert server.guard is not None
    assert server.heard is not None
    clipped: list[Clip] = list(server.oversized)
    guard = server.guard
    heard, counted = guard.counted_losses(server.heard, ids, measured, server.index)
    for clip in clips("loss", ids, measured, counted):
        is_small = 0 <= clip.reported < clip.counted
        if not is_small:
            clipped.append(clip)
    server = dataclasses.replace(server, heard=heard, oversized=())
    return server, counted, clipped


def _guarded_plan(
    server: Server,
    plan: Plan,
    memory: Memory,
) -> tuple[Plan, Memory, tuple[Clip, ...]]:
    """The plan and what is remembered of it, no client above its cap."""
    guard = server.guard
    assert guard is not None
    shares = server.shares_of(plan.ids)
    weights, clipped = guard.outweighing(plan.ids, plan.weights, shares)
    memory = guard.capped_mixture(memory, server.algorithm.mixture, server.sizes)
    return dataclasses.replace(plan, weights=weights), memory, clipped


def smoothed_losses(server: Server, ids: Tensor, measured: Tensor) -> Tensor:
    """(1 - a) s_i + a f_i for those who take part, if the server smooths; a client's first loss starts its average."""
    a = server.smooth
    table = server.smoothed
    if table is None:
        return measured
    assert a is not None
    before = table[ids]
    is_first = before.isnan()
    average = (1 - a) * before + a * measured
    return torch.where(is_first, measured, average)


def _round_of(server: Server, ids: Tensor, losses: Tensor) -> Round:
    index = server.index
    rng = streams.generator(server.seed, index, streams.PLANNING)
    return Round(
        index=index,
        ids=ids,
        losses=losses,
        shares=server.shares_of(ids),
        population=server.everyone.shares,
        local_steps=server.local_steps,
        lr=server.round_lr,
        rng=rng,
    )
