"""What `Fair` hears from clients of other people: updates, losses and scores, each field checked."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message, MessageType, RecordDict

from ...core.algorithm import Algorithm
from ...core.errors import InputError
from ...settings import Settings
from .. import reply_fields
from ..logs import log
from .fair_state import FairState
from .foreign_clients import LOSS, ForeignClients, ReportKeys
from .trips import ForeignRound

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
    losses: dict[int, float] = field(default_factory=dict)  # of the current model, by position
    logged: set[str] = field(default_factory=set)  # what is logged once

    def updates(
        self,
        replies: Iterable[Message],
        round: ForeignRound,
        state: FairState,
    ) -> list[RecordDict]:
        """Give the updates of train replies to the round, and let each reply go; what the usable ones hold beside.

        Why others failed, the round keeps.
        """
        contents = {}
        for reply in replies:
            position = self.clients.positions.get(reply.metadata.src_node_id, -1)
            if position not in round.awaited:
                continue
            round.awaited.remove(position)
            try:
                self._take(reply, position, round, state)
            except InputError as error:
                round.failures[position] = str(error)
                continue
            contents[position] = self._without_models(reply.content)
            del reply
        for position in round.awaited:
            round.failures[position] = "no reply"
        return [contents[position] for position in sorted(contents)]

    def _without_models(self, content: RecordDict) -> RecordDict:
        """What of a train reply is aggregated as metrics; a function of the user's own gets all of it."""
        if self.keeps_models:
            return content
        return RecordDict(dict(content.metric_records))

    def scores(self, replies: Iterable[Message], number: int) -> tuple[dict[int, float], list[RecordDict]]:
        """The scores in evaluate replies of a round, by position, and what the usable replies hold."""
        scores: dict[int, float] = {}
        contents = []
        for reply in replies:
            position = self.clients.place(reply.metadata.src_node_id)
            try:
                score = self._score(reply, position)
            except InputError as error:
                log(WARNING, "round %s: the score of %s: %s", number, self.clients.name(position), error)
                continue
            contents.append(reply.content)
            if score is not None:
                scores[position] = score
        if contents and not scores:
            self.log_once(f"no evaluate reply holds a score '{self.keys.score}'; name yours with score_from")
        return scores, contents

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
        size = self.keys.size_of(reply)
        loss = round.losses.get(position)
        if loss is None:
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
        score = self.keys.score_of(reply)
        self._keep_loss(reply, position)
        with contextlib.suppress(InputError):  # only told, never used
            judged_on = reply_fields.number(reply_fields.metrics(reply), self.weighted_by_key, least=0)
            self.clients.judged_on[position] = judged_on or 0.0
        return score

    def loss(self, reply: Message, position: int) -> None:
        """Keep the loss in a reply to a question for it."""
        reply_fields.refuse_failure(reply, self.tell_errors)
        self._keep_loss(reply, position)

    def log_once(self, text: str) -> None:
        if text not in self.logged:
            self.logged.add(text)
            log(WARNING, "%s", text)

    def _keep_loss(self, reply: Message, position: int) -> None:
        """Keep the loss in an evaluate or query reply, if it is of the model that clients train next."""
        if self.settings.average is not None and reply.metadata.message_type == MessageType.EVALUATE:
            return
        loss = None
        measured_before = False
        if self.keys.loss_in == "evaluate" or LOSS in reply_fields.metrics(reply):
            loss, measured_before = self.keys.loss_of(reply, self.algorithm)
        self.clients.note(position, reply)
        if loss is not None and (measured_before or self.keys.loss_in == "evaluate"):
            self.losses[position] = loss
