"""How to search, what to choose by, and what a search has tried."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...core.errors import InputError, check_choice, unknown
from ...fairness import FIGURES
from ...metrics import ACCURACY, Metric
from .search_space import Grid

BATCH = 12

Values = dict[str, Any]  # of a candidate, by hyper-parameter or option
Figures = dict[str, float]  # what a candidate scored, by metric


@dataclass(frozen=True)
class Search:
    """How to search, and what to choose by."""

    method: Literal["grid", "bayes"] = "grid"
    trials: int = 20  # per entry, for method = "bayes"
    select_on: Literal["validation", "test"] = "validation"
    metric: str = "worst10"
    storage: str | None = None  # a database's URL; None: SQLite in the output folder
    batch: int = BATCH  # candidates trained together
    judged_by: Metric = ACCURACY  # what clients are judged by, which the metric is of
    grid: Grid = field(default_factory=dict)  # values to try by name, beside or instead of those declared

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Search":
        """From a table [tune] of an experiment."""
        allowed = [option.name for option in dataclasses.fields(cls) if option.name != "judged_by"]
        for name in table:
            if name not in allowed:
                raise unknown("key of tune", name, allowed)
        return cls(**table)

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("grid", "bayes"))
        check_choice("select-on", self.select_on, ("validation", "test"))
        check_choice("metric", self.metric, FIGURES)
        _check_positive("trials", self.trials)
        _check_positive("batch", self.batch)
        if not isinstance(self.grid, Mapping):
            raise InputError(f"tune.grid = {self.grid!r}; give a table of lists, e.g. [tune.grid]")

    def rank(self, figures: Figures) -> tuple[float, float]:
        """What is compared: the metric, and the mean where it ties."""
        figure = self.judged_by.direction(self.metric) * figures[self.metric]
        mean = self.judged_by.sign * figures["mean"]
        return figure, mean


@dataclass(frozen=True)
class Candidate:
    """One finished trial: what was tried, and its scores (mean over seeds, last rounds)."""

    label: str
    values: Values
    figures: Figures


def _check_positive(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise InputError(f"{name}={value}: give a whole number, at least 1")
