"""The options of a run: every default in one place."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from .augment import AugmentationChoice, augmentation_of, table_of
from .core.average import check_decay
from .core.choices import kind_and_options, refuse_unknown
from .core.errors import InputError, check_choice, check_whole
from .core.guard import Guard, GuardChoice
from .core.naming import StoredFunction, described
from .core.scalars import is_number, unwrap_fields
from .core.server import OptimizerFactory, WeighAt, check_weigh_at
from .core.streams import Batching
from .local.optimizer import SGD, OptimizerChoice, optimizer_of
from .local.schedule import LARGEST_FACTOR, ScheduleChoice, check_schedule, schedule_of
from .local.training import LocalTraining

Precision = Literal["fp32", "tf32", "bf16"]
Start = Literal["common", "own"]
BatchNorm = Literal["shared", "local", "frozen"]
MetricName = Literal["accuracy", "loss"]
EngineName = Literal["parallel", "reference", "flower"]
ServerOptimizer = str | Mapping[str, Any] | Callable[..., torch.optim.Optimizer] | None


@dataclass(frozen=True)
class Settings:
    """Options of a run. Those in `VARIANT` may differ between the entries of a comparison.

    Length and data of a run:

    * `rounds`: communication rounds.
    * `participation`: clients per round; a float is a fraction of them (1.0: everyone), an int their number.
    * `seed`: of the initial model, batches and participation.
    * `batch_seed`: of batches, dropout and augmentation alone; None: `seed`.

    Local training:

    * `lr`: learning rate of the clients' optimiser.
    * `lr_schedule`: a name, {"name": ..., options}, or a function from the round to a factor of `lr`.
    * `optimizer`: "sgd", "adam", "adamw", "rmsprop", "adagrad", or {"name": ..., options of torch.optim}.
    * `batch_size`: examples per local step; None: the whole client in one batch.
    * `local_epochs`: passes over a client's data per round.
    * `local_steps`: steps per round, in place of `local_epochs`; batches cycle through the data.
    * `drop_last`: leave out a pass's short last batch, unless it is the only one.
    * `augment`: a name, {"name": ..., options}, or a function of (batch, draw): see `evenfed.augment`.
    * `clip`: largest gradient norm of a local step; None: no limit.
    * `prox`: FedProx's mu, which pulls each local model towards the incoming one.
    * `batch_norm`: "shared"; "local": each client keeps its own layers (FedBN); "frozen": statistics do not change.
    * `start`: "common", or "own": each client draws its own model before round 0.

    Server:

    * `server_lr`: factor of the server's step; below 1 it damps.
    * `server_optimizer`: a name of torch.optim, {"name": ..., options}, or a function that makes one from parameters.
    * `smooth`: weights come from (1 - a) * old + a * new losses with this a; None: from the new losses alone.
    * `average`: deploy the mean of all models so far, each weighing this much less than the next; None: the last.
    * `weigh_at`: "current", or "average": losses that set the weights are those of the average.
    * `guard`: "on", "off", or a table of numbers; None: on in Flower, off in the simulator.

    Evaluation:

    * `metric`: what clients are judged by, "accuracy" (the score) or "loss"; None: accuracy if there is a score.
    * `evaluate_every`: rounds between evaluations; 0: only after the last round.
    * `evaluate_participation`: clients evaluated, a fraction or a number: the same ones every time.
    * `last_rounds`: averages over the end of a run cover the evaluations of this many rounds.

    Machine:

    * `engine`: "parallel", "reference" (plain and slow, to compare with), or "flower" (`evenfed compare`).
    * `device`: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
    * `precision`: of the parallel engine's matrix products on a GPU: "fp32", "tf32" or "bf16"; parameters stay fp32.
    """

    rounds: int = 100
    lr: float = 0.05
    lr_schedule: ScheduleChoice = "constant"
    optimizer: OptimizerChoice = "sgd"
    clip: float | None = None
    batch_size: int | None = None
    local_epochs: int = 1
    local_steps: int | None = None
    augment: AugmentationChoice = None
    drop_last: bool = False
    seed: int = 0
    batch_seed: int | None = None
    participation: float | int = 1.0
    prox: float = 0.0
    server_lr: float = 1.0
    server_optimizer: ServerOptimizer = None
    smooth: float | None = None
    average: float | None = None
    weigh_at: WeighAt = "current"
    guard: GuardChoice = None
    start: Start = "common"
    batch_norm: BatchNorm = "shared"
    engine: EngineName = "parallel"
    device: str = "auto"
    precision: Precision = "fp32"
    metric: MetricName | None = None
    evaluate_every: int = 1
    evaluate_participation: float | int = 1.0
    last_rounds: int = 20

    def __post_init__(self) -> None:
        unwrap_fields(self)
        check_whole("rounds", self.rounds, 1)
        check_whole("local_epochs", self.local_epochs, 1)
        check_whole("last_rounds", self.last_rounds, 1)
        check_whole("evaluate_every", self.evaluate_every, 0)
        check_whole("seed", self.seed, 0)
        if self.batch_seed is not None:
            check_whole("batch_seed", self.batch_seed, 0)
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        self._check_local()
        _check_positive("server_lr", self.server_lr)
        if not _is_finite(self.prox) or not 0 <= self.prox <= LARGEST_FACTOR:
            raise InputError(f"prox={self.prox!r}: give a finite number of at least 0, at most {LARGEST_FACTOR:g}")
        if self.smooth is not None and not (_is_finite(self.smooth) and 0 < self.smooth <= 1):
            raise InputError(f"smooth={self.smooth!r}: give a number above 0, at most 1, or leave it out")
        if self.average is not None:
            check_decay(self.average)
        check_weigh_at(self.weigh_at, self.average)
        _check_participation("participation", self.participation)
        _check_participation("evaluate_participation", self.evaluate_participation)
        check_choice("engine", self.engine, get_args(EngineName))
        check_choice("batch_norm", self.batch_norm, get_args(BatchNorm))
        check_choice("start", self.start, get_args(Start))
        if self.metric is not None:
            check_choice("metric", self.metric, get_args(MetricName))
        check_choice("precision", self.precision, get_args(Precision))
        if self.engine == "flower":
            self._check_flower()
        self.guarding()
        self.optimizer_factory()
        self.torch_device()

    def _check_flower(self) -> None:
        if self.batch_norm == "local":
            raise InputError("batch_norm='local' needs the simulator; use engine='parallel', or 'shared' or 'frozen'")
        if self.start == "own":
            raise InputError("start='own' needs the simulator; use engine='parallel' or start='common'")

    def _check_local(self) -> None:
        _check_positive("lr", self.lr)
        if self.clip is not None:
            _check_positive("clip", self.clip)
        if self.local_steps is not None:
            check_whole("local_steps", self.local_steps, 1)
            if self.local_epochs != 1:
                raise InputError(
                    f"local_steps={self.local_steps} and local_epochs={self.local_epochs}: give one of them; "
                    "with local_steps, leave local_epochs at 1"
                )
        if not isinstance(self.drop_last, bool):
            raise InputError(f"drop_last={self.drop_last!r}: give true or false")
        optimizer_of(self.optimizer)
        augmentation_of(self.augment)
        if self.engine == "flower":
            table_of(self.augment)  # refuses what cannot be sent
        schedule = schedule_of(self.lr_schedule, self.rounds)
        if self.lr_schedule != "constant" and not isinstance(schedule, StoredFunction):
            check_schedule(schedule, self.rounds)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Settings":
        """Settings from keyword options. An unknown option is refused with the nearest name."""
        allowed = [field.name for field in dataclasses.fields(cls)]
        refuse_unknown("option", options, allowed)
        return cls(**options)

    @property
    def local_seed(self) -> int:
        """The seed of what clients draw while they train."""
        return self.seed if self.batch_seed is None else self.batch_seed

    def drawn(self, eligible: int) -> int:
        """How many of the `eligible` clients (those with data) take part in a round."""
        return _number_of("participation", self.participation, eligible, "training")

    def evaluated(self, eligible: int) -> int:
        """How many of the `eligible` clients (those with test data) are evaluated."""
        return _number_of("evaluate_participation", self.evaluate_participation, eligible, "test")

    @property
    def cautions(self) -> list[str]:
        """Options that may not be meant."""
        cautions = []
        participation = self.participation
        if isinstance(participation, int) and participation == 1:
            cautions.append("participation=1 is one client per round; everyone is 1.0")
        if self.drop_last and self.batch_size is None:
            cautions.append("drop_last has no effect without batch_size: each client is one whole batch")
        optimizer = optimizer_of(self.optimizer)
        if isinstance(optimizer, SGD) and optimizer.momentum >= 1:
            cautions.append(f"momentum={optimizer.momentum} makes every step longer than the last; usual is 0.9")
        return cautions

    @property
    def batching(self) -> Batching:
        """How a client's examples become batches."""
        return Batching(self.batch_size, self.local_epochs, self.local_steps, self.drop_last)

    def guarding(self) -> Guard | None:
        """What bounds each client's influence; None: nothing does."""
        choice = self.guard
        if choice is None and self.engine == "flower":
            choice = "on"
        return Guard.of(choice)

    def lr_factor(self, index: int) -> float:
        """The factor of `lr` in round `index`."""
        schedule = schedule_of(self.lr_schedule, self.rounds)
        return float(schedule(index))

    def local(self, index: int) -> LocalTraining:
        """What a client does in round `index`."""
        return LocalTraining(
            lr=self.lr * self.lr_factor(index),
            batching=self.batching,
            prox=self.prox,
            optimizer=optimizer_of(self.optimizer),
            clip=self.clip,
            augment=augmentation_of(self.augment),
        )

    def tied_to_rounds(self, earlier: int) -> str | None:
        """Why a run of `earlier` rounds cannot go on with these: its rounds would have been others."""
        schedule = schedule_of(self.lr_schedule, self.rounds)
        shorter = schedule_of(self.lr_schedule, earlier)
        for index in range(earlier):
            if schedule(index) != shorter(index):
                return (
                    f"lr_schedule={self.lr_schedule!r} depends on the number of rounds, so round {index + 1} had "
                    "another learning rate"
                )
        return None

    def optimizer_factory(self) -> OptimizerFactory | None:
        """The server's optimiser as a function of the parameters; None for theta - server_lr * step."""
        choice = self.server_optimizer
        if choice is None:
            return None
        if callable(choice):
            if self.server_lr != 1:
                raise InputError("server_lr and a server_optimizer of your own: set the learning rate inside yours")
            return choice
        example = '{"name": "sgd", "momentum": 0.9}'
        makes_one = "a function of the parameters that makes an optimiser of torch"
        kinds = _torch_optimizers()
        kind, options = kind_and_options("server_optimizer", choice, kinds, example, makes_one, lr="server_lr")
        factory = functools.partial(kind, lr=self.server_lr, **options)
        try:
            factory([torch.zeros(1)])
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"server_optimizer={choice!r}: {error}; see torch.optim.{kind.__name__}") from None
        return factory

    def torch_device(self) -> torch.device:
        """The device by its name, whether this machine has it or not."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except (RuntimeError, TypeError):
            device = None
        if device is None or device.type not in ("cpu", "cuda"):
            raise InputError(
                f"device='{name}' is not known; give cpu, cuda, cuda:1 or auto (compare, tune: --device cuda:all)"
            )
        return device

    def device_here(self) -> torch.device:
        """The device, checked to be there. What is finished can be read and shown without it."""
        device = self.torch_device()
        if device.type == "cuda" and not torch.cuda.is_available():
            version = torch.__version__
            raise InputError(f"device='{self.device}': this torch ({version}) sees no GPU; use cpu or auto")
        return device

    def describe(self) -> dict[str, Any]:
        """As JSON stores it; functions by their names."""
        options = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            options[field.name] = described(value)
        guard = self.guarding()
        if guard is not None:
            options["guard"] = guard.describe()  # its numbers, which a later version may choose otherwise
        else:
            options["guard"] = "off" if self.engine == "flower" else None
        return options


VARIANT = (
    "augment",
    "average",
    "batch_norm",
    "batch_size",
    "clip",
    "drop_last",
    "guard",
    "local_epochs",
    "local_steps",
    "lr",
    "lr_schedule",
    "optimizer",
    "participation",
    "precision",
    "prox",
    "server_lr",
    "server_optimizer",
    "smooth",
    "start",
    "weigh_at",
)


def cautions_of(every: Iterable[Settings]) -> list[str]:
    """The cautions of several runs' settings, each once."""
    cautions: dict[str, None] = {}
    for settings in every:
        cautions.update(dict.fromkeys(settings.cautions))
    return list(cautions)


