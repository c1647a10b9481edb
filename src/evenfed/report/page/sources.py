"""Where a page's numbers come from: versions, hardware, settings, and the commands that make them again."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...comparison.analysis.findings import Findings
from ...comparison.federations import folders_inside
from ...core.printable import without_passwords

_TABLES = ("data", "model", "train")  # of a run's configuration
_OURS = ("compare", "report", "tune")  # commands whose program is `evenfed`, by whatever path it was called


def terms(comparisons: Sequence[Findings], in_memory: bool) -> list[tuple[str, str]]:
    """Versions, hardware, data, model and settings of the baseline's first run; entries' own values are their names."""
    first = comparisons[0]
    header = first.header
    source = header.provenance
    started = [run.started for run in first.made]
    texts = {
        "Runs started": f"{min(started)} to {max(started)}" if started else "",
        "Folders": "",
        "Versions": _assignments(source.get("versions")),
        "Commit": source.get("commit"),
        "Hardware": _assignments(source.get("hardware")),
        "Device": header.device,
        "Engine": header.engine,
    }
    if not in_memory:
        folders = map(str, _folders(comparisons))
        texts["Folders"] = ", ".join(folders)
    if first.origin is not None:
        texts |= first.origin.source
    else:
        for name in _TABLES:
            table = header.config.get(name)
            texts[f"[{name}]"] = _assignments(table)
    known = []
    for term, text in texts.items():
        if text:
            known.append((term, str(text)))
    return known


def _assignments(table: Mapping[str, Any] | None) -> str:
    """The values of a table that are set."""
    pairs = []
    for key, value in (table or {}).items():
        if value is not None:
            pairs.append(f"{key} = {value}")
    return ", ".join(pairs)


def commands(comparisons: Sequence[Findings], in_memory: bool) -> list[str]:
    """What was typed to make the runs, as far as they say, and what makes the page."""
    origin = comparisons[0].origin
    if origin is not None:
        return [origin.command] if origin.command else []
    if in_memory:
        return []
    every: dict[str, None] = {}
    for findings in comparisons:
        for run in findings.made:
            if run.command:
                every[_typed(run.command)] = None
    report = ["evenfed", "report", *map(str, _folders(comparisons))]
    if comparisons[0].min_test:
        report += ["--min-test", str(comparisons[0].min_test)]
    return [*every, shlex.join(report)]


def _typed(command: str) -> str:
    """A command that was recorded, as a reader types it."""
    _, _, arguments = command.partition(" ")
    if arguments.startswith(_OURS):
        command = f"evenfed {arguments}"
    return without_passwords(command)


def _folders(comparisons: Sequence[Findings]) -> list[Path]:
    """Those of the comparisons; the one they are in, if they are all its federations."""
    folders = [findings.folder for findings in comparisons]
    outer = folders[0].parent
    if len(folders) == 1 or not outer.is_dir():
        return folders
    inside = folders_inside(outer)
    return [outer] if inside == folders else folders
