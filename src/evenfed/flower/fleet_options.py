"""How many clients a round asks, when it closes, and which clients rest: for large and unreliable fleets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from logging import INFO
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError, check_whole, unknown
from ..core.scalars import is_number, unwrap_fields, unwrapped
from ..settings import Settings
from .logs import log
from .messaging import ClosingRule, Responsiveness

# Flower's name -> evenfed's
SYNONYMS = {
    "fraction_train": "participation",
    "fraction_evaluate": "evaluate_participation",
    "min_available_nodes": "min_available",
}
_ROUNDING = 1e-9


@dataclass(frozen=True)
class FleetOptions:
    """Options of who takes part, in addition to `participation`."""

    min_available: int | None = None  # None: wait for all clients; else rounds begin once so many are online
    quorum: float = 1.0  # a trip closes once this part of those asked has answered
    oversample: float = 1.0  # times as many are drawn as are needed; a round closes with the first
    min_train_nodes: int = 1  # at least so many are drawn, whatever the fraction
    min_evaluate_nodes: int = 1
    rest: int | None = None  # silent rounds in a row after which a client rests; 0: never. None: 1 in a fleet, else 2
    never_scored: bool = False  # evaluate_participation=0

    def __post_init__(self) -> None:
        unwrap_fields(self)
        if self.min_available is not None:
            check_whole("min_available", self.min_available, 1)
        check_whole("min_train_nodes", self.min_train_nodes, 0)
        check_whole("min_evaluate_nodes", self.min_evaluate_nodes, 0)
        if self.rest is not None:
            check_whole("rest", self.rest, 0)
        if not is_number(self.quorum) or not 0 < self.quorum <= 1:
            raise InputError(f"quorum={self.quorum!r}: give the part of those asked that closes a round, in (0, 1]")
        if not is_number(self.oversample) or not 1 <= self.oversample <= 10:
            raise InputError(f"oversample={self.oversample!r}: give how many times more to draw, 1 .. 10, such as 1.3")

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> "FleetOptions":
        """Take the fleet options out of a strategy's options; names of Flower are translated first."""
        options.update(unwrapped(options))
        translate(options)
        chosen = {}
        for option in fields(cls):
            if option.name in options:
                chosen[option.name] = options.pop(option.name)
        share = options.get("evaluate_participation")
        if is_number(share) and share == 0:
            del options["evaluate_participation"]
            chosen["never_scored"] = True
        return cls(**chosen)

    @property
    def is_fleet(self) -> bool:
        """Clients come and go: those online are drawn from, and met when they are drawn."""
        return self.min_available is not None

    @property
    def closes_early(self) -> bool:
        return self.quorum < 1 or self.oversample > 1

    @property
    def rests_after(self) -> int:
        if self.rest is not None:
            return self.rest
        return 1 if self.is_fleet else 2

    def check_beside(self, ordered: bool, private: bool) -> None:
        if self.closes_early and ordered:
            raise InputError(
                f"ordered=True repeats a run to the bit; quorum={self.quorum:g} with oversample={self.oversample:g} "
                "closes a round with whoever is first: choose one of them"
            )
        if private and (self.closes_early or self.is_fleet):
            raise InputError(
                "private=True: masks are made for the clients of a round, all of them known before it; leave out "
                "min_available, quorum and oversample"
            )

    def closing(self, needed: int, eligible: int) -> "RoundClosing":
        """How many to draw of the eligible where so many are needed, and when their trips close."""
        wanted = math.ceil(self.oversample * needed - _ROUNDING)
        return RoundClosing(self.quorum, min(wanted, eligible), needed)


