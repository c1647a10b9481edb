"""What the commands that train share: the experiment that the options ask for, and what is shown of its results."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..algorithms import BUILT_IN
from ..comparison.analysis.findings import BASELINE, Findings
from ..comparison.analysis.side_by_side import describe
from ..comparison.experiment import DEMO, Experiment
from ..comparison.federations import comparison_in, expanded
from ..comparison.progress import live, progress_page, shown_shares
from ..comparison.runner import Introduction, complete, complete_by_workers, take_over
from ..comparison.runs import refuse_repeated, seed_list
from ..comparison.tuning.search import Candidate
from ..comparison.tuning.tune import Tuned
from ..comparison.variants import parse_list, value_of, with_baseline
from ..core.tables import without_none
from ..core.verbosity import Verbosity
from ..data import Federation
from ..experiments import located
from ..report import averaged, held_out, tuning
from ..report.charts import tuning as tuning_chart
from ..report.charts.report import of_comparison
from ..report.charts.saving import save, save_all
from ..report.document import Report
from ..report.files import prepare, write_page, write_report, write_search_page
from ..report.page.write import PAGE
from ..report.tables import brief, summary
from ..report.terminal import pages, terminal
from ..settings import cautions_of
from ..spread.options import SpreadOptions
from .console import NOT_DRAWN, console, say


def file_of(experiment: Path | None) -> Path:
    """The file of the experiment that was asked for; the demo's if none was."""
    return located(experiment or DEMO)


def prints_the_same(experiment: Experiment) -> bool:
    """Whether a finished experiment is only printed: no cautions, and nothing of other packages decides about it."""
    if experiment.track:
        return False
    runs, _ = experiment.runs()
    has_cautions = any(planned.settings.cautions for planned in runs)
    are_built_in = all(planned.algorithm.name in BUILT_IN for planned in runs)
    return are_built_in and not has_cautions


def train(
    experiment: Experiment,
    out: Path,
    reuse: Sequence[Path],
    detail: Verbosity,
    spread: SpreadOptions | None = None,
) -> None:
    """Carry out what is left of the experiment, on each of its federations, after taking over runs of others.

    `spread`: over which workers, if not in this process.
    """
    introduction = _introduction(out / experiment.name, detail)
    for folder in expanded(map(comparison_in, reuse)):
        taken = take_over(experiment.members, out, folder)
        if detail is not Verbosity.QUIET:
            _say_what_was_taken(folder, taken)
    if spread is not None:
        with shown_shares(detail) as shares:
            complete_by_workers(experiment.members, out, spread, shares, introduction)
        return
    for member in experiment.members:
        with live(detail) as progress:
            complete(member, out, progress, introduction)


def _say_what_was_taken(folder: Path, taken: Mapping[str, Sequence[str]]) -> None:
    """By experiment, if there are several; those that nothing was taken for are not named."""
    if not any(taken.values()):
        say(f"taken from {folder}: nothing")
    for name, labels in taken.items():
        if labels:
            target = f" for {name}" if len(taken) > 1 else ""
            say(f"taken from {folder}{target}: {', '.join(labels)}")


def _introduction(folder: Path, detail: Verbosity) -> Introduction:
    """Says who takes part, what was noted about their data, and where to see it."""

    def introduce(federation: Federation) -> None:
        if detail is Verbosity.QUIET:
            return
        page = progress_page()
        page.print(federation.summary(), markup=False, soft_wrap=True)
        for note in federation.notes:
            page.print(f"! {note}", markup=False, soft_wrap=True)
        quoted = shlex.quote(str(folder))
        page.print(f"see it live: evenfed watch {quoted}", markup=False, soft_wrap=True)

    return introduce


