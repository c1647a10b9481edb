"""The running mean of a server's models: what a run with `average` deploys.

After round t it is avg_t = sum_k d^(t-k) theta_k / sum_k d^(t-k), over the models after rounds k = 1 .. t. The initial
model does not count. Memory: one more model.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import InputError


class Model(NamedTuple):
    """A model as a server holds it."""

    theta: Tensor  # [D]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Average:
    """The mean of the models so far, in which each counts `decay` times as much as the next one."""

    decay: float
    theta: Tensor | None = None  # None before round 1
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_decay(self.decay)

    @property
    def model(self) -> Model | None:
        """None before round 1: there is nothing to average yet."""
        if self.theta is None:
            return None
        return Model(self.theta, self.buffers)

    def including(self, model: Model, rounds: int) -> "Average":
        """With the model after so many rounds as the newest.

        >>> average = Average(0.5)
        >>> for rounds, theta in enumerate((1.0, 4.0), start=1):
        ...     average = average.including(Model(torch.tensor([theta]), {}), rounds)
        >>> average.theta                                # (0.5 * 1 + 4) / (0.5 + 1)
        tensor([3.])
        """
        if self.theta is None:
            return dataclasses.replace(self, theta=model.theta, buffers=dict(model.buffers))
        share = (1 - self.decay) / (1 - self.decay**rounds)  # of the newest model
        buffers = {}
        for name, newest in model.buffers.items():
            if newest.is_floating_point():
                buffers[name] = torch.lerp(self.buffers[name], newest, share)
            else:
                buffers[name] = newest  # counters are copied, never averaged
        theta = torch.lerp(self.theta, model.theta, share)
        return dataclasses.replace(self, theta=theta, buffers=buffers)

    def stored(self) -> dict[str, Tensor]:
        """As a checkpoint holds it: copies, for the average may be the model itself."""
        if self.theta is None:
            return {}
        tensors = {"theta": self.theta.clone()}
        for name, buffer in self.buffers.items():
            tensors[f"buffers.{name}"] = buffer.clone()
        return tensors

    def restored(self, tensors: Mapping[str, Tensor]) -> "Average":
        """With what `stored` gave."""
        buffers = {}
        for name, tensor in tensors.items():
            kind, _, buffer = name.partition(".")
            if kind == "buffers":
                buffers[buffer] = tensor
        return dataclasses.replace(self, theta=tensors.get("theta"), buffers=buffers)


def check_decay(decay: object) -> None:
    """Refuse what is not a number between 0 and 1."""
    is_number = isinstance(decay, int | float) and not isinstance(decay, bool)
    if not is_number or not 0 < decay < 1:  # type: ignore[operator]
        raise InputError(
            f"average={decay!r} is out of range; give a number above 0 and below 1, such as 0.9, or leave it out"
        )
