"""Masked sums over clients: what each is asked to add, and who is left."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from ...core.algorithm import PrivateInputs
from ...core.server import Server
from ...core.sums import number_of_means
from .. import wire
from ..connection import Connection
from ..wire import Models, Task, Values
from .mask_crypto import Vector
from .masking_server import MaskedSum, ProtocolMessenger, Requests, Session, open_session

RECORD = "private"

# kinds of masked sums
MEAN = "mean"
UPDATE = "update"
SCORE = "score"
BOTH_SCORES = "both scores"
NUMBERS = {
    MEAN: 1,
    UPDATE: 3,  # in addition to the update: objective, length, and change of the dual
    SCORE: 2,  # a score and its square
    BOTH_SCORES: 4,  # the same of the deployed model, then of the current one
}
SCORES = {  # which of a client's scores go into a sum
    SCORE: ("accuracy",),
    BOTH_SCORES: ("accuracy", "current"),
}


@dataclass(frozen=True)
class MaskedTask:
    """What a client has to add to which sum."""

    kind: str  # MEAN, UPDATE, SCORE or BOTH_SCORES
    algorithm: str  # JSON: name and hyper-parameters
    coefficient: float  # c_i, which is public: the client's share, or 1/m
    score_coefficient: float  # 1/m
    means: list[float]  # those known so far
    clients: int  # with data, in the federation
    since: int  # the client's memory counts as it stood before this round: after the last that counted it
    mean_dual: float
    smooth: float  # 1: not smoothed

    def record(self) -> ConfigRecord:
        return ConfigRecord(dict(vars(self)))

    def own(self, lr: float, loss: float, memory: Tensor | None) -> PrivateInputs:
        """What the client knows of itself; `memory` holds its smoothed loss and its dual before the round."""
        dual = 0.0
        if memory is not None:
            smoothed, dual = memory.tolist()
            loss = (1 - self.smooth) * smoothed + self.smooth * loss
        return PrivateInputs(
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


@dataclass(frozen=True)
class MaskedTotal:
    """A sum over the clients that gave, and how much of the coefficients they hold."""

    numbers: list[float]
    vector: Vector
    covered: float  # of c_i
    covered_scores: float  # of 1/m


def sums_of_round(server: Server) -> int:
    """How many sums a set-up must serve: the means, the update, and the scores."""
    return number_of_means(server.algorithm) + 2


class MaskedSums:
    """Masked sums over the same clients, one after another. Who is lost on the way takes no further part."""

    def __init__(
        self,
        server: Server,
        connection: Connection,
        clients: Iterable[int],
        scores_of: int | None = None,
    ) -> None:
        self.server = server
        self.scores_of = scores_of  # the round whose model is scored; None once the server's next round has begun
        self.connection = connection
        self.drawn = sorted(clients)
        self.clients: list[int] = []  # who is left
        self.dropped: list[int] = []
        self.means: list[float] = []
        self.coefficients: dict[int, float] = {}
        self.score_coefficient = 0.0
        self.session: Session | None = None
        self.following: Session | None = None  # the next round's, whose set-up rides on messages of this one
        self.running: MaskedSum | None = None
        self.title = ""  # of the sum that runs
        self.messenger = ProtocolMessenger(
            ask=connection.replies,
            lifetime=connection.timeout,
            tell_errors=connection.roster.tell_errors,
        )
        self.node_of: dict[int, int] = {}  # by client, as it was when the keys were made
        for client in self.drawn:
            if client in connection.nodes:
                self.clients.append(client)
                self.node_of[client] = connection.nodes[client]
            else:
                self._drop(client, connection.why_absent(client))

    @property
    def nodes(self) -> list[int]:
        return [self.node_of[client] for client in self.clients]

    @property
    def lost(self) -> list[str]:
        """Names of those who were lost, also after they gave."""
        names = [self.connection.roster.name(client) for client in self.dropped]
        for client in self.clients:
            if self.node_of[client] in self.messenger.lost:
                names.append(self.connection.roster.name(client))
        return names

    def continue_with(self, connection: Connection) -> None:
        """In the next round: who has left takes no further part."""
        self.connection = connection
        self.scores_of = None
        self.messenger.ask = connection.replies
        for client in self.clients:
            node = self.node_of[client]
            if connection.nodes.get(client) != node:
                self.messenger.lost[node] = connection.why_absent(client)
        self._drop_lost(set())

    def open(self, ready: Session | None = None) -> None:
        """Make the keys that all sums need; those made `ready` serve if they are of just these clients."""
        if ready is not None and ready.members == set(self.nodes) and ready.begun < ready.sums:
            self.session = ready
            return
        try:
            self.session = open_session(self.nodes, sums_of_round(self.server), self.messenger)
        finally:
            self._drop_lost(set())

    def begin(
        self,
        kind: str,
        title: str,
        task: Task,
        models: Models,
        config: Values,
        size: int = 0,
    ) -> list[Message]:
        assert self.session is not None
        numbers = NUMBERS[kind]
        if kind in SCORES and task.measure:
            numbers += 1
        self.title = title
        shares = self.server.shares_of(torch.tensor(self.clients))
        coefficients = self.server.algorithm.coefficients(shares)  # c_i
        self.coefficients = dict(zip(self.clients, coefficients.tolist(), strict=True))
        self.score_coefficient = 1 / len(self.clients)
        self.running = self.session.sum(self.nodes, numbers, size)
        requests = self.running.wanted()
        if self.following is not None:
            _ride(self.following.keys_wanted(), requests)
        contents = {}
        for client in self.clients:
            content = RecordDict(dict(models))
            content[wire.CONFIG] = task.record(config)
            content[RECORD] = self._masked_task(kind, client).record()
            contents[self.node_of[client]] = content
        return self.messenger.messages(requests, contents)

    def collect(self, replies: Iterable[Message]) -> None:
        """Take the masked vectors, and the keys that come along."""
        running = self.running
        following = self.following
        assert running is not None

        def take(node: int, answer: Values) -> None:
            running.take(node, answer)
            if following is not None:
                with contextlib.suppress(Exception):  # what goes wrong there loses nobody here
                    following.take_keys(node, answer)

        self.messenger.collect(f"masked {self.title}", running.nodes, replies, take)
        self._drop_lost(running.gave)
        if following is not None and following.public.keys() != following.near.keys():
            self.following = None

    def finish(self) -> MaskedTotal:
        """Open the sum; shares for the next round's come along."""
        running = self.running
        following = self.following
        assert running is not None
        self.running = None
        running.session.check_enough(f"masked {self.title}", running.gave)

        def take(node: int, answer: Values) -> None:
            running.take_shares(node, answer)
            if following is not None:
                with contextlib.suppress(Exception):
                    following.take_shares(node, answer)
                    willing.add(node)

        willing: set[int] = set()
        requests = running.shares_wanted()
        if following is not None:
            _ride(following.shares_wanted(), requests)
        title = f"unmasking {self.title}"
        self.messenger.exchange(title, requests, take)
        if following is not None:
            following.end_shares(willing)
        numbers, vector = running.opened(title)
        coefficients = [self.coefficients[client] for client in self.clients]
        return MaskedTotal(
            numbers=numbers,
            vector=vector,
            covered=sum(coefficients),
            covered_scores=self.score_coefficient * len(self.clients),
        )

    def total(
        self,
        kind: str,
        title: str,
        task: Task,
        models: Models,
    ) -> MaskedTotal:
        messages = self.begin(kind, title, task, models, {})
        self.collect(self.connection.replies(messages))
        return self.finish()

    def _masked_task(self, kind: str, client: int) -> MaskedTask:
        server = self.server
        memory = server.memory
        clients = server.clients_with_data
        smooth = 1.0
        if server.algorithm.uses_losses and server.smooth is not None:
            smooth = server.smooth
        return MaskedTask(
            kind=kind,
            algorithm=wire.algorithm_text(server.algorithm),
            coefficient=self.coefficients[client],
            score_coefficient=self.score_coefficient,
            means=list(self.means),
            clients=clients,
            since=int(memory["counted"][client]),
            mean_dual=float(memory["dual_total"]) / clients,
            smooth=smooth,
        )

    def _drop_lost(self, gave: set[int]) -> None:
        """Drop those who were lost before they gave; who gave is in the sum, whatever comes after."""
        left = []
        for client in self.clients:
            node = self.node_of[client]
            if node in self.messenger.lost and node not in gave:
                self._drop(client, self.messenger.lost[node])
            else:
                left.append(client)
        self.clients = left

    def _drop(self, client: int, reason: object) -> None:
        self.dropped.append(client)
        if self.scores_of is None:
            self.connection.log_dropped(self.server.index, client, reason)
        else:
            self.connection.log_dropped(self.scores_of, client, reason, "not scored")


def _ride(further: Requests, requests: Requests) -> None:
    for node, parts in further.items():
        if node in requests:
            requests[node].update(parts)
