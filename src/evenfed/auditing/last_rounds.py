"""Which rounds of audited runs are averaged: the last ones that were evaluated, the same of all runs where possible."""

from collections.abc import Callable

import numpy as np

from ..core.errors import InputError
from ..core.words import counted, first_of
from ..fairness import Vector
from .gather import Figures

RunCode = tuple[int, int]  # algorithm and seed


def averaged_rounds(
    figures: Figures,
    values: Vector,
    last_rounds: int,
    say: Callable[[str], None],
) -> dict[RunCode, list[int]]:
    """The rounds of each run that late figures average: its last evaluated ones.

    Runs that end together but were evaluated at different times are compared in the rounds that all of them have:
    averages over other rounds would differ by how far training was.
    """
    evaluated = _evaluated_rounds(figures, values)
    averaged = {run: rounds[-last_rounds:] for run, rounds in evaluated.items()}
    windows = list(averaged.values())
    most = max(map(len, windows))
    if most < last_rounds:
        say(f"There are only {counted(most, 'evaluated round')} to average, not {last_rounds}.")
    is_same = all(window == windows[0] for window in windows)
    if last_rounds == 1 or is_same:
        return averaged
    ends = {window[-1] for window in windows}
    if len(ends) == 1:
        shared = sorted(set.intersection(*map(set, evaluated.values())))
        shared = shared[-last_rounds:]
        listed = first_of(list(map(str, shared)), 10)
        say(
            "Runs were evaluated in different rounds: averages are over the last rounds in which all were "
            f"evaluated ({listed})."
        )
        return dict.fromkeys(averaged, shared)
    spans: dict[str, None] = {}
    for (algorithm, _), window in averaged.items():
        label = figures.algorithms[algorithm]
        spans[f"{label} {len(window)} in rounds {window[0]} to {window[-1]}"] = None
    listed = first_of(list(spans), 10)
    say(f"Runs were evaluated in different rounds, and each is averaged over its own last ones: {listed}.")
    return averaged


def _evaluated_rounds(figures: Figures, values: Vector) -> dict[RunCode, list[int]]:
    """The rounds in which each run has figures."""
    is_known = ~np.isnan(values)
    evaluated = {}
    for algorithm in range(len(figures.algorithms)):
        is_own = figures.algorithm == algorithm
        for seed in np.unique(figures.seed[is_own]).tolist():
            is_of_run = is_own & (figures.seed == seed)
            rounds = figures.round[is_of_run & is_known]
            if len(rounds) == 0:
                raise InputError(f"{figures.sheet}: {figures.algorithms[algorithm]} has no figures; remove its rows")
            evaluated[algorithm, seed] = np.unique(rounds).tolist()
    return evaluated
