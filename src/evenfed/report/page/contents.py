"""All that a page says, before it becomes HTML: of a report, or of a search."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...comparison.beside import names_of
from ...comparison.federations import folders_inside
from ...comparison.findings import Entry, Findings
from ...comparison.runs import FLOOR_NAMES
from ...comparison.statistics import Differences
from ...core.visible import visible, without_passwords
from .. import charts
from ..charts.chart import Chart
from ..charts.saving import drawable
from ..charts.theme import THEMES, looks
from ..document import Report
from ..table import Cell, Line, Table
from ..tables import title
from . import basis, glance, verdict
from .glance import Glance
from .packing import Packer
from .verdict import Verdict

_MOST_NAMES = 2000  # clients to choose from in a list; more are not drawn one by one either
_PRECISION = 8  # digits of a number in a table


@dataclass(frozen=True)
class Page:
    """What stands on a page, from top to bottom."""

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

    def describe(self) -> tuple[dict[str, Any], str]:
        """As JSON, and its numbers as packed columns."""
        packer = Packer()
        charts = []
        for chart in self.charts:
            charts.append(
                {
                    "name": chart.name,
                    "title": visible(chart.title),
                    "says": visible(chart.says),
                    "spec": drawable(chart.spec),
                    "rows": packer.rows(chart.rows),
                }
            )
        content = {
            "title": visible(self.title),
            "facts": list(map(visible, self.facts)),
            "verdicts": list(map(_verdict, self.verdicts)),
            "glances": [each.describe() for each in self.glances],
            "tables": list(map(_table, self.tables)),
            "entries": _entries(self.entries) or _labels(self.labels),
            "seeds": list(self.seeds),
            "clients": list(map(visible, self.clients)),
            "themes": {name: theme.config for name, theme in THEMES.items()},
            "charts": charts,
            "provenance": [[term, visible(text)] for term, text in self.provenance],
            "commands": list(map(visible, self.commands)),
        }
        return content, packer.text()


def of_report(report: Report, in_memory: bool = False) -> Page:
    """The page of a comparison, of the same on several federations, or of several set-ups.

    `in_memory`: the runs were not kept, so that no command and no folder leads back to them.
    """
    comparisons = report.findings
    bases = _bases(report)
    verdicts = []
    for name, base in bases.items():
        judged = verdict.of(base)
        verdicts.append(judged.about(name) if name else judged)
    commands: list[str] = []
    if not in_memory:
        commands = [*_commands(comparisons), _report_command(comparisons)]
    origin = comparisons[0].origin
    if origin is not None:
        commands = [origin.command] if origin.command else []
    return Page(
        title=_title(report),
        facts=_facts(report),
        verdicts=verdicts,
        glances=[glance.of(base, name) for name, base in bases.items()],
        tables=report.tables,
        charts=_charts(report),
        entries=comparisons[0].everyone,
        seeds=_seeds(comparisons),
        clients=_clients(comparisons),
        provenance=_provenance(comparisons, in_memory),
        commands=commands,
    )


def _charts(report: Report) -> list[Chart]:
    """Of one comparison, or of all federations and then of the first one by itself."""
    first = report.findings[0]
    if report.pooled is None or len(report.findings) == 1:
        return charts.of(first)
    together = charts.across(report.pooled.comparisons)
    names = {chart.name for chart in together}
    alone = []
    for chart in charts.of(report.pooled.findings):
        if chart.name not in names:
            alone.append(replace(chart, title=f"{chart.title} ({first.folder.name} alone)"))
    return [*together, *alone]


def _title(report: Report) -> str:
    """The name of the folder; of the federations of one experiment, the experiment's."""
    if len(report.findings) == 1:
        return report.title
    parents = {findings.folder.resolve().parent for findings in report.findings}
    if report.pooled is None or len(parents) > 1:
        return report.title
    return f"{parents.pop().name}: {len(report.findings)} splits of the data"


def _facts(report: Report) -> list[str]:
    """What was run first, without the name of a federation's folder."""
    first, *others = report.facts
    if len(report.findings) > 1:
        first = first.removeprefix(f"{report.findings[0].folder.name}, ")
    return [first, *others]


def _bases(report: Report) -> dict[str, basis.Basis]:
    """What verdicts rest on: one for all federations, or one for each set-up by its name."""
    if report.pooled is not None:
        return {"": basis.chosen(report.pooled.comparisons, report.pooled)}
    bases = {}
    for name, findings in zip(names_of(report.findings), report.findings, strict=True):
        late = Differences([findings], late=True)
        bases[name] = basis.chosen([findings], late)
    return bases


