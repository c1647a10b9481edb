"""What one site does: tells who it is, measures a model it receives, trains it, and keeps its own."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from ..client import Client, alone
from ..core.errors import InputError
from ..settings import Settings
from ..simulate.engines.worker import Worker
from ..simulate.problem import LossFunction, Problem, initial_model
from ..simulate.problem import Task as TrainingTask
from . import secure, wire
from .private import MEAN, RECORD, SCORE, MaskedTask
from .sums import Own, rule_of
from .wire import Shape, Task

ModelFunction = nn.Module | Callable[[], nn.Module]
DataFunction = Callable[[Context], Client]
KEPT_LOSS = "evenfed.loss"  # in the client's state, for the sums of one round


def client_app(
    model: ModelFunction,
    data: DataFunction,
    *,
    loss: LossFunction | None = None,
    score: LossFunction | None = None,
    padding: int | None = None,
    device: str = "auto",
    state: Path | str | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """A Flower client app from one's own model and data.

    `model()` makes the module (torch is seeded before, so that frozen parameters agree everywhere), `data`
    gives this site's `evenfed.Client` from Flower's context, whose `node_config["partition-id"]` says which
    site it is. `loss`, `score`: as `evenfed.train` takes them. Personal models (Ditto) live in the context's
    state, which Flower keeps for one run; in the folder `state` they outlive the server's restart. `mods`
    (Flower's clipping or local privacy) apply to training alone.

    >>> import torch, evenfed
    >>> def site(context):
    ...     return evenfed.Client(train=(torch.randn(8, 4), torch.randint(0, 3, (8,))), name="ward")
    >>> app = client_app(lambda: torch.nn.Linear(4, 3), site)
    """
    site = Site(model, data, loss, score, padding, device, None if state is None else Path(state))
    app = ClientApp()
    app.query("describe")(site.describe)
    app.query("loss")(site.measure)
    app.train(mods=[site.private, *mods])(site.train)
    app.evaluate()(site.evaluate)
    return app


@dataclass(frozen=True)
class Site:
    """The handlers of a client app; holds no state between messages."""

    model: ModelFunction
    data: DataFunction
    loss: LossFunction | None
    score: LossFunction | None
    padding: int | None
    device: str
    state: Path | None

    def describe(self, message: Message, context: Context) -> Message:
        """Who this is, how much it holds, and which arrays its model has."""
        held = self._client(context)
        model = self._desk(held, context, Task("", 0, 0)).problem.model
        told: dict[str, Any] = {
            "partition-id": position(context),
            "num-partitions": int(context.node_config.get("num-partitions", 0)),
            "name": held.name or str(position(context)),
            "train": len(held.train[0]),
            "test": 0 if held.test is None else len(held.test[0]),
            "parameters": [name for name, p in model.named_parameters() if p.requires_grad],
            "buffers": [name for name, _ in model.named_buffers()],
        }
        return Message(RecordDict({wire.CONFIG: ConfigRecord(told)}), reply_to=message)

    def measure(self, message: Message, context: Context) -> Message:
        """The loss of the received model on all training examples, before any training."""
        desk = self._desk(self._client(context), context, Task.read(message))
        desk.receive(message)
        worker, problem = desk.worker, desk.problem
        found = worker.mean(problem.loss, problem.train, desk.position)
        return wire.reply(message, {"loss": found, "num-examples": int(problem.train.sizes[desk.position])})

    def train(self, message: Message, context: Context) -> Message:
        """The received model after local training; a personal model is trained beside it and stays here."""
        task = Task.read(message)
        desk = self._desk(self._client(context), context, task)
        theta, buffers = desk.receive(message)
        orders = desk.orders(task, theta, buffers)
        after, snapshot = desk.worker.weights_after(orders, 0)
        left = {name: b[0] for name, b in desk.worker.buffers().items()}
        shape = desk.shape(message)
        sent = {wire.ARRAYS: shape.arrays(after, left)}
        if snapshot is not None:
            sent[wire.SNAPSHOT] = shape.arrays(snapshot, left)
        if task.personal is not None:
            own = self._shelf(context, task)
            start = own.at(task.index)
            starts = (desk.problem.theta if start is None else start.to(theta))[None]
            tied = dataclasses.replace(orders, prox=task.personal, starts=starts, snapshot_steps=None)
            trained = desk.worker.weights_after(tied, 0)[0]
            own.put(task.index, trained if trained.isfinite().all() else starts[0])
        return wire.reply(message, {"num-examples": int(desk.problem.train.sizes[desk.position])}, **sent)

    def evaluate(self, message: Message, context: Context) -> Message:
        """The test score of the received model, or of the client's own where the algorithm trains one."""
        task = Task.read(message)
        desk = self._desk(self._client(context), context, task)
        theta, buffers = desk.receive(message)
        problem = desk.problem
        if problem.judged is None or problem.score is None:
            return wire.reply(message, {"num-examples": 0})
        if task.personal is not None:
            own = self._shelf(context, task).at(task.index)
            desk.worker.load(problem.theta if own is None else own.to(theta), buffers)
        found = {"accuracy": desk.worker.mean(problem.score, problem.judged, desk.position)}
        if self.padding is not None:
            right = desk.worker.mean(problem.unpadded_score, problem.judged, desk.position)
            found["unpadded"] = right / float(problem.real_positions()[desk.position])
        return wire.reply(message, {**found, "num-examples": int(problem.judged.sizes[desk.position])})

    def private(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """A Flower mod: this site's part in a masked sum; mods further in clip or add noise before the mask."""
        if secure.PROTOCOL not in message.content.config_records:
            return call_next(message, context)
        return secure.respond(message, context, lambda m, c: self._contribution(m, c, call_next))

    def _contribution(self, message: Message, context: Context, call_next: ClientAppCallable) -> secure.Vector:
        """What is masked: a number for a mean, the scores, or the weighted update with two numbers."""
        order, task = MaskedTask.read(message), Task.read(message)
        for name in (RECORD, secure.PROTOCOL):  # Flower's mods expect one record of settings
            del message.content[name]
        if order.kind == SCORE:
            score = wire.number(self.evaluate(message, context), "accuracy")
            if score is None:
                raise InputError("this client has no test score")
            return secure.split([order.factor * score, order.factor * score**2])
        algorithm, shelf = order.built(), self._shelf(context, task, "memory")
        rule, before = rule_of(algorithm), shelf.at(order.since)
        first = not order.means and (order.kind == MEAN or not rule.means)
        loss = self._loss(message, context, task, first)
        smoothed = loss if before is None else (1 - order.smooth) * float(before[0]) + order.smooth * loss
        dual = 0.0 if before is None else float(before[1])
        own = Own(smoothed, task.lr, dual, order.mean_dual, order.clients)
        if order.kind == MEAN:
            return secure.split([order.factor * rule.means[len(order.means)](algorithm, own, *order.means)])
        update = _trained(message, context, call_next)
        own = dataclasses.replace(own, sq_norm=float(update @ update))
        moved = dual if rule.dual is None else rule.dual(algorithm, own, *order.means)
        extra = moved - dual if rule.length is None else rule.length(algorithm, own, *order.means)
        shelf.put(task.index, torch.tensor([smoothed, moved], dtype=torch.float64), order.since)
        weight = order.factor * rule.weight(algorithm, own, *order.means)
        value = rule.value(algorithm, own, *order.means)
        return np.concatenate([weight * update, secure.split([order.factor * value, order.factor * extra])])

    def _loss(self, message: Message, context: Context, task: Task, first: bool) -> float:
        """The loss of the incoming model: measured when a round first asks, then kept for its other sums."""
        if first:
            found = wire.number(self.measure(message, context), "loss")
            if found is None or not math.isfinite(found):
                raise InputError("its loss is not finite")
            kept = ConfigRecord({"run": task.run, "index": task.index, "loss": found})
            context.state[KEPT_LOSS] = kept
        kept = context.state.config_records.get(KEPT_LOSS, ConfigRecord())
        if (kept.get("run"), kept.get("index")) != (task.run, task.index):
            raise InputError("it came into the round after the losses were measured")
        return float(cast(float, kept["loss"]))

    def _client(self, context: Context) -> Client:
        held = self.data(context)
        if not isinstance(held, Client):
            raise InputError(f"data(context) gave a {type(held).__name__}; it must return an evenfed.Client")
        return held

    def _desk(self, held: Client, context: Context, task: Task) -> "_Desk":
        settings = Settings(batch_size=task.batch_size, local_epochs=task.local_epochs, device=self.device)
        module, at = initial_model(self.model, task.seed), position(context)
        train, test = alone(held, at, next((p.dtype for p in module.parameters() if p.requires_grad), torch.float32))
        names = [*map(str, range(at)), held.name or str(at)]
        problem = Problem.on(module, train, test, names, settings, self.loss, self.score, self.padding)
        return _Desk(at, problem, Worker(problem))

    def _shelf(self, context: Context, task: Task, kind: str = "personal") -> "_Shelf":
        return _Shelf(context.state if self.state is None else self.state, kind, task.run, position(context))


def _trained(message: Message, context: Context, call_next: ClientAppCallable) -> secure.Vector:
    """Incoming model minus trained model, as one vector."""
    received = message.content.array_records[wire.ARRAYS]
    shape = Shape.of(received, list(received), ())
    before = shape.read(received)[0]
    reply = call_next(message, context)
    if reply.has_error():
        raise InputError(reply.error.reason)
    after = shape.read(reply.content.array_records[wire.ARRAYS])[0]
    update: secure.Vector = (before - after.to(before)).double().numpy()
    return update


@dataclass(frozen=True)
class _Desk:
    """One message's work: this site's data and a worker for it."""

    position: int
    problem: Problem
    worker: Worker

    def shape(self, message: Message) -> Shape:
        """The arrays of the message, in its order, which Flower's mods want back."""
        arrays = message.content.array_records[wire.ARRAYS]
        return Shape.of(arrays, self.problem.layout.names or (), [n for n in arrays if n in self.problem.buffers])

    def receive(self, message: Message) -> tuple[Tensor, dict[str, Tensor]]:
        """The model of the message, loaded."""
        theta, buffers = self.shape(message).read(message.content.array_records[wire.ARRAYS])
        placed = {name: b.to(self.problem.device) for name, b in buffers.items()}
        theta = theta.to(self.problem.theta)
        self.worker.load(theta, placed)
        return theta, placed

    def orders(self, task: Task, theta: Tensor, buffers: dict[str, Tensor]) -> TrainingTask:
        return TrainingTask(
            index=task.index,
            seed=task.seed,
            theta=theta,
            ids=torch.tensor([self.position]),
            lr=task.lr,
            prox=task.prox,
            snapshot_steps=torch.tensor([task.snapshot_step]) if task.snapshot_step else None,
            local_loss=task.local_loss(),
            buffers=buffers,
        )


class _Shelf:
    """What a client keeps (its own model, its memory of losses) by the round it stands before.

    The last two, so that a round can be run again. Kept in Flower's context, or as files in a folder where they
    outlive the run.
    """

    def __init__(self, place: RecordDict | Path, kind: str, run: str, position: int) -> None:
        self.place = place
        self.prefix = f"{kind}.{re.sub(r'[^A-Za-z0-9=.]+', '-', run)}.client-{position}.round-"

    def at(self, index: int) -> Tensor | None:
        """The model as it stands before round `index`; None before the first training."""
        known = [k for k in self._rounds() if k <= index]
        if not known:
            return None
        name = f"{self.prefix}{max(known)}"
        if isinstance(self.place, Path):
            return torch.from_numpy(np.load(self.place / f"{name}.npy"))
        return torch.from_numpy(self.place.array_records[name]["theta"].numpy())

    def put(self, index: int, own: Tensor, since: int | None = None) -> None:
        """The model after round `index`, made from that of `since`; what no round can ask for again goes."""
        name, values = f"{self.prefix}{index + 1}", own.detach().cpu().numpy()
        kept = max((k for k in self._rounds() if k <= (index if since is None else since)), default=0)
        if isinstance(self.place, Path):
            self.place.mkdir(parents=True, exist_ok=True)
            np.save(self.place / f"{name}.new.npy", values)
            os.replace(self.place / f"{name}.new.npy", self.place / f"{name}.npy")
        else:
            self.place[name] = ArrayRecord({"theta": torch.from_numpy(values)})
        for k in list(self._rounds()):
            if k not in (kept, index + 1):
                self._drop(f"{self.prefix}{k}")

    def _drop(self, name: str) -> None:
        if isinstance(self.place, Path):
            (self.place / f"{name}.npy").unlink()
        else:
            del self.place[name]

    def _rounds(self) -> Iterator[int]:
        names = [p.stem for p in self.place.glob("*.npy")] if isinstance(self.place, Path) else list(self.place)
        for name in names:
            if name.startswith(self.prefix) and name.removeprefix(self.prefix).isdigit():
                yield int(name.removeprefix(self.prefix))


def position(context: Context) -> int:
    """Which client this node is."""
    found = context.node_config.get("partition-id")
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise InputError(
            f'partition-id={found!r}: start the node with --node-config "partition-id=K num-partitions=N", '
            "K from 0 to N-1"
        )
    return found
