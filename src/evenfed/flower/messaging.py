"""Messages to nodes: tasks are pushed in batches, replies pulled as they arrive.

Both are bounded by bytes. Tasks of a round carry the same model, which Flower sends once per batch; so a batch is as
long as what its messages do not share allows, and the model is hashed once instead of once per node. Replies are
pulled together as far as a share of memory allows: hundreds of losses, or one large model.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

PUSHED_BYTES = 4 * 2**20  # of a batch of tasks, without what its messages share
PUSHED_AT_ONCE = 500  # tasks of a batch
PULLED_BYTES = 64 * 2**20  # replies pulled together: what the server holds of them at any moment
AT_ONCE = 256  # the same in number, for replies that are a few numbers
SHORTEST_PAUSE = 0.02  # seconds between two looks for replies, growing while none arrive
LONGEST_PAUSE = 1.0
_FRAME = 1000  # bytes of a message without its records
_REFERENCE = 100  # bytes by which a message names an array


@dataclass(frozen=True)
class ClosingRule:
    """When a trip closes before everyone has answered: at either of the two numbers. What is there then counts too."""

    answered: int  # replies of any kind
    usable: int  # replies that report no failure


@dataclass
class Responsiveness:
    """Who has answered since this was made, and who was waited for until the timeout."""

    answered: set[int] = field(default_factory=set)  # nodes
    silent: set[int] = field(default_factory=set)


def replies(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    ordered: bool = False,
    enough: ClosingRule | None = None,
    responsiveness: Responsiveness | None = None,
) -> Iterator[Message]:
    """Replies as they arrive, few in memory at a time; those not there within `timeout` seconds are left out.

    `ordered`: in the order of the messages, so that sums are the same to the bit; early replies wait with
    Flower, not here, but for those that were pulled together.
    """
    waiting = PendingReplies(grid, responsiveness or Responsiveness())
    waiting.push(messages)
    deadline = time.monotonic() + timeout
    pause = SHORTEST_PAUSE
    while waiting.nodes:
        late = time.monotonic() >= deadline
        before = len(waiting.nodes)
        look = waiting.next_in_order() if ordered and not late else waiting.all()
        for reply in look:
            yield reply
            del reply
            if enough is not None and waiting.has(enough):
                yield from waiting.pulled_already()
                return
        if late:
            waiting.responsiveness.silent.update(waiting.nodes.values())
            return
        if len(waiting.nodes) < before:
            pause = SHORTEST_PAUSE
        elif waiting.nodes:
            pause = min(1.5 * pause, LONGEST_PAUSE)
            time.sleep(pause)


class PendingReplies:
    """Messages without a reply, and replies that were pulled and not yet handed on."""

    def __init__(self, grid: Grid, responsiveness: Responsiveness) -> None:
        self.grid = grid
        self.responsiveness = responsiveness
        self.nodes: dict[str, int] = {}  # message -> node, in the order of the messages
        self.held: dict[str, Message] = {}  # replies by the message they are to
        self.together = AT_ONCE
        self.answered = 0
        self.usable = 0

    def push(self, messages: Iterable[Message]) -> None:
        largest = 1
        sizes = _Sizes()
        for batch in _batches(messages, sizes):
            for message in batch:
                largest = max(largest, sizes.reply(message))
            names = _pushed(self.grid, batch)
            self.nodes.update(names)
        self.together = max(1, min(AT_ONCE, PULLED_BYTES // largest))

    def has(self, enough: ClosingRule) -> bool:
        return self.answered >= enough.answered or self.usable >= enough.usable

    def all(self) -> Iterator[Message]:
        """Those that are there, in any order."""
        names = list(self.nodes)
        for start in range(0, len(names), self.together):
            end = start + self.together
            self._pull(names[start:end])
            yield from self.pulled_already()

    def next_in_order(self) -> Iterator[Message]:
        """Those that are there and before which none is missing."""
        names = list(self.nodes)
        self._pull(names[: self.together])
        for name in names:
            if name not in self.held:
                return
            yield self._handed_on(name)

    def pulled_already(self) -> Iterator[Message]:
        for name in list(self.held):
            yield self._handed_on(name)

    def _pull(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.held]
        if not missing:
            return
        for reply in self.grid.pull_messages(missing):
            name = reply.metadata.reply_to_message_id
            if name in self.nodes:
                self.held[name] = reply

    def _handed_on(self, name: str) -> Message:
        reply = self.held.pop(name)
        node = self.nodes.pop(name)
        self.responsiveness.answered.add(node)
        self.answered += 1
        self.usable += reply.has_content()
        return reply


def _batches(messages: Iterable[Message], sizes: "_Sizes") -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        own = sizes.own(message)
        if batch and (size + own > PUSHED_BYTES or len(batch) >= PUSHED_AT_ONCE):
            yield batch
            batch = []
            size = 0
        batch.append(message)
        size += own
    if batch:
        yield batch


def _pushed(grid: Grid, batch: Sequence[Message]) -> dict[str, int]:
    """Message -> node. A batch that Flower finds too large is pushed in halves."""
    names = list(grid.push_messages(batch))
    if not names and len(batch) > 1:
        middle = len(batch) // 2
        first = _pushed(grid, batch[:middle])
        return first | _pushed(grid, batch[middle:])
    nodes = {}
    for name, message in zip(names, batch, strict=False):
        if name is not None:
            nodes[name] = message.metadata.dst_node_id
    return nodes


class _Sizes:
    """Bytes of messages, roughly. Most of their records are shared by many messages, and measured once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int]] = {}  # by id, which is the record's as long as it is kept here

    def own(self, message: Message) -> int:
        """What a message adds to its batch in addition to the models that earlier ones carry."""
        size = _FRAME
        for record in message.content.values():
            if not isinstance(record, ArrayRecord):
                size += self._of(record)
                continue
            size += _REFERENCE * len(record)
            if id(record) not in self._known:
                size += self._of(record)
        return size

    def reply(self, message: Message) -> int:
        """What a reply holds: after training about what was sent, otherwise a few numbers."""
        trains = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        size = _FRAME
        for record in message.content.values():
            if trains or not isinstance(record, ArrayRecord):
                size += self._of(record)
        return size

    def _of(self, record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
        if id(record) not in self._known:
            self._known[id(record)] = (record, sum(map(_value_bytes, record.values())))
        return self._known[id(record)][1]


def _value_bytes(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(_value_bytes(member) for member in value)
    if isinstance(value, str | bytes):
        return len(value)
    return 8
