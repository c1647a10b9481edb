"""A private round: the server learns sums alone. First the means that weights need, then a sum of weighted updates.

The keys of a round's sums are made once. Where the same clients take part again, the next round's are made along with
this one's update, and its first mean is summed together with this one's scores, which are of the same model.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from logging import INFO, WARNING

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy
from torch import Tensor

from ...algorithms import get, names
from ...core.algorithm import Algorithm
from ...core.errors import InputError
from ...core.server import Record, Server
from ...core.server_step import with_average
from ...core.sums import number_of_means
from ...core.words import counted
from ...settings import Settings
from .. import wire
from ..connection import Connection
from ..logs import log
from ..messaging import ClosingRule
from ..wire import Fields, ScoreRequest, Task, Values
from .mask_crypto import Vector
from .masked_sums import BOTH_SCORES, MEAN, NUMBERS, SCORE, UPDATE, MaskedSums, MaskedTotal, sums_of_round
from .masking_client import LEAST
from .masking_server import Session, TooFewClientsError
from .private_guard import UnusualError, check_mean, stepped, with_usual


def check_private(algorithm: Algorithm, settings: Settings) -> None:
    """Refuse an algorithm whose weights do not follow from sums, with its reason, and figures that are not summed."""
    if settings.metric == "loss":
        raise InputError("metric='loss' with private=True: only scores are summed, not test losses; leave it out")
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


def wrapper_settings(wrapped: Strategy, private: bool) -> Fields:
    """The name and settings of one of Flower's privacy wrappers; refused if it looks into single replies."""
    if private and not isinstance(wrapped, DifferentialPrivacyClientSideFixedClipping):
        raise InputError(
            f"{type(wrapped).__name__} looks into single replies, which private=True hides; use "
            "DifferentialPrivacyClientSideFixedClipping with fixedclipping_mod, which clips before the mask"
        )
    settings: Fields = {"wrapper": type(wrapped).__name__}
    for name, value in vars(wrapped).items():
        is_setting = isinstance(value, int | float | str)
        if is_setting and not name.startswith("_"):
            settings[name] = value
    return settings


def check_run(count: int, buffers: Sequence[str]) -> None:
    """Refuse what masked sums cannot serve: too few clients per round, models with buffers."""
    if count < LEAST:
        raise InputError(
            f"private=True with {counted(count, 'client')} per round: from the sum, each learns the others' part; "
            f"let at least {LEAST} take part"
        )
    if buffers:
        raise InputError(
            f"private=True with a model that keeps buffers ({buffers[0]}): their averages are not masked; use "
            "layers without buffers, such as GroupNorm instead of BatchNorm"
        )


def with_private_memory(server: Server) -> Server:
    """The server of a private run remembers which round last counted a client, and the sum of the clients' duals."""
    everyone = len(server.sizes)
    memory = {
        "counted": torch.zeros(everyone, dtype=torch.int64),
        "dual_total": torch.zeros(1, dtype=torch.float64),
    }
    return with_usual(dataclasses.replace(server, memory=memory, smoothed=None))


@dataclasses.dataclass(frozen=True)
class NextRoundSetup:
    """What a round has done for the next one."""

    session: Session | None = None  # keys that are made
    sums: MaskedSums | None = None  # those of the next round, its first mean known


