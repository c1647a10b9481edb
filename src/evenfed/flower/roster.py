"""Which node is which client."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from logging import INFO, WARNING

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from ..core.errors import InputError
from ..metrics import Metric
from . import reply_fields, wire
from .array_layout import ArrayLayout
from .client_info import ClientInfo, Model, agreed_metric, facts_in, most_common
from .journal import clients_table
from .logs import log
from .messaging import LONGEST_PAUSE, SHORTEST_PAUSE, PendingReplies, Responsiveness
from .sites import Admission
from .wire import Values


@dataclass
class Roster:
    """Clients by position: their partition id, which batches and participation are drawn by.

    Node ids are random and change when a node registers anew, so nodes are asked who they are. The first node that
    claims a place holds it as long as it is connected; a list of sites says which key or node has which place.
    """

    clients: int | None = None  # how many there are; None: what the nodes' num-partitions says
    admission: Admission = field(default_factory=Admission)  # who may join
    judged_by: str | None = None  # the metric that the settings name
    lazily: bool = False  # clients are met when they are drawn: those not met yet have no size
    nodes: dict[int, int] = field(default_factory=dict)  # position -> node, of those connected
    facts: dict[int, ClientInfo] = field(default_factory=dict)  # position -> what the client first said of itself
    holders: dict[int, int] = field(default_factory=dict)  # position -> node, whether it is connected or not
    left_out: dict[int, str] = field(default_factory=dict)  # node -> reason
    identities: dict[int, ClientInfo] = field(default_factory=dict)  # node -> what it said of itself
    model: Model | None = None  # what the clients' model trains and keeps
    is_frozen: bool = False  # no longer open to another number of clients or another model
    tell_errors: bool = False  # the text of clients' exceptions, which may quote data
    responsiveness: Responsiveness = field(default_factory=Responsiveness)  # since the last round ended
    unscored: set[int] = field(default_factory=set)  # clients of which it was said that they have no score

    def __post_init__(self) -> None:
        if self.admission.listed is not None:
            sites = self.admission.listed
            count = len(sites)
            if self.clients not in (None, count):
                raise InputError(f"clients={self.clients}, but {sites.path} lists {count} sites; leave `clients` out")
            self.clients = count
        self.stated = self.clients
        self.present: set[int] = set()
        self.refused: dict[int, str] = {}  # node -> whose place it claims; it may hold it once that one has gone
        self._asked: set[int] = set()  # nodes
        self._questions: PendingReplies | None = None
        self._agreed_on = 0  # what so many nodes said
        self.has_grown = False  # clients were met since this was last set

    def wait_for_clients(
        self,
        grid: Grid,
        wait: float,
        known: Values | None = None,
        resting: Collection[int] = (),
    ) -> None:
        """Wait until all clients are there; `known` (an earlier header's clients) replaces those that are not.

        Nodes that rest are not asked, and their clients not waited for. A node that does not fit is left out and named;
        it ends the run only if there is no other.
        """
        deadline = time.monotonic() + wait
        while True:
            self.refresh(grid, 0.0, resting=resting)
            expected = len(self.nodes)
            if known is not None and self.nodes:
                expected += len(self.present & set(resting))
            if self.clients is not None and expected >= self.clients:
                break
            self._refuse_if_none_fits()
            if time.monotonic() >= deadline:
                if known is not None and self.nodes:
                    break
                raise InputError(self._why_too_few(wait))
            time.sleep(0.2)
        self.is_frozen = True
        self.recall(known)

    def _why_too_few(self, wait: float) -> str:
        """Too few clients: nodes are missing, or connected and have not answered yet."""
        silent = len(self._awaited(self.present))
        wanted = "" if self.clients is None else f" of {self.clients} clients"
        left_out = self.failures("; left out: ")
        if silent:
            return (
                f"{len(self.present)} nodes are connected, {len(self.nodes)}{wanted} answered who they are within "
                f"{wait:g} s: raise `wait`, or look at the clients' logs{left_out}"
            )
        return (
            f"{len(self.nodes)}{wanted or ' clients'} connected within {wait:g} s; start the missing SuperNodes "
            'with --node-config "partition-id=K num-partitions=N", or give `clients`, `min_available` or a '
            f"longer `wait`{left_out}"
        )

    def freeze(self) -> None:
        """End the introduction of the first clients of a fleet."""
        self._refuse_if_none_fits()
        if self.model is None:
            raise InputError("no client has answered who it is; give a longer `timeout`, or look at the clients' logs")
        self.is_frozen = True

    def _refuse_if_none_fits(self) -> None:
        failed = self.left_out or self.refused
        if failed and not self.nodes and not self._awaited(self.present):
            reasons = self.failures("; ").removeprefix("; ")
            raise InputError(f"clients could not be set up: {reasons}")

    def failures(self, before: str) -> str:
        reasons = {**self.admission.turned_away, **self.left_out, **self.refused}
        parts = []
        for node, reason in reasons.items():
            parts.append(f"{before}node {node}: {reason}")
        return "".join(parts)

    def refresh(
        self,
        grid: Grid,
        timeout: float,
        quorum: float = 1.0,
        resting: Collection[int] = (),
    ) -> None:
        """Note who is connected, and ask new nodes who they are.

        Waits for those that it asks, unless so large a part of the clients is connected without them.
        """
        self.refresh_connected(grid)
        new = self.present.difference(self._asked, resting)
        self.ask_identity(grid, sorted(new), timeout, lambda: self._has(quorum))

    def _has(self, quorum: float) -> bool:
        if self.clients is None:
            return False
        enough = math.ceil(quorum * self.clients)
        return len(self.nodes) >= enough

    def refresh_connected(self, grid: Grid) -> None:
        """Note who is connected; nodes that are not in the list of sites are left out unasked."""
        self.present = set(self.admission.admitted(grid, grid.get_node_ids()))
        self._register()

    def ask_identity(
        self,
        grid: Grid,
        nodes: Iterable[int],
        timeout: float,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask nodes who they are, each once, and wait until all have answered or `enough()`.

        Answers that come later are taken when someone is asked the next time.
        """
        questions = self._questions
        if questions is None or questions.grid is not grid:
            questions = PendingReplies(grid, self.responsiveness)
            self._questions = questions
            self._asked &= self.answered()
        asked = set()
        messages = []
        question = RecordDict({wire.CONFIG: ConfigRecord({"server-round": 0})})
        for node in nodes:
            if node in self._asked or node in self.left_out:
                continue
            asked.add(node)
            messages.append(Message(question, dst_node_id=node, message_type=wire.DESCRIBE))
        questions.push(messages)
        self._asked |= asked
        deadline = time.monotonic() + timeout
        pause = SHORTEST_PAUSE
        while True:
            late = time.monotonic() >= deadline
            self._read_replies(questions)
            self._register()
            if late or enough() or not self._awaited(asked):
                break
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
        if late and timeout:
            self.responsiveness.silent.update(self._awaited(asked))

    def _awaited(self, nodes: Collection[int]) -> set[int]:
        """Of these nodes, those that were asked and have not answered."""
        open_questions = self._asked - self.answered()
        return self.present.intersection(open_questions, nodes)

    def answered(self) -> set[int]:
        """The nodes that have said who they are, or were left out."""
        return {*self.identities, *self.left_out}

    def _read_replies(self, questions: PendingReplies) -> None:
        for reply in questions.all():
            node = reply.metadata.src_node_id
            try:
                reply_fields.refuse_failure(reply, self.tell_errors)
                self.identities[node] = facts_in(reply)
            except InputError as error:
                self._leave_out(node, error)

    def _register(self) -> None:
        """Give each connected node its place."""
        if not self.is_frozen:
            self._agree()
        for node, facts in self.identities.items():
            if node not in self.present or node in self.left_out:
                continue
            if self.holders.get(facts.position) == node:
                continue
            try:
                self._check(node, facts)
            except InputError as error:
                self._leave_out(node, error)
                continue
            self._claim(node, facts)
        self.nodes = {}
        for position, node in self.holders.items():
            if node in self.present:
                self.nodes[position] = node

    def _claim(self, node: int, facts: ClientInfo) -> None:
        """The place of the client on a node, if nobody connected holds it."""
        position = facts.position
        holder = self.holders.get(position)
        if holder is not None and holder in self.present:
            reason = f"partition-id={position} is held by node {holder}, which is connected"
            if self.refused.get(node) != reason:
                self.refused[node] = reason
                self.admission.refuse(node, reason)
            return
        self.refused.pop(node, None)
        self.holders[position] = node
        if position not in self.facts:
            self.facts[position] = self._as_listed(node, facts)
            self.has_grown = True
        log(INFO, "%s is on node %s", self.who(position), node)

    def _as_listed(self, node: int, facts: ClientInfo) -> ClientInfo:
        """With the name that the list of sites gives, and no more examples than it allows."""
        site = self.admission.sites.get(node)
        if site is None:
            return facts
        train = self.admission.believed(node, facts.position, facts.train)
        return dataclasses.replace(facts, name=site.name or facts.name, train=int(train))

    def is_of_no_use(self, node: int) -> bool:
        """Whether a node is known to be refused, or to have no data to train on."""
        if node in self.left_out or node in self.refused:
            return True
        facts = self.identities.get(node)
        return facts is not None and facts.train == 0

    def _leave_out(self, node: int, reason: InputError) -> None:
        self.left_out[node] = str(reason)
        self.admission.refuse(node, reason, "left out")

    def _agree(self) -> None:
        """How many clients there are and what their model trains: what most nodes say. On a change all enter anew."""
        if len(self.identities) == self._agreed_on:
            return
        self._agreed_on = len(self.identities)
        before = (self.clients, self.model)
        if self.stated is None:
            self.clients = most_common(facts.partitions for facts in self.identities.values()) or None
        self.model = most_common(facts.model for facts in self.identities.values())
        if (self.clients, self.model) != before:
            for node in self.identities:
                self.left_out.pop(node, None)
            self.holders = {}
            self.facts = {}

    def _check(self, node: int, facts: ClientInfo) -> None:
        """Refuse a node without a place in this federation."""
        position = facts.position
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
        if facts.model != self.model:
            raise InputError("its model trains other parameters than the other clients' models")
        self.admission.check_place(node, position)

    def recall(self, known: Values | None) -> None:
        """Take from an earlier run's header the facts of clients that are not there."""
        if known is None or self.model is None:
            return
        counts_right_answers = self.score_range() == (0.0, 1.0)
        for position in range(self.clients or 0):
            size = known["train"][position]
            never_met = self.lazily and not size and not known["test"][position]
            if position in self.facts or never_met:
                continue
            self.facts[position] = ClientInfo(
                position=position,
                partitions=self.clients or 0,
                name=known["names"][position],
                train=size,
                test=known["test"][position],
                model=self.model,
                counts_right_answers=counts_right_answers,
                metric=self.metric(),
            )
            if not self.lazily:
                log(WARNING, "%s is not connected", self.who(position))

    def name(self, client: int) -> str:
        facts = self.facts.get(client)
        return str(client) if facts is None else facts.name

    def who(self, client: int) -> str:
        """A client in the log: its position, which other files know it by, and its name."""
        return f"client {client} ({self.name(client)})"

    def layout(self, arrays: ArrayRecord) -> ArrayLayout:
        """Which of the model's arrays travel, by what the clients' model trains and keeps."""
        assert self.model is not None
        parameters, buffers = self.model
        return ArrayLayout.of(arrays, parameters, buffers)

    def names(self) -> list[str]:
        return [self.name(position) for position in range(self.clients or 0)]

    def column(self, fact: str) -> list[int]:
        """How many examples every client has to train or to test, by position; 0 of those never met."""
        values = [0] * (self.clients or 0)
        for position, facts in self.facts.items():
            values[position] = getattr(facts, fact)
        return values

    def score_range(self) -> tuple[float, float]:
        """The range of scores: 0 .. 1 if most clients report accuracies, else any number."""
        are_accuracies = most_common(facts.counts_right_answers for facts in self.facts.values())
        return (0.0, 1.0) if are_accuracies else (-math.inf, math.inf)

    def metric(self) -> Metric:
        return agreed_metric(self.facts.values(), self.judged_by)

    def sizes(self, earlier: Values | None) -> Tensor:
        """[n] training-set sizes, which are fixed for a run: what its clients said at first counts."""
        sizes = torch.tensor(self.column("train"), dtype=torch.int64)
        if earlier is None or len(earlier["train"]) != len(sizes):
            return sizes
        at_first = torch.tensor(earlier["train"], dtype=torch.int64)
        if self.lazily:
            at_first = torch.where(at_first == 0, sizes, at_first)
        for position in (sizes != at_first).nonzero().flatten().tolist():
            text = "client %s says %s training examples, %s when the run began: those count"
            log(WARNING, text, position, int(sizes[position]), int(at_first[position]))
        return at_first

    def tested(self) -> list[int]:
        tested = []
        for client, size in enumerate(self.column("test")):
            if size:
                tested.append(client)
        return tested

    def describe(self) -> Values:
        return clients_table(self.names(), self.column("train"), self.column("test"))
