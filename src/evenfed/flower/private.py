"""A private round: the server learns sums alone. First the means that weights need, then a sum of weighted updates."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore import log
from torch import Tensor

from ..algorithms import get, names
from ..core.algorithm import Algorithm, Own
from ..core.errors import InputError
from ..core.server import Record, Server
from ..core.step import with_average
from ..core.sums import number_of_means
from . import wire
from .connection import Connection
from .secure import LEAST, RANGES, SecureSum, TooFewError, Vector, joined
from .usual import UnusualError, check_mean, stepped, with_usual
from .wire import Models, Shape, Task, Values

RECORD = "private"

# kinds of masked sums
MEAN = "mean"
UPDATE = "update"
SCORE = "score"
BOTH_SCORES = "both scores"
NUMBERS = {
    MEAN: 1,
    UPDATE: 3,  # beside the update: objective, length, and change of the dual
    SCORE: 2,  # a score and its square
    BOTH_SCORES: 4,  # the same of the deployed model, then of the current one
}
SCORES = {  # which of a client's scores go into a sum
    SCORE: ("accuracy",),
    BOTH_SCORES: ("accuracy", "current"),
}


@dataclass(frozen=True)
class MaskedTask:
    """What a client is told to add to which sum."""

    kind: str  # MEAN, UPDATE, SCORE or BOTH_SCORES
    algorithm: str  # JSON: name and hyper-parameters
    coefficient: float  # c_i, which is public: the client's share, or 1/m
    means: list[float]  # those known so far
    clients: int  # with data, in the federation
    since: int  # the client's memory counts as it stood before this round: after the last that counted it
    mean_dual: float
    smooth: float  # 1: not smoothed

    def record(self) -> ConfigRecord:
        return ConfigRecord(dict(vars(self)))

    def own(self, lr: float, loss: float, memory: Tensor | None) -> Own:
        """What the client knows of itself; `memory` holds its smoothed loss and its dual before the round."""
        dual = 0.0
        if memory is not None:
            smoothed, dual = memory.tolist()
            loss = (1 - self.smooth) * smoothed + self.smooth * loss
        return Own(
            loss=torch.tensor(loss, dtype=torch.float64),
            lr=lr,
            clients=self.clients,
            dual=dual,
            mean_dual=self.mean_dual,
        )

    @classmethod
    def read(cls, message: Message) -> "MaskedTask":
        fields: Any = dict(message.content.config_records[RECORD])
        return cls(**fields)


def check_algorithm(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose weights do not follow from sums, with its reason."""
    try:
        number_of_means(algorithm)
    except InputError as reason:
        able = ", ".join(_private_names())
        raise InputError(f"{reason}. Those that can: {able}") from None


def _private_names() -> list[str]:
    able = []
    for name in names():
        try:
            number_of_means(get(name))
        except InputError:
            continue
        able.append(name)
    return able


def check_run(count: int, shape: Shape) -> None:
    """Refuse what masked sums cannot serve: too few clients per round, models with buffers."""
    if count < LEAST:
        raise InputError(
            f"private=True with {count} clients per round: from a sum of so few, one learns the other's part; "
            f"let at least {LEAST} take part"
        )
    if shape.buffers:
        raise InputError(
            f"private=True with a model that keeps buffers ({shape.buffers[0]}): their averages are not masked; use "
            "layers without buffers, such as GroupNorm instead of BatchNorm"
        )


def with_private_memory(server: Server) -> Server:
    """The server of a private run remembers which round last counted a client, and the sum of the clients' duals."""
    everyone = len(server.sizes)
    counted = torch.zeros(everyone, dtype=torch.int64)
    dual_total = torch.zeros(1, dtype=torch.float64)
    memory = {"counted": counted, "dual_total": dual_total}
    return with_usual(dataclasses.replace(server, memory=memory, smoothed=None))


