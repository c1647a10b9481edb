"""A round in the clear: the server sees every client's loss, update and score."""

import dataclasses
from collections.abc import Iterable, Mapping
from logging import INFO
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.supercore import log
from torch import Tensor

from ..core.errors import InputError
from ..core.fold import Fold
from ..core.round import open_round
from ..core.server import Record, Server
from . import wire
from .roster import Connection, replies
from .wire import Shape, Task


class PlainRound:
    """Losses first, so that the weights are known; then each update is folded as it arrives."""

    def __init__(
        self,
        server: Server,
        shape: Shape,
        task: Task,
        connection: Connection,
    ) -> None:
        self.server = server
        self.shape = shape
        self.task = task
        self.connection = connection
        self.fold: Fold | None = None
        self.unanswered: dict[int, int] = {}  # node -> client, of the tasks without a reply

    def open(self, drawn: Tensor, arrays: ArrayRecord, config: Mapping[str, Any]) -> list[Message]:
        """Ask those drawn for the loss of the model, plan, and give training tasks to those with a weight."""
        losses = self._losses(arrays, drawn)
        turn = open_round(self.server, losses, drawn)
        self.fold = Fold(turn)
        self.task = dataclasses.replace(self.task, personal=turn.plan.personal)
        tasks = dict.fromkeys(turn.plan.ids.tolist(), self.task)
        if turn.plan.snapshot_steps is not None:
            for client, step in zip(tasks, turn.plan.snapshot_steps.tolist(), strict=True):
                tasks[client] = dataclasses.replace(self.task, snapshot_step=step)
        log(INFO, "round %s: %s drawn, %s train", self.server.index, len(drawn), len(tasks))
        return self._messages(wire.TRAIN, tasks, arrays, config)

    def collect(self, answers: Iterable[Message]) -> None:
        """Fold each reply into the step and let it go; what fails or does not fit is dropped and named."""
        assert self.fold is not None
        for reply in answers:
            client = self.unanswered.pop(reply.metadata.src_node_id, None)
            if client is None:
                continue
            try:
                if reply.has_error():
                    raise InputError(reply.error.reason)
                update = wire.update_of(reply, client, self.shape, self.server.theta, self.server.buffers)
                self.fold.add(update)
            except InputError as error:
                self._log_dropped(client, error)
            del reply
        for client in self.unanswered.values():
            self._log_dropped(client, "no reply")

    def close(self) -> tuple[Server, Record]:
        """The server after the step, and the round's record."""
        assert self.fold is not None
        return self.fold.close(self._losses_at)

    def ask_scores(self, arrays: ArrayRecord, config: Mapping[str, Any]) -> list[Message]:
        """Tasks to test the new model, for every client that holds test data."""
        task = dataclasses.replace(self.task, index=self.server.index + 1)
        tasks = dict.fromkeys(self.connection.roster.tested(), task)
        return self._messages(wire.EVALUATE, tasks, arrays, config)

    def collect_scores(self, answers: Iterable[Message]) -> dict[str, Any]:
        """What the record says of the scores."""
        everyone = len(self.server.sizes)
        columns: dict[str, Any] = {}
        for reply in answers:
            client = self.unanswered.pop(reply.metadata.src_node_id, None)
            if client is None:
                continue
            for name in ("accuracy", "unpadded"):
                value = wire.number(reply, name)
                if value is not None:
                    column = columns.setdefault(name, np.full(everyone, np.nan))
                    column[client] = value
        return columns

    def _messages(
        self, kind: str, tasks: Mapping[int, Task], arrays: ArrayRecord, config: Mapping[str, Any]
    ) -> list[Message]:
        """A message for each client that is connected."""
        self.unanswered = {}
        messages = []
        for client, task in tasks.items():
            node = self.connection.nodes.get(client)
            if node is None:
                continue
            self.unanswered[node] = client
            record = task.record(config)
            messages.append(wire.message(node, kind, arrays, record, self.connection.timeout))
        return messages

    def _losses_at(self, theta: Tensor, ids: Tensor) -> Tensor:
        return self._losses(self.shape.arrays(theta, self.server.buffers), ids)

    def _losses(self, arrays: ArrayRecord, ids: Tensor) -> Tensor:
        """The clients' losses [len(ids)] at a model; NaN where none came."""
        clients = ids.tolist()
        messages = self._messages(wire.LOSS, dict.fromkeys(clients, self.task), arrays, {})
        missing = dict.fromkeys(clients, "not connected")
        missing |= dict.fromkeys(self.unanswered.values(), "no reply")
        losses = dict.fromkeys(clients, float("nan"))
        for reply in replies(self.connection.grid, messages, self.connection.timeout):  # nothing is summed: any order
            client = self.unanswered.pop(reply.metadata.src_node_id, None)
            if client is None:
                continue
            loss = wire.number(reply, "loss")
            if loss is not None:
                losses[client] = loss
                del missing[client]
            elif reply.has_error():
                missing[client] = str(reply.error.reason)
            else:
                missing[client] = "the reply holds no loss"
        for absent, reason in missing.items():
            self._log_dropped(absent, reason)
        return torch.tensor(list(losses.values()), dtype=torch.float64)

    def _log_dropped(self, client: int, reason: object) -> None:
        self.connection.log_dropped(self.server.index, client, reason)
