"""Whether one entry differs from another: paired differences with intervals over seeds and over federations."""

from collections.abc import Sequence

import numpy as np

from ...fairness import LOWER_IS_BETTER
from ..runs import FLOOR_LABEL
from .findings import Findings
from .intervals import FEWEST_FEDERATIONS, Array, Difference, Interval, over_federations, over_seeds
from .noise_floor import Chance, LabelAndSeed, NoiseFloor, RunFigures

_EQUAL = 1e-9  # points: figures that are the same but for rounding


class Differences:
    """Differences between the entries of a comparison, or of the same comparison on several federations.

    From three federations on, intervals are over federations: they say what to expect of another one. On one or two
    they are over seeds, and the federations are taken as given.
    """

    def __init__(self, comparisons: Sequence[Findings], late: bool) -> None:
        self.comparisons = comparisons
        self.findings = comparisons[0]
        self.late = late
        self.floor = NoiseFloor(comparisons, late)
        self._pairs = [_Pairs(findings, late) for findings in comparisons]

    @property
    def federations(self) -> int:
        """Their number."""
        return len(self.comparisons)

    @property
    def are_over_federations(self) -> bool:
        """Whether the intervals of `between` are over federations."""
        return self.federations >= FEWEST_FEDERATIONS

    @property
    def are_also_on_these(self) -> bool:
        """Whether seeds give another interval, for these federations; one seed on each has none."""
        return self.are_over_federations and self.fewest_seeds > 1

    @property
    def fewest_seeds(self) -> int:
        """On any federation; seeds that all gave the same run are one."""
        return min(findings.observations for findings in self.comparisons)

    @property
    def has_equal_seeds(self) -> bool:
        """Whether there are several seeds, which gave the same runs on some federation."""
        return any(findings.observations < len(findings.seeds) for findings in self.comparisons)

    def comparable(self, one: str, other: str) -> bool:
        """Whether the two entries have seeds in common everywhere."""
        return all(pairs.shared_seeds(one, other) for pairs in self._pairs)

    def between(self, one: str, other: str, metric: str) -> Difference:
        """`one` minus `other` over the seeds they share, averaged over the federations."""
        if not self.are_over_federations:
            return self.on_these(one, other, metric)
        gaps = self._gaps(one, other, metric)
        interval = over_federations(gaps)
        return self._difference(interval, gaps, metric, is_over_federations=True)

    def on_these(self, one: str, other: str, metric: str) -> Difference:
        """The same with the federations taken as given: the interval is over seeds."""
        gaps = self._gaps(one, other, metric)
        interval = over_seeds(gaps)
        return self._difference(interval, gaps, metric)

    def on_each(self, one: str, other: str, metric: str) -> list[Difference]:
        """The same on every federation by itself."""
        differences = []
        for pairs in self._pairs:
            gaps = [pairs.observations(one, other, metric)]
            interval = over_seeds(gaps)
            difference = self._difference(interval, gaps, metric)
            differences.append(difference)
        return differences

    def by_seed(self, one: str, other: str, metric: str) -> list[dict[int, float]]:
        """The same on every federation with every seed by itself; seeds are those of `other`."""
        by_federation = []
        for pairs in self._pairs:
            seeds = [other_seed for _, other_seed in pairs.shared_seeds(one, other)]
            gaps = pairs.gaps(one, other, metric).tolist()
            gap_by_seed = dict(zip(seeds, gaps, strict=True))
            by_federation.append(gap_by_seed)
        return by_federation

    def chance(self, metric: str, seeds: int) -> Chance | None:
        """The noise floor of a difference over that many seeds per federation.

        None if FedAvg was not repeated, or if all repetitions give the same figure: that shows nothing about chance.
        """
        chance = self.floor.chance(metric, seeds)
        if chance is None or chance.deviation < _EQUAL:
            return None
        return chance

    def _difference(
        self,
        interval: Interval,
        gaps: Sequence[Array],
        metric: str,
        is_over_federations: bool = False,
    ) -> Difference:
        return Difference(
            interval.points,
            low=interval.low,
            high=interval.high,
            metric=metric,
            seeds=min(map(len, gaps)),
            higher_is_better=metric not in LOWER_IS_BETTER and self.findings.metric.higher_is_better,
            over_federations=is_over_federations,
        )

    def _gaps(self, one: str, other: str, metric: str) -> list[Array]:
        """[observations] on every federation."""
        return [pairs.observations(one, other, metric) for pairs in self._pairs]


class _Pairs:
    """Gaps between the entries of one comparison, over the clients that all runs have figures of."""

    def __init__(self, findings: Findings, late: bool) -> None:
        self.findings = findings
        self.late = late
        missing = []
        for entry in findings.everyone:
            for seed in entry.runs:
                figures = entry.figures(seed, late)
                is_missing = np.isnan(figures).any(axis=0)
                missing.append(is_missing)
        missing_somewhere = np.any(missing, axis=0)
        self._tested = np.flatnonzero(~missing_somewhere)
        self._runs: dict[LabelAndSeed, RunFigures] = {}

    def gaps(self, one: str, other: str, metric: str) -> Array:
        """[seeds] `one` minus `other` in `metric`, for each seed they share."""
        gaps = []
        for seed, other_seed in self.shared_seeds(one, other):
            figure = self._figure(one, seed, metric)
            other_figure = self._figure(other, other_seed, metric)
            gaps.append(figure - other_figure)
        return np.array(gaps)

    def observations(self, one: str, other: str, metric: str) -> Array:
        """The same, without those that repeat the first: all seeds of both gave the same run."""
        gaps = self.gaps(one, other, metric)
        entries = (self.findings.named(one), self.findings.named(other))
        if all(entry.has_equal_seeds for entry in entries):
            return gaps[:1]
        return gaps

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

    def _figure(self, label: str, seed: int, metric: str) -> float:
        run = (label, seed)
        if run not in self._runs:
            entry = self.findings.named(label)
            by_evaluation = entry.figures(seed, self.late)[:, self._tested]
            self._runs[run] = RunFigures(by_evaluation, entry.metric)
        return self._runs[run][metric]
