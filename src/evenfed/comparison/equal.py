"""Runs that measured the same: seeds changed nothing in them, so they are one observation."""

from collections.abc import Sequence

import numpy as np

from ..core.server import Record
from ..fairness import Vector
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
    for names in (("losses",), ("accuracy", "test_losses")):
        pairs = [(record.known(name), again.known(name)) for name in names]
        if any(len(figures) or len(others) for figures, others in pairs):
            return all(_are_close(figures, others) for figures, others in pairs)
    return True


def _are_close(figures: Vector, others: Vector) -> bool:
    return figures.shape == others.shape and np.allclose(figures, others, rtol=1e-5)
