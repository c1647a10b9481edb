"""A report's files: tables, figures and a page in a folder, the same from Python and the command line."""

from dataclasses import dataclass
from pathlib import Path

from ..comparison.federations import expanded, has_results, title
from ..comparison.tuning.choose import Choice
from ..comparison.tuning.tune import Tuned
from ..core.errors import InputError
from ..core.files import replace_text
from . import cached_report, choice, write
from .charts import choice as choice_chart
from .charts.report import of_report
from .charts.saving import save_all
from .document import Report
from .page import contents
from .page.contents import Page
from .page.search import of_search
from .page.write import PAGE, html, runtime

CHOICE = "choice.json"


@dataclass(frozen=True)
class WrittenFiles:
    """What was written where."""

    folder: Path
    tables: list[Path]
    drawn: list[Path]  # each figure in several formats; empty without the package that draws
    page: Path | None = None  # likewise

    @property
    def paths(self) -> list[Path]:
        every = [*self.tables, *self.drawn]
        if self.page is not None:
            every.append(self.page)
        return every


@dataclass(frozen=True)
class ReportRequest:
    """What a report is asked about: which folders, which clients and which rounds."""

    folders: tuple[Path, ...]  # of comparisons on one federation or several
    min_test: int = 0  # clients judged on fewer examples are left out
    last_rounds: int | None = None  # that late figures are averaged over; None: as many as the runs say

    @property
    def comparisons(self) -> list[Path]:
        """One folder for each federation."""
        return expanded(self.folders)

    @property
    def has_runs(self) -> bool:
        """Whether any run is there, packed or not."""
        return any(map(has_results, self.comparisons))

    @property
    def is_report_alone(self) -> bool:
        """Whether it is about one folder that holds no runs, so that a report there can be of nothing else."""
        return len(self.folders) == 1 and not self.has_runs

    @property
    def target(self) -> Path:
        """Where its files go if no place is named."""
        name = "report" if len(self.folders) == 1 else "beside"
        if self.min_test:
            name += f"-min-test-{self.min_test}"
        if self.last_rounds:
            name += f"-last-{self.last_rounds}"
        return self.folders[0] / name

    def report(self, beside_paper: bool) -> Report:
        return Report.of(self.comparisons, beside_paper, self.min_test, self.last_rounds)


def write_report(
    document: Report,
    target: Path,
    with_figures: bool = True,
    in_memory: bool = False,
) -> WrittenFiles:
    """report.md, tables.csv, tables.tex, tables.json, the figures and report.html.

    `in_memory`: the runs are not kept, so the page names no folder.
    """
    prepare(target)
    drawn: list[Path] = []
    page = None
    if with_figures:
        drawn = save_all(of_report(document), target)
        page = write_page(document, target / PAGE, in_memory)
    tables = write.save(document, target, drawn)
    folders = [findings.folder for findings in document.findings]
    tables.append(cached_report.save(document.facts, document.tables, folders, target))
    return WrittenFiles(target, tables, drawn, page)


def write_page(document: Report, path: Path, in_memory: bool = False) -> Path | None:
    """One HTML file that opens offline; None where `evenfed[report]` is not installed."""
    if runtime() is None:
        return None
    return _save_page(contents.of_report(document, in_memory), path)


def write_search_page(tuned: Tuned, folder: Path) -> Path | None:
    """The same of a search in `folder`."""
    if runtime() is None:
        return None
    return _save_page(of_search(tuned, folder), folder / PAGE)


def _save_page(page: Page, path: Path) -> Path:
    replace_text(path, html(page))
    return path


def write_choice(chosen: Choice, folder: Path, floor: Path | None) -> WrittenFiles:
    """choice.md, choice.json and the figure, in the folder `report` of the first comparison chosen from."""
    target = folder / "report"
    prepare(target)
    dials = choice_chart.chart(chosen)
    drawn = save_all([dials], target) if dials else []
    tables = choice.tables(chosen)
    page = target / "choice.md"
    sources = [findings.folder for findings in chosen.comparisons]
    replace_text(page, write.markdown_of(title(sources), [], tables, drawn))
    if floor is not None:
        sources.append(floor)
    described = cached_report.save([], tables, sources, target, CHOICE)
    return WrittenFiles(target, [page, described], drawn)


def prepare(folder: Path) -> None:
    """Make the folder a report goes to, and check that it is writable before any work is done."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); choose another --out") from None
