"""What "fair" means here, in numbers: metrics of one figure per client, and comparisons between runs.

Nothing is claimed about groups inside a client or about rewarding contributions; only how evenly one
model serves the clients that trained it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .core import markup
from .core.errors import InputError, first_line

Vector = NDArray[np.float64]

OSCILLATES_BELOW = -0.85

_NAN = float("nan")
_TITLES = {"worst10": "worst 10 %", "worst20": "worst 20 %", "best10": "best 10 %"}
_ROUNDING = 1e-9  # a smaller gain is arithmetic: averages of the same accuracies in another order


def _vector(figures: ArrayLike) -> Vector:
    """[n] what the user gives, as numbers."""
    try:
        values = np.asarray(figures, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"figures of clients: no numbers ({first_line(error)}); give one number per client") from None
    if values.ndim != 1:
        raise InputError(f"figures of clients: the shape {values.shape}; give one number per client")
    return values


def _means(several: Sequence[Any]) -> list[float]:
    """Each field of some instances of one dataclass, averaged."""
    rows = [dataclasses.astuple(instance) for instance in several]
    means: list[float] = np.array(rows).mean(axis=0).tolist()
    return means


@dataclass(frozen=True)
class Fairness:
    """The paper's metrics of the accuracies (or losses, or other figures) of n clients, in their own unit.

    `mean` and `std` are over clients, with n in the denominator. `worst`: the worst client. `worst10` and `worst20`:
    the mean of the worst 10 % and 20 % of the clients, of 49 clients four whole ones and 0.9 of the fifth, at least
    one. `best10`: the mean of the best 10 %.
    """

    mean: float
    std: float
    worst: float
    worst10: float
    worst20: float
    best10: float

    @classmethod
    def of(cls, figures: ArrayLike, higher_is_better: bool = True) -> "Fairness":
        """Metrics of `figures` [n]; clients without test data (NaN) do not count.

        >>> f = Fairness.of(range(1, 51))
        >>> f.worst10, f.best10, round(f.std, 8)
        (3.0, 48.0, 14.43086969)
        >>> round(Fairness.of(range(1, 50)).worst10, 4)  # (1 + 2 + 3 + 4 + 0.9 x 5) / 4.9
        2.9592
        >>> Fairness.of([0.1, 0.9, 0.5], higher_is_better=False).worst
        0.9
        """
        values = np.sort(_vector(figures))
        if not higher_is_better:
            values = values[::-1]
        known = ~np.isnan(values)
        values = values[known]
        count = len(values)
        if count == 0:
            return cls(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN)
        return cls(
            mean=float(values.mean()),
            std=float(values.std()),
            worst=float(values[0]),
            worst10=float(mean_of_first(values, 0.1)),
            worst20=float(mean_of_first(values, 0.2)),
            best10=float(mean_of_first(values[::-1], 0.1)),
        )

    @classmethod
    def average(cls, several: Sequence["Fairness"]) -> "Fairness":
        """Each metric averaged over evaluations, e.g. those of the last rounds of a run."""
        return cls(*_means(several))

    def _repr_html_(self) -> str:
        heads = ["over clients"]
        row = ["of each one's figure"]
        for name, value in vars(self).items():
            heads.append(_TITLES.get(name, name))
            row.append(f"{value:.4g}")
        return markup.table("Fairness", heads, [row])


FIGURES = tuple(figure.name for figure in dataclasses.fields(Fairness))
LOWER_IS_BETTER = frozenset({"std"})  # of the figures, whatever clients are judged by


@dataclass(frozen=True)
class Inequality:
    """How unequal the figures of n clients are, in the field's other measures (docs/metrics.md has the formulas).

    The first six do not change with the figures' unit. They are NaN where a figure is negative, or all are zero. More
    is better of `jain` and `entropy`, which are 1 where all clients are equal; less of the others, which are then 0.
    `gap_90_10`: the 90 % quantile over clients minus the 10 % quantile.
    """

    gini: float  # 0: all equal; less is better
    jain: float  # 1: all equal, 1/n: one client has everything; more is better
    theil: float  # 0: all equal, ln n: one has everything; less is better. KL(figures || uniform) is the same
    entropy: float  # 1: all equal, 0: one has everything; more is better
    cv: float  # standard deviation over mean; less is better
    angle: float  # degrees between the figures and equal ones; less is better
    gap_90_10: float  # quantile 90 % minus quantile 10 %, in the figures' unit; less is better
    gap_75_25: float
    gap_max_min: float

    @classmethod
    def of(cls, figures: ArrayLike) -> "Inequality":
        """Of `figures` [n]; clients without one (NaN) do not count.

        >>> inequality = Inequality.of([1.0, 1.0, 2.0, 4.0])
        >>> round(inequality.gini, 4), round(inequality.jain, 4), round(inequality.theil, 4)
        (0.3125, 0.7273, 0.1733)
        >>> Inequality.of([0.5, 0.5]).gini, Inequality.of([0.5, 0.5]).entropy
        (0.0, 1.0)
        """
        values = np.sort(_vector(figures))
        known = ~np.isnan(values)
        values = values[known]
        if len(values) == 0:
            return _ALL_UNKNOWN
        quantiles = np.quantile(values, [0.1, 0.25, 0.75, 0.9])
        low, first, third, high = quantiles.tolist()
        gaps = dataclasses.replace(
            _ALL_UNKNOWN,
            gap_90_10=high - low,
            gap_75_25=third - first,
            gap_max_min=float(values[-1] - values[0]),
        )
        total = float(values.sum())
        if values[0] < 0 or not 0 < total < np.inf:
            return gaps
        shares = values / total
        if shares[0] == shares[-1]:
            return dataclasses.replace(gaps, gini=0.0, jain=1.0, theil=0.0, entropy=1.0, cv=0.0, angle=0.0)
        clients = len(shares)
        ranks = np.arange(1, clients + 1)
        by_rank = 2 * ranks - clients - 1
        squares = float(shares @ shares)
        jain = min(1.0, 1 / (clients * squares))
        positive = shares[shares > 0]
        disorder = -float(positive @ np.log(positive))
        most = float(np.log(clients))
        return dataclasses.replace(
            gaps,
            gini=float(by_rank @ shares) / clients,
            jain=jain,
            theil=max(0.0, most - disorder),
            entropy=min(1.0, disorder / most),
            cv=float(np.sqrt(1 / jain - 1)),
            angle=float(np.degrees(np.arccos(np.sqrt(jain)))),
        )

    @classmethod
    def average(cls, several: Sequence["Inequality"]) -> "Inequality":
        """Each measure averaged over evaluations."""
        return cls(*_means(several))


_ALL_UNKNOWN = Inequality(*[_NAN] * len(dataclasses.fields(Inequality)))


def mean_of_first(ordered: Vector, fraction: float) -> Vector:
    """The mean of the first `fraction` of the last axis [..., n]. The last client counts in part; at least one counts.

    Whole clients alone would make 4 of 49 and 5 of 50: a jump by which one client more or less moves every figure.
    """
    clients = ordered.shape[-1]
    counted = max(1.0, fraction * clients)
    whole = int(counted + _ROUNDING)
    part = counted - whole
    mean: Vector = ordered[..., :whole].mean(axis=-1)
    if part < _ROUNDING:
        return mean
    part_of_next = part * ordered[..., whole]
    weighted: Vector = (whole * mean + part_of_next) / counted
    return np.asarray(weighted)


@dataclass(frozen=True)
class Suppression:
    """What an algorithm does to the clients FedAvg serves below and above its mean (the paper's Table 2).

    `suffering`: the number of clients that FedAvg serves strictly worse than its mean. `improved`: the fraction of
    them that gain. `suffering_gain`: their mean change. `well_performing`, `degraded` and `well_gain`: the number of
    clients strictly better than that mean, the fraction of them that lose, and their mean change. `mean_gain`: the
    mean change of all clients.
    """

    suffering: int
    improved: float
    suffering_gain: float
    well_performing: int
    degraded: float
    well_gain: float
    mean_gain: float

    @classmethod
    def of(
        cls,
        figures: ArrayLike,
        fedavg: ArrayLike,
        higher_is_better: bool = True,
    ) -> "Suppression":
        """`figures` [n], such as accuracies, against FedAvg's [n] on the same clients.

        >>> effect = Suppression.of([0.5, 0.6, 0.8], fedavg=[0.4, 0.6, 1.0])
        >>> effect.suffering, effect.improved, effect.well_performing, effect.degraded, round(effect.well_gain, 6)
        (2, 0.5, 1, 1.0, -0.2)
        """
        ours = _vector(figures)
        base = _vector(fedavg)
        if len(ours) != len(base):
            raise InputError(f"{len(ours)} figures and {len(base)} of FedAvg; give one of each per client")
        unknown = np.isnan(ours) | np.isnan(base)
        known = ~unknown
        base = base[known]
        gain = ours[known] - base
        sign = 1 if higher_is_better else -1
        above_mean = sign * (base - base.mean())
        suffering = above_mean < 0
        well_performing = above_mean > 0
        suffering_gain = gain[suffering]
        well_gain = gain[well_performing]
        return cls(
            suffering=int(suffering.sum()),
            improved=_mean(sign * suffering_gain > _ROUNDING),
            suffering_gain=_mean(suffering_gain),
            well_performing=int(well_performing.sum()),
            degraded=_mean(sign * well_gain < -_ROUNDING),
            well_gain=_mean(well_gain),
            mean_gain=_mean(gain),
        )

    def _repr_html_(self) -> str:
        heads = ["served by FedAvg", "clients", "changed for", "mean change"]
        below = [
            "below its mean",
            str(self.suffering),
            f"{self.improved:.0%} better",
            f"{self.suffering_gain:+.4g}",
        ]
        above = [
            "above its mean",
            str(self.well_performing),
            f"{self.degraded:.0%} worse",
            f"{self.well_gain:+.4g}",
        ]
        everyone = ["all", "", "", f"{self.mean_gain:+.4g}"]
        return markup.table("Against FedAvg", heads, [below, above, everyone])


def oscillation(losses: Vector, shares: Vector) -> float:
    """Lag-1 correlation over rounds of each client's f_i - mean, averaged over clients; NaN if unknown.

    `losses` [rounds, n], NaN where a client took no part; then its own successive rounds are compared.
    Only the later half counts: the first fall of the losses is not an oscillation. Below about -0.85 the
    weights chase last round's losses and the spread is no longer reduced.

    >>> swing = np.array([[0.0, 1.0], [1.0, 0.0]] * 8)
    >>> round(oscillation(swing, np.array([0.5, 0.5])), 6)
    -1.0
    """
    first = len(losses) // 2
    later = losses[first:]
    present = ~np.isnan(later)
    if not present.any():
        return _NAN
    mass = present @ shares
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.nan_to_num(later) @ shares
        mean = total / mass
        gaps = later - mean[:, None]
    magnitudes = np.abs(later)
    size = float(np.nanmean(magnitudes))
    by_client = []
    for gap, took_part in zip(gaps.T, present.T, strict=True):
        by_client.append(gap[took_part])
    return mean_correlation(by_client, size)


def mean_correlation(by_client: Iterable[Vector], size: float) -> float:
    """The mean over clients of the lag-1 correlations of their series; `size`: the mean magnitude of the losses."""
    smallest = 1e-5 * size  # less is rounding, not a swing
    correlations = []
    for series in by_client:
        if len(series) < 5:
            continue
        swings = series.std() > smallest
        if not swings:
            continue
        correlation = _lag_one(series)
        if correlation is not None:
            correlations.append(correlation)
    return _mean(correlations)


def _lag_one(series: Vector) -> float | None:
    """The correlation of a series with itself one step later; None for a constant one."""
    earlier = series[:-1]
    later = series[1:]
    earlier = earlier - earlier.mean()
    later = later - later.mean()
    earlier_square = (earlier**2).sum()
    later_square = (later**2).sum()
    scale = np.sqrt(earlier_square * later_square)
    if not scale > 0:
        return None
    covariance = (earlier * later).sum()
    return float(covariance / scale)


def moved(weights: Vector, losses: Vector, shares: Vector) -> float:
    """The part of the weight placed differently from FedAvg, on average over rounds; NaN if unknown.

    `weights` and `losses` [rounds, n]; those with a loss took part. Half the sum of absolute differences from the
    shares among them. Near 0 re-weighting does nothing: what differs from FedAvg then comes from elsewhere.

    >>> moved(np.array([[0.75, 0.25]]), np.zeros((1, 2)), np.array([0.5, 0.5]))
    0.25
    """
    present = ~np.isnan(losses)
    base = present * shares
    our_totals = weights.sum(1)
    base_totals = base.sum(1)
    known = (our_totals > 0) & (base_totals > 0)
    if not known.any():
        return _NAN
    our_totals = our_totals[known, None]
    base_totals = base_totals[known, None]
    ours = weights[known] / our_totals
    theirs = base[known] / base_totals
    differences = np.abs(ours - theirs)
    moved_weight = differences.sum(1)
    return float(0.5 * moved_weight.mean())


def _mean(values: ArrayLike) -> float:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return _NAN
    return float(array.mean())
