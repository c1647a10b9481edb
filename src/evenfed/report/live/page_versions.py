"""The page of a folder in progress, made again when its files have changed."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from ...comparison.analysis.findings import Findings
from ...comparison.federations import folders_inside
from ...comparison.storage.live_reader import LiveFolder, NewestComparison
from ...core.errors import InputError
from ..charts import report as charts
from ..document import Report
from ..page.contents import Page, of_report
from ..page.verdict import Verdict
from ..page.write import data, html, runtime
from .server import DATA, PageVersion

_PAUSE = 1.0  # seconds at least between two looks at the files
_IDLE = 4  # times as long as the last page took to make, the processor is left to the runs


class PageVersions:
    """The newest page of a folder. Files are looked at when someone asks, and not too often."""

    def __init__(
        self,
        folder: Path,
        pause: float = _PAUSE,
        idle: float = _IDLE,
    ) -> None:
        if runtime() is None:
            raise InputError("a page needs vl-convert-python; install it with: pip install 'evenfed[report]'")
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; give a folder that `evenfed compare` writes to, such as runs/demo")
        self.folder = folder
        self.pause = pause
        self.idle = idle
        self._newest = NewestComparison(folder)
        self._followed: dict[Path, LiveFolder] = {}
        self._edition: PageVersion | None = None
        self._number = 0
        self._began = f"{time.time_ns():x}"
        self._next_look = 0.0
        self._lock = threading.Lock()

    def newest(self) -> PageVersion:
        """Who asks while a new one is being made gets the one before, unless there is none."""
        is_first = self._edition is None
        if self._lock.acquire(blocking=is_first):
            try:
                if self._edition is None or time.monotonic() >= self._next_look:
                    self._renew()
            finally:
                self._lock.release()
        assert self._edition is not None
        return self._edition

    def _renew(self) -> None:
        began = time.thread_time()
        if self._look() or self._edition is None:
            self._number += 1
            followed = list(self._followed.values())
            page = page_of(self.folder, followed, self._newest.others)
            key = f"{self._began}-{self._number}"
            text = cache(partial(html, page, live=DATA, edition=key))  # made when first asked for
            self._edition = PageVersion(key, text, data(page, edition=key))
        seconds = time.thread_time() - began
        rest = max(self.pause, self.idle * seconds)
        self._next_look = time.monotonic() + rest

    def _look(self) -> bool:
        """Read what is new; whether anything was."""
        places = folders_inside(self.folder)
        if not places:
            places = [self._newest.choose() or self.folder]
        followed = {}
        for place in places:
            followed[place] = self._followed.get(place) or LiveFolder(place)
        is_new = followed.keys() != self._followed.keys()
        self._followed = followed
        for each in followed.values():
            is_new |= each.look()
        return is_new


def page_of(folder: Path, followed: Sequence[LiveFolder], others: int = 0) -> Page:
    """The page of one comparison, or of the federations of one, as far as they are; beside it are so many `others`."""
    begun = [each for each in followed if each.has_begun]
    facts = _progress(begun) or [
        f"Nothing has been written to {folder} yet. This page fills as soon as the first round is evaluated."
    ]
    shown = followed[0].folder if len(followed) == 1 else folder
    if others:
        facts.append(f"Shown is {shown}, written last; {folder} holds {others + 1} comparisons.")
    try:
        page = _judged(begun)
    except InputError as error:
        facts.append(str(error))
        page = None
    if page is None:
        nothing = "Waiting for the first round with figures of clients."
        if begun and all(each.is_complete for each in begun):
            nothing = "These runs have no figures of their clients on test data, so there is nothing to compare."
        return Page(
            title=shown.resolve().name,
            facts=facts,
            verdicts=[Verdict(nothing)],
            glances=(),
            tables=(),
            charts=(),
        )
    page = _with_curves(page, begun)
    progress, *remarks = facts
    all_facts = [progress, *page.facts, *remarks]
    return replace(page, facts=all_facts)


def _progress(followed: Sequence[LiveFolder]) -> list[str]:
    """How far the runs are, the one that is still running first."""
    sentences: list[str] = []
    damaged: list[str] = []
    for each in followed:
        if each.is_packed:
            continue
        progress = each.progress
        sentence = progress.sentence()
        if len(followed) > 1:
            sentence = f"{each.folder.name}: {sentence}"
        if progress.is_complete:
            sentences.append(sentence)
        else:
            sentences.insert(0, sentence)
        damaged += progress.damaged
    if not sentences and followed:
        sentences.append("All runs have finished.")
    return sentences + damaged


def _judged(followed: Sequence[LiveFolder]) -> Page | None:
    """The page of what can be compared; None if nothing can yet."""
    complete = [each for each in followed if each.is_complete]
    comparisons: list[Findings] = []
    for each in complete or followed:
        findings = each.comparable()
        if findings is not None:
            comparisons.append(findings)
    if not comparisons:
        return None
    report = Report.of_findings(comparisons, beside_paper=False)
    page = of_report(report)
    rounds = min(len(findings.baseline.histories[0].records) for findings in comparisons)
    planned = comparisons[0].rounds
    if rounds < planned and not complete:
        progress = f"After {rounds} of {planned} rounds"
        verdicts = [judged.about(progress) for judged in page.verdicts]
        page = replace(page, verdicts=verdicts)
    return page


def _with_curves(page: Page, followed: Sequence[LiveFolder]) -> Page:
    """With charts over rounds of all runs, also those that have not come far enough to be compared."""
    are_several = len(followed) > 1
    for each in followed:
        is_shown = each.is_even and not are_several
        if each.is_complete or is_shown:
            continue
        findings = each.so_far()
        if findings is not None:
            federation = each.folder.name if are_several else ""
            page = _with_curves_of(page, findings, federation)
    return page


def _with_curves_of(page: Page, findings: Findings, federation: str) -> Page:
    """The charts over rounds of these runs in place of those with the same names, or after all others."""
    by_name = {chart.name: chart for chart in page.charts}
    for chart in charts.of(findings):
        is_over_rounds = any("round" in row for row in chart.rows)
        if not is_over_rounds:
            continue
        if federation:
            chart = replace(
                chart,
                name=f"{chart.name}-{federation}",
                title=f"{federation}, so far: {chart.title}",
            )
        by_name[chart.name] = chart
    entries = list(page.entries)
    known = {entry.label for entry in entries}
    for entry in findings.everyone:
        if entry.label not in known:
            entries.append(entry)
    return replace(
        page,
        charts=list(by_name.values()),
        entries=entries,
    )
