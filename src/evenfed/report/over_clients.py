"""Differences with intervals over clients: all that one trained model of each algorithm can give."""

import numpy as np
from numpy.typing import NDArray

from ..comparison.analysis.findings import Entry, Findings
from ..comparison.analysis.intervals import Difference
from ..fairness import Vector, mean_of_first
from .table import Cell, Column, Line, Table
from .tables import name_of, when

FEWEST = 20  # clients
FEWEST_FOR_WORST10 = 50  # with 20, 87 % of such intervals hold the true difference: benchmarks/coverage_over_clients.py
_MOST = 100_000  # clients; more need no interval over clients
_DRAWS = 1000
_BATCH = 2_000_000  # figures resampled at a time


def tables(findings: Findings, late: bool) -> list[Table]:
    """Every entry against the baseline; none for runs of evenfed, for an entry alone, and for too few clients."""
    baseline, *others = findings.entries
    if findings.origin is None or not others:
        return []
    lines = []
    for entry in others:
        pair = _pair(entry, baseline, late)
        clients = pair.shape[1]
        if not FEWEST <= clients <= _MOST:
            return []
        metrics = ["mean", "std"]
        if clients >= FEWEST_FOR_WORST10:
            metrics.insert(1, "worst10")
        for metric in metrics:
            difference = _difference(findings, pair, metric)
            cells = [Cell.of(difference), Cell(verdict=difference.verdict)]
            lines.append(Line(entry.label, cells, metric))
    note = (
        "Each client averaged over seeds, then compared with itself. 95 % interval from clients drawn anew "
        f"{_DRAWS} times: what to expect of other clients of this kind with these trained models. It says nothing "
        "about training again: only several seeds separate an algorithm from luck."
    )
    table = Table(
        name=name_of("over-clients", late),
        title=f"Paired difference from {findings.baseline_name} over clients, {when(findings, late)}",
        columns=[Column("difference", "difference [95 %]"), Column("verdict", "")],
        lines=lines,
        notes=(note,),
        digits=findings.metric.digits,
    )
    return [table]


def _pair(entry: Entry, baseline: Entry, late: bool) -> Vector:
    """[2, n] figures of the entry and of the baseline, averaged over the seeds they share; clients that both have."""
    own = []
    theirs = []
    for seed in entry.runs:
        own.append(entry.figures(seed, late).mean(axis=0))
        theirs.append(baseline.figures(seed, late).mean(axis=0))
    own_means = np.mean(own, axis=0)
    their_means = np.mean(theirs, axis=0)
    pair = np.stack([own_means, their_means])
    is_known = ~np.isnan(pair).any(axis=0)
    known: Vector = pair[:, is_known]
    return known


def _difference(findings: Findings, pair: Vector, metric: str) -> Difference:
    judged_by = findings.metric
    higher_is_better = judged_by.higher_is_better
    whole = _gaps(pair[:, None], metric, higher_is_better)
    resampled = _resampled(pair, metric, higher_is_better)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Difference(
        points=judged_by.unit * float(whole[0]),
        low=judged_by.unit * float(low),
        high=judged_by.unit * float(high),
        metric=metric,
        seeds=1,
        higher_is_better=judged_by.direction(metric) > 0,
    )


def _resampled(pair: Vector, metric: str, higher_is_better: bool) -> Vector:
    """[draws] the difference on clients drawn with replacement."""
    generator = np.random.default_rng(0)  # the same report from the same table
    clients = pair.shape[1]
    at_once = max(1, _BATCH // clients)
    gaps: list[Vector] = []
    drawn = 0
    while drawn < _DRAWS:
        count = min(at_once, _DRAWS - drawn)
        places: NDArray[np.int64] = generator.integers(0, clients, size=(count, clients))
        gaps.append(_gaps(pair[:, places], metric, higher_is_better))
        drawn += count
    return np.concatenate(gaps)


def _gaps(pair: Vector, metric: str, higher_is_better: bool) -> Vector:
    """[draws] of pairs [2, draws, n]."""
    own, theirs = (_figure(figures, metric, higher_is_better) for figures in pair)
    return own - theirs


def _figure(figures: Vector, metric: str, higher_is_better: bool) -> Vector:
    """[draws] of figures [draws, n]."""
    if metric == "mean":
        return np.asarray(figures.mean(axis=-1))
    if metric == "std":
        return np.asarray(figures.std(axis=-1))
    ordered = np.sort(figures, axis=-1)
    if not higher_is_better:
        ordered = ordered[..., ::-1]
    return mean_of_first(ordered, 0.1)
