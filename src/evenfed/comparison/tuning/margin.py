"""How far below FedAvg's mean a candidate's may be: as chance alone puts it, or as asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import InputError
from ..analysis.findings import Entry, Findings
from ..analysis.noise_floor import NoiseFloor
from ..analysis.side_by_side import in_expectation, settings_that_differ


@dataclass(frozen=True)
class Margin:
    """How far below the best FedAvg's mean a candidate's may be."""

    points: float
    origin: str  # in words, for the rule


def check_repetitions(comparisons: Sequence[Findings], repetitions: Sequence[Findings]) -> None:
    """Refuse a margin from another set-up: it says nothing about chance in this one."""
    for findings in repetitions:
        differing = settings_that_differ([comparisons[0], findings])
        if differing:
            raise InputError(
                f"{findings.folder} (--floor) differs from {comparisons[0].folder} in {', '.join(differing)}; take the "
                "margin from the same set-up, on these or other federations, or fix it with --margin"
            )


def margin_of(
    comparisons: Sequence[Findings],
    fedavg: Entry,
    candidates: Sequence[Entry],
    repetitions: Sequence[Findings],
    is_expected: bool,
    points: float | None,
) -> Margin:
    """As given, or the standard error of the difference of two means."""
    if points is not None:
        return Margin(points, "as asked for")
    if not repetitions:
        error = _standard_error(comparisons, fedavg, candidates)
        if error is not None:
            return Margin(error, "the standard error of such a difference, typical of the entries judged")
    first = comparisons[0]
    repeated = repetitions or comparisons
    if repetitions and is_expected:
        expected = in_expectation(repetitions)
        if expected is None:
            raise InputError(
                f"{repeated[0].folder} (--floor): its FedAvg has no expected accuracies that fit, by which the entries "
                "are judged; fix the margin with --margin"
            )
        repeated = expected
    same_rate = [replace(findings, repeated=findings.repeated[:1]) for findings in repeated]
    chance = NoiseFloor(same_rate, late=True).chance("mean", len(first.seeds))
    if chance is None:
        raise InputError(
            f"{repeated[0].folder} holds one FedAvg run only, which has no noise floor; give several seeds or "
            "federations, a margin (--margin), or a comparison with more FedAvg runs (--floor)"
        )
    deviation = chance.deviation * np.sqrt(len(repeated) / len(comparisons))  # of means over as many federations
    return Margin(float(deviation), "one standard deviation of the difference of two FedAvg figures")


def _standard_error(
    comparisons: Sequence[Findings],
    fedavg: Entry,
    candidates: Sequence[Entry],
) -> float | None:
    """Of the difference in the mean between an entry and FedAvg; None if there is one run of each only.

    The median over entries, so that those that behave wildly do not widen it.
    """
    variances = []
    runs = 0
    for entry in candidates:
        if entry.label == fedavg.label:
            continue
        gaps = _gaps(comparisons, entry.label, fedavg.label)
        if len(gaps) > 1:
            variances.append(np.var(gaps, ddof=1))
            runs = len(gaps)
    if not variances:
        return None
    freedom = runs - 1
    median_of_chi_squared = (1 - 2 / (9 * freedom)) ** 3  # over its degrees of freedom (Wilson and Hilferty)
    typical = float(np.median(variances)) / median_of_chi_squared
    return float(np.sqrt(typical / runs))


def _gaps(comparisons: Sequence[Findings], one: str, other: str) -> list[float]:
    """Differences in the mean, one per federation and seed."""
    gaps = []
    for findings in comparisons:
        runs = findings.named(one).runs
        rivals = findings.named(other).runs
        for seed, run in runs.items():
            own = run.late_fairness
            rival = rivals[seed].late_fairness if seed in rivals else None
            if own is not None and rival is not None:
                gaps.append(findings.metric.unit * (own.mean - rival.mean))
    return gaps
