"""Flower without its processes: a Grid that hands real messages, in the form they travel in, to a real client app."""

from collections.abc import Callable, Iterable
from uuid import uuid4

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

import evenfed
from evenfed.clients.lazy import pools
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.server import initial_arrays
from worked_example import federation, small_model


def travelled(message: Message) -> Message:
    """The message as it arrives on another machine: taken apart to bytes and put together again."""
    name, kept = message.object_id, message.metadata.message_id
    arrived = inflate_object_from_contents(name, {k: o.deflate() for k, o in get_all_nested_objects(message).items()})
    arrived.metadata.__dict__["_message_id"] = kept
    return arrived


class LocalGrid(Grid):
    """`clients` nodes with random-looking ids; `order` and `spoil` play what real networks and sites do.

    A client works when its reply is pulled. `order(ids)` says in which order waiting replies come;
    `spoil(reply, client)` may change a reply, or return None to lose it.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        order: Callable[[list[str]], list[str]] = list,
        spoil: Callable[[Message, int], Message | None] = lambda reply, client: reply,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's simulation does
        self.app, self.order, self.spoil = app, order, spoil
        self.contexts = {
            node_of(k): Context(1, node_of(k), {"partition-id": k, "num-partitions": clients}, RecordDict(), {})
            for k in range(clients)
        }
        self.waiting: dict[str, Message] = {}
        self.log: list[tuple[str, int]] = []  # (kind, client) of every order

    def client(self, node: int) -> int:
        return self.contexts[node].node_config["partition-id"]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            names.append(message.metadata.message_id)
            self.waiting[names[-1]] = message
            self.log.append((message.metadata.message_type, self.client(message.metadata.dst_node_id)))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for name in self.order([i for i in message_ids if i in self.waiting]):
            order = travelled(self.waiting.pop(name))
            context = self.contexts[order.metadata.dst_node_id]
            try:
                reply = self.app(order, context)
            except Exception as error:
                reply = Message(Error(code=1, reason=str(error)), reply_to=order)
            kept = self.spoil(reply, self.client(order.metadata.dst_node_id))
            if kept is not None:
                kept.metadata.__dict__["_message_id"] = str(uuid4())
                found.append(travelled(kept))
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object: ...

    def create_message(self, *args: object, **options: object) -> Message: ...


def node_of(client: int) -> int:
    """Node ids in no order that a client could be told by."""
    return (0x9E3779B97F4A7C15 * (client + 1)) % 2**63


OPTIONS = {"guard": "off", "rounds": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 2}


def sites(clients):
    """The clients as views of one tensor, as the simulator has them: kernels round by memory alignment."""
    train, test = pools(clients, clients[0].train[0].dtype)
    return [evenfed.Client(train.of(k), test.of(k), c.name) for k, c in enumerate(clients)]


def on_flower(algorithm, clients=None, model=small_model, grid=LocalGrid, app=None, leave_after=None, **options):
    """(strategy, Flower's result, grid) after all rounds, or after round `leave_after`, counted from 0."""
    clients = sites(clients or federation())
    app = app or client_app(model, lambda context: clients[context.node_config["partition-id"]], device="cpu")
    made = grid(app, len(clients)) if isinstance(grid, type) else grid
    strategy = FairStrategy(algorithm, **{"ordered": True, "timeout": 1, **OPTIONS, **options})
    strategy.journal.interrupted = lambda: strategy.records[-1].index == leave_after
    return strategy, strategy.start(made, initial_arrays(model())), made


def simulated(algorithm, clients=None, model=small_model, **options):
    return evenfed.train(
        model(), clients or federation(), algorithm, engine="reference", device="cpu", **{**OPTIONS, **options}
    )


def assert_same(found, wanted, exact=True):
    """Models, memory and every client's row."""
    equal = torch.equal if exact else lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    assert equal(found.server.theta, wanted.server.theta)
    assert equal(found.server.deployed.theta, wanted.server.deployed.theta)
    assert found.server.memory.keys() == wanted.server.memory.keys()
    assert all(equal(found.server.memory[k], v) for k, v in wanted.server.memory.items())
    for ours, theirs in zip(found.records, wanted.records, strict=True):
        assert (ours.index, ours.dropped, ours.skipped) == (theirs.index, theirs.dropped, theirs.skipped)
        assert (ours.current is None) == (theirs.current is None)
        assert (ours.accuracy is None) == (theirs.accuracy is None)
        names = ["losses", "weights"]
        names += [name for name in ("accuracy", "current") if getattr(theirs, name) is not None]
        for name in names:
            a, b = getattr(ours, name), getattr(theirs, name)
            assert np.array_equal(a, b, equal_nan=True) if exact else np.allclose(a, b, atol=1e-5, equal_nan=True)
