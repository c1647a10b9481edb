"""Intervals of paired differences: over the seeds of given federations, and over federations.

A comparison on one federation has seeds as its sample. What it says holds for these clients, trained again. Only a
comparison of several federations says what to expect of other clients: there each federation is one observation.
How often the two find a difference where there is none is measured in `benchmarks/coverage_of_intervals.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...fairness import LOWER_IS_BETTER

FEWEST_FEDERATIONS = 3  # that an interval over federations needs: with two it is 9 times their distance
_ROUNDING = 1e-9  # points; less is arithmetic, not a difference

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and how far its 95 % interval reaches; NaN if that is not known."""

    points: float
    reach: float = float("nan")

    @property
    def low(self) -> float:
        return self.points - self.reach

    @property
    def high(self) -> float:
        return self.points + self.reach


@dataclass(frozen=True)
class Difference:
    """A paired difference in points of accuracy, or in another metric's own unit, with its 95 % interval."""

    points: float
    low: float  # NaN: not known, as of one seed or if all observations are equal
    high: float
    metric: str
    seeds: int  # the fewest on any federation
    higher_is_better: bool = True  # of what clients are judged by
    over_federations: bool = False  # what the interval is over; else over seeds

    @property
    def is_judged(self) -> bool:
        """Whether there is an interval: one seed has none, and neither have observations that are all equal."""
        return not np.isnan(self.low)

    @property
    def is_constant(self) -> bool:
        """Whether there is no interval because all observations, of which there are several, are the same."""
        return not self.is_judged and (self.over_federations or self.seeds > 1)

    @property
    def direction(self) -> int | None:
        """+1 better, -1 worse, 0 if the interval includes zero; None: there is no interval."""
        if not self.is_judged:
            return None
        sign = 0
        if self.low > _ROUNDING:
            sign = 1
        elif self.high < -_ROUNDING:
            sign = -1
        return sign if self._is_upwards else -sign

    @property
    def is_better(self) -> bool:
        """Whether it is on the better side at all, be it by chance."""
        if self._is_upwards:
            return self.points > _ROUNDING
        return self.points < -_ROUNDING

    @property
    def _is_upwards(self) -> bool:
        """Whether more is better."""
        return self.higher_is_better and self.metric not in LOWER_IS_BETTER

    @property
    def verdict(self) -> str:
        words = {1: "better", -1: "worse", 0: "no difference shown", None: "not judged"}
        return words[self.direction]


def over_seeds(gaps: Sequence[Array]) -> Interval:
    """The mean over federations of paired differences [seeds] on each, with Student's interval over seeds.

    Each federation has a variance of its own; the degrees of freedom are Welch and Satterthwaite's.

    >>> round(over_seeds([np.array([2.0, 6.0])]).reach, 2)
    25.41
    >>> round(over_seeds([np.array([2.0, 6.0]), np.array([1.0, 5.0])]).reach, 2)
    6.09
    """
    points = float(_means(gaps).mean())
    federations = len(gaps)
    variance = 0.0
    uncertainty = 0.0
    for gap in gaps:
        freedom = len(gap) - 1
        if freedom == 0:
            return Interval(points)
        of_mean = float(gap.var(ddof=1)) / len(gap) / federations**2
        variance += of_mean
        uncertainty += of_mean**2 / freedom
    pooled_freedom = variance**2 / uncertainty if uncertainty else np.inf
    return _student_interval(points, variance, pooled_freedom)


def over_federations(gaps: Sequence[Array]) -> Interval:
    """The same mean with Student's interval over federations, whatever their seeds: each is one observation.

    >>> interval = over_federations([np.array([1.0]), np.array([2.0, 4.0]), np.array([5.0])])
    >>> interval.points, round(interval.reach, 2)
    (3.0, 4.97)
    """
    means = _means(gaps)
    points = float(means.mean())
    federations = len(means)
    if federations < FEWEST_FEDERATIONS:
        return Interval(points)
    variance = float(means.var(ddof=1)) / federations
    return _student_interval(points, variance, federations - 1)


def _student_interval(points: float, variance: float, freedom: float) -> Interval:
    """No interval if all observations are the same difference: with few test examples that happens by chance.

    >>> _student_interval(2.0, variance=0.0, freedom=1).reach, _student_interval(0.0, variance=0.0, freedom=1).reach
    (nan, 0.0)
    """
    deviation = variance**0.5
    if deviation > _ROUNDING:
        return Interval(points, student(freedom) * deviation)
    if abs(points) > _ROUNDING:
        return Interval(points)
    return Interval(points, 0.0)


@cache
def student(freedom: float) -> float:
    """How many standard deviations hold 95 %.

    >>> [round(student(freedom), 2) for freedom in (2, 5, np.inf)]
    [4.3, 2.57, 1.96]
    """
    from scipy.stats import t  # slow to load, and needed for reports only

    return float(t.ppf(0.975, freedom))


def components(values: Array) -> tuple[float, float]:
    """Standard deviations [between groups, within them] of `values` [groups, repeats]: one-way analysis of variance.

    Group means vary by the variance between groups plus the repeats' variance over their number; the latter is
    subtracted.

    >>> components(np.array([[1.0, 3.0], [1.0, 3.0]])), components(np.array([[1.0, 1.0], [3.0, 3.0]]))
    ((0.0, 1.4142135623730951), (1.4142135623730951, 0.0))
    """
    _, repeats = values.shape
    within = values.var(axis=1, ddof=1).mean()
    of_means = values.mean(axis=1).var(ddof=1)
    between = max(of_means - within / repeats, 0.0)
    deviation_between = float(np.sqrt(between))
    deviation_within = float(np.sqrt(within))
    return deviation_between, deviation_within


def _means(gaps: Sequence[Array]) -> Array:
    """[federations]"""
    return np.array([gap.mean() for gap in gaps])