def _torch_optimizers() -> dict[str, type]:
    """The classes of torch.optim that step on a gradient of any shape, by their names in lower case."""
    others = ("Optimizer", "LBFGS", "SparseAdam", "Muon")
    optimizers = {}
    for name, member in vars(torch.optim).items():
        if isinstance(member, type) and name not in others:
            optimizers[name.lower()] = member
    return optimizers


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _check_positive(name: str, value: Any) -> None:
    if not _is_finite(value) or not 0 < value <= LARGEST_FACTOR:
        raise InputError(f"{name}={value!r}: give a finite number above 0, at most {LARGEST_FACTOR:g}")


def _check_participation(name: str, value: Any) -> None:
    valid = False
    if isinstance(value, float):
        valid = 0 < value <= 1
    elif isinstance(value, int) and not isinstance(value, bool):
        valid = value >= 1
    if not valid:
        raise InputError(
            f"{name}={value!r}: give a fraction in (0, 1] such as 0.5 (1.0 is everyone), or a whole number of "
            "clients, at least 1"
        )


def _number_of(name: str, value: float | int, eligible: int, data: str) -> int:
    """The number of clients that a fraction, or a number, of the `eligible` ones is."""
    if isinstance(value, float):
        clients = round(value * eligible)
        return max(1, clients)
    if value > eligible:
        raise InputError(
            f"{name}={value} clients, but only {eligible} have {data} data; give at "
            "most that many, or a fraction such as 0.5"
        )
    return value
