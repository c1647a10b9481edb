"""The options of a run: every default in one place."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .core.errors import InputError, check_whole, unknown
from .core.server import OptimizerFactory

Precision = Literal["fp32", "tf32", "bf16"]
ServerOptimizer = str | Mapping[str, Any] | Callable[..., torch.optim.Optimizer] | None


@dataclass(frozen=True)
class Settings:
    """Options of a run. Those in `VARIANT` may differ between the entries of a comparison."""

    rounds: int = 100
    lr: float = 0.05  # of the clients' plain SGD
    batch_size: int | None = None  # None: the whole client in one batch
    local_epochs: int = 1
    seed: int = 0  # of batches and participation
    participation: float | int = 1.0  # a float is a fraction of the clients, an int their number
    prox: float = 0.0  # FedProx's pull of the local model towards the incoming one
    server_lr: float = 1.0  # below 1 it damps
    server_optimizer: ServerOptimizer = None  # torch.optim name, {"name": ..., options}, or params -> optimiser
    smooth: float | None = None  # weigh by (1 - a) old + a new loss; None: by the new loss alone
    start: Literal["common", "own"] = "common"  # own: before round 0 each client has drawn a model of its own
    engine: Literal["parallel", "reference", "flower"] = "parallel"
    device: str = "auto"  # auto: cuda where there is one, else cpu
    precision: Precision = (
        "fp32"  # of the parallel engine's products on a GPU, else fp32; parameters are always kept in full
    )
    evaluate_every: int = 1  # rounds; 0 evaluates at the end only
    last_rounds: int = 20  # averages over the end of a run cover the evaluations in this many rounds

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "last_rounds"):
            check_whole(name, getattr(self, name), 1)
        check_whole("evaluate_every", self.evaluate_every, 0)
        check_whole("seed", self.seed, 0)
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        _number("lr", self.lr, above=0)
        _number("server_lr", self.server_lr, above=0)
        _number("prox", self.prox, above=None)
        if self.smooth is not None:
            _number("smooth", self.smooth, above=0)
            if self.smooth > 1:
                raise InputError(f"smooth={self.smooth} is out of range; give a number in (0, 1], or leave it out")
        _participation(self.participation)
        if self.engine not in ENGINES:
            raise unknown("engine", str(self.engine), ENGINES)
        if self.start not in ("common", "own"):
            raise unknown("start", str(self.start), ("common", "own"))
        if self.start == "own" and self.engine == "flower":
            raise InputError("start='own' is the simulator's; use engine='parallel' or start='common'")
        if self.precision not in ("fp32", "tf32", "bf16"):
            raise unknown("precision", str(self.precision), ("fp32", "tf32", "bf16"))
        self.optimizer_factory()
        self.torch_device()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Settings":
        """Settings from keyword options; an unknown one names the nearest."""
        allowed = [f.name for f in dataclasses.fields(cls)]
        for key in options:
            if key not in allowed:
                raise unknown("option", key, allowed)
        return cls(**options)

    def drawn(self, eligible: int) -> int:
        """How many of the `eligible` clients (those with data) take part in a round."""
        if isinstance(self.participation, int):
            if self.participation > eligible:
                raise InputError(
                    f"participation={self.participation} clients, but only {eligible} have training data; give at "
                    "most that many, or a fraction such as 0.5"
                )
            return self.participation
        return max(1, round(self.participation * eligible))

    def optimizer_factory(self) -> OptimizerFactory | None:
        """The server's optimiser, made from parameters; None for theta - server_lr * step."""
        given = self.server_optimizer
        if given is None:
            return None
        if callable(given):
            if self.server_lr != 1:
                raise InputError("server_lr and a server_optimizer of your own: set the learning rate inside yours")
            return given
        options = {"name": given} if isinstance(given, str) else dict(given)
        name = str(options.pop("name", ""))
        known = {n.lower(): n for n, v in vars(torch.optim).items() if isinstance(v, type)}
        if name.lower() not in known:
            raise unknown("server_optimizer", name, known)
        factory = functools.partial(getattr(torch.optim, known[name.lower()]), lr=self.server_lr, **options)
        try:
            factory([torch.zeros(1)])
        except (TypeError, ValueError) as error:
            raise InputError(f"server_optimizer {name}: {error}") from None
        return factory

    def torch_device(self) -> torch.device:
        """The device, checked to be there."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or device.type not in ("cpu", "cuda"):
            raise InputError(f"device='{self.device}' is not known; give cpu, cuda, cuda:1 or auto")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InputError(f"device='{self.device}': this torch ({torch.__version__}) sees no GPU; use cpu or auto")
        return device

    def describe(self) -> dict[str, Any]:
        """As JSON keeps it; a callable optimiser by its name."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if callable(self.server_optimizer):
            plain["server_optimizer"] = getattr(self.server_optimizer, "__qualname__", repr(self.server_optimizer))
        elif isinstance(self.server_optimizer, Mapping):
            plain["server_optimizer"] = dict(self.server_optimizer)
        return plain


ENGINES = ("parallel", "reference", "flower")
VARIANT = ("lr", "participation", "precision", "prox", "server_lr", "server_optimizer", "smooth", "start")


def _number(name: str, value: Any, above: float | None) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not real or (value < 0 if above is None else value <= above):
        raise InputError(f"{name}={value!r}: give a finite number {'of at least 0' if above is None else 'above 0'}")


def _participation(value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not whole and not (isinstance(value, float) and 0 < value <= 1):
        raise InputError(
            f"participation={value!r}: give a fraction in (0, 1] such as 0.5 (1.0 is everyone), or a whole number of "
            "clients, at least 1"
        )
