"""A comparison in the terminal: what `evenfed compare` shows when its runs have ended."""

from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..comparison.findings import Findings
from ..comparison.history import LASTING, METRICS, Row
from .tables import (
    LASTING_NOTE,
    METRIC_COLUMNS,
    Cell,
    Column,
    Table,
    accuracy_on,
    correlation,
    lines_of,
    measured,
    share,
    suppression_cells,
    tiny,
    title,
)
from .write import pages


def render(outcome: Findings, page: Console) -> RenderableType:
    """Two tables, told apart: averaged over the last rounds, and at the last round."""
    late, last = (_table(outcome, late) for late in (True, False))
    advice = [Text(f"! {told}", style="yellow") for told in outcome.advice]
    return Group(pages([late, replace(last, notes=_notes(outcome))], page), *advice)


def _table(outcome: Findings, late: bool) -> Table:
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

    when = f"average of the last {outcome.last_rounds} rounds" if late else "last round"
    return Table("", when, columns, lines_of(outcome, cells)).with_best()


def _notes(outcome: Findings) -> tuple[str, ...]:
    """What the figures of both tables are."""
    spread = f"mean ± spread over {len(outcome.seeds)} seeds" if len(outcome.seeds) > 1 else "one seed, so no spread"
    told = (
        f"{accuracy_on(outcome.judge)} in % over clients, {spread}; best in bold. {LASTING_NOTE} Improved suffering: "
        "share of the clients below FedAvg's mean that gain, in %; degraded well-performing: of those above it that "
        "lose (mean change in points). Weight moved: how much of it stands elsewhere than with FedAvg."
    )
    told += " Chance alone: FedAvg again with other seeds." * (outcome.floor is not None)
    repeated = sorted(e.label for e in outcome.controls if e is not outcome.floor)
    told += f" {', '.join(repeated)}: the same in another precision." * bool(repeated)
    return (told, *outcome.left_out, *tiny(outcome.judged_sizes))
