"""How a run behaved over its rounds: whether it broke down, whether losses swing, how far weights are from FedAvg's.

Of very many clients, of whom few take part in a round, nothing is written out for all of them.
"""

from collections.abc import Sequence

import numpy as np

from ...core.open_round import NO_WEIGHT
from ...core.server import Record
from ...core.sparse import SparseNumbers, StoredNumbers
from ...fairness import Vector, mean_correlation, moved, oscillation
from ...metrics import Metric

_WITHOUT_BOUND = 1000.0  # times the first round's mean loss, or 1
_LATE = 10  # rounds, over which a swing averages out
_UNMOVED = 1e-6  # of the weight: rounding
_LARGE = 10.0  # a mean loss in units in which a fairness strength of 1 is too much: cross entropy starts below
_SMALLER_STEPS = "a smaller lr, or server_lr below 1"


def swing(records: Sequence[Record], shares: Vector) -> float:
    """The mean lag-1 correlation of the clients' losses: `fairness.oscillation`."""
    if not any(_is_sparse(record) for record in records):
        return oscillation(_table(records, "losses"), shares)
    later = records[len(records) // 2 :]
    clients = []
    gaps = []
    magnitudes = []
    for record in later:
        few = _few(record, "losses")
        if not len(few.ids):
            continue
        weights = shares[few.ids]
        mean = (weights @ few.values) / weights.sum()
        clients.append(few.ids)
        gaps.append(few.values - mean)
        magnitudes.append(np.abs(few.values))
    if not clients:
        return float("nan")
    size = float(np.concatenate(magnitudes).mean())
    series = _series(np.concatenate(clients), np.concatenate(gaps))
    return mean_correlation(series, size)


def moved_weight(records: Sequence[Record], shares: Vector) -> float:
    """The part of the weight placed differently from FedAvg: `fairness.moved`."""
    if not any(_is_sparse(record) for record in records):
        return moved(_table(records, "weights"), _table(records, "losses"), shares)
    known = []
    for record in records:
        losses = _few(record, "losses")
        weights = _few(record, "weights")
        ids = np.union1d(losses.ids, weights.ids)
        all_weights = SparseNumbers(len(shares), weights.ids, weights.values, 0.0)
        all_losses = SparseNumbers(len(shares), losses.ids, losses.values, np.nan)
        placed = all_weights.among(ids)
        measured = all_losses.among(ids)
        of_round = moved(placed[None], measured[None], shares[ids])
        if not np.isnan(of_round):
            known.append(of_round)
    if not known:
        return float("nan")
    return float(np.mean(known))


def mean_loss(records: Sequence[Record]) -> float:
    """The clients' mean training loss over these rounds; NaN if none is known."""
    means = _mean_losses(records)
    if not means:
        return float("nan")
    return float(np.mean(means))


def breakdown(records: Sequence[Record]) -> str | None:
    """How a run broke down: no round moved the model up to the end, or losses grew without bound or rose again."""
    usable = 0  # rounds up to the last one that moved the model
    reasons: dict[str, None] = {}  # why the rounds after it were skipped
    for number, record in enumerate(records, start=1):
        if not record.skipped:
            usable = number
            reasons.clear()
        elif record.reason is not None:
            reasons[record.reason] = None
    if usable < len(records):
        skipped = f"all rounds from round {usable + 1} on were skipped"
        if not reasons:
            return skipped
        listed = ", then ".join(reasons)
        return f"{skipped}: {listed}"
    means = _mean_losses(records)
    if not means:
        return None
    first = means[0]
    last = means[-1]
    if last > _WITHOUT_BOUND * max(first, 1.0):
        return f"the mean loss grew from {first:.3g} to {last:.3g}"
    return _relapse(means)


def _mean_losses(records: Sequence[Record]) -> list[float]:
    """Of each round in which losses are known."""
    means = []
    for record in records:
        losses = record.known("losses")
        if len(losses):
            means.append(float(losses.mean()))
    return means


def _relapse(means: Sequence[float]) -> str | None:
    """How more than half of what was learned is lost in the last rounds; None if it is not.

    Means over several rounds are compared, since losses swing, and depend on who takes part.
    """
    first = means[0]
    window = min(_LATE, len(means) // 2)
    if window == 0 or first <= 0:  # half of a loss below zero means nothing
        return None
    smoothed = np.convolve(means, np.full(window, 1 / window), mode="valid")
    lowest = float(smoothed.min())
    late = float(smoothed[-1])
    has_learned = lowest < first / 2
    has_lost = late > (first + lowest) / 2
    if has_learned and has_lost:
        return f"the mean loss fell from {first:.3g} to {lowest:.3g} and rose again to {late:.3g}"
    return None


def took_figures(
    records: Sequence[Record],
    evaluated: Sequence[Record],
    metric: Metric,
    means: Sequence[float],
) -> bool:
    """Whether training took away figures of clients: all of them, so that a mean is not finite, or those of some.

    `means`: over clients, in the last rounds and of the model. Clients that were never judged have lost nothing.
    """
    are_finite = np.isfinite(means).all()
    if are_finite and not (metric.is_loss and _lost_clients(evaluated)):
        return False
    if breakdown(records) is not None:
        return True
    if are_finite:
        return False
    for record in evaluated:
        figures = metric.known(record)
        if np.isfinite(figures).any():
            return True
    return False


def last_finite(records: Sequence[Record], metric: Metric) -> Record | None:
    """The last round that moved the model and left it with finite figures; None if there is none."""
    for record in reversed(records):
        if record.skipped:
            continue
        figures = metric.known(record)
        if len(figures) and np.isfinite(figures).all():
            return record
    return None


def _lost_clients(evaluated: Sequence[Record]) -> bool:
    """Whether clients that had a test loss at first have none at last."""
    if not evaluated:
        return False
    first = evaluated[0].test_losses
    last = evaluated[-1].test_losses
    if first is None or last is None:
        return False
    lost = np.isnan(last) & ~np.isnan(first)
    return bool(lost.any())


def remedies(records: Sequence[Record], shares: Vector) -> str:
    """What to try with a run that broke down; options of re-weighting have no effect where weights are FedAvg's."""
    if records and records[0].reason == NO_WEIGHT and not records[0].dropped:
        return "an objective that grows with the clients' losses: its weights sum to zero or less from the start"
    replied = [_among_those_who_replied(record) for record in records]
    if moved_weight(replied, shares) > _UNMOVED:
        return f"smooth=0.25, a smaller fairness strength, {_SMALLER_STEPS}{_of_units(records)}"
    return _SMALLER_STEPS


def _among_those_who_replied(record: Record) -> Record:
    """The round as if clients that were dropped had not been asked: their weight, too, goes to the others."""
    if not record.dropped:
        return record
    losses = _few(record, "losses")
    replied = ~np.isin(losses.ids, record.dropped)
    ids = losses.ids[replied]
    values = losses.values[replied]
    few = SparseNumbers(losses.clients, ids, values, np.nan)
    if _is_sparse(record):
        return record.but(losses=few)
    return record.but(losses=few.dense())


def _of_units(records: Sequence[Record]) -> str:
    """What to do about losses that start large, as squares of unscaled targets do."""
    for record in records:
        losses = record.known("losses")
        if len(losses):
            first = float(losses.mean())
            if first < _LARGE:
                return ""
            return (
                f"; the losses start at {first:.3g}, and strengths such as beta are in 1/units of the loss: scale the "
                "targets to a standard deviation of 1, or divide the loss"
            )
    return ""


def mean_over(several: Sequence[Vector | StoredNumbers]) -> Vector:
    """[n] each client's mean over the evaluations that it has a figure of; NaN without any."""
    first = several[0]
    if isinstance(first, SparseNumbers):
        same = []
        for each in several:
            if isinstance(each, SparseNumbers) and np.array_equal(each.ids, first.ids):
                same.append(each.values)
        if len(same) == len(several):
            means = np.mean(same, axis=0)
            return SparseNumbers(first.clients, first.ids, means, first.rest).dense()
    tables = []
    for each in several:
        table = each if isinstance(each, np.ndarray) else each.dense()
        tables.append(table)
    mean: Vector = np.mean(tables, axis=0)
    for client in np.flatnonzero(np.isnan(mean)).tolist():  # not evaluated every time
        figures = np.array([table[client] for table in tables])
        known = figures[~np.isnan(figures)]
        if len(known):
            mean[client] = known.mean()
    return mean


def _is_sparse(record: Record) -> bool:
    return not isinstance(record.kept("losses"), np.ndarray)


def _few(record: Record, field: str) -> StoredNumbers:
    """The field without those who took no part."""
    kept = record.kept(field)
    rest = 0.0 if field == "weights" else np.nan
    if isinstance(kept, np.ndarray):
        return SparseNumbers.of(kept, rest)
    assert kept is not None
    return kept


def _table(records: Sequence[Record], field: str) -> Vector:
    """[rounds, n]"""
    return np.array([getattr(record, field) for record in records])


def _series(clients: Vector, gaps: Vector) -> list[Vector]:
    """The gaps of each client, in the order of the rounds."""
    order = np.argsort(clients, kind="stable")
    sorted_clients = clients[order]
    starts = np.flatnonzero(np.diff(sorted_clients)) + 1
    return np.split(gaps[order], starts)
