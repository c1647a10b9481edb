"""The noise floor: how far two FedAvg figures differ by chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...metrics import Metric
from .entry_figures import LASTING
from .findings import Entry, Findings
from .history import are_equal
from .intervals import Array, student

LabelAndSeed = tuple[str, int]  # of a run


@dataclass(frozen=True)
class Chance:
    """How far two FedAvg figures differ by chance."""

    deviation: float  # points
    freedom: int  # degrees of freedom of this estimate
    is_paired: bool = False  # from the same initial model with other batches; else with another seed

    @property
    def bound(self) -> float:
        """Points; 95 % of such differences are smaller."""
        return student(self.freedom) * self.deviation


@dataclass(eq=False)
class NoiseFloor:
    """What chance does to FedAvg's figures.

    Paired where FedAvg ran again from the same initial models with other batches, as entries are compared. Else from
    all FedAvg runs that differ in the seed alone, other learning rates included. A seed gives the same initial model on
    every federation, so its figures are averaged over them first.
    """

    comparisons: Sequence[Findings]
    late: bool
    _runs: "dict[tuple[int, int], RunFigures]" = field(default_factory=dict)

    @property
    def is_paired(self) -> bool:
        """Whether FedAvg ran again with other batches on every federation."""
        return all(findings.paired_floor is not None for findings in self.comparisons)

    def chance(self, metric: str, seeds: int) -> Chance | None:
        """For figures that are means over `seeds` runs on each federation; None if no run is repeated."""
        if self.is_paired:
            return self.of_other_batches(metric, seeds)
        return self.of_other_seeds(metric, seeds)

    def of_other_batches(self, metric: str, seeds: int) -> Chance | None:
        """Of two FedAvg figures from the same initial models; None if there are no such runs."""
        squares, freedom = self._between_batches(metric)
        if freedom == 0:
            return None
        variance = squares / freedom / seeds / len(self.comparisons)
        deviation = np.sqrt(variance)
        return Chance(float(deviation), freedom, is_paired=True)

    def of_other_seeds(self, metric: str, seeds: int) -> Chance | None:
        """Of two FedAvg figures with seeds of their own; None if no run is repeated."""
        squares, freedom = self._between_seeds(metric)
        if freedom == 0:
            return None
        variance = 2 * squares / freedom / seeds
        deviation = np.sqrt(variance)
        return Chance(float(deviation), freedom)

    def _between_batches(self, metric: str) -> tuple[float, int]:
        """Sum of squares of the differences between FedAvg and FedAvg with other batches, and their number."""
        squares = 0.0
        freedom = 0
        for findings in self.comparisons:
            floor = findings.paired_floor
            if floor is None:
                continue
            for seed in floor.runs:
                with_other_batches = self._figure(floor, seed, metric)
                fedavg = self._figure(findings.baseline, seed, metric)
                squares += (with_other_batches - fedavg) ** 2
                freedom += 1
        return squares, freedom

    def _between_seeds(self, metric: str) -> tuple[float, int]:
        """Sum of squares of runs that differ in the seed alone, about their mean, and its degrees of freedom."""
        on_each = [_runs(findings) for findings in self.comparisons]
        squares = 0.0
        freedom = 0
        for group in self.comparisons[0].repeated:
            shared = [run for run in _runs_of(group) if all(run in runs for runs in on_each)]
            if not shared or _are_without_chance(shared, on_each):
                continue
            means = [self._mean(run, on_each, metric) for run in shared]
            deviations = np.array(means) - np.mean(means)
            squares += float(np.sum(deviations**2))
            freedom += len(means) - 1
        return squares, freedom

    def _mean(self, run: LabelAndSeed, on_each: Sequence[Mapping[LabelAndSeed, Entry]], metric: str) -> float:
        """Of one run's figures, over all federations."""
        _, seed = run
        figures = [self._figure(runs[run], seed, metric) for runs in on_each]
        return float(np.mean(figures))

    def _figure(self, entry: Entry, seed: int, metric: str) -> float:
        key = (id(entry), seed)  # entries of several comparisons may share a label
        if key not in self._runs:
            figures = entry.figures(seed, self.late)
            self._runs[key] = RunFigures(figures, entry.metric)
        return self._runs[key][metric]


class RunFigures:
    """Every figure of one run as shown, an accuracy in percent, from its evaluations [evaluations, n]."""

    def __init__(self, evaluations: Array, judged_by: Metric) -> None:
        self._unit = judged_by.unit
        self._by_evaluation = [judged_by.fairness(of_clients) for of_clients in evaluations]
        by_client = evaluations.mean(axis=0)
        self._lasting = judged_by.fairness(by_client).worst10

    def __getitem__(self, name: str) -> float:
        if name == LASTING:
            return self._unit * self._lasting
        by_evaluation = [getattr(fairness, name) for fairness in self._by_evaluation]
        return self._unit * float(np.mean(by_evaluation))


def _runs(findings: Findings) -> dict[LabelAndSeed, Entry]:
    """The entry of each FedAvg run of one comparison that has a seed of its own."""
    runs = {}
    for group in findings.repeated:
        runs.update(_runs_of(group))
    return runs


def _runs_of(group: Sequence[Entry]) -> dict[LabelAndSeed, Entry]:
    runs = {}
    for entry in group:
        for seed in entry.runs:
            run = (entry.label, seed)
            runs[run] = entry
    return runs


def _are_without_chance(
    shared: Sequence[LabelAndSeed],
    on_each: Sequence[Mapping[LabelAndSeed, Entry]],
) -> bool:
    """Whether these runs are the same on every federation: they repeat one observation."""
    for runs in on_each:
        histories = []
        for run in shared:
            _, seed = run
            histories.append(runs[run].runs[seed])
        if not are_equal(histories):
            return False
    return True
