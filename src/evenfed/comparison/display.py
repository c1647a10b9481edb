"""Tables and reports of results in Python; what draws them is loaded when something is shown."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.errors import InputError
from ..core.words import counted
from .analysis.history import History
from .storage.folder import RunFolder
from .storage.reading import read_folders

if TYPE_CHECKING:
    from rich.console import Console

    from ..report.document import Report
    from ..report.table import Table

SPREAD_NOTE = "±: the standard deviation over seeds (with their number in the denominator, as in the paper)."


def clients_in_words(clients: int, histories: Sequence[History]) -> str:
    """How many clients there are, and how many of them the figures are of, if these are fewer.

    Without test data, with one class for an AUC, or not drawn for evaluation, a client has no figure.
    """
    words = counted(clients, "client")
    scored = set()
    for history in histories:
        if history.final is not None and history.lost is None:
            scored.add(len(history.metric.known(history.final)))
    if not scored or scored == {clients}:
        return words
    fewest = min(scored)
    most = max(scored)
    if fewest == most:
        return f"{words}, {fewest} scored"
    return f"{words}, {fewest} to {most} scored"


class Shown:
    """What `print` and notebooks show as short tables."""

    def _tables(self) -> "Sequence[Table]":
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        from ..report import brief

        return "\n\n".join(map(brief.text, self._tables()))

    def _repr_html_(self) -> str:
        from ..report import brief

        return "\n".join(map(brief.as_html, self._tables()))


class ReportedRun(Protocol):
    """A result, as far as a report needs it."""

    @property
    def folder(self) -> Path | None: ...

    @property
    def window(self) -> int | None: ...

    def write_to(self, root: Path) -> RunFolder: ...


def report_on(
    results: Sequence[ReportedRun],
    folder: Path | None,
    out: str | Path | None,
    show: bool,
    full: bool,
) -> list[Path]:
    """Report on runs as `evenfed report` does: write the files, print the first table or all, name the files.

    `folder`: where the runs are kept; None: in memory.
    """
    from rich.console import Console

    from ..report.files import write_report

    target = None if folder is None else folder / "report"
    if out is not None:
        target = Path(out)
    if target is None:
        raise InputError('these runs are in memory; give the report a folder: report("reports/mine")')
    with _document(results, folder, target.resolve().name) as document:
        written = write_report(document, target, in_memory=folder is None)
    if show:
        page = Console(highlight=False, force_jupyter=False)
        print_report(document, page, full)
        page.print(f"\nWritten to {target}", markup=False)
    return written.paths


def print_report(document: "Report", page: "Console", full: bool) -> None:
    """Print the first table of a report, or all."""
    from ..report import terminal

    printed = document if full else document.in_brief(all_by="full=True")
    page.print(terminal.terminal(printed, page, document.headlines))


def page_on(results: Sequence[ReportedRun], folder: Path | None, path: Path) -> Path:
    """Write the page on runs to one file."""
    from ..report.files import prepare, write_page

    prepare(path.parent)
    with _document(results, folder, path.stem) as document:
        written = write_page(document, path, in_memory=folder is None)
    if written is None:
        raise InputError("the page needs the package that draws; install it with: pip install 'evenfed[report]'")
    return written


@contextmanager
def _document(results: Sequence[ReportedRun], folder: Path | None, name: str) -> Iterator["Report"]:
    """The report on runs in their folders; those in memory are put into temporary ones."""
    from ..report.document import Report

    with tempfile.TemporaryDirectory() as place:
        root = folder or Path(place) / name
        folders = []
        for result in results:
            kept = result.write_to(root) if result.folder is None else RunFolder(result.folder)
            folders.append(kept)
        findings = read_folders(root, folders)
        yield Report.of_findings([findings], beside_paper=False, last_rounds=results[0].window)
