"""Whether one entry differs from another: paired differences with intervals over clients and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..fairness import mean_of_first
from ..metrics import Metric
from .findings import Entry, Findings
from .history import LASTING, METRICS
from .plan import FLOOR_LABEL

LOWER_IS_BETTER = frozenset({"std"})  # whatever clients are judged by
_RESAMPLES = 4000
_ROUNDING = 1e-9  # points; less is arithmetic, not a difference

Array = NDArray[np.float64]
Figures = dict[str, Array]  # metric -> [draws of clients]
LabelAndSeed = tuple[str, int]  # of a run


@dataclass(frozen=True)
class Difference:
    """A paired difference in points of accuracy, or in another metric's own unit, with its 95 % interval."""

    points: float
    low: float
    high: float
    metric: str
    seeds: int
    higher_is_better: bool = True  # of what clients are judged by

    @property
    def direction(self) -> int | None:
        """+1 better, -1 worse, 0 if the interval includes zero; None: one seed cannot tell."""
        if self.seeds < 2:
            return None
        sign = 0
        if self.low > _ROUNDING:
            sign = 1
        elif self.high < -_ROUNDING:
            sign = -1
        is_upwards = self.higher_is_better and self.metric not in LOWER_IS_BETTER
        return sign if is_upwards else -sign

    @property
    def verdict(self) -> str:
        words = {1: "better", -1: "worse", 0: "no difference shown", None: "not judged"}
        return words[self.direction]


@dataclass(frozen=True)
class Gap:
    """A difference on one federation, in points, and its variance from clients and from seeds."""

    points: float
    from_clients: float
    from_seeds: float
    clients: int
    seeds: int


@dataclass(frozen=True)
class Chance:
    """How far two FedAvg figures differ by chance."""

    deviation: float  # points
    freedom: int  # degrees of freedom of this estimate

    @property
    def bound(self) -> float:
        """Points; 95 % of such differences are smaller."""
        return student(self.freedom) * self.deviation


class Differences:
    """Differences between the entries of a comparison, or of the same comparison on several federations.

    Clients and seeds of the federations are independent. The federations themselves are taken as fixed: two or three
    do not say how others would differ.
    """

    def __init__(self, comparisons: Sequence[Findings], late: bool) -> None:
        self.comparisons = comparisons
        self.findings = comparisons[0]
        self.late = late
        self._floor = NoiseFloor(comparisons, late)
        self._pairs = []
        for stream, findings in enumerate(comparisons):
            pairs = _Pairs(findings, late, stream)
            self._pairs.append(pairs)

    @property
    def federations(self) -> int:
        """Their number."""
        return len(self.comparisons)

    @property
    def fewest_seeds(self) -> int:
        """On any federation."""
        return min(len(findings.seeds) for findings in self.comparisons)

    def comparable(self, one: str, other: str) -> bool:
        """Whether the two entries have seeds in common everywhere."""
        return all(pairs.shared_seeds(one, other) for pairs in self._pairs)

    def between(self, one: str, other: str, metric: str) -> Difference:
        """`one` minus `other` over the seeds they share, averaged over the federations."""
        gaps = self._gaps(one, other, metric)
        return pooled(gaps, metric, self._is_better_higher(metric))

    def on_each(self, one: str, other: str, metric: str) -> list[Difference]:
        """The same on every federation by itself."""
        gaps = self._gaps(one, other, metric)
        higher_is_better = self._is_better_higher(metric)
        return [pooled([gap], metric, higher_is_better) for gap in gaps]

    def chance(self, metric: str, seeds: int) -> Chance | None:
        """The noise floor of a difference over that many seeds per federation."""
        return self._floor.chance(metric, seeds)

    def _is_better_higher(self, metric: str) -> bool:
        return metric not in LOWER_IS_BETTER and self.findings.metric.higher_is_better

    def _gaps(self, one: str, other: str, metric: str) -> list[Gap]:
        """On every federation."""
        return [pairs.gap(one, other, metric) for pairs in self._pairs]