def _seeds(comparisons: Sequence[Findings]) -> list[int]:
    seeds: set[int] = set()
    for findings in comparisons:
        seeds.update(findings.seeds)
    return sorted(seeds)


def _clients(comparisons: Sequence[Findings]) -> list[str]:
    """Their names, if they are few enough for a list."""
    names: dict[str, None] = {}
    for findings in comparisons:
        names.update(dict.fromkeys(map(str, findings.header.clients["names"])))
    return list(names) if len(names) <= _MOST_NAMES else []


def _entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Each with its colour and shape in the charts."""
    described = []
    for label, look in looks(entries).items():
        described.append({"label": visible(label), "name": visible(FLOOR_NAMES.get(label, label)), **vars(look)})
    return described


def _labels(labels: Sequence[str]) -> list[dict[str, Any]]:
    """The same of entries that have no look of their own."""
    return [{"label": visible(label), "name": visible(label)} for label in labels]


def _verdict(judged: Verdict) -> dict[str, Any]:
    details = [[heading, visible(text)] for heading, text in judged.details]
    return {
        "sentence": visible(judged.sentence),
        "names": list(map(visible, judged.names)),
        "details": details,
        "notes": list(judged.notes),
    }


def _table(table: Table) -> dict[str, Any]:
    """A table as a reader sees it, with the numbers to sort by."""
    shown = table.shown()
    heads = [column.title for column in shown.columns]
    lines = []
    for line in shown.lines:
        lines.append(_line(line, table.document_digits))
    return {
        "name": table.name,
        "title": shown.title,
        "head": table.head,
        "parts": table.has_parts,
        "columns": heads,
        "lines": lines,
        "notes": list(shown.notes),
    }


def _line(line: Line, digits: int) -> list[Any]:
    """The entry, its part, whether it is of the noise floor, and its cells."""
    cells = [_cell(cell, digits) for cell in line.cells]
    return [title(line.entry), title(line.part), line.control, cells]


def _cell(cell: Cell, digits: int) -> list[Any]:
    """The text, the number to sort by, and whether it is the best."""
    value = None
    if cell.value is not None and cell.value == cell.value:
        value = float(f"{cell.value:.{_PRECISION}g}")
    return [cell.text(digits).replace("±", " ± "), value, cell.best]


def _provenance(comparisons: Sequence[Findings], in_memory: bool) -> list[tuple[str, str]]:
    """Versions, hardware, data, model and settings of the baseline's first run; entries' own values are their names."""
    first = comparisons[0]
    header = first.header
    source = header.provenance
    days = [run.started for run in first.made]
    terms = {
        "Runs started": f"{min(days)} to {max(days)}" if days else "",
        "Folders": "" if in_memory else ", ".join(map(str, _folders(comparisons))),
        "Versions": _assignments(source.get("versions") or {}),
        "Commit": source.get("commit") or "",
        "Hardware": _assignments(source.get("hardware") or {}),
        "Device": header.device or "",
        "Engine": header.engine or "",
    }
    if first.origin is not None:
        terms |= first.origin.source
    else:
        for name in ("data", "model", "train"):
            terms[f"[{name}]"] = _assignments(header.config.get(name) or {})
    return [(term, text) for term, text in terms.items() if text]


def _assignments(table: Mapping[str, Any]) -> str:
    """The values of a table that are set."""
    pairs = []
    for key, value in table.items():
        if value is not None:
            pairs.append(f"{key} = {value}")
    return ", ".join(pairs)


def _commands(comparisons: Sequence[Findings]) -> list[str]:
    """What was typed to make the runs, as far as they say."""
    commands: dict[str, None] = {}
    for findings in comparisons:
        command = str(findings.header.provenance.get("command") or "")
        _, _, arguments = command.partition(" ")
        is_ours = arguments.startswith(("compare", "report", "tune"))
        typed = f"evenfed {arguments}" if is_ours else command
        if typed:
            commands[without_passwords(typed)] = None
    return list(commands)


def _report_command(comparisons: Sequence[Findings]) -> str:
    """What makes this page."""
    words = ["evenfed", "report"]
    for folder in _folders(comparisons):
        words.append(shlex.quote(str(folder)))
    least = comparisons[0].min_test
    if least:
        words += ["--min-test", str(least)]
    return " ".join(words)


def _folders(comparisons: Sequence[Findings]) -> list[Path]:
    """Those of the comparisons; the one they are in, if they are all its federations."""
    folders = [findings.folder for findings in comparisons]
    outer = folders[0].parent
    if len(folders) > 1 and outer.is_dir() and folders_inside(outer) == folders:
        return [outer]
    return folders
