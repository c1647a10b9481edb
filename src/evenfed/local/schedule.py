"""How the clients' learning rate changes from round to round: a factor for each round, counted from 0."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.choices import kind_and_options
from ..core.errors import InputError, check_whole, first_line
from ..core.scalars import is_number

LrSchedule = Callable[[int], float]  # round -> factor
LARGEST_FACTOR = 1e12  # three of these multiplied are a 32-bit float
ScheduleChoice = str | Mapping[str, Any] | LrSchedule


@dataclass(frozen=True)
class Constant:
    """The same learning rate in every round."""

    def __call__(self, index: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step:
    """Times `factor` after every `every` rounds."""

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_whole("lr_schedule step: every", self.every, 1)
        _check_factor("step", "factor", self.factor)

    def __call__(self, index: int) -> float:
        return float(self.factor ** (index // self.every))


@dataclass(frozen=True)
class Exponential:
    """Times `factor` after every round."""

    factor: float = 0.99

    def __post_init__(self) -> None:
        _check_factor("exponential", "factor", self.factor)

    def __call__(self, index: int) -> float:
        return float(self.factor**index)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 towards `final`, which it would reach after `rounds` rounds."""

    rounds: int
    final: float = 0.0

    def __post_init__(self) -> None:
        check_whole("lr_schedule cosine: rounds", self.rounds, 1)
        final = self.final
        if not is_number(final) or not 0 <= final <= 1:
            raise InputError(f"lr_schedule cosine: final={final!r}; give a number from 0 to 1")

    def __call__(self, index: int) -> float:
        done = min(1.0, index / self.rounds)
        angle = math.pi * done
        above_final = (1 - self.final) * (1 + math.cos(angle)) / 2
        return self.final + above_final


_Shipped = type[Constant] | type[Step] | type[Exponential] | type[Cosine]
SCHEDULES: dict[str, _Shipped] = {"constant": Constant, "step": Step, "exponential": Exponential, "cosine": Cosine}


def schedule_of(choice: ScheduleChoice, rounds: int) -> LrSchedule:
    """From a name, a table with a name and options, or a function of the round; `step` is three steps by default.

    >>> [schedule_of({"name": "step", "every": 2}, 10)(k) for k in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """
    if callable(choice):
        return choice
    kind, options = kind_and_options(
        "lr_schedule", choice, SCHEDULES, '{"name": "step", "every": 50}', "a function of the round"
    )
    if kind is Step:
        options.setdefault("every", -(-rounds // 3))
    if kind is Cosine:
        options.setdefault("rounds", rounds)
    return kind(**options)


def check_schedule(schedule: LrSchedule, rounds: int) -> None:
    """Every round's factor, before the first round: a function of the user's may give anything."""
    for index in range(rounds):
        try:
            factor = float(schedule(index))
        except Exception as error:  # whatever a function of the user's raises
            raise InputError(
                f"lr_schedule failed for round {index} ({type(error).__name__}: {first_line(error)}); "
                "it must give a number for every round, counted from 0"
            ) from error
        if not 0 < factor <= LARGEST_FACTOR:
            raise InputError(
                f"lr_schedule gives {factor!r} for round {index}; every round's factor must be a finite number above 0"
                f" and at most {LARGEST_FACTOR:g}"
            )


def _check_factor(name: str, option: str, value: Any) -> None:
    if not is_number(value) or not 0 < value < math.inf:
        raise InputError(f"lr_schedule {name}: {option}={value!r}; give a finite number above 0")
