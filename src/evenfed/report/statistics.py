"""Whether one entry differs from another: paired differences with intervals over clients and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..fairness import Fairness
from ..history import METRICS
from ..simulate.api import FLOOR_LABEL
from .findings import Entry, Findings

LOWER_IS_BETTER = frozenset({"std"})
_RESAMPLES, _SEED = 1000, 0
_ROUNDING = 1e-9  # points; less is arithmetic, not a difference


@dataclass(frozen=True)
class Difference:
    """A paired difference in points of accuracy, with its 95 % interval."""

    points: float
    low: float
    high: float
    metric: str
    seeds: int

    @property
    def direction(self) -> int | None:
        """+1 better, -1 worse, 0 where the interval does not exclude zero; None: one seed cannot tell."""
        if self.seeds < 2:
            return None
        sign = int(self.low > _ROUNDING) - int(self.high < -_ROUNDING)
        return -sign if self.metric in LOWER_IS_BETTER else sign

    @property
    def verdict(self) -> str:
        return {1: "better", -1: "worse", 0: "no difference shown", None: "not judged"}[self.direction]


class Pairs:
    """Differences between entries of one comparison, all on the same resampled clients.

    Clients and seeds are crossed (every client is in every run), so both are resampled: the clients once for
    all runs, the seeds among those two entries share. Of S seeds S - 1 are drawn, which makes the variance of
    their mean unbiased (McCarthy and Snowden's rule); with the 3 seeds usual here drawing 3 would lose a third.
    """

    def __init__(self, findings: Findings, late: bool, stream: int = _SEED) -> None:
        self.findings, self.late, self._stream = findings, late, stream
        known = ~np.isnan(findings.baseline.accuracy(findings.seeds[0], late)).any(axis=0)
        tested = np.flatnonzero(known)
        drawn = np.random.default_rng(stream).integers(len(tested), size=(_RESAMPLES, len(tested)))
        self._clients = tested[np.vstack([np.arange(len(tested)), drawn])]  # the first draw: everyone once
        self._figures: dict[tuple[str, int], dict[str, NDArray[np.float64]]] = {}

    def between(self, one: Entry, other: Entry, metric: str) -> Difference:
        """`one` minus `other` in `metric`, over the seeds they share (FedAvg with other seeds: in order)."""
        points, drawn, seeds = self.draws(one, other, metric)
        return _difference(points, drawn, metric, seeds)

    def draws(self, one: Entry, other: Entry, metric: str) -> tuple[float, NDArray[np.float64], int]:
        """The difference in points as it is, the same on every draw of clients and seeds, and how many seeds."""
        paired = self._seeds(one, other)
        gaps = 100 * np.array([self._of(one, s)[metric] - self._of(other, t)[metric] for s, t in paired])
        generator = np.random.default_rng([self._stream, 1])
        picks = generator.integers(len(gaps), size=(max(len(gaps) - 1, 1), _RESAMPLES))
        return float(gaps[:, 0].mean()), gaps[picks, np.arange(1, _RESAMPLES + 1)].mean(axis=0), len(gaps)

    def _seeds(self, one: Entry, other: Entry) -> list[tuple[int, int]]:
        if FLOOR_LABEL in (one.label, other.label):
            return list(zip(one.runs, other.runs, strict=False))
        return [(seed, seed) for seed in one.runs if seed in other.runs]

    def _of(self, entry: Entry, seed: int) -> dict[str, NDArray[np.float64]]:
        """Every metric of one run on every draw of clients, averaged over its evaluations."""
        key = (entry.label, seed)
        if key not in self._figures:
            found = [resampled(accuracy[self._clients]) for accuracy in entry.accuracy(seed, self.late)]
            self._figures[key] = {m: np.mean([f[m] for f in found], axis=0) for m in METRICS}
        return self._figures[key]


def between_all(several: Sequence[Pairs], one: str, other: str, metric: str) -> Difference:
    """The mean difference over comparisons on several federations, whose clients and seeds are drawn independently.

    The federations themselves are taken as they are: two or three do not say how others would differ.
    """
    found = [pairs.draws(pairs.findings.named(one), pairs.findings.named(other), metric) for pairs in several]
    points, drawn = float(np.mean([p for p, _, _ in found])), np.mean([d for _, d, _ in found], axis=0)
    return _difference(points, drawn, metric, min(seeds for _, _, seeds in found))


def chance(several: Sequence[Findings], metric: str, late: bool, seeds: int) -> float | None:
    """Standard deviation, in points, that the difference of two FedAvg figures has by chance; None if unknown.

    Each figure is a mean over `seeds` runs on each of the federations; what one run's seed does is pooled from
    all FedAvg runs there are, those with other seeds among them.
    """
    squares, freedom = 0.0, 0
    for findings in several:
        repeats = [findings.baseline, *([findings.floor] if findings.floor else [])]
        values = [
            100 * np.mean([getattr(Fairness.of(a), metric) for a in entry.accuracy(seed, late)])
            for entry in repeats
            for seed in entry.runs
        ]
        squares += float(np.sum((np.array(values) - np.mean(values)) ** 2))
        freedom += len(values) - 1
    return float(np.sqrt(2 * squares / freedom / (seeds * len(several)))) if freedom else None


def components(values: NDArray[np.float64]) -> tuple[float, float]:
    """Standard deviations [between groups, within them] of `values` [groups, repeats]: one-way analysis of variance.

    What the means of groups vary by is their own variance plus the repeats' over their number, which is taken off.

    >>> components(np.array([[1.0, 3.0], [1.0, 3.0]])), components(np.array([[1.0, 1.0], [3.0, 3.0]]))
    ((0.0, 1.4142135623730951), (1.4142135623730951, 0.0))
    """
    within = float(values.var(axis=1, ddof=1).mean())
    between = float(values.mean(axis=1).var(ddof=1)) - within / values.shape[1]
    return float(np.sqrt(max(between, 0.0))), float(np.sqrt(within))


def _difference(points: float, drawn: NDArray[np.float64], metric: str, seeds: int) -> Difference:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Difference(points, float(low), float(high), metric, seeds)


def resampled(accuracy: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The metrics of every row of `accuracy` [draws, n]: `Fairness.of`, many at once.

    >>> from evenfed.fairness import Fairness
    >>> found = resampled(np.arange(1.0, 51.0)[None])
    >>> all(np.isclose(found[m][0], getattr(Fairness.of(range(1, 51)), m)) for m in METRICS)
    True
    """
    values = np.sort(accuracy, axis=1)
    n = values.shape[1]
    tenth, fifth = (max(1, int(part * n + 1e-9)) for part in (0.1, 0.2))
    return {
        "mean": values.mean(axis=1),
        "std": values.std(axis=1),
        "worst": values[:, 0],
        "worst10": values[:, :tenth].mean(axis=1),
        "worst20": values[:, :fifth].mean(axis=1),
        "best10": values[:, -tenth:].mean(axis=1),
    }
