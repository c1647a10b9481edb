"""The figures of an entry over its seeds."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fairness import Suppression
from ...metrics import ACCURACY, Metric
from .expected import Fit
from .history import History

Figures = Mapping[str, tuple[float, float]]  # name -> (mean over seeds, spread over seeds)

LASTING = "lasting10"  # the worst 10 % of the clients' averages over the last rounds, not of each round's accuracies
EXPECTED = "expected_"  # before a metric's name: of expected accuracies

Histories = Sequence[History]  # the runs of one entry, one per seed


@dataclass(frozen=True)
class EntryFigures:
    """One entry of a comparison: every figure at the last round, and its late value, the mean over the last rounds."""

    label: str
    seeds: int
    last: Figures
    late: Figures
    negative_rounds: float
    oscillation: float
    moved: float  # share of the weight placed differently from FedAvg
    training_loss: float  # the clients' mean, over the last rounds
    skipped_rounds: float
    seconds: float
    metric: Metric = ACCURACY  # what clients are judged by
    fit: Fit | None = None  # of expected accuracies, in the last rounds

    def describe(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "seeds": self.seeds,
            "metric": self.metric.describe(),
            "last": _described(self.last),
            "late": _described(self.late),
            "negative_rounds": _json(self.negative_rounds),
            "oscillation": _json(self.oscillation),
            "moved": _json(self.moved),
            "training_loss": _json(self.training_loss),
            "skipped_rounds": _json(self.skipped_rounds),
            "seconds": _json(self.seconds),
            "fit": None if self.fit is None else self.fit.describe(),
        }


def row(label: str, runs: Histories, baseline: Histories | None) -> EntryFigures:
    """The figures of one entry over seeds; `baseline` are FedAvg's runs with the same seeds."""

    def mean(name: str) -> float:
        per_seed = [getattr(run, name) for run in runs]
        return mean_and_spread(per_seed)[0]

    seconds = []
    spreads = []
    for run in runs:
        seconds += [record.seconds for record in run.records]
        spreads += run.spreads
    return EntryFigures(
        label=label,
        seeds=len(runs),
        last=_figures(runs, baseline, late=False),
        late=_figures(runs, baseline, late=True),
        negative_rounds=mean("negative_rounds"),
        oscillation=mean("oscillation"),
        moved=mean("moved"),
        training_loss=mean("training_loss"),
        skipped_rounds=mean("skipped_rounds"),
        seconds=float(np.sum(seconds)),
        metric=runs[0].metric if runs else ACCURACY,
        fit=Fit.of(spreads),
    )


def _figures(runs: Histories, baseline: Histories | None, late: bool) -> Figures:
    values: dict[str, list[float]] = {}
    if any(run.lost for run in runs):
        return {}  # the other seeds alone would flatter it
    for k, run in enumerate(runs):
        fairness = run.late_fairness if late else run.fairness
        if fairness is None:
            continue
        figures = dataclasses.asdict(fairness)
        if late:
            figures[LASTING] = run.lasting
        figures |= _expected(run, late)
        if baseline:
            figures |= _suppression(run, baseline[k], late)
        for name, value in figures.items():
            values.setdefault(name, []).append(value)
    return {name: mean_and_spread(per_seed) for name, per_seed in values.items()}


def _expected(run: History, late: bool) -> dict[str, float]:
    """The metrics of expected accuracies, under names of their own."""
    expected = run.expected
    fairness = None
    if expected is not None:
        fairness = expected.late_fairness if late else expected.fairness
    if expected is None or fairness is None:
        return {}
    figures = {}
    for name, value in dataclasses.asdict(fairness).items():
        figures[EXPECTED + name] = value
    if late and expected.lasting is not None:
        figures[EXPECTED + LASTING] = expected.lasting
    return figures


def _suppression(run: History, baseline: History, late: bool) -> dict[str, float]:
    """What the run does to the clients that FedAvg serves worst and best."""
    own = run.late_figures if late else run.last_figures
    fedavgs = baseline.late_figures if late else baseline.last_figures
    if own is None or fedavgs is None:
        return {}
    return dataclasses.asdict(Suppression.of(own, fedavgs, run.metric.higher_is_better))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (seeds in the denominator, as in the paper's tables) of the known values."""
    every = np.array(values, dtype=np.float64)
    known = every[~np.isnan(every)]
    if not len(known):
        return np.nan, np.nan
    return float(known.mean()), float(known.std())


def _described(figures: Figures) -> dict[str, Any]:
    described = {}
    for name, (mean, spread) in figures.items():
        described[name] = {"mean": _json(mean), "spread": _json(spread)}
    return described


def _json(value: float) -> float | None:
    return None if np.isnan(value) else value
