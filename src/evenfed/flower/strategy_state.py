"""The state of a strategy: the server between rounds, and the open round."""

from collections.abc import Iterable, Iterator

from flwr.app import ArrayRecord, Message
from torch import Tensor

from ..core.algorithm import Algorithm
from ..core.average import Average, ModelState
from ..core.server import Record, Server
from ..core.server_step import with_model
from ..settings import Settings
from ..simulate.state import new_server
from .array_layout import ArrayLayout
from .drop_in.trips import PerClient
from .plain import PlainRound
from .secagg.private import NextRoundSetup, PrivateRound, check_run, with_private_memory

Round = PlainRound | PrivateRound


def first_server(
    algorithm: Algorithm,
    settings: Settings,
    layout: ArrayLayout,
    arrays: ArrayRecord,
    sizes: Tensor,
    private: bool,
) -> Server:
    """The server before its first round, over clients of these sizes [n]."""
    travelling = ArrayRecord({name: arrays[name] for name in layout.tensors})
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
    check_run(settings.drawn(server.clients_with_data), layout.buffers)
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
        self.measured: PerClient = {}  # losses at the model `weighed` of the next round, by client
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
        return self.round.connection.replies(messages, self.round.enough)

    def keep_for_next(self) -> None:
        if isinstance(self.round, PlainRound):
            self.measured = self.round.measured
        if isinstance(self.round, PrivateRound):
            self.ahead = self.round.ahead

    def close(self) -> Record:
        assert self.round is not None
        before = self.server.average
        server, record = self.round.close()
        if not record.skipped:
            self.average_before = before  # else the model is still that of an earlier round
        self.server = server
        self.record = record
        self.arrays = self.layout.arrays(server.current)
        return record
