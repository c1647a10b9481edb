"""What a verdict and its table rest on: differences from FedAvg in measured or in expected figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...comparison.analysis.findings import Entry, Findings
from ...comparison.analysis.intervals import Difference
from ...comparison.analysis.side_by_side import names_of
from ...comparison.analysis.statistics import Differences
from ...comparison.runs import FLOOR_NAMES
from ...metrics import Metric
from .. import restated

_DIGITS = 9  # of a gain: the rest is rounding


@dataclass(frozen=True)
class Basis:
    """Differences in the last rounds, over all federations."""

    differences: Differences
    is_expected: bool = False  # accuracies without the noise of small test sets, in place of measured ones
    is_unpadded: bool = False  # accuracies without padding positions, in place of those that count them

    @property
    def findings(self) -> Findings:
        """Those of the first federation."""
        return self.differences.findings

    @property
    def metric(self) -> Metric:
        return self.findings.metric

    @property
    def compared(self) -> list[Entry]:
        """The entries that are compared with FedAvg, or with the baseline of an audit."""
        return [entry for entry in self.findings.entries[1:] if self.is_compared(entry)]

    @property
    def rivals(self) -> list[Entry]:
        """Those that a verdict ranks: they train one model for all clients; if none does, all of them."""
        single = [entry for entry in self.compared if not entry.is_personal]
        return single or self.compared

    @property
    def personal(self) -> list[Entry]:
        """Those that are not ranked, because each client keeps its own model; the best first."""
        ranked = self.rivals
        return self._by_merit([entry for entry in self.compared if entry not in ranked])

    @property
    def lost(self) -> list[Entry]:
        """The entries without figures on some federation, since training broke down; each once."""
        lost: dict[str, Entry] = {}
        for findings in self.differences.comparisons:
            for entry in findings.lost:
                if entry.label not in FLOOR_NAMES:
                    lost.setdefault(entry.label, entry)
        return list(lost.values())

    @property
    def broken(self) -> list[Entry]:
        """The other entries with a run that broke down: their figures are those of the model it was left with."""
        broken: dict[str, Entry] = {}
        shown = self.findings.by_label
        for findings in self.differences.comparisons:
            for entry in findings.entries:
                if entry.broken and entry.label in shown:
                    broken[entry.label] = entry
        return list(broken.values())

    @property
    def baseline(self) -> str:
        """Its label."""
        return self.findings.baseline.label

    @property
    def baseline_name(self) -> str:
        """As prose has it."""
        return self.findings.baseline_name

    def is_compared(self, entry: Entry) -> bool:
        """Whether it has seeds in common with the baseline everywhere."""
        if entry.label == self.baseline:
            return False
        return self.differences.comparable(entry.label, self.baseline)

    def level(self, label: str, figure: str) -> float:
        """A figure as shown, its mean over federations and seeds."""
        return self.metric.unit * self._mean(label, figure)

    def change(self, label: str, figure: str) -> Difference:
        """From the baseline, paired by seed."""
        return self.differences.between(label, self.baseline, figure)

    def chance(self, difference: Difference) -> float | None:
        """What 95 % of the differences between FedAvg and FedAvg are below; None if it was not repeated."""
        chance = self.differences.chance(difference.metric, difference.seeds)
        return None if chance is None else chance.bound

    def is_beyond_chance(self, difference: Difference) -> bool:
        """Whether it is more than FedAvg differs from itself, as far as that is known."""
        bound = self.chance(difference)
        return bound is None or abs(difference.points) > bound

    def gain(self, label: str) -> float:
        """Of the worst 10 %, more is better whatever the metric."""
        return self.metric.sign * self.change(label, "worst10").points

    def merit(self, label: str) -> tuple[float, float]:
        """The gain of the worst 10 %, and the mean's, which decides between equals; NaN counts as the worst."""
        of_mean = self.change(label, "mean")
        first = _or_worst(self.gain(label))
        second = _or_worst(self.metric.sign * of_mean.points)
        return first, second

    @property
    def winners(self) -> list[Entry]:
        """The entries shown to serve the worst 10 % better than the baseline does, the best first."""
        winners = []
        for entry in self.rivals:
            if self.change(entry.label, "worst10").direction == 1:
                winners.append(entry)
        return self._by_merit(winners)

    def _by_merit(self, entries: Sequence[Entry]) -> list[Entry]:
        return sorted(entries, key=lambda entry: self.merit(entry.label), reverse=True)

    def repeated_share(self, name: str) -> float | None:
        """`share` of FedAvg repeated alone; None if it was not repeated on every federation."""
        repetition = self.findings.paired_floor or self.findings.floor_of_seeds
        if repetition is None or not all(repetition.label in each.rows for each in self.differences.comparisons):
            return None
        return self.share(repetition.label, name)

    def share(self, label: str, name: str) -> float | None:
        """Percent of the badly served clients that gain (`improved`), or of the well-served ones that lose."""
        mean = self._mean(label, name)
        return None if np.isnan(mean) else 100 * mean

    def _mean(self, label: str, name: str) -> float:
        """Over federations and seeds; NaN where it is not known."""
        means = []
        for findings in self.differences.comparisons:
            mean_over_seeds, _ = findings.rows[label].late.get(name, (np.nan, np.nan))
            means.append(mean_over_seeds)
        return float(np.mean(means))

    @property
    def fewest_clients(self) -> int:
        """The number of clients judged, on the federation with the fewest."""
        numbers = []
        for findings in self.differences.comparisons:
            figures = findings.baseline.histories[0].last_figures
            assert figures is not None
            numbers.append(int(np.isfinite(figures).sum()))
        return min(numbers)


def _or_worst(points: float) -> float:
    """Without what is rounding alone."""
    if np.isnan(points):
        return -np.inf
    return round(points, _DIGITS)


def chosen(comparisons: Sequence[Findings], late: Differences) -> Basis:
    """Measured figures; expected ones where these fit and show a gain that the noise of small test sets hides.

    Of padded sequences, figures without the padding: who predicts that alone serves nobody.
    """
    unpadded = []
    for findings in comparisons:
        without_padding = findings.unpadded
        if without_padding is not None:
            unpadded.append(without_padding)
    if len(unpadded) == len(comparisons):
        return Basis(Differences(unpadded, late=True), is_unpadded=True)
    measured = Basis(late)
    if measured.winners:
        return measured
    without_noise = restated.in_expected(comparisons, late=True)
    if without_noise is None:
        return measured
    basis = Basis(without_noise, is_expected=True)
    return basis if basis.winners else measured


def bases(comparisons: Sequence[Findings], pooled: Differences | None) -> dict[str, Basis]:
    """One for all federations, or one for each set-up by its name. `pooled`: None if more than the split differs."""
    if pooled is not None:
        return {"": chosen(pooled.comparisons, pooled)}
    by_name = {}
    for name, findings in zip(names_of(comparisons), comparisons, strict=True):
        late = Differences([findings], late=True)
        by_name[name] = chosen([findings], late)
    return by_name