class NoiseFloor:
    """What chance does to FedAvg's figures, pooled from all FedAvg runs: other seeds and learning rates included.

    A seed gives the same initial model on every federation, so its figures are averaged over them first.
    """

    def __init__(self, comparisons: Sequence[Findings], late: bool) -> None:
        self.comparisons = comparisons
        self.late = late
        self._deviations: dict[str, tuple[float, int]] = {}

    def chance(self, metric: str, seeds: int) -> Chance | None:
        """For figures that are means over `seeds` runs on each federation; None if no run is repeated."""
        if metric not in self._deviations:
            self._deviations[metric] = self._squared_deviations(metric)
        squares, freedom = self._deviations[metric]
        if freedom == 0:
            return None
        variance = 2 * squares / freedom / seeds
        deviation = float(np.sqrt(variance))
        return Chance(deviation, freedom)

    def _squared_deviations(self, metric: str) -> tuple[float, int]:
        """Their sum over runs that differ in the seed alone, and its degrees of freedom."""
        by_federation = []
        for findings in self.comparisons:
            figures = self._figures(findings, metric)
            by_federation.append(figures)
        squares = 0.0
        freedom = 0
        for group in self.comparisons[0].repeated:
            means = []
            for run in _runs(group):
                on_each = []
                for figures in by_federation:
                    if run in figures:
                        on_each.append(figures[run])
                if len(on_each) == len(by_federation):
                    means.append(np.mean(on_each))
            if means:
                deviations = np.array(means) - np.mean(means)
                squares += float(np.sum(deviations**2))
                freedom += len(means) - 1
        return squares, freedom

    def _figures(self, findings: Findings, metric: str) -> dict[LabelAndSeed, float]:
        """Of every FedAvg run of one comparison, as shown: accuracies in percent."""
        figures = {}
        for group in findings.repeated:
            for run, entry in _runs(group).items():
                _, seed = run
                by_evaluation = entry.figures(seed, self.late)
                figures[run] = entry.metric.unit * figure(by_evaluation, metric, entry.metric)
        return figures


def _runs(group: Sequence[Entry]) -> dict[LabelAndSeed, Entry]:
    """The entry of each run."""
    runs = {}
    for entry in group:
        for seed in entry.runs:
            run = (entry.label, seed)
            runs[run] = entry
    return runs


class _Pairs:
    """Gaps between the entries of one comparison.

    Clients and seeds are crossed (every client is in every run), and both are treated as samples. The variance from
    clients comes from resampling them, the same draws for all entries; the variance from seeds comes from the
    differences of single seeds.
    """

    def __init__(self, findings: Findings, late: bool, stream: int) -> None:
        self.findings = findings
        self.late = late
        untested = []
        for entry in findings.everyone:
            for seed in entry.runs:
                figures = entry.figures(seed, late)
                is_missing = np.isnan(figures).any(axis=0)
                untested.append(is_missing)
        untested_somewhere = np.any(untested, axis=0)
        tested = np.flatnonzero(~untested_somewhere)
        clients = len(tested)
        everyone = np.arange(clients)
        generator = np.random.default_rng(stream)
        size = (_RESAMPLES, clients)
        drawn = generator.integers(clients, size=size)
        positions = np.vstack([everyone, drawn])
        self._draws = tested[positions]
        self._known: dict[LabelAndSeed, Figures] = {}

    def gap(self, one: str, other: str, metric: str) -> Gap:
        """`one` minus `other` in `metric`, over the seeds they share."""
        by_seed = []
        for seed, other_seed in self.shared_seeds(one, other):
            of_one = self._figures(one, seed)[metric]
            of_other = self._figures(other, other_seed)[metric]
            by_seed.append(of_one - of_other)
        gaps = self.findings.metric.unit * np.array(by_seed)  # [seeds, draws]
        observed = gaps[:, 0]
        redrawn = gaps[:, 1:].mean(axis=0)
        seeds = len(observed)
        _, clients = self._draws.shape
        between_draws = float(redrawn.var())
        from_seeds = 0.0
        if seeds > 1:
            from_seeds = float(observed.var(ddof=1)) / seeds
        return Gap(
            points=float(observed.mean()),
            from_clients=between_draws * clients / max(clients - 1, 1),  # draws have one degree less
            from_seeds=from_seeds,
            clients=clients,
            seeds=seeds,
        )

    def shared_seeds(self, one: str, other: str) -> list[tuple[int, int]]:
        """A seed of each; FedAvg with other seeds is paired in order."""
        seeds = self.findings.named(one).runs
        other_seeds = self.findings.named(other).runs
        if FLOOR_LABEL in (one, other):
            return list(zip(seeds, other_seeds, strict=False))
        shared = []
        for seed in seeds:
            if seed in other_seeds:
                shared.append((seed, seed))
        return shared

    def _figures(self, label: str, seed: int) -> Figures:
        """Every metric of one run on every draw of clients."""
        run = (label, seed)
        if run not in self._known:
            entry = self.findings.named(label)
            by_evaluation = entry.figures(seed, self.late)
            self._known[run] = self._redrawn(by_evaluation)
        return self._known[run]

    def _redrawn(self, evaluations: Array) -> Figures:
        """Of evaluations [evaluations, n]."""
        higher_is_better = self.findings.metric.higher_is_better
        by_evaluation = []
        for of_clients in evaluations:
            drawn = of_clients[self._draws]
            by_evaluation.append(resampled(drawn, higher_is_better))
        figures = {}
        for metric in METRICS:
            values = [evaluation[metric] for evaluation in by_evaluation]
            figures[metric] = np.mean(values, axis=0)
        by_client = evaluations.mean(axis=0)
        of_averages = resampled(by_client[self._draws], higher_is_better)
        figures[LASTING] = of_averages["worst10"]
        return figures


