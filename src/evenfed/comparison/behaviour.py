"""How a run behaved over its rounds: whether it broke down, whether losses swing, how far weights are from FedAvg's.

Of very many clients, of whom few take part in a round, nothing is written out for all of them.
"""

from collections.abc import Sequence

import numpy as np

from ..core.few import Few, Kept
from ..core.server import Record
from ..fairness import Vector, mean_correlation, moved, oscillation

_WITHOUT_BOUND = 1000.0  # times the first round's mean loss, or 1


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
    return mean_correlation(_series(np.concatenate(clients), np.concatenate(gaps)), size)


def moved_weight(records: Sequence[Record], shares: Vector) -> float:
    """The part of the weight placed differently from FedAvg: `fairness.moved`."""
    if not any(_is_sparse(record) for record in records):
        return moved(_table(records, "weights"), _table(records, "losses"), shares)
    known = []
    for record in records:
        losses = _few(record, "losses")
        weights = _few(record, "weights")
        ids = np.union1d(losses.ids, weights.ids)
        ours = Few(len(shares), weights.ids, weights.values, 0.0).among(ids)
        measured = Few(len(shares), losses.ids, losses.values, np.nan).among(ids)
        of_round = moved(ours[None], measured[None], shares[ids])
        if not np.isnan(of_round):
            known.append(of_round)
    return float(np.mean(known)) if known else float("nan")


def breakdown(records: Sequence[Record]) -> str | None:
    """How a run broke down: nothing usable came back up to the end, or losses grew without bound."""
    usable = 0  # rounds up to the last one that moved the model
    means = []
    for number, record in enumerate(records, start=1):
        if not record.skipped:
            usable = number
        losses = record.known("losses")
        if len(losses):
            means.append(float(losses.mean()))
    if usable < len(records):
        return f"no finite loss and update from round {usable + 1} on"
    if not means:
        return None
    first = means[0]
    last = means[-1]
    if last > _WITHOUT_BOUND * max(first, 1.0):
        return f"the mean loss grew from {first:.3g} to {last:.3g}"
    return None


def mean_over(several: Sequence[Vector | Kept]) -> Vector:
    """[n] each client's mean over the evaluations that it has a figure of; NaN without any."""
    first = several[0]
    if isinstance(first, Few):
        same = [each for each in several if isinstance(each, Few) and np.array_equal(each.ids, first.ids)]
        if len(same) == len(several):
            means = np.mean([each.values for each in same], axis=0)
            return Few(first.clients, first.ids, means, first.rest).dense()
    tables = [each if isinstance(each, np.ndarray) else each.dense() for each in several]
    mean: Vector = np.mean(tables, axis=0)
    for client in np.flatnonzero(np.isnan(mean)).tolist():  # not evaluated every time
        figures = np.array([table[client] for table in tables])
        known = figures[~np.isnan(figures)]
        if len(known):
            mean[client] = known.mean()
    return mean


def _is_sparse(record: Record) -> bool:
    return not isinstance(record.kept("losses"), np.ndarray)


def _few(record: Record, field: str) -> Kept:
    """The field without those who took no part."""
    kept = record.kept(field)
    rest = 0.0 if field == "weights" else np.nan
    if isinstance(kept, np.ndarray):
        return Few.of(kept, rest)
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
