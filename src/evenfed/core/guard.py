"""The guard: bounds on what one client can do to a round, whatever the algorithm.

What clients report is compared with the median over all clients, which the lies of a minority hardly move:

* losses are clipped at the median plus k robust standard deviations (1.4826 MAD, Hampel's rule); those far beyond
  count as the median (Hampel's redescending rule), so nothing is won by a huge lie,
* weights at a multiple of the client's share,
* updates at a multiple of the median norm (norm clipping: Sun et al., 2019, with an adaptive bound),
* sizes at a multiple of the median size.

`docs/guard.md` says what this stops, what it does not stop, and what it costs.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .decimals import unlike
from .errors import InputError, check_choice, unknown
from .scalars import is_number, unwrap_fields

ENOUGH = 32  # clients whose numbers make a median; fewer are joined by those heard before
LEAST = 3  # clients below which no median is trusted
_FEW = 8  # clients below which one that stands out may well be the one served badly: bounds are wider
_WIDER = 5.0  # times
_NORMAL = 1.4826  # a MAD times this is the standard deviation of a normal distribution
_SPREAD = 0.1  # of the median: the least standard deviation of losses
_SMALLEST = 0.01  # of the median: the smallest loss
_HALF = 0.5  # of all weight
_HALVINGS = 100  # of an interval, to a float's precision


WHAT = ("loss", "weight", "update", "buffers", "size")  # of a client can be bounded


class Clip(NamedTuple):
    """One number of one client that counted for less than was reported."""

    client: int
    what: str  # one of WHAT
    reported: float
    counted: float

    @property
    def says(self) -> str:
        """In words.

        >>> Clip(3, "loss", 1e6, 2.5).says
        'its loss of 1e+06 counts as 2.5'
        """
        if self.what == "update" and self.counted == 0:
            return f"its update of length {self.reported:.3g} is left out"
        subject = f"its {self.what} of"
        if self.what in ("update", "buffers"):
            subject += " length"
        reported, counted = unlike(self.reported, self.counted)
        return f"{subject} {reported} counts as {counted}"


def clips(
    what: str,
    ids: Tensor,
    reported: Tensor,
    counted: Tensor,
) -> tuple[Clip, ...]:
    """Of these clients, those whose number counted for another."""
    differing = []
    differs = reported != counted
    for k in differs.nonzero().flatten().tolist():
        clip = Clip(
            client=int(ids[k]),
            what=what,
            reported=float(reported[k]),
            counted=float(counted[k]),
        )
        differing.append(clip)
    return tuple(differing)


@dataclass(frozen=True)
class Guard:
    """How far a client may stand out; each number is a multiple, and a larger one is more lenient."""

    loss: float = 3.0  # standard deviations above the median loss, robustly estimated
    disbelieve: float = 3.0  # times as far above the median as losses count: a loss beyond counts as the median
    weight: float = 3.0  # times the client's share
    update: float = 2.0  # times the usual length of an update: what is longer is shortened
    refuse: float = 5.0  # times the usual length of an update: what is longer is left out
    size: float = 5.0  # times the median size
    rescue: float = 2.0  # at most so many times do weights grow to replace those of clients that dropped out

    def __post_init__(self) -> None:
        unwrap_fields(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not is_number(value) or not 1 <= value < math.inf:
                raise InputError(f"guard: {field.name}={value!r}: give a finite number of at least 1")

    @classmethod
    def of(cls, choice: "GuardChoice") -> "Guard | None":
        """From what a user gives: nothing, "off" or false; "on" or true; or a table of numbers.

        >>> Guard.of("on"), Guard.of("off")
        (Guard(loss=3.0, disbelieve=3.0, weight=3.0, update=2.0, refuse=5.0, size=5.0, rescue=2.0), None)
        """
        if isinstance(choice, Guard):
            return choice
        if choice is None or choice is False or choice == "off":
            return None
        if choice is True or choice == "on":
            return cls()
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(choice, Mapping):
            listed = ", ".join(names)
            raise InputError(
                f"guard={choice!r}: give on, off, or a table such as {{ update = 3.0 }} with any of {listed}"
            )
        numbers = dict(choice)
        name = numbers.pop("name", "on")
        check_choice("guard", name, ("on", "off"))
        for bound in numbers:
            if bound not in names:
                raise unknown("number of the guard", str(bound), names)
        if name == "off":
            return None
        return cls(**numbers)

    def describe(self) -> dict[str, float]:
        """As JSON stores it, and `of` takes it back."""
        return dataclasses.asdict(self)

    def bounded_sizes(self, sizes: Tensor) -> Tensor:
        """[n] the sizes that count."""
        with_data = sizes[sizes > 0]
        if len(with_data) < LEAST:
            return sizes
        median = with_data.double().quantile(0.5)
        largest = int(self.size * median)
        return sizes.clamp(max=largest)

    def counted_losses(
        self,
        heard: "ReportedNumbers",
        ids: Tensor,
        losses: Tensor,
        index: int,
    ) -> "tuple[ReportedNumbers, Tensor]":
        """[m] the losses that count: within k robust standard deviations of the median, and positive where that is.

        A loss is always believed as far as the untrained model's usual one, within as many deviations: clients that the
        model does not serve at all are no liars. What is far beyond even that is not believed: it counts as the median.
        """
        heard = heard.with_losses(ids, losses, index)
        usual = heard.usual_loss()
        if usual is None:
            return heard, losses
        median, deviation = usual
        margin = self.loss * deviation
        lowest = median - margin
        highest = median + margin
        if bool(heard.untrained.isnan()):
            untrained = torch.tensor(highest, dtype=torch.float64)
            heard = dataclasses.replace(heard, untrained=untrained)
        highest = max(highest, float(heard.untrained))
        if median > 0:
            smallest = _SMALLEST * median
            lowest = max(lowest, smallest)
        credible = self.disbelieve * (highest - median)
        is_far = losses - median > credible
        counted = losses.clamp(min=lowest, max=highest)
        counted = torch.where(is_far, median, counted)
        return heard, counted

    def capped(self, weights: Tensor, shares: Tensor) -> Tensor:
        """[m] the weights with the same sum and no client above its cap; what is cut off goes to the others by share.

        w_i <- clip(w_i + t p_i, -c_i, c_i), the nearest such weights where nearness is measured per share.
        """
        most = self._most(weights, shares)
        above = _exceeds(weights, most)
        if not bool(above.any()):
            return weights
        total = float(weights.sum())
        distance = weights.abs() + most
        reach = distance / shares.clamp(min=1e-300)
        high = float(reach.max())
        low = -high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            raised = weights + middle * shares
            held = _clipped(raised, most)
            if float(held.sum()) < total:
                low = middle
            else:
                high = middle
        raised = weights + high * shares
        return _clipped(raised, most)

    def _most(self, weights: Tensor, shares: Tensor) -> Tensor:
        """[m] the caps: `weight` times a client's share, or an equal share if that is larger.

        No client gets more than half of all weight by a cap, but its own share always.
        """
        total = float(weights.sum())
        if not total > 0:
            return torch.full_like(weights, torch.inf)
        equal_share = 1 / len(shares)
        at_least_equal = shares.clamp(min=equal_share)
        multiple = self.weight * at_least_equal
        multiple = multiple.clamp(max=_HALF)
        return total * torch.maximum(shares, multiple)

    def outweighing(
        self,
        ids: Tensor,
        weights: Tensor,
        shares: Tensor,
    ) -> tuple[Tensor, tuple[Clip, ...]]:
        """The capped weights, and whose were above the cap."""
        capped = self.capped(weights, shares)
        most = self._most(weights, shares)
        above = _exceeds(weights, most)
        above_cap = clips(
            "weight",
            ids[above],
            reported=weights[above],
            counted=capped[above],
        )
        return capped, above_cap

    def probed(self, losses: Tensor, heard: "ReportedNumbers") -> Tensor:
        """[m] losses at a snapshot, bounded among themselves; the median where there is none."""
        finite = losses.isfinite()
        known = losses[finite]
        count = len(known)
        if count == 0:
            return losses
        nobody = dataclasses.replace(ReportedNumbers.nothing(count), untrained=heard.untrained)
        ids = torch.arange(count)
        _, counted = self.counted_losses(nobody, ids, known, index=0)
        median = float(known.median())
        filled = torch.full_like(losses, median)
        filled[finite] = counted
        return filled

    def capped_mixture(
        self,
        memory: dict[str, Tensor],
        name: str | None,
        sizes: Tensor,
    ) -> dict[str, Tensor]:
        """The memory of an algorithm that spreads all weight over the clients, with no one above the cap."""
        if name is None:
            return memory
        eligible = sizes > 0
        counts = sizes.double()
        shares = counts[eligible] / counts.sum()
        mixture = memory[name].clone()
        mixture[eligible] = self.capped(mixture[eligible], shares)
        return {**memory, name: mixture}


def bounded(guard: Guard | None, sizes: Tensor) -> tuple[Tensor, tuple[Clip, ...]]:
    """[n] the sizes that count, and whose do not count as claimed."""
    if guard is None:
        return sizes, ()
    counted = guard.bounded_sizes(sizes)
    ids = torch.arange(len(sizes))
    overstated = clips("size", ids, sizes, counted)
    return counted, overstated


def _exceeds(weights: Tensor, most: Tensor) -> Tensor:
    with_rounding = most * (1 + 1e-6)
    return weights.abs() > with_rounding


def _clipped(values: Tensor, most: Tensor) -> Tensor:
    from_below = torch.maximum(values, -most)
    return torch.minimum(from_below, most)


@dataclass(frozen=True)
class ReportedNumbers:
    """What each client last reported, and in which round: a median of it is what is usual."""

    losses: Tensor  # [n] NaN until heard
    asked: Tensor  # [n] the round of it; -1
    norms: Tensor  # [n] length of its update, per learning rate and square root of its steps; NaN until heard
    trained: Tensor  # [n] the round of it; -1
    drifts: Tensor  # [n] the same of its buffers' change
    untrained: Tensor  # [] the highest loss that counted when losses were first compared; NaN until then

    @classmethod
    def nothing(cls, clients: int) -> "ReportedNumbers":
        unknown = torch.full((clients,), torch.nan, dtype=torch.float64)
        never = torch.full((clients,), -1)
        return cls(
            losses=unknown,
            asked=never,
            norms=unknown.clone(),
            trained=never.clone(),
            drifts=unknown.clone(),
            untrained=torch.tensor(torch.nan, dtype=torch.float64),
        )

    def with_losses(
        self,
        ids: Tensor,
        losses: Tensor,
        index: int,
    ) -> "ReportedNumbers":
        table = self.losses.index_copy(0, ids, losses)
        asked = self.asked.index_fill(0, ids, index)
        return dataclasses.replace(self, losses=table, asked=asked)

    def with_norms(
        self,
        ids: Tensor,
        norms: Tensor,
        drifts: Tensor,
        index: int,
    ) -> "ReportedNumbers":
        return dataclasses.replace(
            self,
            norms=self.norms.index_copy(0, ids, norms),
            drifts=self.drifts.index_copy(0, ids, drifts),
            trained=self.trained.index_fill(0, ids, index),
        )

    def with_more(self, clients: int) -> "ReportedNumbers":
        """With room for so many new ones."""
        more = ReportedNumbers.nothing(clients)
        tables = {}
        for name, table in vars(self).items():
            new = getattr(more, name)
            tables[name] = torch.cat([table, new]) if new.ndim else table
        return ReportedNumbers(**tables)

    def usual_loss(self) -> tuple[float, float] | None:
        """Median and robust standard deviation of the losses."""
        losses = _recent(self.losses, self.asked)
        if len(losses) < LEAST:
            return None
        median = losses.quantile(0.5)
        distances = (losses - median).abs()
        deviation = _NORMAL * distances.quantile(0.5)
        least = _SPREAD * median.abs()
        deviation = torch.maximum(deviation, least)
        return float(median), self._leniency * float(deviation)

    def usual_norm(self) -> float | None:
        return self._usual(self.norms)

    def usual_drift(self) -> float | None:
        return self._usual(self.drifts)

    def _usual(self, lengths: Tensor) -> float | None:
        """The median of the last rounds; None if it is not known, or zero."""
        known = _recent(lengths, self.trained)
        if len(known) < LEAST:
            return None
        median = float(known.quantile(0.5))
        if not median > 0:
            return None
        return self._leniency * median

    @property
    def _leniency(self) -> float:
        """How much wider bounds are in a federation of so many clients."""
        return _WIDER if len(self.losses) < _FEW else 1.0


def _recent(values: Tensor, rounds: Tensor) -> Tensor:
    """The values of the last rounds that together asked enough clients."""
    known = values.isnan().logical_not().nonzero().flatten()
    values = values[known]
    rounds = rounds[known]
    if len(rounds) <= ENOUGH:
        return values
    newest = rounds.topk(ENOUGH).values
    oldest = newest[-1]
    return values[rounds >= oldest]


GuardChoice = Guard | bool | str | Mapping[str, Any] | None
