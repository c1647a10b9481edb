"""A comparison as a table in the terminal."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..history import LASTING, Row
from ..runner import Outcome
from .tables import LASTING_NOTE, accuracy_on, tiny


@dataclass(frozen=True)
class Column:
    """One figure of a row: how to read it, how to write it, and which end is better (0: neither)."""

    title: str
    value: Callable[[Row, bool], float]
    write: Callable[[Row, bool], str]
    better: int = 0


def _percent(name: str, title: str, better: int) -> Column:
    def value(row: Row, late: bool) -> float:
        return (row.late if late else row.last).get(name, (float("nan"), 0.0))[0]

    def write(row: Row, late: bool) -> str:
        mean, spread = (row.late if late else row.last).get(name, (float("nan"), float("nan")))
        if np.isnan(mean):
            return "-"
        return f"{100 * mean:.1f}" + (f"±{100 * spread:.1f}" if row.seeds > 1 else "")

    return Column(title, value, write, better)


def _effect(name: str, gain: str, title: str, better: int) -> Column:
    def value(row: Row, late: bool) -> float:
        return (row.late if late else row.last).get(name, (float("nan"), 0.0))[0]

    def write(row: Row, late: bool) -> str:
        figures = row.late if late else row.last
        if row.label == "fedavg" or name not in figures or np.isnan(figures[name][0]):
            return "-"
        return f"{100 * figures[name][0]:.0f} % ({100 * figures[gain][0]:+.1f})"

    return Column(title, value, write, better)


METRICS = [
    _percent("mean", "mean", +1),
    _percent("std", "std", -1),
    _percent("worst", "worst", +1),
    _percent("worst10", "worst\n10 %", +1),
    _percent("worst20", "worst\n20 %", +1),
    _percent("best10", "best\n10 %", +1),
]
LASTED = _percent(LASTING, "lasting\nworst 10 %", +1)
EFFECTS = [
    _effect("improved", "suffering_gain", "improved\nsuffering", 0),
    _effect("degraded", "well_gain", "degraded\nwell-served", 0),
    Column("negative\nrounds", lambda r, _: r.negative_rounds, lambda r, _: f"{r.negative_rounds:.0f}"),
    Column("weight\nmoved", lambda r, _: r.moved, lambda r, _: _share(r.moved)),
    Column("oscil-\nlation", lambda r, _: r.oscillation, lambda r, _: _plain(r.oscillation)),
]


def render(outcome: Outcome, page: Console) -> RenderableType:
    """Two tables, told apart: averaged over the last rounds, and at the last round; cut in two where narrow."""
    whole = Console(width=400).measure(_table(outcome, [*METRICS, LASTED, *EFFECTS], True, "")).maximum
    parts: list[RenderableType] = []
    for late in (True, False):
        when = f"average of the last {outcome.last_rounds} rounds" if late else "last round"
        rest = [LASTED, *EFFECTS] if late else EFFECTS
        for columns in [METRICS + rest] if whole <= page.width else [METRICS, rest]:
            parts += [_table(outcome, columns, late, when, narrow=whole > page.width), ""]
    spread = f"mean ± spread over {outcome.seeds} seeds" if outcome.seeds > 1 else "one seed, so no spread"
    floor = " Chance alone: FedAvg again with other seeds." * (outcome.floor is not None)
    floor += f" {', '.join(sorted(outcome.controls))}: the same in another precision." * bool(outcome.controls)
    told = (
        f"{accuracy_on(outcome.judge)} in % over clients, {spread}; best in bold. {LASTING_NOTE} Improved suffering: "
        "clients below FedAvg's mean that gain; degraded well-served: clients above it that lose (mean change in "
        f"points). Weight moved: how much of it stands elsewhere than with FedAvg.{floor}"
    )
    parts += [Text(note, style="dim") for note in (told, *tiny(outcome.judged))]
    parts += [Text(f"! {advice}", style="yellow") for advice in outcome.advice]
    return Group(*parts)


def _table(outcome: Outcome, columns: Sequence[Column], late: bool, when: str, narrow: bool = False) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"[bold]{when}[/]",
        title_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("algorithm", overflow="fold", min_width=12)
    shown = [*outcome.rows, *([outcome.floor] if outcome.floor else [])]
    for column in columns:
        widest = max(len(column.write(row, late)) for row in shown)
        table.add_column(column.title, justify="right", no_wrap=True, min_width=widest)
    competing = [row for row in outcome.rows if row.label not in outcome.controls]
    best = [_best(competing, column, late) for column in columns]
    for row in competing:
        cells = [
            f"[bold]{c.write(row, late)}[/]" if c.value(row, late) == top else c.write(row, late)
            for c, top in zip(columns, best, strict=True)
        ]
        table.add_row(escape(row.label.replace("[", "\n[") if narrow else row.label), *cells)
    repeated = [(row.label, row) for row in outcome.rows if row.label in outcome.controls]
    floor = [("chance alone", outcome.floor)] if outcome.floor else []
    if floor or repeated:
        table.add_section()
    for name, row in (*floor, *repeated):
        table.add_row(escape(name), *(c.write(row, late) for c in columns), style="dim")
    return table


def _best(rows: Sequence[Row], column: Column, late: bool) -> float | None:
    values = [v for v in (column.value(r, late) for r in rows) if not np.isnan(v)]
    return max(values, key=lambda v: column.better * v) if column.better and values else None


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f} %" if value <= 10 else "> 1000 %"


def _plain(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:+.2f}"


def console(stderr: bool = False) -> Console:
    """The terminal, or a wide page where output goes to a file and COLUMNS does not say how wide."""
    found = Console(stderr=stderr, highlight=False)
    told = found.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return found if told else Console(stderr=stderr, highlight=False, width=160)
