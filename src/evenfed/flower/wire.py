"""What travels: orders and models as Flower's records.

New weights are sent, never differences: Flower's privacy wrappers and mods clip `reply - received`, and
the server takes the difference itself, so the result is the simulator's to the bit. One record `arrays`
holds the trained parameters and then the buffers; frozen parameters stay where they are.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from ..algorithms import get
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.server import Update
from ..core.vector import Layout
from ..settings import Settings

DESCRIBE, LOSS, TRAIN, EVALUATE = "query.describe", "query.loss", "train", "evaluate"
ARRAYS, SNAPSHOT, CONFIG, METRICS = "arrays", "snapshot", "config", "metrics"


@dataclass(frozen=True)
class Task:
    """What a client is told beside the model: plain numbers and names."""

    run: str  # keeps personal models of several runs apart
    index: int  # the round
    seed: int
    lr: float = 0.0
    prox: float = 0.0
    batch_size: int | None = None
    local_epochs: int = 1
    snapshot_step: int = 0  # 0: none
    personal: float | None = None  # strength of the tie of the client's own model
    algorithm: str = ""  # JSON, only where clients descend another loss than their own

    @classmethod
    def of(cls, run: str, index: int, settings: Settings, algorithm: Algorithm) -> "Task":
        """The part all clients of a round share."""
        changed = type(algorithm).local_loss is not Algorithm.local_loss
        told = json.dumps({"name": algorithm.name, "options": algorithm.describe()}) if changed else ""
        sent = {k: getattr(settings, k) for k in ("seed", "lr", "prox", "batch_size", "local_epochs")}
        return cls(run, index, algorithm=told, **sent)

    def record(self, others: Mapping[str, Any] = {}) -> ConfigRecord:
        """As Flower sends it, with what else stands in the round's configuration (a wrapper's clipping norm)."""
        values = {f"evenfed.{k}": v for k, v in vars(self).items() if v is not None}
        values["evenfed.seed"] = str(self.seed)  # may exceed the 63 bits of Flower's whole numbers
        return ConfigRecord({**others, **values, "server-round": self.index + 1})

    @classmethod
    def read(cls, message: Message) -> "Task":
        config = message.content.config_records[CONFIG]
        values = {k.removeprefix("evenfed."): v for k, v in config.items() if k.startswith("evenfed.")}
        if "run" not in values:
            raise InputError("the message carries no evenfed orders; run this client app with evenfed's FairStrategy")
        known: dict[str, Any] = {k: values[k] for k in cls.__dataclass_fields__ if k in values}
        return cls(**{**known, "seed": int(known["seed"])})

    def local_loss(self) -> Any:
        """The loss to descend as a function of the batch's; None: the loss itself."""
        if not self.algorithm:
            return None
        told = json.loads(self.algorithm)
        return get(told["name"], **told["options"]).local_loss


@dataclass(frozen=True)
class Shape:
    """Which arrays of a model travel: trained parameters by `layout`, then the buffers named."""

    layout: Layout
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, parameters: Iterable[str], buffers: Iterable[str]) -> "Shape":
        """From the initial model and the names that the clients' model trains and keeps as buffers."""
        missing = [name for name in parameters if name not in arrays]
        if missing:
            raise InputError(
                f"the initial model lacks {', '.join(missing[:3])}, which the clients' model trains; "
                "start from the state_dict of the same model"
            )
        shapes = {name: torch.Size(arrays[name].shape) for name in parameters}
        return cls(Layout(tuple(shapes), tuple(shapes.values())), tuple(b for b in buffers if b in arrays))

    def arrays(self, theta: Tensor, buffers: Mapping[str, Tensor]) -> ArrayRecord:
        params = self.layout.unflatten(theta.detach().cpu())
        assert isinstance(params, dict)
        return ArrayRecord({**params, **{name: buffers[name].detach().cpu() for name in self.buffers}})

    def read(self, arrays: ArrayRecord) -> tuple[Tensor, dict[str, Tensor]]:
        """(theta [D], buffers); other names, shapes or non-finite numbers are refused."""
        names = {*(self.layout.names or ()), *self.buffers}
        if set(arrays) != names:
            wrong = sorted(set(arrays) ^ names)
            raise InputError(f"the model has other arrays than was sent ({', '.join(wrong[:3])})")
        tensors = arrays.to_torch_state_dict()
        theta = self.layout.flatten({name: tensors[name] for name in self.layout.names or ()})
        buffers = {name: tensors[name] for name in self.buffers}
        for name, values in {"its parameters": theta, **buffers}.items():
            if values.is_floating_point() and not bool(values.isfinite().all()):
                raise InputError(f"NaN or infinity in {name}")
        return theta, buffers


def update_of(reply: Message, client: int, shape: Shape, theta: Tensor, buffers: Mapping[str, Tensor]) -> Update:
    """A train reply as the fold takes it; refused where it does not fit the model that was sent."""
    content = reply.content
    if ARRAYS not in content.array_records:
        raise InputError("the reply holds no model")
    after, own = shape.read(content.array_records[ARRAYS])
    for name, value in own.items():
        if value.shape != buffers[name].shape:
            raise InputError(f"buffer {name} has shape {list(value.shape)}, not {list(buffers[name].shape)}")
    snapshot = None
    if SNAPSHOT in content.array_records:
        snapshot = theta - shape.read(content.array_records[SNAPSHOT])[0].to(theta)
    return Update(client, theta - after.to(theta), snapshot, {k: v[None] for k, v in own.items()})


def message(
    node: int, kind: str, arrays: ArrayRecord | None, config: ConfigRecord, lifetime: float | None = None
) -> Message:
    """An order for one node."""
    content = RecordDict({CONFIG: config} if arrays is None else {ARRAYS: arrays, CONFIG: config})
    return Message(content, dst_node_id=node, message_type=kind, ttl=lifetime)


def reply(to: Message, metrics: Mapping[str, Any], **arrays: ArrayRecord) -> Message:
    """What a client answers; exactly one record of metrics, as Flower's wrappers expect."""
    return Message(RecordDict({**arrays, METRICS: MetricRecord(dict(metrics))}), reply_to=to)


def number(reply: Message, name: str) -> float | None:
    """One of a reply's metrics; None where it holds none."""
    metrics = reply.content.metric_records.get(METRICS) if reply.has_content() else None
    found = None if metrics is None else metrics.get(name)
    return float(found) if isinstance(found, int | float) else None
