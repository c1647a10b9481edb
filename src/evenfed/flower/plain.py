"""A round in the clear: the server sees each client's loss, update and score."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping
from logging import INFO

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from ..core.average import ModelState
from ..core.errors import InputError
from ..core.fold import Fold
from ..core.round import open_round
from ..core.server import Record, Server, Update
from . import reply_fields, wire
from .array_layout import ArrayLayout
from .connection import Connection
from .drop_in.trips import Waiting, waiting_for_losses
from .fleet_options import RoundClosing
from .logs import log
from .messaging import ClosingRule
from .wire import Fields, Models, ScoreRequest, Task, Values

ACCURACIES = ("accuracy", "unpadded", "current")
SCORES = ("accuracy", "test_losses", "unpadded", "current", "current_losses")  # the record's fields


class PlainRound:
    """Losses first, so that the weights are known; then each update is folded as it arrives.

    With one trip, losses come with the updates, which wait here until all are in.
    """

    def __init__(
        self,
        server: Server,
        layout: ArrayLayout,
        task: Task,
        connection: Connection,
        trips: int,
        measured: Mapping[int, float],
        closing: RoundClosing,
    ) -> None:
        self.server = server
        self.layout = layout
        self.task = task
        self.connection = connection
        self.measured = dict(measured)  # losses that came with the last round's scores; with this round's, later
        self.waiting = waiting_for_losses(server) if trips == 1 else None
        self.fold: Fold | None = None
        self.closing = closing
        self.enough: ClosingRule | None = None  # of the replies to the messages handed out last
        self.dropped: set[int] = set()  # clients that the log has named
        self.unanswered: dict[int, int] = {}  # node -> client, of the tasks without a reply

    def open(
        self,
        drawn: Tensor,
        arrays: ArrayRecord,
        weighed: ArrayRecord,
        config: Values,
    ) -> list[Message]:
        """Ask those drawn for the loss of the model `weighed`, plan, and give those with a weight `arrays` to train."""
        server = self.server
        if self.waiting is not None:
            return self._open_late(self.waiting, drawn, arrays, config)
        losses = self._losses(weighed, drawn)
        opened = open_round(server, losses, drawn)
        self.fold = Fold(opened)
        plan = opened.plan
        self.task = dataclasses.replace(self.task, personal=plan.personal)
        clients = plan.ids.tolist()
        tasks = dict.fromkeys(clients, self.task)
        if plan.snapshot_steps is not None:
            steps = plan.snapshot_steps.tolist()
            for client, step in zip(clients, steps, strict=True):
                tasks[client] = dataclasses.replace(self.task, snapshot_step=step)
        log(INFO, "round %s: %s drawn, %s train", server.index + 1, len(drawn), len(tasks))
        messages = self._messages(wire.TRAIN, tasks, {wire.ARRAYS: arrays}, config)
        self.enough = self.closing.updates(len(messages), measured=len(opened.round.ids))
        return messages

    def _open_late(
        self,
        waiting: Waiting,
        drawn: Tensor,
        arrays: ArrayRecord,
        config: Values,
    ) -> list[Message]:
        """Give all of those drawn the model to train; each measures its loss first, and sends both."""
        waiting.drawn = drawn
        personal = self.server.algorithm.personal()
        self.task = dataclasses.replace(self.task, personal=personal, measure=wire.ARRAYS)
        tasks = dict.fromkeys(drawn.tolist(), self.task)
        log(INFO, "round %s: %s drawn, all train", self.server.index + 1, len(drawn))
        messages = self._messages(wire.TRAIN, tasks, {wire.ARRAYS: arrays}, config)
        self.enough = self.closing.updates(len(messages), measured=len(drawn))
        return messages

    def collect(self, answers: Iterable[Message]) -> None:
        """Fold each reply into the step and let it go; what fails or does not fit is dropped and named."""
        for reply in answers:
            client = self._sender(reply)
            if client is None:
                continue
            try:
                self.connection.refuse_failure(reply)
                update = wire.update_of(
                    reply=reply,
                    client=client,
                    layout=self.layout,
                    theta=self.server.theta,
                )
                self._take(update, reply)
            except InputError as error:
                self._log_dropped(client, error)
            del reply
        for client in self.unanswered.values():
            self._log_dropped(client, self._why_unanswered(client))
        if self.waiting is not None:
            self.fold = self.waiting.folded(self.server)

    def _take(self, update: Update, reply: Message) -> None:
        """Into the step, or aside until all losses are known."""
        if self.waiting is None:
            assert self.fold is not None
            self.fold.add(update)
            return
        loss = self._loss_in(reply)
        self.waiting.add(update, loss)

    def close(self) -> tuple[Server, Record]:
        assert self.fold is not None
        return self.fold.close(self._losses_at)

    def ask_scores(self, request: ScoreRequest, config: Values) -> list[Message]:
        """Tasks to test the deployed model and, in the same message, the current one."""
        task = self.task.to_score()
        tasks = dict.fromkeys(request.tested, task)
        for client in request.following:
            tasks[client] = dataclasses.replace(task, measure=request.measure)
        for client in list(tasks):
            if self.connection.is_silent(client):
                del tasks[client]  # it has cost this round a timeout already
            elif client not in self.connection.nodes and client not in self.dropped:
                self._log_not_scored(client, self.connection.why_absent(client))
        messages = self._messages(wire.EVALUATE, tasks, request.models, config)
        self.enough = self.closing.scores(len(messages))
        return messages

    def collect_scores(self, answers: Iterable[Message]) -> Fields:
        """What the record says of the scores; losses that come with them are kept in `measured`."""
        everyone = len(self.server.sizes)
        columns: Fields = {}
        least, most = self.connection.roster.score_range()
        self.measured = {}
        for reply in answers:
            client = self._sender(reply)
            if client is None:
                continue
            try:
                self.connection.refuse_failure(reply)
            except InputError as error:
                self._log_not_scored(client, error)
                continue
            if wire.number(reply, "loss") is not None:
                with contextlib.suppress(InputError):  # one that is not usable is asked for again
                    self.measured[client] = self._loss_in(reply)
            for name in SCORES:
                value = wire.number(reply, name)
                if value is None or not math.isfinite(value):
                    if name == "accuracy" and value is not None:
                        self.connection.log_unscored(client)
                    continue
                if name in ACCURACIES and not least <= value <= most:
                    self._log_not_scored(client, f"its score {value:g} is not within 0 .. 1")
                    continue
                if name not in columns:
                    columns[name] = np.full(everyone, np.nan)
                columns[name][client] = value
        for client in self.unanswered.values():
            self._log_not_scored(client, self._why_unanswered(client))
        return columns

    def _loss_in(self, reply: Message) -> float:
        """The loss that a reply holds; one that cannot be weighed is refused."""
        self.connection.refuse_failure(reply)
        least = self.server.algorithm.least_loss
        return reply_fields.loss(reply_fields.metrics(reply), "loss", least)

    def _messages(
        self,
        kind: str,
        tasks: Mapping[int, Task],
        models: Models,
        config: Values,
    ) -> list[Message]:
        self.unanswered = {}
        messages = []
        contents: dict[Task, RecordDict] = {}  # clients with the same task share one, which Flower sends once
        for client, task in tasks.items():
            node = self.connection.nodes.get(client)
            if node is None:
                continue
            self.unanswered[node] = client
            if task not in contents:
                contents[task] = RecordDict({**models, wire.CONFIG: task.record(config)})
            message = Message(contents[task], dst_node_id=node, message_type=kind, ttl=self.connection.timeout)
            messages.append(message)
        return messages

    def _sender(self, reply: Message) -> int | None:
        """The client whose reply was awaited, which it is no longer; None for anyone else's."""
        node = reply.metadata.src_node_id
        return self.unanswered.pop(node, None)

    def _losses_at(self, theta: Tensor, ids: Tensor) -> Tensor:
        arrays = self.layout.arrays(ModelState(theta, self.server.buffers))
        self.measured = {}  # of another model
        return self._losses(arrays, ids)

    def _losses(self, arrays: ArrayRecord, ids: Tensor) -> Tensor:
        """The clients' losses [len(ids)] at a model; NaN where none came. Those that are known are not asked for."""
        everyone = ids.tolist()
        clients = [client for client in everyone if client not in self.measured]
        tasks = dict.fromkeys(clients, self.task)
        messages = self._messages(wire.LOSS, tasks, {wire.ARRAYS: arrays}, {})
        missing = {client: self.connection.why_absent(client) for client in clients}
        for connected in self.unanswered.values():
            missing[connected] = "no reply"
        losses = dict.fromkeys(clients, math.nan)
        known = len(everyone) - len(clients)
        enough = self.closing.losses(len(messages), known)
        for reply in self.connection.replies(messages, enough, ordered=False):  # nothing is summed: any order
            client = self._sender(reply)
            if client is None:
                continue
            try:
                losses[client] = self._loss_in(reply)
                del missing[client]
            except InputError as error:
                missing[client] = str(error)
        for absent, reason in missing.items():
            if reason == "no reply":
                reason = self._why_unanswered(absent)
            self._log_dropped(absent, reason)
        losses.update(self.measured)
        values = [losses[client] for client in everyone]
        return torch.tensor(values, dtype=torch.float64)

    def _log_not_scored(self, client: int, reason: object) -> None:
        self.connection.log_dropped(self.server.index, client, reason, "not scored")

    def _why_unanswered(self, client: int) -> str:
        """Of a client without a reply: it was too late, or others were enough."""
        if self.closing.is_early and not self.connection.is_silent(client):
            return "the round closed without it"
        return "no reply"

    def _log_dropped(self, client: int, reason: object) -> None:
        self.dropped.add(client)
        self.connection.log_dropped(self.server.index, client, reason)