def pooled(gaps: Sequence[Gap], metric: str, higher_is_better: bool = True) -> Difference:
    """The mean of the gaps with Student's 95 % interval, its degrees of freedom after Welch and Satterthwaite.

    Seeds are few, so their variance is known poorly and the interval is wide where they dominate: three seeds and no
    variance from clients give 2 degrees of freedom. What a seed does to single clients counts in both parts.
    """
    parts = []
    for gap in gaps:
        parts.append((gap.from_clients, gap.clients))
    for gap in gaps:
        parts.append((gap.from_seeds, gap.seeds))
    seeds = min(gap.seeds for gap in gaps)
    variance = 0.0
    uncertainty = 0.0
    for part, samples in parts:
        variance += part
        if samples > 1:
            uncertainty += part**2 / (samples - 1)
    freedom = np.inf
    if uncertainty:
        freedom = variance**2 / uncertainty
    deviation = float(np.sqrt(variance))
    reach = student(freedom) * deviation / len(gaps)
    on_each = [gap.points for gap in gaps]
    points = float(np.mean(on_each))
    return Difference(
        points,
        low=points - reach,
        high=points + reach,
        metric=metric,
        seeds=seeds,
        higher_is_better=higher_is_better,
    )


def student(freedom: float) -> float:
    """How many standard deviations hold 95 %.

    >>> [round(student(freedom), 2) for freedom in (2, 5, np.inf)]
    [4.3, 2.57, 1.96]
    """
    from scipy.stats import t  # slow to load, and needed for reports only

    return float(t.ppf(0.975, freedom))


def figure(evaluations: Array, name: str, judged_by: Metric) -> float:
    """One run's figure from its evaluations [evaluations, n]."""
    if name == LASTING:
        by_client = evaluations.mean(axis=0)
        return judged_by.fairness(by_client).worst10
    by_evaluation = []
    for of_clients in evaluations:
        fairness = judged_by.fairness(of_clients)
        by_evaluation.append(getattr(fairness, name))
    return float(np.mean(by_evaluation))


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


def resampled(figures: Array, higher_is_better: bool = True) -> Figures:
    """The metrics of every row of `figures` [draws, n]: `Fairness.of`, many at once.

    >>> from evenfed.fairness import Fairness
    >>> found = resampled(np.arange(1.0, 51.0)[None])
    >>> all(np.isclose(found[m][0], getattr(Fairness.of(range(1, 51)), m)) for m in METRICS)
    True
    """
    values = np.sort(figures, axis=1)
    if not higher_is_better:
        values = values[:, ::-1]
    best_first = values[:, ::-1]
    return {
        "mean": values.mean(axis=1),
        "std": values.std(axis=1),
        "worst": values[:, 0],
        "worst10": mean_of_first(values, 0.1),
        "worst20": mean_of_first(values, 0.2),
        "best10": mean_of_first(best_first, 0.1),
    }
