"""Which node is which client, and asking them: tasks pushed one by one, replies pulled as they arrive."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from ..core.errors import InputError
from ..core.server import Record
from . import fields, wire

Model = tuple[tuple[str, ...], tuple[str, ...]]  # names of parameters, and of buffers
MOST_CLIENTS = 10**6
AT_ONCE = 4  # replies pulled together: what the server holds of them at any moment
SHORTEST_PAUSE = 0.02  # seconds between two looks for replies, growing while none arrive
LONGEST_PAUSE = 1.0
FACTS = {"partition-id", "num-partitions", "name", "train", "test", "parameters", "buffers"}


def replies(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    ordered: bool = False,
) -> Iterator[Message]:
    """Replies as they arrive, few in memory at a time; those not there within `timeout` seconds are left out.

    `ordered`: in the order of the messages, so that sums are the same to the bit; early replies wait with
    Flower, not here.
    """
    waiting: list[str] = []
    for message in messages:
        pushed = grid.push_messages([message])
        waiting += [name for name in pushed if name is not None]
    deadline = time.monotonic() + timeout
    together = 1 if ordered else AT_ONCE
    pause = SHORTEST_PAUSE
    while waiting:
        late = time.monotonic() >= deadline
        only_next = ordered and not late
        reach = 1 if only_next else len(waiting)
        arrived: set[str] = set()
        for start in range(0, reach, together):
            end = start + together
            names = waiting[start:end]
            pulled = list(grid.pull_messages(names))
            arrived |= {message.metadata.reply_to_message_id for message in pulled}
            while pulled:
                yield pulled.pop(0)
        waiting = [name for name in waiting if name not in arrived]
        if late:
            return
        if arrived:
            pause = SHORTEST_PAUSE
        else:
            pause = min(1.5 * pause, LONGEST_PAUSE)
            time.sleep(pause)


@dataclass
class Roster:
    """Clients by position: their partition id, which batches and participation are drawn by.

    Node ids are random and change when a node registers anew, so nodes are asked who they are.
    """

    clients: int | None = None  # how many there are; None: what the nodes' num-partitions says
    nodes: dict[int, int] = field(default_factory=dict)  # position -> node, of those connected
    facts: dict[int, wire.Values] = field(default_factory=dict)  # position -> what the client told of itself
    positions: dict[int, int] = field(default_factory=dict)  # node -> position
    left_out: dict[int, str] = field(default_factory=dict)  # node -> reason
    told: dict[int, wire.Values] = field(default_factory=dict)  # node -> what it told of itself
    model: Model | None = None  # what the clients' model trains and keeps
    settled: bool = False  # no longer open to another number of clients or another model
    tell_errors: bool = False  # the text of clients' exceptions, which may quote data

    def __post_init__(self) -> None:
        self.stated = self.clients

    def gather(self, grid: Grid, wait: float, known: wire.Values | None = None) -> None:
        """Wait until all clients are there; `known` (an earlier header's clients) stands in for those that are not.

        A node that does not fit is left out and named; it ends the run only if there is no other.
        """
        deadline = time.monotonic() + wait
        while not self._complete():
            self.refresh(grid, wait)
            failures = [f"node {node}: {reason}" for node, reason in self.left_out.items()]
            if failures and not self.nodes:
                raise InputError("clients could not be set up: " + "; ".join(failures))
            if self._complete():
                break
            if time.monotonic() >= deadline:
                if known is not None and self.nodes:
                    break
                wanted = "any" if self.clients is None else self.clients
                connected = len(self.nodes)
                left_out = "".join(f"; left out: {failure}" for failure in failures)
                raise InputError(
                    f"{connected} of {wanted} clients connected within {wait:g} s; start the missing SuperNodes "
                    'with --node-config "partition-id=K num-partitions=N", or give `clients` or a longer `wait`'
                    f"{left_out}"
                )
            time.sleep(0.2)
        self.settled = True
        self._recall(known)

    def _complete(self) -> bool:
        if self.clients is None:
            return False
        return len(self.nodes) >= self.clients

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Note who is connected, and ask new nodes who they are."""
        present = set(grid.get_node_ids())
        new = present - self.told.keys() - self.left_out.keys()
        config = ConfigRecord({"server-round": 0})
        questions = []
        for node in sorted(new):
            question = wire.message(node, wire.DESCRIBE, {}, config)
            questions.append(question)
        for reply in replies(grid, questions, timeout):
            node = reply.metadata.src_node_id
            try:
                fields.refuse_failure(reply, self.tell_errors)
                self.told[node] = _facts(reply)
            except InputError as error:
                self._leave_out(node, error)
        if not self.settled:
            self._agree()
        for node, facts in self.told.items():
            if node in self.positions or node in self.left_out:
                continue
            try:
                self.positions[node] = self._entered(node, facts)
            except InputError as error:
                self._leave_out(node, error)
        self.nodes = {}
        for node, position in self.positions.items():
            if node in present:
                self.nodes[position] = node

    def _leave_out(self, node: int, reason: InputError) -> None:
        self.left_out[node] = str(reason)
        log(WARNING, "left out: node %s: %s", node, reason)

    def _agree(self) -> None:
        """How many clients there are and what their model trains: what most nodes say. On a change all enter anew."""
        before = (self.clients, self.model)
        if self.stated is None:
            partitions = [facts["num-partitions"] for facts in self.told.values()]
            self.clients = _most_common(partitions) or None
        models = [_model(facts) for facts in self.told.values()]
        self.model = _most_common(models)
        if (self.clients, self.model) != before:
            for node in self.told:
                self.left_out.pop(node, None)
            self.positions = {}
            self.facts = {}

    def _entered(self, node: int, facts: wire.Values) -> int:
        """The position of the client on a node."""
        position = int(facts["partition-id"])
        if self.clients is None:
            raise InputError(
                'it does not say how many clients there are; start it with --node-config "partition-id=K '
                'num-partitions=N", or give `clients`'
            )
        if not 0 <= position < self.clients:
            last = self.clients - 1
            raise InputError(
                f"partition-id={position}, but there are {self.clients} clients; give each node one of 0 .. {last}"
            )
        if _model(facts) != self.model:
            raise InputError("its model trains other parameters than the other clients' models")
        if position in self.positions.values():
            older = self.nodes.get(position)
            text = "nodes %s and %s both say partition-id=%s; the newer is asked"
            log(WARNING, text, older, node, position)
        self.facts.setdefault(position, dict(facts))
        log(INFO, "client %s (%s) is on node %s", position, facts["name"], node)
        return position

    def _recall(self, known: wire.Values | None) -> None:
        """Take from an earlier run's header the facts of clients that are not there."""
        model = next(iter(self.facts.values()))  # the same for all: names of parameters and buffers
        for position in range(self.clients or 0):
            if position in self.facts:
                continue
            assert known is not None
            name = known["names"][position]
            self.facts[position] = {
                **model,
                "name": name,
                "train": known["train"][position],
                "test": known["test"][position],
            }
            log(WARNING, "client %s (%s) is not connected", position, name)

    def column(self, fact: str) -> list[Any]:
        """One fact of every client, by position."""
        values = []
        for position in range(self.clients or 0):
            facts = self.facts[position]
            values.append(facts[fact])
        return values

    def score_range(self) -> tuple[float, float]:
        """Where scores lie: accuracies within 0 .. 1, where most clients say that theirs are."""
        are_accuracies = [facts.get("counts-right-answers") is True for facts in self.facts.values()]
        return (0.0, 1.0) if _most_common(are_accuracies) else (-math.inf, math.inf)

    def name(self, client: int) -> str:
        return str(self.facts[client]["name"])

    def sizes(self, earlier: wire.Values | None) -> Tensor:
        """[n] training-set sizes, which are fixed for a run: what its clients said at first counts."""
        sizes = torch.tensor(self.column("train"), dtype=torch.int64)
        if earlier is None or len(earlier["train"]) != len(sizes):
            return sizes
        at_first = torch.tensor(earlier["train"], dtype=torch.int64)
        for position in (sizes != at_first).nonzero().flatten().tolist():
            text = "client %s says %s training examples, %s when the run began: those count"
            log(WARNING, text, position, int(sizes[position]), int(at_first[position]))
        return at_first

    def log_guarded(self, record: Record) -> None:
        """Whose numbers the guard has bounded, and why a round was skipped."""
        for clip in record.clipped:
            name = self.facts[clip.client]["name"]
            place = (record.index, clip.client, name)
            log(WARNING, "round %s: guard: client %s (%s): %s", *place, clip.says)
        if record.skipped and record.reason is not None:
            log(WARNING, "round %s is skipped: %s", record.index, record.reason)

    def tested(self) -> list[int]:
        """Clients that hold test data."""
        tested = []
        for client, size in enumerate(self.column("test")):
            if size:
                tested.append(client)
        return tested

    def describe(self) -> dict[str, Any]:
        """As a run's header keeps it."""
        return {
            "names": self.column("name"),
            "train": self.column("train"),
            "test": self.column("test"),
            "classes": None,
            "split_seed": None,
            "notes": [],
        }


def _facts(reply: Message) -> wire.Values:
    """What a client tells of itself, each field checked."""
    facts: wire.Values = reply.content.config_records.get(wire.CONFIG, {})
    if not facts.keys() >= FACTS:
        raise InputError("it runs another client app; use evenfed.flower.client_app")
    for name in ("partition-id", "num-partitions"):
        fields.whole(facts, name, MOST_CLIENTS)
    for name in ("train", "test"):
        fields.whole(facts, name, int(fields.LARGEST_SIZE))
    fields.names(facts, "buffers")
    if not fields.names(facts, "parameters"):
        raise InputError("its model has nothing to train")
    if not isinstance(facts["name"], str):
        raise InputError("its name is no text")
    return facts


def _model(facts: wire.Values) -> Model:
    return tuple(facts["parameters"]), tuple(facts["buffers"])


def _most_common(values: Sequence[Any]) -> Any:
    """The first of those that occur most often; None of none."""
    if not values:
        return None
    return max(values, key=values.count)


@dataclass(frozen=True)
class Connection:
    """How a round reaches its clients."""

    grid: Grid
    roster: Roster
    timeout: float
    ordered: bool

    @property
    def nodes(self) -> Mapping[int, int]:
        """Client -> node, of those connected."""
        return self.roster.nodes

    def replies(self, messages: Iterable[Message]) -> Iterator[Message]:
        return replies(self.grid, messages, self.timeout, self.ordered)

    def refuse_failure(self, reply: Message) -> None:
        """Refuse a reply that reports a failure."""
        fields.refuse_failure(reply, self.roster.tell_errors)

    def log_dropped(self, index: int, client: int, reason: object, what: str = "dropped") -> None:
        name = self.roster.name(client)
        log(WARNING, "round %s: client %s (%s) is %s: %s", index, client, name, what, reason)
