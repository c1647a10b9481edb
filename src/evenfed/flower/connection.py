"""How a round reaches its clients."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message
from flwr.serverapp import Grid

from . import reply_fields
from .logs import log
from .messaging import ClosingRule, replies
from .roster import Roster


@dataclass(frozen=True)
class Connection:
    """The clients of a round, and asking them."""

    grid: Grid
    roster: Roster
    timeout: float
    ordered: bool
    nodes: Mapping[int, int]  # client -> node, of those connected; those that rest are left out
    absent: Mapping[int, str] = field(default_factory=dict)  # client -> why it is not asked, where that is known

    def replies(
        self,
        messages: Iterable[Message],
        enough: ClosingRule | None = None,
        ordered: bool | None = None,
    ) -> Iterator[Message]:
        return replies(
            self.grid,
            messages,
            self.timeout,
            self.ordered if ordered is None else ordered,
            enough,
            self.roster.responsiveness,
        )

    def why_absent(self, client: int) -> str:
        return self.absent.get(client, "not connected")

    def is_silent(self, client: int) -> bool:
        """Whether a client was waited for until the timeout, in this round."""
        return self.nodes.get(client) in self.roster.responsiveness.silent

    def refuse_failure(self, reply: Message) -> None:
        reply_fields.refuse_failure(reply, self.roster.tell_errors)

    def log_unscored(self, client: int) -> None:
        """Say once that a client's test data give no score."""
        roster = self.roster
        if client in roster.unscored:
            return
        roster.unscored.add(client)
        text = "%s has no %s: it is not defined on its test data, such as AUROC on one class alone"
        log(WARNING, text, roster.who(client), roster.metric().name)

    def log_dropped(self, index: int, client: int, reason: object, what: str = "dropped") -> None:
        who = self.roster.who(client)
        log(WARNING, "round %s: %s is %s: %s", index + 1, who, what, reason)
