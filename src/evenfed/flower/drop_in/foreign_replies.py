"""Reads the replies of clients that do not use evenfed: updates, losses and scores, each field checked."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from ...core.algorithm import Algorithm
from ...core.errors import InputError
from ...settings import Settings
from .. import reply_fields
from ..logs import log
from ..reply_fields import MissingMetricError
from .fair_state import FairState
from .foreign_clients import LOSS, PARTITION, SIZE, ForeignClients, ReportKeys
from .trips import ForeignRound, PerClient

DURING = (
    "'{loss}' does not say at which model it was measured; Flower's usual clients average it over batches while they "
    "train, and weights from it are those of a model that has moved. The loss of the model as received: "
    "ClientApp(mods=[evenfed.flower.loss_before]), or app = evenfed.flower.extend(app, model=..., data=...). If yours "
    "is that one: Fair(measured_before=True)"
)


@dataclass
class ForeignReplies:
    """Reads replies; a client's losses of the current model are kept until the round that they serve."""

    algorithm: Algorithm
    settings: Settings
    keys: ReportKeys
    clients: ForeignClients
    weighted_by_key: str
    keeps_models: bool  # with the metrics of train replies
    measured_before: bool = False  # the client's own loss is of the model it received
    tell_errors: bool = False
    losses: PerClient = field(default_factory=dict)  # of the current model, by position
    logged: set[str] = field(default_factory=set)  # what is logged once
    has_scores: bool = False  # some client was scored

    def __post_init__(self) -> None:
        reply_fields.check_flag("measured_before", self.measured_before)
        reply_fields.check_flag("tell_errors", self.tell_errors)

    def updates(
        self,
        replies: Iterable[Message],
        round: ForeignRound,
        state: FairState,
    ) -> list[RecordDict]:
        """Give the updates of train replies to the round; returns what else the usable replies hold.

        Each reply is released at once. The round keeps the reasons why others failed.
        """
        contents = {}
        missing = []
        asked = len(round.awaited)
        for reply in replies:
            position = self.clients.positions.get(reply.metadata.src_node_id, -1)
            if position not in round.awaited:
                continue
            round.awaited.remove(position)
            try:
                self._take(reply, position, round, state)
            except InputError as error:
                round.failures[position] = str(error)
                if isinstance(error, MissingMetricError):
                    missing.append(error)
                continue
            contents[position] = reply.content
            if not self.keeps_models:  # only a function of the user's own wants them
                contents[position] = RecordDict(dict(reply.content.metric_records))
            del reply
        for position in round.awaited:
            round.failures[position] = "no reply"
        if not contents:
            self.refuse_wrong_name(missing, asked, "train")
        return [contents[position] for position in sorted(contents)]

    def refuse_wrong_name(self, missing: list[MissingMetricError], asked: int, kind: str) -> None:
        """Stop where most clients report no metric of the given name: the name is wrong, not the clients."""
        if 2 * len(missing) <= asked:
            return
        first = missing[0]
        option = "size_from" if first.name == self.keys.size else "loss_from"
        raise InputError(
            f"no {kind} reply holds '{first.name}', which {option} names; they hold {first.present}: give the right "
            f"name to Fair({option}=...)"
        )

    def scores(
        self,
        replies: Iterable[Message],
        number: int,
        asked: Iterable[int],
    ) -> tuple[PerClient, list[RecordDict]]:
        """The scores in evaluate replies of a round, by position, and what the usable replies hold."""
        scores: PerClient = {}
        contents = []
        failures = dict.fromkeys(asked, "no reply")
        for reply in replies:
            position = self.clients.place(reply.metadata.src_node_id)
            failures.pop(position, None)
            try:
                score = self._score(reply, position)
            except InputError as error:
                failures[position] = str(error)
                continue
            contents.append(reply.content)
            if score is not None:
                scores[position] = score
        for position, reason in failures.items():
            log(WARNING, "round %s: %s is not scored: %s", number, self.clients.name(position), reason)
        if contents and not scores:
            self._refuse_missing_score(contents)
        self.has_scores = self.has_scores or bool(scores)
        return scores, contents

    def _refuse_missing_score(self, contents: list[RecordDict]) -> None:
        """Stop where clients never reported a score of the name that was given; of the default one, warn."""
        (values,) = contents[0].metric_records.values()
        missing = MissingMetricError(self.keys.score, values)
        if self.keys.is_score_needed and not self.has_scores:
            raise InputError(
                f"no evaluate reply holds '{missing.name}', which score_from names; they hold {missing.present}: give "
                "the right name to Fair(score_from=...)"
            )
        self.log_once(
            f"no evaluate reply holds a score '{missing.name}'; they hold {missing.present}: name the score with "
            "Fair(score_from=...)"
        )

    def _take(
        self,
        reply: Message,
        position: int,
        round: ForeignRound,
        state: FairState,
    ) -> None:
        """Read a train reply and give its update to the round; refused where any of its fields does not fit."""
        reply_fields.refuse_failure(reply, self.tell_errors)
        trained = state.layout.read(reply_fields.model(reply))
        size = reply_fields.size(reply_fields.metrics(reply), self.keys.size)
        loss = round.losses.get(position)
        if loss is None and self.keys.loss_in == "train":
            loss, measured_before = self.keys.loss_of(reply, self.algorithm)
            if self.algorithm.uses_losses and not (measured_before or self.measured_before):
                self.log_once(DURING.format(loss=self.keys.loss))
        self.clients.note(position, reply)
        is_known = self.clients.sizes[position] > 0
        is_fixed = self.settings.guarding() is not None  # for the run: what a client said first counts
        if not is_known or not is_fixed:
            self.clients.set_size(position, size)
        round.take(state.update(position, trained), loss)

    def _score(self, reply: Message, position: int) -> float | None:
        """The score in an evaluate reply; a loss that comes with it serves the next round."""
        reply_fields.refuse_failure(reply, self.tell_errors)
        values = reply_fields.metrics(reply)
        score = self.keys.score_of(values)
        self.clients.note(position, reply)
        if self.settings.average is None:  # else the average was evaluated, which clients do not train
            with contextlib.suppress(InputError):  # the next round asks for it again
                self._keep_loss(reply, position)
        with contextlib.suppress(InputError):  # only shown, never used
            tested_on = reply_fields.number(values, self.weighted_by_key, least=0)
            self.clients.tested_on[position] = tested_on or 0.0
        return score

    def asked_losses(self, replies: Iterable[Message], drawn: list[int]) -> dict[int, str]:
        """Keep the losses in replies to questions for them; returns why those of other clients are unknown."""
        reasons = {position: "no reply with its loss" for position in drawn if position not in self.losses}
        asked = len(reasons)
        missing = []
        for reply in replies:
            position = self.clients.place(reply.metadata.src_node_id)
            try:
                reply_fields.refuse_failure(reply, self.tell_errors)
                self._keep_loss(reply, position)
                self.clients.note(position, reply)
                reasons.pop(position, None)
            except InputError as error:
                reasons[position] = str(error)
                if isinstance(error, MissingMetricError):
                    missing.append(error)
        if not self.losses:
            self.refuse_wrong_name(missing, asked, "evaluate")
        if self.keys.loss_in == "evaluate":
            return reasons
        for position, reason in reasons.items():
            log(WARNING, "the loss of %s: %s", self.clients.name(position), reason)
        if len(reasons) == asked > 0:
            raise InputError(
                "trips=3: no client answered a question for its loss; let client apps end with app = "
                "evenfed.flower.extend(app, model=..., data=...), or use trips=2"
            )
        return reasons

    def log_once(self, text: str) -> None:
        if text not in self.logged:
            self.logged.add(text)
            log(WARNING, "%s", text)

    def _keep_loss(self, reply: Message, position: int) -> None:
        """Keep the loss in an evaluate or query reply, which is of the model that clients train next."""
        is_before_training = self.keys.loss_in == "evaluate" or LOSS in reply_fields.metrics(reply)
        if not is_before_training:
            return
        loss, _ = self.keys.loss_of(reply, self.algorithm)
        if loss is not None:
            self.losses[position] = loss


def aggregated_reports(aggregate: Any, contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """The clients' metrics as one. Flower's mean of partition ids or of sizes says nothing and is left out."""
    metrics = reply_fields.aggregated(aggregate, contents, weighted_by)
    if aggregate is aggregate_metricrecords:
        for name in (PARTITION, SIZE):
            metrics.pop(name, None)
    return metrics
