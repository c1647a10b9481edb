"""A site's client app: describes itself, measures and trains the model it receives, and keeps its personal one."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from ..clients.client import Client, single_client_pools
from ..core import sums
from ..core.average import ModelState
from ..core.errors import InputError
from ..losses import LossFunction
from ..settings import Settings
from ..simulate import evaluation
from ..simulate.engines.worker import Worker
from ..simulate.problem import Problem, Score, Task, initial_model
from . import reply_fields, wire
from .array_layout import ArrayLayout
from .client_store import ClientStore, InContext, InFolder, moments_at, put_moments
from .message_work import MessageWork
from .secagg import masking_client
from .secagg.mask_crypto import Vector
from .secagg.masked_sums import MEAN, RECORD, SCORES, MaskedTask
from .wire import Fields, Values

ModelFunction = nn.Module | Callable[[], nn.Module]
DataFunction = Callable[[Context], Client]
MEASURED_LOSS = "evenfed.loss"  # in the client's state, for the sums of one round


def client_app(
    model: ModelFunction,
    data: DataFunction,
    *,
    loss: LossFunction | str | None = None,
    score: Score | None = None,
    padding: int | None = None,
    device: str = "auto",
    state: Path | str | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """A Flower client app from your model and data.

    * `model()` makes the module. Torch is seeded before, so that frozen parameters agree everywhere.
    * `data(context)` returns this site's `evenfed.Client`; `context.node_config["partition-id"]` says which site it is.
    * `loss`, `score`: as `evenfed.train` takes them.
    * `state`: a folder for personal models (Ditto) and for the state of optimisers with keep=true, which then survive
      a restart of the server. By default they are in the context's state, which Flower keeps for one run.
    * `mods`: Flower's clipping or local privacy. They apply to training only.

    >>> import torch, evenfed
    >>> def site(context):
    ...     return evenfed.Client(train=(torch.randn(8, 4), torch.randint(0, 3, (8,))), name="ward")
    >>> app = client_app(lambda: torch.nn.Linear(4, 3), site)
    """
    site = Site(
        model=model,
        data=data,
        loss=loss,
        score=score,
        padding=padding,
        device=device,
        state=None if state is None else Path(state),
    )
    app = SiteApp()
    app.model = model
    app.query("describe")(site.describe)
    app.query("loss")(site.measure)
    app.train(mods=[site.private, *mods])(site.train)
    app.evaluate()(site.evaluate)
    return app


class SiteApp(ClientApp):
    """A client app that answers evenfed's questions; it also has the model that it trains."""

    model: ModelFunction


