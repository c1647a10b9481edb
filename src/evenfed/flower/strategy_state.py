"""The state of a strategy: the server between rounds, and the open round."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from flwr.app import ArrayRecord, Message
from torch import Tensor

from ..core.algorithm import Algorithm
from ..core.average import Average, ModelState
from ..core.server import Record, Server
from ..core.server_step import with_model
from ..settings import Settings
from ..simulate.state import new_server
from .array_layout import ArrayLayout
from .connection import Connection
from .fleet_options import RoundClosing
from .plain import PlainRound
from .secagg.private import NextRoundSetup, PrivateRound, check_run, with_private_memory
from .wire import Task, Values


class Round(Protocol):
    """What rounds in the clear and rounds of masked sums have in common, in the order in which it is called."""

    connection: Connection

    def open(self, drawn: Tensor, arrays: ArrayRecord, weighed: ArrayRecord, config: Values) -> list[Message]: ...
    def collect(self, answers: Iterable[Message]) -> None: ...
    def close(self) -> tuple[Server, Record]: ...
    def ask_scores(
        self,
        tested: Iterable[int],
        deployed: ArrayRecord,
        current: ArrayRecord | None,
        config: Values,
        following: Iterable[int] = (),
        measure: str = "",
    ) -> list[Message]: ...
    def collect_scores(self, answers: Iterable[Message]) -> dict[str, Any]: ...


def first_server(
    algorithm: Algorithm,
    settings: Settings,
    layout: ArrayLayout,
    arrays: ArrayRecord,
    sizes: Tensor,
    private: bool,
) -> Server:
    """The server before its first round, over clients of these sizes [n]."""
    travelling = layout.chosen(arrays)
    theta, buffers = layout.read(travelling)
    server = new_server(
        algorithm,
        settings,
        theta,
        sizes,
        layout=layout.layout,
        buffers=dict(buffers),
    )
    if not private:
        return server
    with_data = sizes > 0
    count = settings.drawn(int(with_data.sum()))
    check_run(count, layout.buffers)
    return with_private_memory(server)


class StrategyState:
    """The server and its models as Flower holds them, and the open round."""

    def __init__(self, server: Server, layout: ArrayLayout) -> None:
        self.server = server
        self.layout = layout
        self.arrays = layout.arrays(server.current)  # the current model, which clients train
        self.average_before: Average | None = None  # as it stood before the last round
        self.round: Round | None = None
        self.record: Record | None = None  # of the round, once its step is taken
        self.measured: dict[int, float] = {}  # losses at the model `weighed` of the next round, by client
        self.ahead: NextRoundSetup | None = None  # what a private round has done for the next
        self.began = 0.0

    @property
    def deployed(self) -> ArrayRecord:
        """The model that serves clients."""
        return self._arrays_of(self.server.deployed)

    @property
    def weighed(self) -> ArrayRecord:
        """The model at which clients measure the losses that give their weights."""
        return self._arrays_of(self.server.weighed)

    def _arrays_of(self, model: ModelState) -> ArrayRecord:
        if model.theta is self.server.theta:
            return self.arrays
        return self.layout.arrays(model)

    def plain_round(
        self,
        task: Task,
        connection: Connection,
        trips: int,
        closing: RoundClosing,
    ) -> PlainRound:
        """Open the next round in the clear."""
        round = PlainRound(self.server, self.layout, task, connection, trips, self.measured, closing)
        self.round = round
        self.measured = {}
        return round

    def private_round(self, task: Task, connection: Connection) -> PrivateRound:
        """Open the next round of masked sums."""
        round = PrivateRound(self.server, task, connection, self.ahead)
        self.round = round
        self.ahead = None
        return round

    def adopt(self, arrays: ArrayRecord) -> None:
        """Continue from the model that Flower holds, to which a wrapper may have added noise.

        The average then holds that model instead of ours, which must not leave the server without the noise.
        """
        if arrays is self.arrays:
            return
        self.measured = {}  # of another model
        self.ahead = None
        model = self.layout.read(arrays)
        self.server = with_model(self.server, model, self.average_before)
        self.arrays = arrays

    def replies(self, messages: Iterable[Message]) -> Iterator[Message]:
        """To what the open round has asked, until it has enough of them."""
        assert self.round is not None
        enough = self.round.enough if isinstance(self.round, PlainRound) else None
        return self.round.connection.replies(messages, enough)

    def keep_for_next(self) -> None:
        """Keep what the open round has found out about the next one."""
        if isinstance(self.round, PlainRound):
            self.measured = self.round.measured
        elif isinstance(self.round, PrivateRound):
            self.ahead = self.round.ahead

    def close(self) -> Record:
        """Take the step of the open round."""
        assert self.round is not None
        before = self.server.average
        server, record = self.round.close()
        if not record.skipped:
            self.average_before = before  # else the model is still that of an earlier round
        self.server = server
        self.record = record
        self.arrays = self.layout.arrays(server.current)
        return record
