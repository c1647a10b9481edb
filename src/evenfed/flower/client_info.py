"""What clients say of themselves, and what most of them agree on."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message

from ..core.errors import InputError
from ..metrics import ACCURACY, LOSS, Metric
from . import reply_fields, wire
from .wire import Values

Model = tuple[tuple[str, ...], tuple[str, ...]]  # names of parameters, and of buffers
MOST_CLIENTS = 10**6
LONGEST_NAME = 60  # characters, of a metric
FIELDS = {"partition-id", "num-partitions", "name", "train", "test", "parameters", "buffers"}


@dataclass(frozen=True)
class ClientInfo:
    """What a client says of itself."""

    position: int  # its partition-id
    partitions: int  # how many clients it says there are
    name: str
    train: int  # training examples
    test: int
    model: Model
    counts_right_answers: bool  # so that its score lies within 0 .. 1
    metric: Metric = ACCURACY  # what it is judged by


def facts_in(reply: Message) -> ClientInfo:
    """What a client says of itself, each field checked."""
    facts = reply.content.get(wire.CONFIG)
    if not isinstance(facts, ConfigRecord) or not facts.keys() >= FIELDS:
        raise InputError("it runs another client app; use evenfed.flower.client_app")
    most = int(reply_fields.LARGEST_SIZE)
    buffers = reply_fields.names(facts, "buffers")
    parameters = reply_fields.names(facts, "parameters")
    if not parameters:
        raise InputError("its model has nothing to train")
    if not isinstance(facts["name"], str):
        raise InputError("its name is no text")
    return ClientInfo(
        position=reply_fields.whole(facts, "partition-id", MOST_CLIENTS),
        partitions=reply_fields.whole(facts, "num-partitions", MOST_CLIENTS),
        name=facts["name"],
        train=reply_fields.whole(facts, "train", most),
        test=reply_fields.whole(facts, "test", most),
        model=(tuple(parameters), tuple(buffers)),
        counts_right_answers=facts.get("counts-right-answers") is True,
        metric=_metric(facts),
    )


def _metric(facts: Values) -> Metric:
    """What a client is judged by, as it says; accuracy if it says nothing."""
    if "metric" not in facts:
        return ACCURACY
    name = facts["metric"]
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise InputError("the name of its metric is no short text")
    return Metric(name=name, higher_is_better=facts.get("higher-is-better") is not False)


def agreed_metric(clients: Iterable[ClientInfo], chosen: str | None) -> Metric:
    """What clients are judged by: the metric of most that hold test data, or the loss if that is `chosen`."""
    named = most_common(info.metric for info in clients if info.test) or ACCURACY
    if chosen == "loss":
        return LOSS
    if chosen == "accuracy" and named.is_loss:
        raise InputError("metric='accuracy': the clients report no score; give client_app a `score`, or metric='loss'")
    return named


def most_common(values: Iterable[Any]) -> Any:
    """The first of those that occur most often; None of none."""
    counts = Counter(values)
    return max(counts, key=counts.__getitem__, default=None)