def show(findings: Findings, folder: Path, full: bool, detail: Verbosity) -> tuple[str, list[Path]]:
    """Print tables and the verdict, draw figures and write the page; returns what was printed, and the files drawn."""
    page = console()
    tables = [brief(findings)]
    if full:
        tables = [
            *summary(findings),
            *averaged.tables(findings),
            *held_out.tables(findings),
        ]
    document = Report.of_findings([findings], beside_paper=False)
    headlines = [] if detail is Verbosity.QUIET else document.headlines
    with page.capture() as first:
        page.print(pages(tables, page, headlines))
        for sentence in findings.stopped:
            page.put(sentence, style="dim")
        for sentence in findings.advice:
            page.put(f"! {sentence}", style="yellow")
    sys.stdout.write(first.get())
    sys.stdout.flush()
    drawn = save_all(of_comparison(findings), folder / "figures", with_pdf=False)
    shown = NOT_DRAWN
    if drawn:
        names = ", ".join(path.name for path in drawn if path.suffix == ".png")
        shown = f"{folder}/figures: {names}"
    target = folder / "report"  # where `evenfed report` writes it too
    prepare(target)
    written = write_page(document, target / PAGE)
    with page.capture() as second:
        page.put(f"\nResults: {folder}/<algorithm>/seed-<k>/header.json and rounds.jsonl")
        page.put(f"Figures: {shown}")
        page.where_page_is(written)
    if written is not None:
        drawn.append(written)
    sys.stdout.write(second.get())
    return first.get() + second.get(), drawn


def show_federations(findings: Sequence[Findings], folder: Path, full: bool, as_json: bool, detail: Verbosity) -> None:
    """Print what the federations say together, and write the report on all of them."""
    if as_json:
        print(json.dumps(describe(findings), indent=1))
        return
    document = Report.of_findings(findings, beside_paper=False)
    written = write_report(document, folder / "report")
    page = console()
    printed = document if full else document.in_brief()
    headlines = [] if detail is Verbosity.QUIET else printed.headlines
    page.print(terminal(printed, page, headlines))
    page.put(f"\nResults: {folder}/federation-<seed>/<algorithm>/seed-<k>")
    names = ", ".join(path.name for path in written.paths)
    page.put(f"Report: {written.folder}: {names}")
    page.where_page_is(written.page)


def show_tuned(tuned: Tuned, folder: Path) -> None:
    page = console()
    page.print(tuning.render(tuned))
    for sentence in tuning.ties(tuned):
        page.put(f"! {sentence}", style="yellow")
    left = tuning.not_tuned(tuned)
    if left:
        page.put(f"! {left}", style="yellow")
    drawn = save(tuning_chart.chart(tuned), folder)
    shown = drawn[-1] if drawn else NOT_DRAWN
    page.put(f"Chosen values: {folder}/tuned.toml")
    page.put(f"Figure: {shown}")
    written = write_search_page(tuned, folder)
    page.where_page_is(written)


def tuning_progress(detail: Verbosity) -> tuple[Callable[[int, int], None], Callable[[Candidate], None]]:
    """What shows how far a search is, and what shows each candidate."""
    page = progress_page()

    def show_progress(done: int, total: int) -> None:
        if detail is not Verbosity.QUIET:
            page.print(f"{done} of {total} candidates")

    def show_each(candidate: Candidate) -> None:
        if detail is Verbosity.VERBOSE:
            values = tuning.values_of(candidate)
            mean = candidate.figures["mean"]
            worst10 = candidate.figures["worst10"]
            line = f"{candidate.label} with {values}: mean {mean:.4f}, worst 10 % {worst10:.4f}"
            page.print(line, markup=False, soft_wrap=True)

    return show_progress, show_each


def experiment_of(
    path: Path | None,
    quick: bool,
    algorithms: str | None,
    seeds: str | None,
    settings: Mapping[str, Any],
    assignments: Sequence[str],
) -> Experiment:
    """The experiment of a file (or the demo), changed as the options say."""
    experiment = Experiment.read(path or DEMO)
    if quick:
        experiment = experiment.in_quick_form()
    entries = {variant.label: variant for variant in experiment.variants}
    if algorithms is not None:
        variants = parse_list(algorithms, experiment.variants)
        labels = [variant.label for variant in variants]
        if BASELINE in entries and BASELINE not in labels:
            variants.insert(0, entries[BASELINE])
        variants = with_baseline(variants)
        experiment = replace(experiment, variants=tuple(variants))
    if seeds is not None:
        is_number = seeds.strip().lstrip("-").isdigit()
        if not is_number:
            without_brackets = seeds.strip("[] ")
            seeds = f"[{without_brackets}]"
        numbers = seed_list(value_of(seeds))
        experiment = replace(experiment, seeds=tuple(numbers))
    train = replace(experiment.train, **without_none(settings))
    experiment = replace(experiment, train=train)
    experiment = experiment.changed(assignments)
    runs, _ = experiment.runs()
    if algorithms is not None:
        refuse_repeated(runs, from_file=entries)
    for caution in cautions_of(run.settings for run in runs):
        say(f"evenfed: {caution}")
    return experiment
