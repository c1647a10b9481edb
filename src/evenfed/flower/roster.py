"""Which node is which client, and asking them: orders pushed one by one, replies pulled as they arrive."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.supercore import log

from ..core.errors import InputError
from . import wire

AT_ONCE = 4  # replies pulled together: what the server holds of them at any moment


def replies(grid: Grid, messages: Iterable[Message], timeout: float, ordered: bool = False) -> Iterator[Message]:
    """Replies as they arrive, few in memory at a time; those that do not come within `timeout` seconds are left out.

    `ordered`: in the order of the messages, so that sums are the same to the bit; early replies wait with
    Flower, not here.
    """
    waiting = [i for m in messages for i in grid.push_messages([m]) if i is not None]
    deadline, pause, together = time.monotonic() + timeout, 0.02, 1 if ordered else AT_ONCE
    while waiting:
        late = time.monotonic() >= deadline
        arrived: set[str] = set()
        for at in range(0, 1 if ordered and not late else len(waiting), together):
            found = list(grid.pull_messages(waiting[at : at + together]))
            arrived |= {m.metadata.reply_to_message_id for m in found}
            while found:
                yield found.pop(0)
        waiting = [i for i in waiting if i not in arrived]
        if late:
            return
        pause = 0.02 if arrived else min(1.5 * pause, 1.0)
        if not arrived:
            time.sleep(pause)


@dataclass
class Roster:
    """Clients by position: their partition id, which batches and participation are drawn by.

    Node ids are random and change when a node registers anew, so nodes are asked who they are.
    """

    clients: int | None = None  # how many there are; None: what the nodes' num-partitions says
    nodes: dict[int, int] = field(default_factory=dict)  # position -> node, of those connected
    about: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # position -> what it told of itself
    met: dict[int, int | None] = field(default_factory=dict)  # node -> position; None: left out

    def gather(self, grid: Grid, wait: float, known: Mapping[str, Any] | None = None) -> None:
        """Until all clients are there; `known` (an earlier header's clients) stands in for those that stay away."""
        deadline = time.monotonic() + wait
        while self.clients is None or len(self.nodes) < self.clients:
            failed = self.refresh(grid, wait)
            if failed:
                raise InputError("clients could not be set up: " + "; ".join(failed))
            if self.clients is not None and len(self.nodes) >= self.clients:
                break
            if time.monotonic() >= deadline:
                if known is not None and self.nodes:
                    break
                wanted = "any" if self.clients is None else str(self.clients)
                raise InputError(
                    f"{len(self.nodes)} of {wanted} clients connected within {wait:g} s; start the missing SuperNodes "
                    'with --node-config "partition-id=K num-partitions=N", or give `clients` or a longer `wait`'
                )
            time.sleep(0.2)
        self._recall(known)

    def refresh(self, grid: Grid, timeout: float) -> list[str]:
        """Who is connected; nodes that were not there before are asked who they are. What failed is told."""
        present, failed = set(grid.get_node_ids()), []
        new = sorted(present - set(self.met))
        asked = [wire.message(node, wire.DESCRIBE, None, ConfigRecord({"server-round": 0})) for node in new]
        for reply in replies(grid, asked, timeout):
            node = reply.metadata.src_node_id
            try:
                self.met[node] = self._entered(node, reply)
            except InputError as error:
                self.met[node] = None
                failed.append(f"node {node}: {error}")
                log(WARNING, "left out: node %s: %s", node, error)
        self.nodes = {at: node for node, at in self.met.items() if at is not None and node in present}
        return failed

    def _entered(self, node: int, reply: Message) -> int:
        """The position of the client on a node."""
        if reply.has_error():
            raise InputError(reply.error.reason)
        told: dict[str, Any] = dict(reply.content.config_records.get(wire.CONFIG) or {})
        if not {"partition-id", "num-partitions", "name", "train", "test", "parameters", "buffers"} <= set(told):
            raise InputError("it runs another client app; use evenfed.flower.client_app")
        position, stated = int(told["partition-id"]), int(told["num-partitions"])
        self.clients = self.clients or stated or None
        if self.clients is None:
            raise InputError(
                'it does not say how many clients there are; start it with --node-config "partition-id=K '
                'num-partitions=N", or give `clients`'
            )
        if not 0 <= position < self.clients:
            raise InputError(
                f"partition-id={position}, but there are {self.clients} clients; give each node one of "
                f"0 .. {self.clients - 1}"
            )
        if position in self.nodes:
            log(
                WARNING,
                "nodes %s and %s both say partition-id=%s; the newer is asked",
                self.nodes[position],
                node,
                position,
            )
        self.about.setdefault(position, told)
        log(INFO, "client %s (%s) is on node %s", position, told["name"], node)
        return position

    def _recall(self, known: Mapping[str, Any] | None) -> None:
        """What an earlier run knew of clients that are not there now."""
        someone = next(iter(self.about.values()))
        for position in range(self.clients or 0):
            if position not in self.about:
                assert known is not None
                facts = {"name": known["names"][position], "train": known["train"][position]}
                self.about[position] = {**someone, **facts, "test": known["test"][position]}
                log(WARNING, "client %s (%s) is not connected", position, facts["name"])

    def column(self, fact: str) -> list[Any]:
        """One fact of every client, by position."""
        return [self.about[position][fact] for position in range(self.clients or 0)]

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
