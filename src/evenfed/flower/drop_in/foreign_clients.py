"""Clients that do not use evenfed: their replies show who they are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from flwr.app import Message, MetricRecord
from torch import Tensor

from ...core.algorithm import Algorithm
from ...core.errors import InputError, check_choice, check_whole, unknown
from ...core.scalars import is_number, unwrapped
from ...metrics import ACCURACY, Metric, names_error
from ...settings import Settings
from .. import reply_fields
from ..sites import Admission
from .trips import PerClient

LossIn = Literal["train", "evaluate"]
SCORE = "eval_acc"  # the name of clients' scores, unless another one is given
# options that concern the server
SERVERS = ("average", "guard", "lr", "seed", "server_lr", "server_optimizer", "smooth")

# what `loss_before` and `extend` read from a message and add to a reply
ASKED = "evenfed.loss-from"  # in the configuration: the name of the client's own loss
LOSS = "evenfed.loss"  # in the metrics: the loss at the received model, before any training
SIZE = "evenfed.size"  # training examples
PARTITION = "evenfed.partition"  # the node's partition-id; -1: it has none


@dataclass(frozen=True)
class ReportKeys:
    """Under which names clients report."""

    loss: str
    size: str
    given_score: str | None
    score_range: tuple[float, float]
    loss_in: LossIn  # the kind of replies that hold it
    score_higher_is_better: bool | None = None  # None: unless the score's name speaks of a loss or an error
    trips: int = 2

    @property
    def score(self) -> str:
        return SCORE if self.given_score is None else self.given_score

    @property
    def is_score_needed(self) -> bool:
        """Whether a run stops if no client reports it; with one trip the training is over by then, and is kept."""
        return self.given_score is not None and self.trips > 1

    @property
    def higher_is_better(self) -> bool:
        if self.score_higher_is_better is not None:
            return self.score_higher_is_better
        return not names_error(self.score)

    @property
    def metric(self) -> Metric:
        """What clients are judged by: accuracy, if the score is called so and lies within 0 .. 1."""
        is_share = tuple(self.score_range) == (0.0, 1.0) and "acc" in self.score.lower()
        if is_share and self.higher_is_better:
            return ACCURACY
        return Metric(name=self.score, higher_is_better=self.higher_is_better)

    def check(self) -> None:
        names = {"loss_from": self.loss, "size_from": self.size, "score_from": self.score}
        for option, name in names.items():
            if not isinstance(name, str) or not name:
                raise InputError(f"{option}={name!r}: give the name of a metric that clients report")
        check_choice("loss_in", self.loss_in, get_args(LossIn))
        if self.loss_in == "evaluate" and self.trips == 1:
            raise InputError("trips=1 asks for no evaluation, loss_in='evaluate' reads it; use trips=2 or 3")
        ends = unwrapped(self.score_range)
        is_pair = isinstance(ends, tuple | list) and len(ends) == 2
        are_numbers = is_pair and all(map(is_number, ends))
        if not are_numbers or not ends[0] < ends[1]:
            raise InputError(f"score_range={self.score_range!r}: give the lowest and the highest score, as in (0, 1)")
        if self.score_higher_is_better is not None:
            reply_fields.check_flag("score_higher_is_better", self.score_higher_is_better)

    def loss_of(self, reply: Message, algorithm: Algorithm) -> tuple[float | None, bool]:
        """A client's loss, and whether it is known to be of the model it received.

        None where there is none, which algorithms that do not look at losses allow.
        """
        values = reply_fields.metrics(reply)
        least = algorithm.least_loss
        if LOSS in values:
            return reply_fields.loss(values, LOSS, least), True
        if not algorithm.uses_losses and self.loss not in values:
            return None, True
        return reply_fields.loss(values, self.loss, least), False

    def score_of(self, values: MetricRecord) -> float | None:
        """The score among a reply's metrics; None if there is none."""
        least, most = self.score_range
        score = reply_fields.number(values, self.score)
        if score is not None and not least <= score <= most:
            raise InputError(
                f"{self.score}={score:g} is not within {least:g} .. {most:g}; give the range of your scores, such as "
                "Fair(score_range=(0, 100))"
            )
        return score


