"""Fractions and percentages: which of them a column holds, and whether it mixes the two."""

import numpy as np

from ..core.errors import InputError
from ..fairness import Vector
from ..metrics import Metric
from . import column_roles
from .gather import Figures

FRACTION = "fraction"  # 0 to 1
PERCENT = "percent"  # 0 to 100
_LIKE_PERCENT = 20.0  # a median above it, beside an algorithm whose figures are all below 1


def as_fractions(figures: Figures, metric: Metric, column: str, unit: str | None) -> tuple[Vector, str]:
    """The values, accuracies as fractions, and a sentence on the unit; an error where two units are mixed."""
    values = figures.values
    known = values[~np.isnan(values)]
    if not len(known):
        raise InputError(f"{figures.sheet}: column '{column}' holds no number; give each client's figure")
    if unit is None:
        _check_mixed(figures, metric, column)
        unit = PERCENT if known.max() > 1 else FRACTION
    if not metric.is_share:
        return values, ""
    most = 100.0 if unit == PERCENT else 1.0
    is_outside = (values < 0) | (values > most)
    outside = np.flatnonzero(is_outside)
    if len(outside):
        row = int(outside[0])
        whose = figures.describe(row)
        raise InputError(
            f"{figures.sheet}: '{column}' of {whose} is {values[row]:g}; an accuracy lies between 0 and 1, "
            f"or 0 and 100 in percent (read as {unit}). If this is not an accuracy, rename the column"
        )
    if unit == PERCENT:
        return values / 100.0, "Accuracies are in percent."
    return values, ""


def _check_mixed(figures: Figures, metric: Metric, column: str) -> None:
    """Refuse a column that holds both 0.81 and 81."""
    values = figures.values
    above = np.flatnonzero(values > 1)
    if len(above) == 0 or not metric.higher_is_better:
        return
    if column_roles.is_bounded(column) or metric.is_share:
        is_below = (values > 0) & (values <= 1)
        below = np.flatnonzero(is_below)
        if len(below):
            raise _mixed(
                figures,
                column,
                small=int(below[0]),
                large=int(above[0]),
            )
        return
    _check_far_apart(figures, column)


def _check_far_apart(figures: Figures, column: str) -> None:
    """Refuse algorithms of which one has fractions and another percentages, of a metric that has no known bounds."""
    values = figures.values
    if np.nanmax(values) > 100 or np.nanmin(values) < 0:
        return
    algorithms = figures.algorithm
    small = None
    large = None
    for algorithm in np.unique(algorithms):
        rows = np.flatnonzero(algorithms == algorithm)
        own = values[rows]
        if np.nanmax(own) <= 1:
            small = int(rows[0])
        elif np.nanmedian(own) > _LIKE_PERCENT:
            large = int(rows[0])
    if small is not None and large is not None:
        raise _mixed(figures, column, small, large)


def _mixed(figures: Figures, column: str, small: int, large: int) -> InputError:
    values = figures.values
    whose_small = figures.describe(small)
    whose_large = figures.describe(large)
    return InputError(
        f"{figures.sheet}: '{column}' mixes units: {values[small]:g} ({whose_small}) and "
        f"{values[large]:g} ({whose_large}). Give all figures as fractions (0 to 1) or all in percent "
        "(0 to 100). If they are right as they are, add --unit percent"
    )