@dataclass(frozen=True)
class RoundClosing:
    """When the trips of one round close. Of the spare clients, half may be lost before the weights are known."""

    quorum: float
    drawn: int
    needed: int

    @property
    def spare(self) -> int:
        return max(0, self.drawn - self.needed)

    @property
    def is_early(self) -> bool:
        """Whether a trip may close before everyone has answered."""
        return self.quorum < 1 or self.spare > 0

    def introductions(self, asked: int) -> ClosingRule | None:
        return self._enough(asked, asked - self.spare // 4)

    def losses(self, asked: int, known: int = 0) -> ClosingRule | None:
        half = math.ceil(self.spare / 2)
        return self._enough(asked, self.drawn - half - known)

    def updates(self, asked: int, measured: int) -> ClosingRule | None:
        """Asking to train, where so many losses gave the weights."""
        if measured <= self.needed:
            return self._enough(asked, asked)
        wanted = math.ceil(asked * self.needed / measured - _ROUNDING)
        return self._enough(asked, wanted)

    def scores(self, asked: int) -> ClosingRule | None:
        return self._enough(asked, asked)

    def _enough(self, asked: int, usable: int) -> ClosingRule | None:
        answered = math.ceil(self.quorum * asked - _ROUNDING)
        if answered >= asked and usable >= asked:
            return None
        return ClosingRule(answered=answered, usable=max(1, usable))


def translate(options: dict[str, Any]) -> None:
    """Put Flower's names of options in evenfed's words; both may be given if they say the same."""
    for theirs, ours in SYNONYMS.items():
        if theirs not in options:
            continue
        value = options.pop(theirs)
        if theirs.startswith("fraction") and type(value) is int:
            value = float(value)
        if ours in options and options[ours] != value:
            raise InputError(f"{theirs}={value!r} and {ours}={options[ours]!r} mean the same; give one of them")
        options[ours] = value


def names() -> tuple[str, ...]:
    own = [option.name for option in fields(FleetOptions) if option.name != "never_scored"]
    return (*own, *SYNONYMS)


def check_known(options: Mapping[str, Any]) -> None:
    """Refuse options that are neither of a fleet nor of the settings."""
    allowed = [*names(), *(setting.name for setting in fields(Settings))]
    for name in options:
        if name not in allowed:
            raise unknown("option", name, allowed)


def seconds(name: str, value: Any) -> float:
    value = unwrapped(value)
    if not is_number(value) or not value > 0:
        raise InputError(f"{name}={value!r}: give a number of seconds above 0")
    return float(value)


LONGEST = 64  # rounds
_KEPT = "flower.resting"  # node, silent rounds, the round in which it is asked again
_NUMBERS = 1 << 64  # of nodes


def signed(node: int) -> int:
    """A node's id as tensors hold it."""
    return node if node < _NUMBERS // 2 else node - _NUMBERS


def unsigned(number: int) -> int:
    return number % _NUMBERS


@dataclass
class Resting:
    """Nodes that were silent `after` rounds in a row rest for one round, then for 2, 4, ... if they stay silent.

    One that answers whatever it is asked in a round starts afresh. A node that registers anew is another node.
    """

    after: int = 1  # 0: nobody rests
    silent_rounds: dict[int, int] = field(default_factory=dict)  # node -> how many in a row
    back_in: dict[int, int] = field(default_factory=dict)  # node -> the round in which it is asked again

    def at(self, index: int) -> Mapping[int, int]:
        """Nodes that rest in a round, and the round in which each is asked again."""
        still_resting = {}
        for node, back in self.back_in.items():
            if back > index:
                still_resting[node] = back
        self.back_in = still_resting
        return self.back_in

    def notes(self) -> dict[str, Tensor]:
        """Who was silent and who rests, for a run's checkpoint."""
        rows = []
        for node, rounds in self.silent_rounds.items():
            rows.append((signed(node), rounds, self.back_in.get(node, 0)))
        return {_KEPT: torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)}

    def recall(self, notes: Mapping[str, Tensor]) -> None:
        """Go on from what an earlier process noted: nodes keep their ids as long as they are registered."""
        if _KEPT not in notes:
            return
        for number, rounds, back in notes[_KEPT].tolist():
            node = unsigned(number)
            self.silent_rounds[node] = rounds
            self.back_in[node] = back

    def end_round(self, index: int, responsiveness: Responsiveness) -> None:
        """Take down and say who was silent in round `index`."""
        for node in responsiveness.answered - responsiveness.silent:
            self.silent_rounds.pop(node, None)
        for node in responsiveness.silent:
            in_a_row = self.silent_rounds.get(node, 0) + 1
            self.silent_rounds[node] = in_a_row
            if self.after and in_a_row >= self.after:
                rounds = min(2 ** (in_a_row - self.after), LONGEST)
                self.back_in[node] = index + 1 + rounds
                text = "round %s: node %s did not answer in time and rests for the next %s"
                length = "round" if rounds == 1 else f"{rounds} rounds"
                log(INFO, text, index + 1, node, length)
        responsiveness.answered.clear()
        responsiveness.silent.clear()
