"""How to search: what to choose by, and what to try of learning rates and hyper-parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ...core.errors import InputError, check_choice, check_whole, unknown
from ...fairness import FIGURES
from ...metrics import ACCURACY, Metric
from ...settings import VARIANT
from ..variants import Variant, is_same_name

BATCH = 12
LEARNING_RATES = {
    "images": (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    "sequences": (1e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0),
}  # the paper's; 0.2 is not in its stated grid for sequences, but is the best value it reports

Choices = tuple[Any, ...]
Space = dict[str, Choices]  # values to try, by hyper-parameter or option
Grid = Mapping[str, Any]  # of a table [tune.grid]
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
    grid: Grid = field(default_factory=dict)  # values to try by name, besides or instead of those declared

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("grid", "bayes"))
        check_choice("select-on", self.select_on, ("validation", "test"))
        check_choice("metric", self.metric, FIGURES)
        check_whole("trials", self.trials, 1)
        check_whole("batch", self.batch, 1)
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


def space_of(variant: Variant, kind: str, grid: Grid = {}) -> Space:
    """The values to try for an entry; `grid`, a list of values by name, replaces what is declared.

    >>> space_of(Variant.parse("qffl"), "images", {"lr": [0.1], "qffl": {"q": [1.0, 2.0]}})
    {'lr': (0.1,), 'q': (1.0, 2.0)}
    """
    space: Space = {"lr": LEARNING_RATES[kind]}
    own_names = _names_of(variant)
    for hyper_parameter in fields(variant.algorithm):
        declared = hyper_parameter.metadata.get("grid")
        if declared:
            space[hyper_parameter.name] = tuple(declared)
    for name, values in grid.items():
        if not isinstance(values, Mapping):
            if name in own_names:
                space[name] = _choices(name, values)
            continue
        labels = (variant.label, variant.algorithm.name)
        if not any(is_same_name(label, name) for label in labels):
            continue
        for option, own_values in values.items():
            if option not in own_names:
                raise unknown(f"name in [tune.grid.{name}]", option, own_names)
            space[option] = _choices(f"{name}.{option}", own_values)
    return space


def untuned(variant: Variant, space: Space) -> dict[str, Any]:
    """The hyper-parameters that stay at their values, as no grid says what to try."""
    values = {}
    for hyper_parameter in fields(variant.algorithm):
        name = hyper_parameter.name
        if name not in space:
            values[name] = getattr(variant.algorithm, name)
    return values


def check_grid(grid: Grid, variants: Sequence[Variant]) -> None:
    """Refuse names that belong to no entry."""
    labels = []
    names = set()
    for variant in variants:
        labels += [variant.label, variant.algorithm.name]
        names.update(_names_of(variant))
    for name, values in grid.items():
        known = name in names
        if isinstance(values, Mapping):
            known = any(is_same_name(label, name) for label in labels)
        if not known:
            allowed = dict.fromkeys([*labels, *sorted(names)])
            raise unknown("name in [tune.grid]", name, allowed)


def _names_of(variant: Variant) -> list[str]:
    hyper_parameters = [each.name for each in fields(variant.algorithm)]
    return [*hyper_parameters, *VARIANT]


def _choices(name: str, values: Any) -> Choices:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not values:
        raise InputError(f"tune.grid.{name} = {values!r}; give a list of values, e.g. [0.1, 0.5, 1.0]")
    choices = []
    for value in values:
        if isinstance(value, list | dict):
            raise InputError(f"tune.grid.{name} = {values!r}; give plain values, e.g. [0.1, 0.5, 1.0]")
        choice = None if value == "none" else value
        choices.append(choice)
    return tuple(choices)
