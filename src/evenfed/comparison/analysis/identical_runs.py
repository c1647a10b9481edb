"""Runs that measured the same: seeds changed nothing in them, so they are one observation."""

from collections.abc import Sequence

import numpy as np

from ...core.server import Record
from .history import History


def are_equal(runs: Sequence[History]) -> bool:
    """Whether all the runs trained in the same way: nothing was drawn in them, whatever their seeds."""
    first, *others = runs
    return all(_is_same_run(first, other) for other in others)


def _is_same_run(run: History, other: History) -> bool:
    """Whether every round measured the same, but for rounding."""
    if len(run.records) != len(other.records):
        return False
    return all(map(_is_same_round, run.records, other.records))


def _is_same_round(record: Record, again: Record) -> bool:
    """By the training losses, where they are known: rounding may turn an answer of a small test set."""
    if _are_known(record, "losses") or _are_known(again, "losses"):
        return _are_close(record, again, "losses")
    return _are_close(record, again, "accuracy") and _are_close(record, again, "test_losses")


def _are_known(record: Record, field: str) -> bool:
    return len(record.known(field)) > 0


def _are_close(record: Record, again: Record, field: str) -> bool:
    figures = record.known(field)
    others = again.known(field)
    return figures.shape == others.shape and np.allclose(figures, others, rtol=1e-5)
