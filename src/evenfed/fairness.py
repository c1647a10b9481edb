"""What "fair" means here, in numbers: metrics of one accuracy per client, and comparisons between runs.

Nothing is claimed about groups inside a client or about rewarding contributions; only how evenly one
model serves the clients that trained it.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDING = 1e-9  # a smaller gain is arithmetic: averages of the same accuracies in another order


@dataclass(frozen=True)
class Fairness:
    """The paper's metrics of the accuracies of n clients, in the accuracies' own unit."""

    mean: float
    std: float  # over clients, n in the denominator
    worst: float
    worst10: float  # mean of the lowest 10 % of clients (at least one)
    worst20: float
    best10: float

    @classmethod
    def of(cls, accuracy: ArrayLike) -> "Fairness":
        """Metrics of `accuracy` [n]; clients without test data (NaN) do not count.

        >>> f = Fairness.of(range(1, 51))
        >>> f.worst10, f.best10, round(f.std, 8)
        (3.0, 48.0, 14.43086969)
        """
        values = np.sort(np.asarray(accuracy, dtype=np.float64))
        values = values[~np.isnan(values)]
        if len(values) == 0:
            return cls(*[float("nan")] * 6)
        tenth, fifth = (max(1, int(part * len(values) + 1e-9)) for part in (0.1, 0.2))
        return cls(
            mean=float(values.mean()),
            std=float(values.std()),
            worst=float(values[0]),
            worst10=float(values[:tenth].mean()),
            worst20=float(values[:fifth].mean()),
            best10=float(values[-tenth:].mean()),
        )

    @classmethod
    def average(cls, several: Sequence["Fairness"]) -> "Fairness":
        """Each metric averaged over evaluations, e.g. those of the last rounds of a run."""
        table = np.array([dataclasses.astuple(one) for one in several])
        return cls(*(float(v) for v in table.mean(axis=0)))


@dataclass(frozen=True)
class Suppression:
    """What an algorithm does to the clients FedAvg serves below and above its mean (the paper's Table 2)."""

    suffering: int  # clients strictly below FedAvg's mean accuracy
    improved: float  # fraction of those that gain
    suffering_gain: float  # their mean change
    well_performing: int  # clients strictly above it
    degraded: float  # fraction of those that lose
    well_gain: float
    mean_gain: float

    @classmethod
    def of(cls, accuracy: ArrayLike, fedavg: ArrayLike) -> "Suppression":
        """`accuracy` [n] against FedAvg's [n] on the same clients.

        >>> found = Suppression.of([0.5, 0.6, 0.8], fedavg=[0.4, 0.6, 1.0])
        >>> found.suffering, found.improved, found.well_performing, found.degraded, round(found.well_gain, 6)
        (2, 0.5, 1, 1.0, -0.2)
        """
        ours, base = (np.asarray(a, dtype=np.float64) for a in (accuracy, fedavg))
        known = ~np.isnan(ours) & ~np.isnan(base)
        ours, base = ours[known], base[known]
        gain = ours - base
        below, above = base < base.mean(), base > base.mean()
        return cls(
            suffering=int(below.sum()),
            improved=_mean(gain[below] > _ROUNDING),
            suffering_gain=_mean(gain[below]),
            well_performing=int(above.sum()),
            degraded=_mean(gain[above] < -_ROUNDING),
            well_gain=_mean(gain[above]),
            mean_gain=_mean(gain),
        )


def oscillation(losses: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """Lag-1 correlation over rounds of each client's f_i - mean, averaged over clients; NaN if unknown.

    `losses` [rounds, n], NaN where a client took no part; then its own successive rounds are compared.
    Only the later half counts: the first fall of the losses is not an oscillation. Below about -0.85 the
    weights chase last round's losses and the spread is no longer reduced.

    >>> swing = np.array([[0.0, 1.0], [1.0, 0.0]] * 8)
    >>> round(oscillation(swing, np.array([0.5, 0.5])), 6)
    -1.0
    """
    later = losses[len(losses) // 2 :]
    present = ~np.isnan(later)
    mass = present @ shares
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = later - (np.nan_to_num(later) @ shares / mass)[:, None]
    smallest = 1e-5 * float(np.nanmean(np.abs(later))) if present.any() else 0.0  # less is rounding, not a swing
    series = (gaps[present[:, i], i] for i in range(later.shape[1]))
    found = [c for c in (_lag_one(s) for s in series if len(s) and s.std() > smallest) if c is not None]
    return float(np.mean(found)) if found else float("nan")


OSCILLATES_BELOW = -0.85


def moved(weights: NDArray[np.float64], losses: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """How much of the weight stands elsewhere than FedAvg would put it, on average over rounds; NaN if unknown.

    `weights` and `losses` [rounds, n]; those with a loss took part. Half the sum of absolute differences from the
    shares among them. Near 0 re-weighting does nothing: what differs from FedAvg then comes from elsewhere.

    >>> moved(np.array([[0.75, 0.25]]), np.zeros((1, 2)), np.array([0.5, 0.5]))
    0.25
    """
    base = ~np.isnan(losses) * shares
    totals = weights.sum(1), base.sum(1)
    known = (totals[0] > 0) & (totals[1] > 0)
    ours, theirs = (x[known] / total[known, None] for x, total in zip((weights, base), totals, strict=True))
    return float(0.5 * np.abs(ours - theirs).sum(1).mean()) if known.any() else float("nan")


def _lag_one(series: NDArray[np.float64]) -> float | None:
    if len(series) < 5:
        return None
    before, after = series[:-1] - series[:-1].mean(), series[1:] - series[1:].mean()
    scale = np.sqrt((before**2).sum() * (after**2).sum())
    return float((before * after).sum() / scale) if scale > 0 else None


def _mean(values: ArrayLike) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else float("nan")
