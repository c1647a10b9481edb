"""What a client tells of itself when it is asked who it is."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message

from ..core.errors import InputError
from ..metrics import ACCURACY, Metric
from . import reply_fields, wire

Model = tuple[tuple[str, ...], tuple[str, ...]]  # names of parameters, and of buffers
MOST_CLIENTS = 10**6
LONGEST_NAME = 60  # characters, of a metric
FIELDS = {"partition-id", "num-partitions", "name", "train", "test", "parameters", "buffers"}


@dataclass(frozen=True)
class ClientInfo:
    """What a client told of itself."""

    position: int  # its partition-id
    partitions: int  # how many clients it says there are
    name: str
    train: int  # training examples
    test: int
    model: Model
    counts_right_answers: bool  # so that its score lies within 0 .. 1
    metric: Metric = ACCURACY  # what it is judged by


def facts_in(reply: Message) -> ClientInfo:
    """What a client tells of itself, each field checked."""
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


def _metric(facts: wire.Values) -> Metric:
    """What a client is judged by, as it says; accuracy if it says nothing."""
    if "metric" not in facts:
        return ACCURACY
    name = facts["metric"]
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise InputError("the name of its metric is no short text")
    return Metric(name=name, higher_is_better=facts.get("higher-is-better") is not False)
