"""A round of which the server learns sums only: first the means that weights need, then one sum of weighted updates."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy
from flwr.supercore import log

from ..algorithms import get
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.round import moved
from ..core.server import Record, Server
from . import wire
from .secure import LEAST, RANGES, Ask, SecureSum, TooFewError, joined
from .sums import Rule, rule_of
from .wire import Shape, Task

RECORD = "private"
MEAN, UPDATE, SCORE = "mean", "update", "score"
NUMBERS = {MEAN: 1, UPDATE: 2, SCORE: 2}  # how many travel beside the update: value and extra; score and its square


@dataclass(frozen=True)
class MaskedTask:
    """What a client is told to add to which sum."""

    kind: str  # MEAN, UPDATE or SCORE
    algorithm: str  # JSON: name and hyper-parameters
    factor: float  # c_i: this client's share, or 1/m
    means: list[float]  # those known so far
    clients: int  # with data, in the federation
    since: int = 0  # the client's memory counts as it stood before this round: after the last that counted it
    mean_dual: float = 0.0
    smooth: float = 1.0  # 1: not smoothed

    def record(self) -> ConfigRecord:
        return ConfigRecord(dict(vars(self)))

    @classmethod
    def read(cls, message: Message) -> "MaskedTask":
        told: Any = dict(message.content.config_records[RECORD])
        return cls(**told)

    def built(self) -> Algorithm:
        """The algorithm whose sums these are."""
        told = json.loads(self.algorithm)
        return get(told["name"], **told["options"])


def check_run(count: int, shape: Shape) -> None:
    """Refuse what masked sums cannot serve: too few clients a round, models with buffers."""
    if count < LEAST:
        raise InputError(
            f"private=True with {count} clients a round: from a sum of so few, one learns the other's part; "
            f"let at least {LEAST} take part"
        )
    if shape.buffers:
        raise InputError(
            f"private=True with a model that keeps buffers ({shape.buffers[0]}): their averages are not masked; use "
            "layers without, such as GroupNorm for BatchNorm"
        )


def check_wrapper(wrapped: Strategy) -> None:
    """Refuse Flower's privacy wrappers that look into single replies."""
    if not isinstance(wrapped, DifferentialPrivacyClientSideFixedClipping):
        raise InputError(
            f"{type(wrapped).__name__} looks into single replies, which private=True hides; use "
            "DifferentialPrivacyClientSideFixedClipping with fixedclipping_mod, which clips before the mask"
        )


def remembered(server: Server) -> Server:
    """What the server of a private run remembers: which round last counted a client, and the sum of CLIMB's duals."""
    memory = {"counted": torch.zeros(len(server.sizes)).long(), "dual_total": torch.zeros(1).double()}
    return dataclasses.replace(server, memory=memory, smoothed=None)


