"""Whether one entry differs from another: paired differences with intervals over clients and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..fairness import Fairness
from .findings import Entry, Findings
from .history import LASTING, METRICS
from .plan import FLOOR_LABEL

LOWER_IS_BETTER = frozenset({"std"})
_RESAMPLES, _SEED = 4000, 0
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


@dataclass(frozen=True)
class Gap:
    """A difference on one federation, in points, and the variances it has from clients and from seeds."""

    points: float
    from_clients: float
    from_seeds: float
    clients: int
    seeds: int


class Pairs:
    """Differences between the entries of one comparison.

    Clients and seeds are crossed (every client is in every run), and both are taken as samples: the variance from
    clients by resampling them, all entries' at once, the variance from seeds from the differences of single seeds.
    """

    def __init__(self, findings: Findings, late: bool, stream: int = _SEED) -> None:
        self.findings, self.late = findings, late
        runs = [entry.accuracy(seed, late) for entry in findings.everyone for seed in entry.runs]
        tested = np.flatnonzero(~np.any([np.isnan(run).any(axis=0) for run in runs], axis=0))  # in every run
        drawn = np.random.default_rng(stream).integers(len(tested), size=(_RESAMPLES, len(tested)))
        self._clients = tested[np.vstack([np.arange(len(tested)), drawn])]  # the first draw: everyone once
        self._figures: dict[tuple[str, int], dict[str, NDArray[np.float64]]] = {}

    def between(self, one: Entry, other: Entry, metric: str) -> Difference:
        """`one` minus `other` in `metric`, over the seeds they share (FedAvg with other seeds: in order)."""
        return pooled([self.gap(one, other, metric)], metric)

    def gap(self, one: Entry, other: Entry, metric: str) -> Gap:
        """The same before it has an interval."""
        paired = self._seeds(one, other)
        gaps = 100 * np.array([self._of(one, s)[metric] - self._of(other, t)[metric] for s, t in paired])
        clients, seeds = self._clients.shape[1], len(gaps)
        from_clients = float(gaps[:, 1:].mean(axis=0).var()) * clients / max(clients - 1, 1)  # as draws have one less
        from_seeds = float(gaps[:, 0].var(ddof=1)) / seeds if seeds > 1 else 0.0
        return Gap(float(gaps[:, 0].mean()), from_clients, from_seeds, clients, seeds)

    def shares(self, one: str, other: str) -> bool:
        """Whether the two have seeds in common, so that they can be compared."""
        return bool(self._seeds(self.findings.named(one), self.findings.named(other)))

    def _seeds(self, one: Entry, other: Entry) -> list[tuple[int, int]]:
        if FLOOR_LABEL in (one.label, other.label):
            return list(zip(one.runs, other.runs, strict=False))
        return [(seed, seed) for seed in one.runs if seed in other.runs]

    def _of(self, entry: Entry, seed: int) -> dict[str, NDArray[np.float64]]:
        """Every metric of one run on every draw of clients."""
        key = (entry.label, seed)
        if key not in self._figures:
            accuracy = entry.accuracy(seed, self.late)
            found = [resampled(row[self._clients]) for row in accuracy]
            lasting = resampled(accuracy.mean(axis=0)[self._clients])["worst10"]
            self._figures[key] = {m: np.mean([f[m] for f in found], axis=0) for m in METRICS} | {LASTING: lasting}
        return self._figures[key]


def between_all(several: Sequence[Pairs], one: str, other: str, metric: str) -> Difference:
    """The mean difference over comparisons on several federations, whose clients and seeds are independent.

    The federations themselves are taken as they are: two or three do not say how others would differ.
    """
    return pooled([p.gap(p.findings.named(one), p.findings.named(other), metric) for p in several], metric)


def pooled(gaps: Sequence[Gap], metric: str) -> Difference:
    """The mean of the gaps with Student's 95 % interval, its degrees of freedom after Welch and Satterthwaite.

    Seeds are few, so what they add is known poorly and the interval is wide where they add most: three seeds and no
    variance from clients give 2 degrees of freedom. What a seed does to single clients counts twice, in both parts.
    """
    parts = [(g.from_clients, g.clients) for g in gaps] + [(g.from_seeds, g.seeds) for g in gaps]
    variance = sum(part for part, _ in parts)
    doubt = sum(part**2 / (count - 1) for part, count in parts if count > 1)
    reach = student(variance**2 / doubt if doubt else np.inf) * float(np.sqrt(variance)) / len(gaps)
    points = float(np.mean([g.points for g in gaps]))
    return Difference(points, points - reach, points + reach, metric, min(g.seeds for g in gaps))


def student(freedom: float) -> float:
    """How many standard deviations hold 95 %.

    >>> [round(student(freedom), 2) for freedom in (2, 5, np.inf)]
    [4.3, 2.57, 1.96]
    """
    from scipy.stats import t  # takes a while to load, and reports alone need it

    return float(t.ppf(0.975, freedom))


@dataclass(frozen=True)
class Chance:
    """What the difference of two FedAvg figures has by chance."""

    deviation: float  # points
    freedom: int  # degrees of freedom it is known with

    @property
    def bound(self) -> float:
        """Points that 95 % of such differences stay within."""
        return student(self.freedom) * self.deviation


def chance(several: Sequence[Findings], metric: str, late: bool, seeds: int) -> Chance | None:
    """Of figures that are each a mean over `seeds` runs on each of the federations; None if unknown.

    What a seed does is pooled from all FedAvg runs there are, those with other seeds and other learning rates among
    them. A seed gives the same initial model on every federation, so its figures are averaged over them first.
    """
    known = [{(e.label, seed): e for group in f.repeated for e in group for seed in e.runs} for f in several]
    squares, freedom = 0.0, 0
    for alike in several[0].repeated:
        runs = [(e.label, seed) for e in alike for seed in e.runs]
        shared = [run for run in runs if all(run in those for those in known)]
        if shared:
            values = [[100 * figure(those[r].accuracy(r[1], late), metric) for those in known] for r in shared]
            means = np.mean(values, axis=1)
            squares += float(np.sum((means - means.mean()) ** 2))
            freedom += len(means) - 1
    return Chance(float(np.sqrt(2 * squares / freedom / seeds)), freedom) if freedom else None


def figure(accuracy: NDArray[np.float64], metric: str) -> float:
    """One run's figure from its evaluations [evaluations, n]."""
    if metric == LASTING:
        return Fairness.of(accuracy.mean(axis=0)).worst10
    return float(np.mean([getattr(Fairness.of(row), metric) for row in accuracy]))


def components(values: NDArray[np.float64]) -> tuple[float, float]:
    """Standard deviations [between groups, within them] of `values` [groups, repeats]: one-way analysis of variance.

    What the means of groups vary by is their own variance plus the repeats' over their number, which is taken off.

    >>> components(np.array([[1.0, 3.0], [1.0, 3.0]])), components(np.array([[1.0, 1.0], [3.0, 3.0]]))
    ((0.0, 1.4142135623730951), (1.4142135623730951, 0.0))
    """
    within = float(values.var(axis=1, ddof=1).mean())
    between = float(values.mean(axis=1).var(ddof=1)) - within / values.shape[1]
    return float(np.sqrt(max(between, 0.0))), float(np.sqrt(within))


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
