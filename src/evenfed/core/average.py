"""The running mean of a server's models: what a run with `average` deploys.

After round t it is avg_t = sum_k d^(t-k) theta_k / sum_k d^(t-k), over the models after rounds k = 1 .. t. The initial
model does not count. Rounds that were skipped, which leave the model as it was, do not count either. Memory: one more
model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import InputError
from .scalars import is_number, unwrapped

THETA = "theta"  # the flat parameters, among tensors by name


class ModelState(NamedTuple):
    """A model as a server holds it."""

    theta: Tensor  # [D]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Average:
    """The mean of the models so far, in which each counts `decay` times as much as the next one."""

    decay: float
    models: int = 0  # that are in it
    mean: ModelState | None = None  # in float32 or wider; None before the first model
    newest: ModelState | None = None  # of the models, which all have its types

    def __post_init__(self) -> None:
        check_decay(self.decay)

    @cached_property
    def model(self) -> ModelState | None:
        """The mean as a model of the run; None before the first model: there is nothing to average yet."""
        if self.mean is None or self.newest is None:
            return None
        theta = self.mean.theta.to(self.newest.theta.dtype)
        buffers = {}
        for name, buffer in self.mean.buffers.items():
            buffers[name] = buffer.to(self.newest.buffers[name].dtype)
        return ModelState(theta, buffers)

    def including(self, newest: ModelState) -> "Average":
        """With one more model.

        >>> average = Average(0.5)
        >>> for theta in (1.0, 4.0):
        ...     average = average.including(ModelState(torch.tensor([theta]), {}))
        >>> average.model.theta                                # (0.5 * 1 + 4) / (0.5 + 1)
        tensor([3.])
        """
        models = self.models + 1
        share = (1 - self.decay) / (1 - self.decay**models)  # of the newest model
        before = self.mean or newest
        theta = _mixed(before.theta, newest.theta, share)
        buffers = {}
        for name, buffer in newest.buffers.items():
            buffers[name] = _mixed(before.buffers[name], buffer, share)
        return Average(self.decay, models, ModelState(theta, buffers), newest)

    def stored(self) -> dict[str, Tensor]:
        """As a checkpoint holds it: copies, for the average may be the model itself."""
        if self.mean is None:
            return {}
        tensors = {THETA: self.mean.theta.clone(), "models": torch.tensor(self.models)}
        for name, buffer in self.mean.buffers.items():
            tensors[f"buffers.{name}"] = buffer.clone()
        return tensors

    def restored(
        self,
        tensors: Mapping[str, Tensor],
        current: ModelState,
        rounds: int,
    ) -> "Average":
        """With what `stored` gave, in a run that has the `current` model after so many rounds."""
        if THETA not in tensors:
            return self
        models = rounds
        if "models" in tensors:  # older files do not say: every round counted
            models = int(tensors["models"])
        buffers = {}
        for name in current.buffers:
            buffer = tensors[f"buffers.{name}"]
            buffers[name] = _wide(buffer)  # older files hold it in the model's own type
        return Average(self.decay, models, ModelState(_wide(tensors[THETA]), buffers), current)


def _mixed(mean: Tensor, newest: Tensor, share: float) -> Tensor:
    """The mean with the newest tensor in it; float16 and bfloat16 would lose small shares, so they are widened."""
    if not newest.is_floating_point():
        return newest  # counters are copied, never averaged
    if share == 1:
        return _wide(newest)
    return torch.lerp(mean, _wide(newest), share)


def _wide(tensor: Tensor) -> Tensor:
    is_narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if is_narrow else tensor


def check_decay(decay: object) -> None:
    """Refuse what is not a number between 0 and 1."""
    decay = unwrapped(decay)
    if not is_number(decay) or not 0 < decay < 1:
        raise InputError(
            f"average={decay!r} is out of range; give a number above 0 and below 1, such as 0.9, or leave it out"
        )