class ForeignClients:
    """Nodes by position: in the order in which they were first asked, or where a list of sites places them."""

    def __init__(self, keys: ReportKeys, admission: Admission) -> None:
        self.keys = keys
        self.admission = admission
        self.positions: dict[int, int] = {}  # node -> position
        self.nodes: dict[int, int] = {}  # position -> the node that was met there last
        listed = self.admission.listed
        clients = 0 if listed is None else len(listed)
        self.sizes = [0.0] * clients  # training examples; 0 until the client has reported them
        self.names: list[str] = []  # of a finished run's clients, whose nodes nobody needs
        self.tested_on: PerClient = {}  # position -> test examples, where reported
        self.partitions: dict[int, int] = {}  # position -> partition-id, where reported

    def place(self, node: int) -> int:
        """The node's position, its own from now on."""
        if node not in self.positions:
            site = self.admission.sites.get(node)
            if site is None:
                self.freeze(node, len(self.sizes))
                self.sizes.append(0.0)
            else:
                self.freeze(node, site.partition)
        return self.positions[node]

    def freeze(self, node: int, position: int) -> None:
        self.positions[node] = position
        self.nodes[position] = node

    def name(self, position: int) -> str:
        listed = self.admission.listed
        if listed is not None:
            return listed.name(position)
        if position in self.partitions:
            return f"client {self.partitions[position]}"
        if self.names:
            return self.names[position]
        return f"node {self.nodes[position]}"

    def note(self, position: int, reply: Message) -> None:
        """Take down what an extended client says of itself; refused if it claims another site's place."""
        values = reply_fields.metrics(reply)
        partition = reply_fields.number(values, PARTITION)
        if partition is not None and partition >= 0:
            self.admission.check_place(reply.metadata.src_node_id, int(partition))
            self.partitions[position] = int(partition)
        if values.get(SIZE) is not None:
            self.set_size(position, reply_fields.size(values, SIZE))

    def set_size(self, position: int, size: float) -> None:
        """So many training examples, or as many as the list of sites allows."""
        node = self.nodes[position]
        self.sizes[position] = self.admission.believed(node, position, size)

    def counts(self) -> Tensor:
        return torch.tensor(self.sizes, dtype=torch.float64)


def check_entry(algorithm: Any) -> None:
    """Refuse a first argument that is FedAvg's."""
    if is_number(algorithm) or algorithm is None:
        raise InputError(
            f"Fair({algorithm!r}): the first argument names an algorithm, such as 'semi_vred'; FedAvg's arguments are "
            "given by name: Fair('semi_vred', fraction_train=...)"
        )


def check_algorithm(algorithm: Algorithm, local_steps: int | None) -> None:
    """Refuse an algorithm that needs more of a client than its loss and its update."""
    name = algorithm.name
    reason = None
    if algorithm.personal() is not None:
        reason = "trains a second model at every client, which only evenfed's client app does"
    elif type(algorithm).local_loss is not Algorithm.local_loss:
        reason = "changes the loss that clients descend, and a client of your own descends its own"
    elif type(algorithm).learn is not Algorithm.learn:
        reason = "needs clients' models at a random step and losses at their mean, which a usual client does not send"
    if reason is not None:
        raise InputError(
            f"{name} cannot run over clients that do not use evenfed: it {reason}. "
            "Use evenfed.flower.FairStrategy with evenfed.flower.client_app"
        )
    if local_steps is not None:
        check_whole("local_steps", local_steps, 1)
    if algorithm.needs_path and local_steps is None:
        raise InputError(
            f"{name} turns updates into gradients, for which it must know how many steps clients take; "
            "give Fair(local_steps=...), the steps of a usual client"
        )


def server_settings(options: dict[str, Any], others: Iterable[str]) -> Settings:
    """Of the server; those of the clients' training are not Fair's to choose. `others`: Fair's own arguments."""
    for name in options:
        if name in SERVERS:
            continue
        if name == "rounds":
            raise InputError("rounds is no option of Fair: give num_rounds to start(grid, initial_arrays, num_rounds)")
        if name == "private":
            raise InputError(
                "Fair has no private rounds, which need masks made by evenfed's client app: use "
                "evenfed.flower.FairStrategy(private=True) with evenfed.flower.client_app"
            )
        if name in Settings.__dataclass_fields__:
            raise InputError(
                f"{name} belongs to the clients' training, which Fair leaves to your client app; set it there, or use "
                "evenfed.flower.FairStrategy with evenfed.flower.client_app"
            )
        raise unknown("option of Fair", name, [*others, *SERVERS])
    return Settings.of({**options, "engine": "flower"})
