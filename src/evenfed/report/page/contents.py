"""All that a page says, before it becomes HTML: of a report, or of a search."""

import base64
import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...comparison.analysis.findings import Entry
from ...comparison.runs import FLOOR_NAMES
from ...core.printable import printable
from ..charts import report as charts
from ..charts.chart import Chart, Row
from ..charts.chart_clients import unique
from ..charts.saving import drawable, in_texts
from ..charts.theme import THEMES, looks
from ..document import Report
from ..table import Cell, Line, Table
from ..tables import title
from . import evidence, glance, sources, verdict
from .glance import Described, Glance
from .verdict import Verdict

_MOST_NAMES = 2000  # clients to choose from in a list; more are not drawn one by one either
_PRECISION = 8  # digits of a number in a table
_NEXT_TO_AUDITS = "The same figures are in report.md and tables.csv, next to this page."
_IN_PYTHON = "In Python, `report(FOLDER)` writes the same figures to report.md and tables.csv."


@dataclass(frozen=True)
class Page:
    """The contents of a page, from top to bottom."""

    title: str
    facts: Sequence[str]  # what was run, on what; what had to be left out
    verdicts: Sequence[Verdict]  # one, or one for each set-up
    glances: Sequence[Glance]
    tables: Sequence[Table]
    charts: Sequence[Chart]
    entries: Sequence[Entry] = ()
    labels: Sequence[str] = ()  # of entries, where there is no more of them
    seeds: Sequence[int] = ()
    clients: Sequence[str] = ()
    provenance: Sequence[tuple[str, str]] = ()  # a term and its text
    commands: Sequence[str] = ()  # that make the runs and this page again
    elsewhere: str = "`evenfed report FOLDER` writes the same figures to report.md and tables.csv."

    def describe(self) -> tuple[Described, str]:
        """As JSON, and the data of its charts in letters that HTML leaves alone."""
        content = {
            "title": self.title,
            "facts": self.facts,
            "verdicts": [verdict.describe() for verdict in self.verdicts],
            "glances": list(map(asdict, self.glances)),
            "tables": list(map(_table, self.tables)),
            "entries": _entries(self.entries) or [{"label": label, "name": label} for label in self.labels],
            "seeds": self.seeds,
            "clients": self.clients,
            "themes": {name: theme.config for name, theme in THEMES.items()},
            "charts": list(map(_chart, self.charts)),
            "provenance": self.provenance,
            "commands": self.commands,
        }
        columns = [_columns(chart.rows) for chart in self.charts]
        text = json.dumps(columns, allow_nan=False, separators=(",", ":"))
        compressed = gzip.compress(text.encode(), mtime=0)
        return in_texts(content, printable), base64.b64encode(compressed).decode("ascii")


def _chart(chart: Chart) -> Described:
    return {
        "name": chart.name,
        "title": chart.title,
        "says": chart.says,
        "spec": drawable(chart.spec),
        "narrow": drawable(chart.narrow),
    }


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The values of each name, None where a row has none: half the size of rows."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return {name: [_known(row.get(name)) for row in rows] for name in names}


def _known(value: Any) -> Any:
    """As JSON has it, which knows no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return drawable(value)


def of_report(report: Report, in_memory: bool = False) -> Page:
    """The page of a comparison, of the same on several federations, or of several set-ups.

    `in_memory`: the runs were not kept, so that no command and no folder leads back to them.
    """
    comparisons = report.findings
    bases = evidence.bases(comparisons, report.pooled)
    facts = report.facts
    folder = f"{comparisons[0].folder.name}, " if len(comparisons) > 1 else ""
    seeds: set[int] = set()
    names: dict[str, None] = {}
    for findings in comparisons:
        seeds.update(findings.seeds)
        names |= dict.fromkeys(unique(findings.header.clients["names"]))
    elsewhere = _IN_PYTHON if in_memory else Page.elsewhere
    if comparisons[0].origin is not None:
        elsewhere = _NEXT_TO_AUDITS
    return Page(
        title=_title(report),
        facts=[facts[0].removeprefix(folder), *facts[1:]],
        verdicts=verdict.each(bases),
        glances=[glance.of(base, name) for name, base in bases.items()],
        tables=report.tables,
        charts=_charts(report),
        entries=comparisons[0].everyone,
        seeds=sorted(seeds),
        clients=list(names) if len(names) <= _MOST_NAMES else [],
        provenance=sources.terms(comparisons, in_memory),
        commands=sources.commands(comparisons, in_memory),
        elsewhere=elsewhere,
    )


def _charts(report: Report) -> list[Chart]:
    """Of one comparison, or of all federations and then of the first one by itself."""
    first = report.findings[0]
    if report.pooled is None or len(report.findings) == 1:
        return charts.of(first)
    together = charts.across(report.pooled.comparisons)
    names = [chart.name for chart in together]
    where = first.folder.name
    for chart in charts.of(report.pooled.findings):
        if chart.name in names:
            continue
        title = f"{chart.title} ({where} alone)"
        alone = replace(chart, title=title)
        together.append(alone)
    return together


def _title(report: Report) -> str:
    """The name of the folder; of the federations of one experiment, the experiment's."""
    splits = len(report.findings)
    outer = set()
    for findings in report.findings:
        folder = findings.folder.resolve()
        outer.add(folder.parent.name)
    if splits == 1 or report.pooled is None or len(outer) > 1:
        return report.title
    experiment = outer.pop()
    return f"{experiment}: {splits} splits of the data"


def _entries(entries: Sequence[Entry]) -> list[Described]:
    """Each with its colour and shape in the charts."""
    described = []
    for label, look in looks(entries).items():
        name = FLOOR_NAMES.get(label, label)
        described.append({"label": label, "name": name, **asdict(look)})
    return described


def _table(table: Table) -> Described:
    """A table as a reader sees it, with the numbers to sort by."""
    return {
        "name": table.name,
        "title": table.title,
        "head": table.head,
        "parts": table.part_head if table.has_parts else None,
        "columns": [column.title for column in table.columns],
        "lines": [_line(line, table.document_digits) for line in table.lines],
        "notes": table.notes,
    }


def _line(line: Line, digits: int) -> list[Any]:
    """The entry, its part, whether it is of the noise floor, and its cells."""
    cells = [_cell(cell, digits) for cell in line.cells]
    return [title(line.entry), title(line.part), line.control, cells]


def _cell(cell: Cell, digits: int) -> list[Any]:
    """The text, the number to sort by, and whether it is the best."""
    value = cell.value
    if value is not None:
        rounded = f"{value:.{_PRECISION}g}"
        value = float(rounded)
    if value != value:
        value = None
    text = cell.text(digits)
    text = text.replace("±", " ± ")
    return [text, value, cell.best]
