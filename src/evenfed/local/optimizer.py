"""The clients' optimisers, under torch.optim's names and with its options, defaults and arithmetic.

An optimiser turns a gradient into a direction; the engine then takes the step, theta <- theta - lr * direction. All is
elementwise on [..., D], so that one client, a stack of clients and slots on a GPU share it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.choices import kind_and_options
from ..core.errors import InputError
from ..core.scalars import is_number
from ..core.server import OptimizerStates

OptimizerChoice = str | Mapping[str, Any]


@dataclass(frozen=True)
class Optimizer(ABC):
    """`keep`: a client's state lasts from round to round; else it is fresh at each round's start."""

    name: ClassVar[str]
    weight_decay: float = 0.0
    keep: bool = False

    def __post_init__(self) -> None:
        self._check("weight_decay", self.weight_decay)

    @property
    @abstractmethod
    def moments(self) -> int:
        """How many vectors of the model's size its state holds."""

    def direction(
        self,
        theta: Tensor,
        gradient: Tensor,
        moments: Sequence[Tensor],
        taken: Tensor,
    ) -> Tensor:
        """[..., D] the step to take, before the learning rate. Writes new values into `moments`, each [..., D].

        `taken` [..., 1]: steps so far, in float64.
        """
        if self.weight_decay:
            gradient = gradient + self.weight_decay * theta
        return self._without_decay(gradient, moments, taken)

    @abstractmethod
    def _without_decay(self, gradient: Tensor, moments: Sequence[Tensor], taken: Tensor) -> Tensor:
        """The direction, of a gradient that holds the weight decay already."""

    def fresh(self, theta: Tensor) -> OptimizerStates:
        """The state before the first step, of clients with parameters [..., D]."""
        *leading, size = theta.shape
        values = theta.new_zeros((*leading, self.moments, size))
        taken = theta.new_zeros(leading, dtype=torch.float64)
        return OptimizerStates(values, taken)

    def _check(
        self,
        option: str,
        value: Any,
        below: float = math.inf,
    ) -> None:
        if is_number(value) and 0 <= value < below:
            return
        wanted = "a finite number of at least 0"
        if below < math.inf:
            wanted = f"a number of at least 0 and below {below:g}"
        raise InputError(f"optimizer {self.name}: {option}={value!r}; give {wanted}")

    def _check_flag(self, option: str) -> None:
        value = getattr(self, option)
        if not isinstance(value, bool):
            raise InputError(f"optimizer {self.name}: {option}={value!r}; give true or false")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent; without options the plain one of the paper."""

    name = "sgd"
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", self.momentum)
        dampening = self.dampening
        if not is_number(dampening) or not math.isfinite(dampening):
            raise InputError(f"optimizer sgd: dampening={dampening!r}; give a finite number")
        self._check_flag("nesterov")
        if self.nesterov and (self.momentum == 0 or dampening != 0):
            raise InputError("optimizer sgd: nesterov=true needs a momentum above 0 and no dampening")

    @property
    def moments(self) -> int:
        return 1 if self.momentum else 0

    @property
    def is_plain(self) -> bool:
        """Whether the direction is the gradient itself."""
        return self.momentum == 0 and self.weight_decay == 0

    def _without_decay(self, gradient: Tensor, moments: Sequence[Tensor], taken: Tensor) -> Tensor:
        if not self.momentum:
            return gradient
        (momentum,) = moments
        entering = gradient
        if self.dampening:  # not of the first gradient
            is_later = (taken > 0).to(gradient)
            entering = (1 - self.dampening * is_later) * gradient
        velocity = self.momentum * momentum + entering
        momentum.copy_(velocity)
        if self.nesterov:
            return gradient + self.momentum * velocity
        return velocity


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; its weight decay is part of the gradient."""

    name = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("eps", self.eps)
        self._check_flag("amsgrad")
        betas = self.betas
        is_list = isinstance(betas, Sequence) and not isinstance(betas, str)
        if not is_list or len(betas) != 2:
            raise InputError(f"optimizer {self.name}: betas={betas!r}; give two numbers, e.g. (0.9, 0.999)")
        for beta in betas:
            self._check("betas", beta, below=1)
        object.__setattr__(self, "betas", tuple(betas))  # hashable, also from JSON's lists

    @property
    def moments(self) -> int:
        return 3 if self.amsgrad else 2

    def _without_decay(self, gradient: Tensor, moments: Sequence[Tensor], taken: Tensor) -> Tensor:
        first, second = self.betas
        mean = first * moments[0] + (1 - first) * gradient
        fresh_square = (1 - second) * gradient * gradient
        square = second * moments[1] + fresh_square
        moments[0].copy_(mean)
        moments[1].copy_(square)
        if self.amsgrad:
            square = torch.maximum(moments[2], square)
            moments[2].copy_(square)
        step = taken + 1
        mean_weight = (1 - first**step).to(gradient)
        square_weight = (1 - second**step).sqrt().to(gradient)
        scale = square.sqrt() / square_weight + self.eps
        return mean / mean_weight / scale


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay that is not part of the gradient."""

    name = "adamw"
    weight_decay: float = 0.01

    def direction(
        self,
        theta: Tensor,
        gradient: Tensor,
        moments: Sequence[Tensor],
        taken: Tensor,
    ) -> Tensor:
        step = self._without_decay(gradient, moments, taken)
        return step + self.weight_decay * theta


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Each entry of the gradient over the root of a running mean of its squares."""

    name = "rmsprop"
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("alpha", self.alpha)
        self._check("eps", self.eps)
        self._check("momentum", self.momentum)
        self._check_flag("centered")

    @property
    def moments(self) -> int:
        return 1 + int(self.centered) + int(self.momentum > 0)

    def _without_decay(self, gradient: Tensor, moments: Sequence[Tensor], taken: Tensor) -> Tensor:
        square, *others = moments
        entering = (1 - self.alpha) * gradient * gradient
        square.copy_(self.alpha * square + entering)
        variance = square
        if self.centered:
            mean = others.pop(0)
            mean.copy_(self.alpha * mean + (1 - self.alpha) * gradient)
            variance = square - mean * mean
        direction = gradient / (variance.sqrt() + self.eps)
        if not self.momentum:
            return direction
        (velocity,) = others
        velocity.copy_(self.momentum * velocity + direction)
        return velocity.clone()


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Each entry of the gradient over the root of the sum of its squares so far."""

    name = "adagrad"
    lr_decay: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("lr_decay", self.lr_decay)
        self._check("eps", self.eps)

    @property
    def moments(self) -> int:
        return 1

    def _without_decay(self, gradient: Tensor, moments: Sequence[Tensor], taken: Tensor) -> Tensor:
        (total,) = moments
        total.copy_(total + gradient * gradient)
        decay = (1 + self.lr_decay * taken).to(gradient)
        return gradient / (total.sqrt() + self.eps) / decay


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}


def optimizer_of(choice: OptimizerChoice) -> Optimizer:
    """From a name, or a table with a name and options.

    >>> optimizer_of({"name": "sgd", "momentum": 0.9})
    SGD(weight_decay=0.0, keep=False, momentum=0.9, dampening=0.0, nesterov=False)
    """
    kind, options = kind_and_options("optimizer", choice, OPTIMIZERS, '{"name": "sgd", "momentum": 0.9}', lr="lr")
    made = kind(**options)
    made._check_flag("keep")
    return made


def clip_factor(gradients: Sequence[Tensor], norm: float) -> Tensor:
    """[..., 1] what shortens each client's gradient, given in parts [..., *], to `norm`; 1 if it is no longer.

    As `torch.nn.utils.clip_grad_norm_` has it.
    """
    squares = [(part * part).sum(-1, keepdim=True) for part in gradients]
    length = torch.stack(squares).sum(0).sqrt()
    return (norm / (length + 1e-6)).clamp(max=1.0)
