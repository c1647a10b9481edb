"""Axes that one diverging algorithm does not squeeze."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_FAR = 3.0  # times the range of the others: who strays further is drawn at the edge
WORTH = 2.0  # times as much room for the others: less is not worth drawing anything at the edge
_MARGIN = 0.06  # of the range, at both ends


@dataclass(frozen=True)
class Extent:
    """From the lowest to the highest value of one algorithm."""

    low: float
    high: float


@dataclass(frozen=True)
class Axis:
    """The ends of an axis. Values beyond them are drawn at the edge, with what they are in words."""

    low: float
    high: float

    @classmethod
    def of(
        cls,
        extents: Sequence[Extent],
        sign: int,
        always: Sequence[float] = (),
        margin: float = _MARGIN,
    ) -> "Axis":
        """Around all extents, but for the few that are much worse than the rest.

        `sign` says which end is better, `always` what has to be inside. At most a quarter of the algorithms, and
        only those at the worse end, may end up outside: what is far better is the finding.
        """
        kept = sorted(extents, key=lambda extent: sign * (extent.low + extent.high))
        axis = _around(kept, always)
        for number in range(len(kept) // 4, 0, -1):
            without_worst = _around(kept[number:], always)
            if axis.length > _FAR * without_worst.length:
                axis = without_worst
                break
        if not axis.length:
            room = margin * abs(axis.high) or 1.0
            return cls(axis.low - room, axis.high + room)
        return axis.widened(margin)

    @classmethod
    def of_differences(cls, extents: Sequence[Extent], margin: float = _MARGIN) -> "Axis":
        """Around zero and all extents. One that strays three times as far as the middle one ends at the edge, if that
        gives the others twice the room.
        """
        reaches = [max(extent.high, -extent.low, 0.0) for extent in extents]
        most = _FAR * median(reaches) if reaches else 0.0
        axis = _around(extents, [0.0])
        cut = axis.within(-most, most)
        if axis.length > WORTH * cut.length:
            axis = cut
        if not axis.length:
            return cls(-1.0, 1.0)
        return axis.widened(margin)

    def around(self, low: float, high: float) -> "Axis":
        """With these inside too."""
        low = min(self.low, low)
        high = max(self.high, high)
        return Axis(low, high)

    @property
    def length(self) -> float:
        return self.high - self.low

    def within(self, low: float, high: float) -> "Axis":
        """Not beyond what is possible."""
        low = max(self.low, low)
        high = min(self.high, high)
        return Axis(low, high)

    def widened(self, share: float) -> "Axis":
        """With room at both ends, for words."""
        room = share * (self.high - self.low)
        return Axis(self.low - room, self.high + room)

    @property
    def scale(self) -> dict[str, object]:
        return {"domain": [self.low, self.high], "nice": False, "zero": False}

    def inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def share(self, value: float) -> float:
        """The position of a value: 0 at the low end, 1 at the high one."""
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        return self.low + share * (self.high - self.low)

    def clamped(self, field: str) -> str:
        """The field drawn inside, as an expression."""
        return f"clamp(datum.{field}, {self.low}, {self.high})"

    def is_outside(self, field: str) -> str:
        """Whether the field lies beyond an end, as an expression."""
        return f"(datum.{field} < {self.low} || datum.{field} > {self.high})"


def _around(extents: Sequence[Extent], always: Sequence[float]) -> Axis:
    values = list(always)
    for extent in extents:
        values += [extent.low, extent.high]
    return Axis(min(values), max(values))
