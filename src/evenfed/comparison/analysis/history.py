"""What the rounds of a run add up to."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core.server import Record
from ...core.sparse import StoredNumbers
from ...fairness import OSCILLATES_BELOW, Fairness, Vector
from ...metrics import ACCURACY, LOSS, Metric
from ...simulate.state import DIVERGED
from . import diagnostics
from .expected import Expected, Fit, LabelCounts, SpreadParts, expected_accuracies

_AVERAGE = "; or deploy the mean of the rounds' models, average=0.9"


@dataclass(frozen=True)
class History:
    """The records of one run, and what they add up to: computed when asked for, once."""

    records: Sequence[Record]
    shares: Vector  # [n]
    last_rounds: int
    model_round: int | None = None  # the round that the run's model is from, if not the last one
    judged_by: Metric | None = None  # None: accuracy, or the test loss of a run that has none
    stopped: str | None = None  # why the run ended early: a callback, or it diverged
    label_counts: LabelCounts | None = None  # [n, classes] of the judged examples, where they have classes

    @cached_property
    def metric(self) -> Metric:
        if self.judged_by is not None:
            return self.judged_by
        if not self._has("accuracy") and self._has("test_losses"):
            return LOSS
        return ACCURACY

    def _has(self, field: str) -> bool:
        return any(record.kept(field) is not None for record in self.records)

    def figures(self, record: Record) -> Vector | None:
        """[n] what the clients of a round are judged by; None if it was not evaluated."""
        return self.metric.of(record)

    @cached_property
    def current(self) -> "History | None":
        """The same run judged by the model that clients train on; None if it deploys that one, not an average."""
        records = []
        is_judged = False
        for record in self.records:
            of_current = record.of_current
            if of_current is None:
                of_current = dataclasses.replace(record, accuracy=None, test_losses=None)
            else:
                is_judged = True
            records.append(of_current)
        if not is_judged:
            return None
        return dataclasses.replace(self, records=records)

    @cached_property
    def evaluated(self) -> list[Record]:
        """The rounds whose model was evaluated; none of a run that diverged, whose figures would mislead."""
        if self.diverged is not None:
            return []
        return [record for record in self.records if self.metric.kept(record) is not None]

    @cached_property
    def late(self) -> list[Record]:
        """The evaluated ones of the last rounds: the typical state of a run that still moves."""
        first = len(self.records) - self.last_rounds
        return [record for record in self.evaluated if record.index >= first]

    @property
    def final(self) -> Record | None:
        """The evaluation of the run's model: the last one, or that of the round it was put back from."""
        evaluated = self.evaluated
        if self.model_round is not None:
            evaluated = [record for record in evaluated if record.index < self.model_round]
        return evaluated[-1] if evaluated else None

    @property
    def last_figures(self) -> Vector | None:
        """[n] what clients are judged by, of the run's model."""
        final = self.final
        return None if final is None else self.figures(final)

    @property
    def unseen(self) -> Fairness | None:
        """Of clients that never train, by the run's model; None if there are none."""
        record = self.held_out
        if record is None or record.unseen_losses is None:
            return None
        figures = record.unseen
        if self.metric.is_loss or figures is None:
            figures = record.unseen_losses
        return self.metric.fairness(figures)

    @property
    def test(self) -> dict[str, float]:
        """accuracy (or score) and loss of the run's model on the test set that belongs to no client."""
        record = self.held_out
        figures: dict[str, float] = {}
        if record is not None and record.global_accuracy is not None:
            figures["accuracy"] = record.global_accuracy
        if record is not None and record.global_loss is not None:
            figures["loss"] = record.global_loss
        return figures

    @property
    def held_out(self) -> Record | None:
        """The evaluation of the run's model on what is held out."""
        for record in reversed(self.records):
            is_of_model = self.model_round is None or record.index < self.model_round
            is_evaluated = record.unseen_losses is not None or record.global_loss is not None
            if is_of_model and is_evaluated:
                return record
        return None

    @property
    def late_figures(self) -> Vector | None:
        """[n] each client's mean over the last rounds."""
        if not self.late:
            return None
        return diagnostics.mean_over(self._late)

    @cached_property
    def fairness(self) -> Fairness | None:
        figures = self.last_figures
        return None if figures is None else self.metric.fairness(figures)

    @cached_property
    def late_fairness(self) -> Fairness | None:
        """Each metric's mean over the last rounds."""
        if not self.late:
            return None
        each_round = []
        for kept in self._late:
            figures = kept if isinstance(kept, np.ndarray) else kept.values
            each_round.append(self.metric.fairness(figures))
        return Fairness.average(each_round)

    @cached_property
    def lasting(self) -> float | None:
        """The worst 10 % of `late_figures`. Better than `late_fairness.worst10` if the worst clients change."""
        figures = self.late_figures
        return None if figures is None else self.metric.fairness(figures).worst10

    @cached_property
    def expected(self) -> "History | None":
        """The same with expected accuracies in place of measured ones; None where recalls were not recorded."""
        counts = self.label_counts
        if counts is None or not self.metric.is_share or not self.evaluated:
            return None
        records = []
        for record in self.records:
            if record.accuracy is None:
                records.append(record)
                continue
            if record.recalls is None:
                return None
            expected = expected_accuracies(counts, record.recalls)
            is_unknown = np.isnan(record.accuracy)
            accuracy = np.where(is_unknown, np.nan, expected)
            records.append(dataclasses.replace(record, accuracy=accuracy))
        return dataclasses.replace(self, records=records, label_counts=None)

    @property
    def expectation(self) -> Expected | None:
        expected = self.expected
        if expected is None:
            return None
        accuracy = expected.last_figures
        fairness = expected.fairness
        late_fairness = expected.late_fairness
        if accuracy is None or fairness is None or late_fairness is None:
            return None
        return Expected(accuracy, fairness, late_fairness, Fit.of(self.spreads))

    @property
    def spreads(self) -> list[SpreadParts]:
        """Of the last rounds."""
        spreads = []
        counts = self.label_counts
        if self.expected is None or counts is None:
            return []
        for record in self.late:
            assert record.accuracy is not None and record.recalls is not None
            spreads.append(SpreadParts.of(record.accuracy, counts, record.recalls))
        return spreads

    @cached_property
    def _late(self) -> list[Vector | StoredNumbers]:
        """The figures of each late evaluation, as they are kept."""
        late = []
        for record in self.late:
            figures = self.metric.kept(record)
            if figures is not None:
                late.append(figures)
        return late

    @cached_property
    def training_loss(self) -> float:
        """The clients' mean training loss over the last rounds."""
        return diagnostics.mean_loss(self.records[-self.last_rounds :])

    @cached_property
    def oscillation(self) -> float:
        return diagnostics.swing(self.records, self.shares)

    @cached_property
    def moved(self) -> float:
        return diagnostics.moved_weight(self.records, self.shares)

    @property
    def negative_rounds(self) -> int:
        return sum(record.negative_weights > 0 for record in self.records)

    @property
    def skipped_rounds(self) -> int:
        return sum(record.skipped for record in self.records)

    @property
    def diverged(self) -> str | None:
        """In which round training diverged, and how."""
        is_divergence = self.stopped is not None and self.stopped.startswith(DIVERGED)
        return self.stopped if is_divergence else None

    @cached_property
    def breakdown(self) -> str | None:
        return self.diverged or diagnostics.breakdown(self.records) or self._not_finite

    @cached_property
    def lost(self) -> str | None:
        """How the run ended without finite figures; None if it has them, or if its clients were never judged."""
        if self.diverged is not None or self._not_finite is None:
            return self.diverged
        sentence = f"broke down, {self._not_finite}"
        reason = diagnostics.breakdown(self.records)
        if reason is not None:
            sentence += f": {reason}"
        return sentence

    @cached_property
    def _not_finite(self) -> str | None:
        """That training took away the figures of the model or of a late round, if it did."""
        means = []
        for fairness in (self.fairness, self.late_fairness):
            if fairness is not None:
                means.append(fairness.mean)
        if not diagnostics.took_figures(self.records, self.evaluated, self.metric, means):
            return None
        if self.metric.is_loss:
            return "its test losses are not finite"
        return f"its {self.metric.name} is not finite"

    def advice(self, algorithm: str) -> str | None:
        """What to try if the run broke down, or if its weights chase the losses of the round before."""
        breakdown = self.breakdown
        if breakdown is not None:
            remedies = diagnostics.remedies(self.records, self.shares)
            return f"{algorithm} broke down: {breakdown}. Try {remedies}"
        correlation = self.oscillation
        if not correlation < OSCILLATES_BELOW:  # NaN is no oscillation
            return None
        remedies = diagnostics.remedies(self.records, self.shares)
        average = _AVERAGE if self.current is None else ""
        return (
            f"{algorithm} oscillates: the lag-1 correlation of the clients' losses is {correlation:.2f} (below "
            f"{OSCILLATES_BELOW}), so the clients worst served in one round are over-served in the next. Try "
            f"{remedies}{average}"
        )


def are_equal(runs: Sequence[History]) -> bool:
    """Whether all the runs trained in the same way: nothing was drawn in them, whatever their seeds.

    Then they are one observation.
    """
    first, *others = runs
    for other in others:
        if len(other.records) != len(first.records):
            return False
        if not all(map(_is_same_round, first.records, other.records)):
            return False
    return True


def _is_same_round(record: Record, again: Record) -> bool:
    """By the training losses, where they are known: rounding may turn an answer of a small test set."""
    if len(record.known("losses")) or len(again.known("losses")):
        return _are_close(record, again, "losses")
    return _are_close(record, again, "accuracy") and _are_close(record, again, "test_losses")


def _are_close(record: Record, again: Record, field: str) -> bool:
    figures = record.known(field)
    others = again.known(field)
    return figures.shape == others.shape and np.allclose(figures, others, rtol=1e-5)
