"""A table read as the user asks for: its findings by one metric or several."""

from dataclasses import dataclass, replace
from pathlib import Path

from ..comparison.analysis.findings import Findings, Origin
from ..core.errors import InputError, check_choice, check_text, check_whole
from ..core.words import counted
from ..metrics import Metric
from . import column_roles
from .assemble import FindingsBuilder
from .column_roles import Roles
from .gather import Figures
from .sheet import InputTable
from .units import FRACTION, PERCENT, as_fractions


@dataclass(frozen=True)
class Options:
    """How to read a table, columns aside."""

    baseline: str | None = None
    lower_is_better: bool | None = None  # None: as the metric's name says
    unit: str | None = None
    missing: str = "refuse"
    last_rounds: int | None = None

    def __post_init__(self) -> None:
        check_text("baseline", self.baseline)
        if self.lower_is_better not in (None, True, False):
            raise InputError(f"lower_is_better={self.lower_is_better!r}: give True or False")
        check_choice("missing", self.missing, ("refuse", "drop"))
        if self.unit is not None:
            check_choice("unit", self.unit, (FRACTION, PERCENT))
        if self.last_rounds is not None:
            check_whole("last_rounds", self.last_rounds, 1)


@dataclass(frozen=True)
class Reading:
    """A table, which column of it is what, and where it is from."""

    sheet: InputTable
    columns: Roles
    path: Path
    options: Options
    origin: Origin  # without the facts, which follow from reading it

    def findings(self, name: str) -> Findings:
        """Of one metric: a column, or the name of what a wide table holds; empty if it has no name."""
        figures = Figures.of(self.sheet, self.columns, name)
        last_rounds = self.options.last_rounds or 1
        if last_rounds > 1 and column_roles.ROUND not in self.columns.columns:
            raise InputError(
                f"{self.sheet.name} has no column of rounds to average {last_rounds} of; name it (--round COLUMN; in "
                "Python round=...), or leave last_rounds out"
            )
        stated = name or self._named_in_columns()
        shown = stated or "score"
        metric = column_roles.metric_of(shown, self.options.lower_is_better)
        values, about_unit = as_fractions(figures, metric, shown, self.options.unit)
        facts = [
            *self.sheet.facts,
            self.columns.describe(),
            self._about(figures, metric, is_guess=not column_roles.says_direction(stated)),
        ]
        if about_unit:
            facts.append(about_unit)
        builder = FindingsBuilder(
            figures,
            values,
            metric,
            last_rounds=last_rounds,
            drops_missing=self.options.missing == "drop",
        )
        origin = replace(self.origin, facts=tuple(facts))
        return builder.findings(self.path, origin, self.options.baseline)

    def _named_in_columns(self) -> str:
        """What the columns of a wide table measure, if their names say it."""
        for column in self.columns.wide.values():
            if column_roles.is_metric(column):
                return column_roles.metric_in(column)
        return ""

    def _about(self, figures: Figures, metric: Metric, is_guess: bool) -> str:
        """How much was read, and which end is taken as better.

        `is_guess`: the metric's name does not say which.
        """
        parts = [
            counted(len(figures.clients), "client"),
            counted(len(figures.algorithms), "algorithm"),
            counted(len(figures.seeds), "seed"),
        ]
        if column_roles.ROUND in self.columns.columns:
            first = figures.round.min()
            last = figures.round.max()
            parts.append(f"rounds {first} to {last}")
        amount = ", ".join(parts)
        end = "higher" if metric.higher_is_better else "lower"
        sentence = f"{self.sheet.name}: {amount}; judged by {metric.name}, {end} is better"
        if self.options.lower_is_better is None and is_guess:
            sentence += " (a guess; reverse it with --lower-is-better)"
        return f"{sentence}."