class PrivateRound:
    """The same as `PlainRound`, from masked sums. Too few clients: the round is skipped, and the record names them."""

    def __init__(
        self,
        server: Server,
        shape: Shape,
        task: Task,
        connection: Connection,
    ) -> None:
        self.server = server
        personal = server.algorithm.personal()
        self.task = dataclasses.replace(task, personal=personal)
        self.connection = connection
        self.sums = MaskedSums(server, connection)
        self.scores: dict[str, float] | None = None
        self.reason: str | None = None  # why the round is skipped

    def open(
        self,
        drawn: Tensor,
        arrays: ArrayRecord,
        weighed: ArrayRecord,
        config: Values,
    ) -> list[Message]:
        """The means, one masked sum after another; then the tasks to train. None if too few clients are left.

        Losses are measured at the model `weighed`, and `arrays` is trained.
        """
        self.sums.admit(drawn.tolist())
        try:
            means = number_of_means(self.server.algorithm)
            for phase in range(means):
                measured = {wire.ARRAYS: weighed} if phase == 0 else {}  # the loss is measured once
                (mean,) = self.sums.averages(MEAN, self.task, measured)
                check_mean(self.server, phase, mean)
                self.sums.means.append(mean)
            models = {wire.ARRAYS: arrays}
            if means == 0 and weighed is not arrays:
                models[wire.WEIGHED] = weighed
            size = len(self.server.theta)
            return self.sums.begin(UPDATE, self.task, models, config, size)
        except (TooFewError, UnusualError) as reason:
            self._skip(reason)
            return []

    def collect(self, answers: Iterable[Message]) -> None:
        """Add the clients' masked, weighted updates."""
        for reply in answers:
            self.sums.add(reply)

    def close(self) -> tuple[Server, Record]:
        """The server after the step, and a record without any client's numbers."""
        server = self.server
        everyone = len(server.sizes)
        weights = np.zeros(everyone)
        objective = float("nan")
        if self.sums.running is None and self.reason is None:
            self._skip("no update was asked for")
        try:
            if self.sums.running:
                size = len(server.theta)
                entries, covered = self.sums.finish()
                update = entries[:size]
                numbers = joined(entries[size:])
                total_objective, length, dual_change = numbers
                objective = total_objective / covered
                server = self._moved(update, length, dual_change)
                weights[self.sums.clients] = np.nan  # known to each client alone
        except (TooFewError, UnusualError) as reason:
            self._skip(reason)
        record = Record(
            index=server.index,
            losses=np.full(everyone, np.nan),
            weights=weights,
            objective=objective,
            negative_weights=0,
            dropped=tuple(self.sums.dropped),
            skipped=self.reason is not None,
            reason=self.reason,
            clipped=self.server.oversized,
        )
        following = server.index + 1
        server = dataclasses.replace(server, index=following, oversized=())
        return with_average(server, self.server.average), record

    def ask_scores(
        self,
        tested: Iterable[int],
        deployed: ArrayRecord,
        current: ArrayRecord | None,
        config: Values,
    ) -> list[Message]:
        """Mean and deviation of the clients' test scores. The sum is taken here, so no messages are left to send."""
        index = self.server.index + 1
        task = dataclasses.replace(self.task, index=index)
        server = dataclasses.replace(self.server, index=index)
        connection = self.connection
        sums = MaskedSums(server, connection)
        for client in tested:
            if client in connection.nodes:
                sums.clients.append(client)
        kind = SCORE
        models = {wire.ARRAYS: deployed}
        if current is not None:
            kind = BOTH_SCORES
            models[wire.CURRENT] = current
        try:
            averages = sums.averages(kind, task, models)
        except TooFewError as reason:
            log(WARNING, "round %s: no scores: %s", index, reason)
        else:
            self.scores = _moments("", *averages[:2])
            if current is not None:
                self.scores.update(_moments("current-", *averages[2:]))
        return []

    def collect_scores(self, answers: Iterable[Message]) -> dict[str, Any]:
        """What the record says of the scores."""
        return {"scores": self.scores}

    def _moved(self, total: Vector, length: float, dual_change: float) -> Server:
        """The server after the step total / length."""
        server = self.server
        update = total / length if length > 0 else 0 * total
        step = torch.from_numpy(update)
        counted = server.memory["counted"].clone()
        counted[self.sums.clients] = server.index + 1
        memory = {
            **server.memory,
            "counted": counted,
            "dual_total": server.memory["dual_total"] + dual_change,
        }
        remembering = dataclasses.replace(server, memory=memory)
        return stepped(remembering, step, self.sums.means)

    def _skip(self, reason: object) -> None:
        self.sums.running = None
        self.reason = str(reason)


