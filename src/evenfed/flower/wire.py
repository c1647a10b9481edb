"""What travels: tasks and models as Flower's records.

New weights are sent, never differences: Flower's privacy wrappers and mods clip `reply - received`. The server takes
the difference itself, so the result is the simulator's to the bit. One record, `arrays`, holds the trained parameters
and then the buffers; frozen parameters stay where they are.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from ..algorithms import get
from ..augment import augmentation_of, table_of
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.naming import described
from ..core.server import Update
from ..core.streams import Batching
from ..local.optimizer import optimizer_of
from ..local.training import LocalTraining
from ..settings import BatchNorm, Settings
from .array_layout import ArrayLayout

# kinds of messages
DESCRIBE = "query.describe"
LOSS = "query.loss"
TRAIN = "train"
EVALUATE = "evaluate"

# records of a message
ARRAYS = "arrays"  # the model that the message is about
CURRENT = "current"  # the current model, where the average is judged
WEIGHED = "weighed"  # the model to measure the loss of, where another is trained
SNAPSHOT = "snapshot"
CONFIG = "config"
METRICS = "metrics"

Values = Mapping[str, Any]  # by name
Fields = dict[str, Any]  # the same, while it is put together
Models = Mapping[str, ArrayRecord]  # by the record's name

_SEEDS = ("seed", "local_seed")
PREFIX = "evenfed."  # of a task's fields in the configuration, which wrappers write to as well


@dataclass(frozen=True)
class Task:
    """What a client gets in addition to the model: plain numbers and names."""

    run: str  # keeps personal models of several runs apart
    index: int  # the round
    seed: int  # of the initial model
    local_seed: int | None = None  # of batches, dropout and augmentation; None: `seed`
    lr: float = 0.0  # of this round
    prox: float = 0.0
    batch_size: int | None = None
    local_epochs: int = 1
    local_steps: int | None = None
    drop_last: bool = False
    batch_norm: BatchNorm = "shared"
    optimizer: str = "sgd"  # its name, or JSON of a table
    clip: float | None = None
    augment: str | None = None  # JSON of a table
    snapshot_step: int = 0  # 0: none
    personal: float | None = None  # strength of the tie of the client's own model
    algorithm: str = ""  # JSON, only where clients descend another loss than their own
    measure: str = ""  # the record whose model's loss on training data comes with the reply; "": none

    @classmethod
    def of(
        cls,
        run: str,
        index: int,
        settings: Settings,
        algorithm: Algorithm,
    ) -> "Task":
        """The part that all clients of a round share."""
        own_loss = type(algorithm).local_loss is Algorithm.local_loss
        return cls(
            run=run,
            index=index,
            seed=settings.seed,
            local_seed=settings.batch_seed,
            lr=settings.lr * settings.lr_factor(index),
            prox=settings.prox,
            batch_size=settings.batch_size,
            local_epochs=settings.local_epochs,
            local_steps=settings.local_steps,
            drop_last=settings.drop_last,
            batch_norm=settings.batch_norm,
            optimizer=_text(settings.optimizer),
            clip=settings.clip,
            augment=None if settings.augment is None else json.dumps(table_of(settings.augment)),
            algorithm="" if own_loss else algorithm_text(algorithm),
        )

    def record(self, others: Values = {}) -> ConfigRecord:
        """As Flower sends it, together with the round's other settings (a wrapper's clipping norm)."""
        values = dict(others)
        for name, value in vars(self).items():
            if value is not None:
                values[PREFIX + name] = value
        for name in _SEEDS:
            if PREFIX + name in values:
                values[PREFIX + name] = str(values[PREFIX + name])  # may exceed the 63 bits of Flower's whole numbers
        values["server-round"] = self.index + 1
        return ConfigRecord(values)

    @classmethod
    def read(cls, message: Message) -> "Task":
        config = message.content.config_records[CONFIG]
        fields: Fields = {}
        for name in cls.__dataclass_fields__:
            key = PREFIX + name
            if key in config:
                fields[name] = config[key]
        if "run" not in fields:
            raise InputError("the message carries no evenfed task; run this client app with evenfed's FairStrategy")
        for name in _SEEDS:
            if name in fields:
                fields[name] = int(fields[name])
        return cls(**fields)

    def to_score(self) -> "Task":
        """The task to score the model after this round."""
        return dataclasses.replace(self, index=self.index + 1, measure="")

    def local(self) -> LocalTraining:
        batching = Batching(self.batch_size, self.local_epochs, self.local_steps, self.drop_last)
        optimizer = optimizer_of(_choice(self.optimizer))
        augment = None if self.augment is None else augmentation_of(json.loads(self.augment))
        return LocalTraining(self.lr, batching, self.prox, optimizer, self.clip, augment)

    def local_loss(self) -> Any:
        """The loss to descend as a function of the batch's; None: the loss itself."""
        if not self.algorithm:
            return None
        return algorithm_from(self.algorithm).local_loss


def _text(choice: str | Mapping[str, Any]) -> str:
    """A name as it is, a table as JSON."""
    if isinstance(choice, str):
        return choice
    return json.dumps(described(choice))


def _choice(text: str) -> Any:
    if text.startswith("{"):
        return json.loads(text)
    return text


def algorithm_text(algorithm: Algorithm) -> str:
    description = {
        "name": algorithm.name,
        "options": algorithm.describe(),
    }
    return json.dumps(description)


def algorithm_from(text: str) -> Algorithm:
    description = json.loads(text)
    return get(description["name"], **description["options"])


def update_of(
    reply: Message,
    client: int,
    layout: ArrayLayout,
    theta: Tensor,
) -> Update:
    """A train reply as the fold takes it; refused where it does not fit the model that was sent."""
    content = reply.content
    model = content.get(ARRAYS)
    if not isinstance(model, ArrayRecord):
        raise InputError("the reply holds no model")
    trained, buffers = layout.read(model)
    rows = {name: values[None] for name, values in buffers.items()}
    snapshot = None
    model_between = content.get(SNAPSHOT)
    if isinstance(model_between, ArrayRecord):
        kept, _ = layout.read(model_between)
        snapshot = theta - kept.to(theta)
    return Update(
        ids=client,
        delta=theta - trained.to(theta),
        snapshot=snapshot,
        buffers=rows,
    )


@dataclass(frozen=True)
class ScoreRequest:
    """Who is scored after a round, and who measures a loss for the next round along with it."""

    tested: Sequence[int]
    deployed: ArrayRecord
    current: ArrayRecord | None  # the current model, where it is not the deployed one
    following: Sequence[int] = ()  # the next round's clients, if they are asked for a loss as well
    measure: str = ""  # the record of the model whose loss they measure

    @property
    def models(self) -> dict[str, ArrayRecord]:
        models = {ARRAYS: self.deployed}
        if self.current is not None:
            models[CURRENT] = self.current
        return models


def reply(to: Message, metrics: Values, **arrays: ArrayRecord) -> Message:
    """What a client answers; exactly one record of metrics, as Flower's wrappers expect."""
    content = RecordDict(dict(arrays))
    content[METRICS] = MetricRecord(dict(metrics))
    return Message(content, reply_to=to)


def number(reply: Message, name: str) -> float | None:
    """One of a reply's metrics; None where it holds none."""
    if not reply.has_content():
        return None
    metrics = reply.content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        return None
    value = metrics.get(name)
    if not isinstance(value, int | float):
        return None
    return float(value)
