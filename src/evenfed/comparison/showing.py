"""Tables and reports of results in Python; what draws them is loaded when something is shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError
from .folder import RunFolder
from .history import History, Row
from .reading import read_folders

if TYPE_CHECKING:
    from ..report.table import Table


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things in words.

    >>> counted(1, "round"), counted(2, "entry", "entries")
    ('1 round', '2 entries')
    """
    if number == 1:
        return f"1 {one}"
    return f"{number} {many or one + 's'}"


def title_of_comparison(entries: int, seeds: int, rounds: int, clients: int, late: int) -> str:
    """What was compared, and over how many last rounds figures are averaged."""
    parts = [
        counted(entries, "entry", "entries"),
        counted(seeds, "seed"),
        counted(rounds, "round"),
        counted(clients, "client"),
    ]
    return f"{', '.join(parts)}; average of the last {counted(late, 'round')}"


def table_of_run(title: str, history: History, notes: Sequence[str]) -> "Table":
    """A run in two lines."""
    from ..report import brief

    return brief.of_run(title, history, notes)


def table_of_comparison(
    title: str,
    rows: Sequence[Row],
    floor: Row | None,
    notes: Sequence[str],
) -> "Table":
    """A comparison, one line per entry."""
    from ..report import brief

    return brief.of_comparison(title, rows, floor, notes)


def as_text(table: "Table") -> str:
    """For `print`."""
    from ..report import brief

    return brief.text(table)


def as_html(table: "Table") -> str:
    """For notebooks."""
    from ..report import brief

    return brief.as_html(table)


def target_of(folder: Path | None, out: str | Path | None) -> Path:
    """The folder a report goes to."""
    if out is not None:
        return Path(out)
    if folder is None:
        raise InputError('these runs are in memory; give the report a folder: report("reports/mine")')
    return folder / "report"


def report_on(
    root: Path,
    folders: Sequence[RunFolder],
    target: Path,
    show: bool,
    last_rounds: int | None = None,
) -> list[Path]:
    """Report on runs in `root` as `evenfed report` does: write the files, print the tables, name the files."""
    from rich.console import Console

    from ..report import write
    from ..report.document import Report
    from ..report.files import write_report

    findings = read_folders(root, folders)
    document = Report.of_findings([findings], beside_paper=False, last_rounds=last_rounds)
    written = write_report(document, target)
    if show:
        page = Console(highlight=False, force_jupyter=False)
        page.print(write.terminal(document, page))
        page.print(f"\nWritten to {target}", markup=False)
    return written.paths
