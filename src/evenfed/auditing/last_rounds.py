"""Which rounds of audited runs are averaged: the last ones that were evaluated, the same of all runs where possible."""

from collections.abc import Callable, Mapping

import numpy as np

from ..core.errors import InputError
from ..core.words import counted, first_of
from ..fairness import Vector
from .gather import Figures

_MOST_LISTED = 10
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
    averaged = {}
    windows = set()
    ends = set()
    most = 0
    for run, rounds in evaluated.items():
        window = rounds[-last_rounds:]
        averaged[run] = window
        windows.add(tuple(window))
        ends.add(window[-1])
        most = max(most, len(window))
    if most < last_rounds:
        rounds_in_words = counted(most, "evaluated round")
        say(f"There are only {rounds_in_words} to average, not {last_rounds}.")
    if last_rounds == 1 or len(windows) == 1:
        return averaged
    if len(ends) > 1:
        listed = _windows_in_words(averaged, figures)
        say(f"Runs were evaluated in different rounds, and each is averaged over its own last ones: {listed}.")
        return averaged
    shared = sorted(set.intersection(*map(set, evaluated.values())))
    shared = shared[-last_rounds:]
    listed = first_of(list(map(str, shared)), _MOST_LISTED)
    say(
        "Runs were evaluated in different rounds: averages are over the last rounds in which all were "
        f"evaluated ({listed})."
    )
    return dict.fromkeys(averaged, shared)


def _windows_in_words(averaged: Mapping[RunCode, list[int]], figures: Figures) -> str:
    spans: dict[str, None] = {}
    for run, window in averaged.items():
        algorithm, _ = run
        label = figures.algorithms[algorithm]
        count = len(window)
        first = window[0]
        last = window[-1]
        spans[f"{label} {count} in rounds {first} to {last}"] = None
    return first_of(list(spans), _MOST_LISTED)


def _evaluated_rounds(figures: Figures, values: Vector) -> dict[RunCode, list[int]]:
    """The rounds in which each run has figures."""
    is_known = ~np.isnan(values)
    evaluated = {}
    for algorithm in range(len(figures.algorithms)):
        is_own = figures.algorithm == algorithm
        for seed in np.unique(figures.seed[is_own]).tolist():
            is_of_seed = figures.seed == seed
            rounds = figures.round[is_own & is_of_seed & is_known]
            if len(rounds) == 0:
                label = figures.algorithms[algorithm]
                raise InputError(f"{figures.sheet}: {label} has no figures; remove its rows")
            run = (algorithm, seed)
            evaluated[run] = np.unique(rounds).tolist()
    return evaluated