@dataclass(frozen=True)
class Site:
    """The handlers of a client app; holds no state between messages."""

    model: ModelFunction
    data: DataFunction
    loss: LossFunction | str | None
    score: Score | None
    padding: int | None
    device: str
    state: Path | None

    def describe(self, message: Message, context: Context) -> Message:
        """Who this is, how much it holds, and which arrays its model has."""
        task = wire.Task(run="", index=0, seed=0)  # any: nothing is trained
        work = self._work(context, task)
        problem = work.problem
        evaluation.check_alone(problem)
        partitions = context.node_config.get("num-partitions", 0)
        facts: Fields = {
            "partition-id": work.position,
            "num-partitions": int(partitions),
            "name": problem.client_names[work.position],
            "train": len(problem.train),
            "test": 0 if problem.judged is None else len(problem.judged),
            "parameters": list(problem.layout.names or ()),
            "buffers": list(problem.buffers),
            "counts-right-answers": self.score is None,  # so that its score lies within 0 .. 1
            "metric": problem.metric.name,
            "higher-is-better": problem.metric.higher_is_better,
        }
        content = RecordDict({wire.CONFIG: ConfigRecord(facts)})
        return Message(content, reply_to=message)

    def measure(self, message: Message, context: Context) -> Message:
        """The loss of the received model on all training examples, before any training."""
        task = wire.Task.read(message)
        work = self._work(context, task)
        separate = wire.WEIGHED in message.content.array_records
        loss = work.loss(message, wire.WEIGHED if separate else wire.ARRAYS)
        metrics = {"loss": loss, "num-examples": work.train_size}
        return wire.reply(message, metrics)

    def train(self, message: Message, context: Context) -> Message:
        """The received model after local training; a personal model is trained as well and stays here."""
        task = wire.Task.read(message)
        work = self._work(context, task)
        metrics: Fields = {"num-examples": work.train_size}
        if task.measure:
            metrics["loss"] = work.loss(message, task.measure)
        theta, buffers = work.receive(message)
        training = work.training(task, theta, buffers)
        store = self._store(context, task, "optimizer")
        moments = moments_at(store, task.index, training.local.optimizer, theta)
        with_moments = dataclasses.replace(training, moments=moments)
        worker = work.worker
        trained, snapshot = worker.weights_after(with_moments, 0)
        if moments is not None:
            put_moments(store, task.index, worker.moments)
        trained_buffers = {}
        for name, rows in worker.buffers().items():
            trained_buffers[name] = rows[0]
        layout = work.layout(message)
        records = {wire.ARRAYS: layout.arrays(ModelState(trained, trained_buffers))}
        if snapshot is not None:
            records[wire.SNAPSHOT] = layout.arrays(ModelState(snapshot, trained_buffers))
        if task.personal is not None:
            self._train_personal(work, training, context, task)
        return wire.reply(message, metrics, **records)

    def _train_personal(
        self,
        work: MessageWork,
        training: Task,
        context: Context,
        task: wire.Task,
    ) -> None:
        """The client's own model, pulled to the incoming one; it stays as it was where it would not stay finite."""
        assert task.personal is not None
        store = self._store(context, task)
        model = store.at(task.index)
        start = work.problem.theta
        if model is not None:
            start = model.to(training.theta)
        local = dataclasses.replace(training.local, prox=task.personal)
        tied = dataclasses.replace(
            training,
            local=local,
            starts=start[None],
            snapshot_steps=None,
        )
        trained, _ = work.worker.weights_after(tied, 0)
        if trained.isfinite().all():
            store.put(task.index, trained)
        elif model is not None:
            store.put(task.index, start)

    def evaluate(self, message: Message, context: Context) -> Message:
        """The test scores of the received models, or of the client's own where it has trained one."""
        task = wire.Task.read(message)
        work = self._work(context, task)
        judged = work.problem.judged
        metrics: Fields = {"num-examples": 0}
        if task.measure:
            metrics["loss"] = work.loss(message, task.measure)
        if judged is None:
            return wire.reply(message, metrics)
        own = None
        if task.personal is not None:
            own = self._store(context, task).at(task.index)
        metrics.update(work.scores(message, wire.ARRAYS, own))
        if wire.CURRENT in message.content.array_records:
            current = work.scores(message, wire.CURRENT, own)
            metrics.update(evaluation.of_current(current))
        metrics["num-examples"] = int(judged.sizes[work.position])
        return wire.reply(message, metrics)

    def private(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
    ) -> Message:
        """A Flower mod: this site's part in a masked sum; mods further in clip or add noise before the mask."""
        if masking_client.PROTOCOL not in message.content.config_records:
            return call_next(message, context)

        def contribute(message: Message, context: Context) -> masking_client.Contribution:
            return self._contribution(message, context, call_next)

        return masking_client.respond(message, context, contribute)

    def _contribution(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
    ) -> masking_client.Contribution:
        """What is masked: a number for a mean, the scores, or three numbers and the weighted update."""
        masked = MaskedTask.read(message)
        task = wire.Task.read(message)
        for name in (RECORD, masking_client.PROTOCOL):  # Flower's mods expect one record of settings
            del message.content[name]
        c = masked.coefficient
        nothing = np.zeros(0)
        numbers: list[float] = []
        if masked.kind in SCORES:
            reply = self.evaluate(message, context)
            numbers = _masked_scores(reply, SCORES[masked.kind], masked.score_coefficient)
            if not task.measure:
                return numbers, nothing
            loss = _kept_loss(reply, context, task)
        elif masked.means:
            loss = _loss_of_round(context, task)
        else:
            reply = self.measure(message, context)
            loss = _kept_loss(reply, context, task)
        algorithm = wire.algorithm_from(masked.algorithm)
        store = self._store(context, task, "memory")
        if wire.WEIGHED in message.content:
            del message.content[wire.WEIGHED]  # Flower's mods expect one model
        memory_before = store.at(masked.since)
        own = masked.own(task.lr, loss, memory_before)
        if masked.kind == MEAN or masked.kind in SCORES:
            term = sums.next_term(algorithm, own, masked.means)
            return [*numbers, c * term], nothing
        update = _update(message, context, call_next)
        sq_norm = float(update @ update)
        own = dataclasses.replace(own, sq_norm=sq_norm)
        part = sums.part(algorithm, own, masked.means)
        dual = float(part.dual)
        smoothed = float(own.loss)
        memory = torch.tensor([smoothed, dual], dtype=torch.float64)
        store.put(task.index, memory, masked.since)
        objective = c * float(part.objective)
        length = c * float(part.length)
        dual_change = dual - own.dual
        weight = c * float(part.weight)
        return [objective, length, dual_change], weight * update

    def _work(self, context: Context, task: wire.Task) -> MessageWork:
        client = self.data(context)
        if not isinstance(client, Client):
            raise InputError(f"data(context) gave a {type(client).__name__}; it must return an evenfed.Client")
        settings = Settings(device=self.device, batch_norm=task.batch_norm)
        module = initial_model(self.model, task.seed)
        dtypes = [p.dtype for p in module.parameters() if p.requires_grad]
        dtype = dtypes[0] if dtypes else torch.float32
        at = position(context)
        train, test = single_client_pools(client, at, dtype)
        names = [str(k) for k in range(at)]
        names.append(client.name or str(at))
        problem = Problem.on(
            model=module,
            train=train,
            judged=test,
            client_names=names,
            settings=settings,
            loss=self.loss,
            score=self.score,
            padding=self.padding,
        )
        return MessageWork(at, problem, Worker(problem))

    def _store(
        self,
        context: Context,
        task: wire.Task,
        kind: str = "personal",
    ) -> ClientStore:
        store = InContext(context.state) if self.state is None else InFolder(self.state)
        return ClientStore(store, kind, task.run, position(context))