def _moments(prefix: str, mean: float, square: float) -> dict[str, float]:
    """Mean and deviation of accuracies, from the means of them and of their squares."""
    variance = max(square - mean**2, 0.0)
    return {
        f"{prefix}mean-accuracy": mean,
        f"{prefix}std-accuracy": variance**0.5,
    }


class MaskedSums:
    """Masked sums over the same clients, one after another. Who is lost on the way takes no further part."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.clients: list[int] = []  # who is left
        self.dropped: list[int] = []
        self.means: list[float] = []
        self.coefficients: dict[int, float] = {}
        self.running: SecureSum | None = None

    def admit(self, clients: Iterable[int]) -> None:
        """Those connected take part."""
        for client in sorted(clients):
            if client in self.connection.nodes:
                self.clients.append(client)
            else:
                self._drop(client, self.connection.why_absent(client))

    def averages(self, kind: str, task: Task, models: Models) -> list[float]:
        """Means over those who replied, of the numbers that `kind` asks for."""
        messages = self.begin(kind, task, models, {})
        for reply in self.connection.replies(messages):
            self.add(reply)
        entries, covered = self.finish()
        return [number / covered for number in joined(entries)]

    def begin(
        self,
        kind: str,
        task: Task,
        models: Models,
        config: Values,
        size: int = 0,
    ) -> list[Message]:
        """Open a masked sum over those left, and return the tasks for it."""
        nodes = self.connection.nodes
        self.running = SecureSum(
            nodes=[nodes[client] for client in self.clients],
            size=size + NUMBERS[kind] * len(RANGES),
            ask=self.connection.replies,
            lifetime=self.connection.timeout,
            tell_errors=self.connection.roster.tell_errors,
        )
        try:
            self.running.open()
        finally:
            self._drop_lost(self.running)
        self._set_coefficients(kind)
        contents = {}
        for client in self.clients:
            content = RecordDict(dict(models))
            content[wire.CONFIG] = task.record(config)
            masked_task = self._masked_task(kind, client)
            content[RECORD] = masked_task.record()
            contents[nodes[client]] = content
        return self.running.tasks(contents)

    def add(self, reply: Message) -> None:
        """Add a client's masked vector."""
        if self.running is not None:
            self.running.add(reply)

    def finish(self) -> tuple[Vector, float]:
        """The sum, and how much of the coefficients those in it hold."""
        finished = self.running
        assert finished is not None
        self.running = None
        try:
            entries = finished.close()
        finally:
            self._drop_lost(finished)
        coefficients = [self.coefficients[client] for client in self.clients]
        return entries, sum(coefficients)

    def _set_coefficients(self, kind: str) -> None:
        """c_i of those left: the algorithm's own, or 1/m for scores."""
        sizes = self.server.sizes[self.clients].double()
        shares = sizes / sizes.sum()
        coefficients = torch.full_like(shares, 1 / len(shares))
        if kind not in SCORES:
            coefficients = self.server.algorithm.coefficients(shares)
        by_client = zip(self.clients, coefficients.tolist(), strict=True)
        self.coefficients = dict(by_client)

    def _masked_task(self, kind: str, client: int) -> MaskedTask:
        server = self.server
        memory = server.memory
        with_data = server.sizes > 0
        clients = int(with_data.sum())
        smooth = 1.0
        if server.algorithm.uses_losses and server.smooth is not None:
            smooth = server.smooth
        return MaskedTask(
            kind=kind,
            algorithm=wire.algorithm_text(server.algorithm),
            coefficient=self.coefficients[client],
            means=list(self.means),
            clients=clients,
            since=int(memory["counted"][client]),
            mean_dual=float(memory["dual_total"]) / clients,
            smooth=smooth,
        )

    def _drop_lost(self, masked: SecureSum) -> None:
        """Drop those whom a sum lost before they gave; who gave is in it, whatever came after."""
        left = []
        for client in self.clients:
            node = self.connection.nodes[client]
            lost_before_giving = node in masked.lost and node not in masked.gave
            if lost_before_giving:
                self._drop(client, masked.lost[node])
            else:
                left.append(client)
        self.clients = left

    def _drop(self, client: int, reason: object) -> None:
        self.dropped.append(client)
        self.connection.log_dropped(self.server.index, client, reason)