class PrivateRound:
    """The same as `PlainRound`, from masked sums. Too few clients: the round is skipped, and the record names them."""

    def __init__(
        self,
        server: Server,
        task: Task,
        connection: Connection,
        ahead: NextRoundSetup | None = None,
    ) -> None:
        self.server = server
        personal = server.algorithm.personal()
        self.task = dataclasses.replace(task, personal=personal)
        self.connection = connection
        self.enough: ClosingRule | None = None  # all replies are awaited
        self.ahead = ahead or NextRoundSetup()  # from the last round; for the next one, once this is closed
        self.sums = MaskedSums(server, connection, [])
        self.next_server = server
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
        clients = drawn.tolist()
        ahead = self.ahead
        self.ahead = NextRoundSetup()
        known = ahead.sums
        try:
            if known is not None and known.drawn == sorted(clients):
                self.sums = known
                known.continue_with(self.connection)
            else:
                self.sums = MaskedSums(self.server, self.connection, clients)
                self.sums.open(ahead.session)
            self._sum_means(weighed)
            models = {wire.ARRAYS: arrays}
            if not self.sums.means and weighed is not arrays:
                models[wire.WEIGHED] = weighed
            everyone_is_left = len(self.sums.clients) == self.server.clients_with_data
            if everyone_is_left:  # and will take part in the next round too
                self.sums.following = Session(self.sums.nodes, sums_of_round(self.server))
            size = len(self.server.theta)
            return self.sums.begin(UPDATE, "update", self.task, models, config, size)
        except (TooFewClientsError, UnusualError) as reason:
            self._skip(reason)
            return []

    def _sum_means(self, weighed: ArrayRecord) -> None:
        sums = self.sums
        for position, mean in enumerate(sums.means):
            check_mean(self.server, position, mean)
        for position in range(len(sums.means), number_of_means(self.server.algorithm)):
            measured = {wire.ARRAYS: weighed} if position == 0 else {}  # the loss is measured once
            total = sums.total(MEAN, f"mean {position + 1}", self.task, measured)
            mean = total.numbers[0] / total.covered
            check_mean(self.server, position, mean)
            sums.means.append(mean)

    def collect(self, answers: Iterable[Message]) -> None:
        if self.sums.running is not None:
            self.sums.collect(answers)

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
                total = self.sums.finish()
                total_objective, _, _ = total.numbers
                objective = total_objective / total.covered
                server = self._moved(total)
                weights[self.sums.clients] = np.nan  # known to each client alone
        except (TooFewClientsError, UnusualError) as reason:
            self._skip(reason)
        self.ahead = NextRoundSetup(session=self.sums.following)
        self._log_stages(self.sums)
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
        next_index = server.index + 1
        server = dataclasses.replace(server, index=next_index, oversized=())
        self.next_server = with_average(server, self.server.average, record.skipped)
        return self.next_server, record

    def ask_scores(self, request: ScoreRequest, config: Values) -> list[Message]:
        """Mean and deviation of the clients' test scores. The sum is taken here, so no messages are left to send.

        If just those who are tested take part in the next round, its first mean is summed along with them.
        """
        index = self.server.index + 1
        task = self.task.to_score()
        judged = []
        for client in sorted(request.tested):
            if client in self.connection.nodes and not self.connection.is_silent(client):
                judged.append(client)
        if len(judged) < LEAST:
            log(WARNING, "round %s: no scores: %s clients have answered, %s are needed", index, len(judged), LEAST)
            return []
        is_same = sorted(request.following) == judged
        is_measured = is_same and number_of_means(self.next_server.algorithm) > 0
        if is_measured:
            task = dataclasses.replace(task, measure=request.measure)
        kind = SCORE if request.current is None else BOTH_SCORES
        try:
            sums = self._sums_for_scores(judged, is_measured)
            title = "scores and mean 1" if is_measured else "scores"
            total = sums.total(kind, title, task, request.models)
        except TooFewClientsError as reason:
            log(WARNING, "round %s: no scores: %s", index, reason)
            return []
        count = NUMBERS[kind]
        averages = [number / total.covered_scores for number in total.numbers[:count]]
        self.scores = _moments("", *averages[:2])
        if request.current is not None:
            self.scores.update(_moments("current-", *averages[2:]))
        if is_measured:
            mean = total.numbers[count] / total.covered
            sums.means.append(mean)
            self.ahead = NextRoundSetup(sums=sums)
        else:
            self._log_stages(sums)
        return []

    def _sums_for_scores(self, tested: list[int], is_measured: bool) -> MaskedSums:
        """Under the next round's keys if its first mean is summed as well, else under this round's if they fit."""
        sums = MaskedSums(self.next_server, self.connection, tested, scores_of=self.server.index)
        ready = None
        if is_measured:
            ready = self.ahead.session
            self.ahead = NextRoundSetup()
        elif not self.sums.lost:
            ready = self.sums.session
        sums.open(ready)
        return sums

    def collect_scores(self, answers: Iterable[Message]) -> Fields:
        return {"scores": self.scores}

    def _moved(self, total: MaskedTotal) -> Server:
        """The server after the step: the sum of updates divided by that of the lengths."""
        server = self.server
        _, length, dual_change = total.numbers
        update: Vector = total.vector / length if length > 0 else 0 * total.vector
        step = torch.from_numpy(update)
        last_counted = server.memory["counted"].clone()
        last_counted[self.sums.clients] = server.index + 1
        memory = {
            **server.memory,
            "counted": last_counted,
            "dual_total": server.memory["dual_total"] + dual_change,
        }
        remembering = dataclasses.replace(server, memory=memory)
        return stepped(remembering, step, self.sums.means)

    def _skip(self, reason: object) -> None:
        self.sums.running = None
        self.sums.following = None
        self.reason = str(reason)
        lost = ", ".join(self.sums.lost)
        if lost:
            self.reason = f"{reason}; lost: {lost}"

    def _log_stages(self, sums: MaskedSums) -> None:
        number = self.server.index + 1
        log(INFO, "round %s, private: %s", number, ", ".join(sums.messenger.stages) or "nobody was asked")


def _moments(prefix: str, mean: float, square: float) -> dict[str, float]:
    """Mean and deviation of accuracies, from the means of them and of their squares."""
    variance = max(square - mean**2, 0.0)
    return {
        f"{prefix}mean-accuracy": mean,
        f"{prefix}std-accuracy": variance**0.5,
    }