def _kept_loss(reply: Message, context: Context, task: wire.Task) -> float:
    """The loss that was measured when the round first asked for it, kept for the round's other sums."""
    loss = wire.number(reply, "loss")
    if loss is None or not math.isfinite(loss):
        raise InputError("its loss is not finite")
    measured: Fields = {
        "run": task.run,
        "index": task.index,
        "loss": loss,
    }
    context.state[MEASURED_LOSS] = ConfigRecord(measured)
    return loss


def _loss_of_round(context: Context, task: wire.Task) -> float:
    known: Values = context.state.config_records.get(MEASURED_LOSS, {})
    same_run = known.get("run") == task.run
    same_round = known.get("index") == task.index
    if not (same_run and same_round):
        raise InputError("it came into the round after the losses were measured")
    return float(known["loss"])


def _masked_scores(reply: Message, names: Sequence[str], coefficient: float) -> list[float]:
    """Each score and its square, times the client's coefficient."""
    numbers = []
    for name in names:
        score = wire.number(reply, name)
        if score is None or not math.isfinite(score):
            raise InputError("this client has no test score")
        numbers += [coefficient * score, coefficient * score**2]
    return numbers


def _update(message: Message, context: Context, call_next: ClientAppCallable) -> Vector:
    received = message.content.array_records[wire.ARRAYS]
    layout = ArrayLayout.of(received, received, ())
    before, _ = layout.read(received)
    reply = call_next(message, context)
    reply_fields.refuse_failure(reply, tell_errors=True)  # at the client itself
    returned = reply.content.array_records[wire.ARRAYS]
    trained, _ = layout.read(returned)
    difference = before - trained.to(before)
    update: Vector = difference.double().numpy()
    return update


def position(context: Context) -> int:
    stated = context.node_config.get("partition-id")
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 0:
        raise InputError(
            f'partition-id={stated!r}: start the node with --node-config "partition-id=K num-partitions=N", '
            "K from 0 to N-1"
        )
    return stated