class PrivateRound:
    """One round, from the means to the step. Too few clients: the round is skipped, and `dropped` names the lost."""

    def __init__(self, server: Server, nodes: Mapping[int, int], ask: Ask, lifetime: float) -> None:
        self.server, self.nodes, self.ask, self.lifetime = server, nodes, ask, lifetime
        self.rule: Rule = rule_of(server.algorithm)
        self.alive: list[int] = []
        self.dropped: list[int] = []
        self.means: list[float] = []
        self.sum: SecureSum | None = None
        self.factors: dict[int, float] = {}

    def open(self, drawn: Iterable[int], task: Task, arrays: ArrayRecord, config: Mapping[str, Any]) -> list[Message]:
        """The means, one masked sum after another; then the orders to train. None if too few are left."""
        clients = list(drawn)
        self.alive = [client for client in clients if client in self.nodes]
        for client in sorted(set(clients) - set(self.alive)):
            self._drop(client, "not connected")
        try:
            for phase in range(len(self.rule.means)):
                sent = arrays if phase == 0 else None  # the loss is measured once
                total = self._summed(MEAN, task, sent, {})
                self.means.append(total[0])
            return self._begin(UPDATE, task, arrays, config, len(self.server.theta))
        except TooFewError as reason:
            self._skip(reason)
            return []

    def add(self, reply: Message) -> None:
        """Add a client's masked, weighted update."""
        if self.sum is not None:
            self.sum.add(reply)

    def close(self) -> tuple[Server, Record]:
        """The server after the step, and a record without any client's numbers."""
        weights = np.zeros(len(self.server.sizes))
        server, objective = self.server, float("nan")
        if self.sum is not None:
            try:
                size = len(server.theta)
                entries, covered = self._finish()
                value, extra = (number / covered for number in joined(entries[size:]))
                objective = float(self.rule.objective(server.algorithm, value, *self.means))
                server = self._step(entries[:size], covered, extra)
                weights[self.alive] = np.nan  # known to each client alone
            except TooFewError as reason:
                self._skip(reason)
        nowhere = np.full(len(server.sizes), np.nan)
        skipped = not bool(np.isnan(weights).any())
        record = Record(server.index, nowhere, weights, objective, 0, tuple(self.dropped), skipped)
        return dataclasses.replace(server, index=server.index + 1), record

    def scores(self, tested: Iterable[int], task: Task, arrays: ArrayRecord) -> dict[str, Any] | None:
        """Mean and deviation of the clients' test scores; None where too few can be asked."""
        self.alive = [client for client in tested if client in self.nodes]
        try:
            mean, square = self._summed(SCORE, task, arrays, {})
        except TooFewError as reason:
            log(WARNING, "round %s: no scores: %s", self.server.index, reason)
            return None
        return {"mean-accuracy": mean, "std-accuracy": max(square - mean**2, 0.0) ** 0.5}

    def _summed(self, kind: str, task: Task, arrays: ArrayRecord | None, config: Mapping[str, Any]) -> list[float]:
        """Means over those who replied, of the numbers that `kind` asks for."""
        orders = self._begin(kind, task, arrays, config)
        assert self.sum is not None
        for reply in self.ask(orders):
            self.sum.add(reply)
        entries, covered = self._finish()
        return [number / covered for number in joined(entries)]

    def _begin(
        self, kind: str, task: Task, arrays: ArrayRecord | None, config: Mapping[str, Any], size: int = 0
    ) -> list[Message]:
        """Open a masked sum over those alive, and the orders for it."""
        entries = size + NUMBERS[kind] * len(RANGES)
        self.sum = SecureSum([self.nodes[client] for client in self.alive], entries, self.ask, self.lifetime)
        try:
            self.sum.open()
        finally:
            self._settle(self.sum)
        sizes = self.server.sizes
        uniform = kind == SCORE or self.rule.uniform(self.server.algorithm)
        weighed = {client: 1.0 if uniform else float(sizes[client]) for client in self.alive}
        self.factors = {client: weight / sum(weighed.values()) for client, weight in weighed.items()}
        common = {wire.CONFIG: task.record(config)} | ({} if arrays is None else {wire.ARRAYS: arrays})
        contents = {
            self.nodes[client]: RecordDict({**common, RECORD: self._order(kind, client).record()})
            for client in self.alive
        }
        return self.sum.orders(contents)

    def _order(self, kind: str, client: int) -> MaskedTask:
        server, memory = self.server, self.server.memory
        told = json.dumps({"name": server.algorithm.name, "options": server.algorithm.describe()})
        clients = int((server.sizes > 0).sum())
        return MaskedTask(
            kind=kind,
            algorithm=told,
            factor=self.factors[client],
            means=list(self.means),
            clients=clients,
            since=int(memory["counted"][client]),
            mean_dual=float(memory["dual_total"]) / clients,
            smooth=server.smooth if server.smooth is not None and server.algorithm.uses_losses else 1.0,
        )

    def _finish(self) -> tuple[Any, float]:
        """The sum, and the part of the public factors of those in it."""
        assert self.sum is not None
        done, self.sum = self.sum, None
        try:
            entries = done.close()
        finally:
            self._settle(done)
        return entries, sum(self.factors[client] for client in self.alive)

    def _step(self, total: Any, covered: float, extra: float) -> Server:
        """The step from the sum: by the public factors of those who gave, or by the algorithm's own length."""
        server, asked = self.server, len(self.factors)
        by = covered * extra if self.rule.length is not None else covered
        step = torch.from_numpy(total / by if by > 0 else 0 * total)
        memory = {name: kept.clone() for name, kept in server.memory.items()}
        memory["counted"][self.alive] = server.index + 1
        if self.rule.dual is not None:
            memory["dual_total"] += extra * covered * asked
        return moved(dataclasses.replace(server, memory=memory), step)

    def _settle(self, done: SecureSum) -> None:
        """Those whom the sum lost on the way take no further part; who gave is in it, whatever came after."""
        for client in self.alive:
            node = self.nodes[client]
            if node in done.lost and node not in done.gave:
                self._drop(client, done.lost[node])
        self.alive = [client for client in self.alive if client not in self.dropped]

    def _drop(self, client: int, reason: object) -> None:
        self.dropped.append(client)
        log(WARNING, "round %s: client %s is dropped: %s", self.server.index, client, reason)

    def _skip(self, reason: object) -> None:
        self.sum = None
        log(WARNING, "round %s is skipped: %s", self.server.index, reason)
