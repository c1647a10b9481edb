"""A comparison in the terminal: what `evenfed compare` shows when its runs have ended."""

import os
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..comparison.history import LASTING, METRICS, Row
from ..comparison.plan import FLOOR_LABEL
from ..comparison.runner import Outcome
from .tables import (
    LASTING_NOTE,
    METRIC_COLUMNS,
    Cell,
    Column,
    Line,
    Table,
    accuracy_on,
    correlation,
    few_examples,
    measured,
    share,
    suppression_cells,
    title,
)
from .write import pages


def render(outcome: Outcome, page: Console) -> RenderableType:
    """Two tables, told apart: averaged over the last rounds, and at the last round."""
    late, last = (_table(outcome, late) for late in (True, False))
    advice = [Text(f"! {told}", style="yellow") for told in outcome.advice]
    return Group(pages([late, replace(last, notes=_notes(outcome))], page), *advice)


def _table(outcome: Outcome, late: bool) -> Table:
    columns = (
        *METRIC_COLUMNS,
        *((Column(LASTING, title(LASTING), +1),) if late else ()),
        Column("improved", "improved suffering"),
        Column("degraded", "degraded well-perf."),
        Column("negative", "negative rounds"),
        Column("moved", "weight moved, %"),
        Column("oscillation", "oscil- lation"),
    )

    def cells(row: Row) -> tuple[Cell, ...]:
        own = [measured(row, late, m) for m in (*METRICS, *([LASTING] if late else []))]
        against = [replace(cell, spread=None, digits=1) for cell in suppression_cells(row, late)[:2]]
        if row.label == "fedavg":
            against = [Cell(), Cell()]
        return (*own, *against, Cell(row.negative_rounds, digits=0), share(row.moved), correlation(row.oscillation))

    competing = [Line(row.label, cells(row)) for row in outcome.rows if row.label not in outcome.controls]
    floor = [Line(FLOOR_LABEL, cells(outcome.floor), control=True)] if outcome.floor else []
    repeated = [Line(row.label, cells(row), control=True) for row in outcome.rows if row.label in outcome.controls]
    when = f"average of the last {outcome.last_rounds} rounds" if late else "last round"
    return Table("", when, columns, (*competing, *floor, *repeated)).with_best()


def _notes(outcome: Outcome) -> tuple[str, ...]:
    """What the figures of both tables are."""
    spread = f"mean ± spread over {outcome.seeds} seeds" if outcome.seeds > 1 else "one seed, so no spread"
    told = (
        f"{accuracy_on(outcome.judge)} in % over clients, {spread}; best in bold. {LASTING_NOTE} Improved suffering: "
        "share of the clients below FedAvg's mean that gain, in %; degraded well-performing: of those above it that "
        "lose (mean change in points). Weight moved: how much of it stands elsewhere than with FedAvg."
    )
    told += " Chance alone: FedAvg again with other seeds." * (outcome.floor is not None)
    told += f" {', '.join(sorted(outcome.controls))}: the same in another precision." * bool(outcome.controls)
    return (told, *few_examples(outcome.judged))


def console(stderr: bool = False) -> Console:
    """The terminal, or a wide page where output goes to a file and COLUMNS does not say how wide."""
    found = Console(stderr=stderr, highlight=False)
    told = found.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return found if told else Console(stderr=stderr, highlight=False, width=160)
