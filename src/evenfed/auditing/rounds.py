"""One run of another system: each round's figures of all clients, from rows in any order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import InputError
from ..core.words import counted
from ..fairness import Vector
from .gather import Codes, Figures

MOST_CELLS = 50_000_000  # rounds x clients of one run in memory


@dataclass(frozen=True)
class RunRows:
    """The rows of one run."""

    figures: Figures
    label: str  # of its algorithm
    rows: Codes
    values: Vector  # of all rows of the table
    say: Callable[[str], None]

    def by_round(self, averaged: Sequence[int], drops_missing: bool) -> dict[int, Vector]:
        """[n] figures of each round that was evaluated; a client without one keeps its latest.

        As many rounds as fit into memory, and the `averaged` ones in any case.
        """
        values = self.values[self.rows]
        rounds = self.figures.round[self.rows]
        clients = self.figures.client[self.rows]
        is_known = ~np.isnan(values)
        evaluated = np.unique(rounds[is_known])
        is_missing = ~is_known & np.isin(rounds, evaluated)
        self._check_missing(is_missing, drops_missing)
        first_kept = self._first_kept(evaluated, int(np.sum(evaluated >= averaged[0])))
        order = np.argsort(rounds, kind="stable")
        in_order = rounds[order]
        starts = np.searchsorted(in_order, evaluated)
        ends = np.searchsorted(in_order, evaluated, side="right")
        count = len(self.figures.clients)
        latest = np.full(count, np.nan)
        by_round: dict[int, Vector] = {}
        incomplete = 0
        for k, round_number in enumerate(evaluated):
            at = order[starts[k] : ends[k]]
            present = clients[at]
            figures = np.full(count, np.nan)
            figures[present] = values[at]
            is_carried = np.isnan(figures) & ~np.isnan(latest)
            if is_carried.any():
                incomplete += 1
            latest = np.where(is_carried, latest, figures)
            if k >= first_kept:
                by_round[int(round_number)] = latest
        if incomplete:
            self.say(
                f"{self.label}: in {incomplete} of {len(evaluated)} rounds some clients were not evaluated; they "
                "keep their latest figure."
            )
        return by_round

    def _first_kept(self, evaluated: Codes, least: int) -> int:
        clients = len(self.figures.clients)
        most = max(least, MOST_CELLS // clients)
        if len(evaluated) <= most:
            return 0
        self.say(f"Only the last {most} rounds are kept: there are {clients:,} clients.")
        return len(evaluated) - most

    def _check_missing(self, is_missing: "np.ndarray[tuple[int], np.dtype[np.bool_]]", drops_missing: bool) -> None:
        """Refuse cells without a number in rounds that were evaluated, unless they are to be left out."""
        missing = self.rows[is_missing]
        count = len(missing)
        if count == 0:
            return
        first = self.figures.describe(int(missing[0]))
        if not drops_missing:
            raise InputError(
                f"{self.figures.sheet}: {first} has no figure (NaN or empty; {counted(count, 'such cell')} in this "
                "run). Fill in the figures, or leave these clients out with --missing drop"
            )
        rows = counted(count, "row")
        self.say(f"{self.label}: left out {rows} without a figure, such as that of {first}.")
