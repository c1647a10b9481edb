"""A grid of thousands of nodes in one process: each answers at once, without a model of its own."""

from collections.abc import Iterable
from itertools import count

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from evenfed.flower import wire

NAMES = ("weight", "bias")


class FleetGrid(Grid):
    """`clients` nodes that understand evenfed's messages and Flower's usual ones.

    `requests` counts those that a server on another machine would make. `mute` clients take the `kinds` of messages
    named and never answer them.
    A client's loss falls with its number; training moves every parameter by its loss.
    """

    def __init__(
        self,
        clients: int,
        parameters: int = 4,
        mute: Iterable[int] = (),
        kinds: tuple[str, ...] = ("query", "train", "evaluate"),
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's simulation does
        self.clients = clients
        self.mute = set(mute)
        self.kinds = kinds
        self.nodes = {node_of(client): client for client in range(clients)}
        self.waiting: dict[str, Message] = {}
        self.log: list[tuple[str, int]] = []  # (kind, client) of every order
        self.pushes: list[int] = []  # messages of each request
        self.requests = 0
        self.most_at_once = 10**9  # messages of a request
        self.trained = {
            "weight": Array(np.full(parameters - 1, 0.5, np.float32)),
            "bias": Array(np.full(1, 0.5, np.float32)),
        }
        self._names = count()

    def start(self) -> ArrayRecord:
        """A model to begin with."""
        return ArrayRecord({name: Array(np.zeros(array.shape, np.float32)) for name, array in self.trained.items()})

    def size(self, client: int) -> int:
        return 2 + client % 5

    def asked(self, kind: str) -> list[int]:
        return [client for sent, client in self.log if sent == kind]

    def get_node_ids(self) -> Iterable[int]:
        self.requests += 1
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.requests += 1
        if len(messages) > self.most_at_once:
            return []  # as Flower answers what is too large
        self.pushes.append(len(messages))
        ids = []
        for message in messages:
            name = str(next(self._names))
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            self.waiting[name] = message
            node = message.metadata.dst_node_id
            self.log.append((message.metadata.message_type, self.nodes.get(node, -1)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.requests += 1
        answers = []
        for name in message_ids:
            order = self.waiting.get(name)
            if order is None or order.metadata.dst_node_id not in self.nodes:
                continue
            client = self.nodes[order.metadata.dst_node_id]
            kind = order.metadata.message_type.partition(".")[0]
            if client in self.mute and kind in self.kinds:
                continue
            del self.waiting[name]
            answers.append(self._answer(order, client))
        return answers

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))  # one request for all, as Flower's grids do

    def _answer(self, order: Message, client: int) -> Message:
        kind = order.metadata.message_type
        loss = 0.1 + 1 / (1 + client)
        metrics = {"loss": loss, "train_loss": loss, "num-examples": self.size(client)}
        content = {}
        if kind == wire.DESCRIBE:
            facts = {
                "partition-id": client,
                "num-partitions": self.clients,
                "name": f"phone-{client}",
                "train": self.size(client),
                "test": 3,
                "parameters": list(NAMES),
                "buffers": list[str](),
                "counts-right-answers": True,
            }
            content[wire.CONFIG] = ConfigRecord(facts)
        elif kind == wire.TRAIN:
            content[wire.ARRAYS] = self._model()
            config = order.content.config_records[wire.CONFIG]
            if config.get(f"{wire.PREFIX}snapshot_step"):
                content[wire.SNAPSHOT] = self._model()
        elif kind == wire.EVALUATE:
            metrics |= {"accuracy": 1 - loss / 2, "eval_acc": 1 - loss / 2}
            if not order.content.config_records[wire.CONFIG].get(f"{wire.PREFIX}measure"):
                del metrics["loss"]
        if kind != wire.DESCRIBE:
            content[wire.METRICS] = MetricRecord(metrics)
        return Message(RecordDict(content), reply_to=order)

    def _model(self) -> ArrayRecord:
        """In memory of its own, as a reply from elsewhere is."""
        arrays = {}
        for name, array in self.trained.items():
            own = bytes(bytearray(array.data))
            arrays[name] = Array(array.dtype, array.shape, array.stype, own)
        return ArrayRecord(arrays)

    set_run = run = create_message = None  # of no use here


def node_of(client: int) -> int:
    """Node ids in no order that a client could be told by."""
    return (0x9E3779B97F4A7C15 * (client + 1)) % 2**63
