"""The commands that work on results: `report`, `pack`, `choose` and `fill`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from .console import console, say

if TYPE_CHECKING:
    from ..report.document import Report
    from ..report.files import ReportRequest


class ReportFormat(StrEnum):
    table = "table"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


PrintedFormat = Annotated[ReportFormat, typer.Option(help="Format to print.")]
Full = Annotated[bool, typer.Option("--full", help="Print every table, not only the first.")]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folder of a comparison, e.g. runs/demo, or of one run; several are shown side by side.",
        ),
    ],
    paper: Annotated[bool, typer.Option("--paper", help="Show the paper's numbers next to ours.")] = False,
    min_test: Annotated[int, typer.Option(min=0, help="Leave out clients with fewer test examples.")] = 0,
    last_rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Average over this many last rounds; default: as set for the runs (20)."),
    ] = None,
    full: Full = False,
    format: PrintedFormat = ReportFormat.table,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw figures and write the page.")] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables and figures; default: DIR/report, or DIR/beside for several."),
    ] = None,
) -> None:
    """Print a comparison's tables, draw its figures, write its page, and say which differences exceed chance."""
    from ..report import terminal, write
    from ..report.files import ReportRequest, write_report

    folders = _comparisons(folders)
    _say_what_waits(folders)
    question = ReportRequest(tuple(folders), min_test, last_rounds)
    document = question.report(paper)
    question = _with_known_rounds(question, document)
    target = out or question.target
    written = write_report(document, target, figures)
    if format is not ReportFormat.table:
        in_format = write.FORMATS[format.value]
        sys.stdout.write(in_format(document))
        return
    page = console()
    to_print = document if full or paper else document.in_brief()
    page.print(terminal.terminal(to_print, page, document.headlines))
    shown = [path.name for path in written.tables]
    for path in written.drawn:
        if path.suffix == ".pdf":
            shown.append(path.name)
    names = ", ".join(shown)
    if written.drawn:
        names += " (also .svg, .png)"
    page.put(f"\nWritten to {target}: {names}")
    page.where_page_is(written.page, figures)


def _with_known_rounds(question: "ReportRequest", document: "Report") -> "ReportRequest":
    """The same with as many last rounds as the runs have; says so if more were asked for."""
    asked = question.last_rounds
    most = max(findings.last_rounds for findings in document.findings)
    if asked is None or asked <= most:
        return question
    say(f"--last-rounds {asked}: the runs have only {most} rounds, all of which are averaged")
    return replace(question, last_rounds=most)


def _comparisons(folders: Sequence[Path]) -> list[Path]:
    """The folders of comparisons; says which, where one was given that holds it."""
    from ..comparison.federations import comparison_in

    comparisons = []
    for folder in folders:
        comparison = comparison_in(folder)
        if comparison != folder:
            say(f"{folder} holds one comparison: {comparison}")
        comparisons.append(comparison)
    return comparisons


def _say_what_waits(folders: Sequence[Path]) -> None:
    from ..comparison.federations import waiting

    for federation in waiting(folders):
        say(f"left out: {federation} has no finished run")


def pack(
    folder: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of a comparison, e.g. runs/paper-cifar10.")],
    target: Annotated[Path, typer.Argument(metavar="DEST", help="Folder for the packed file, e.g. results/cifar10.")],
) -> None:
    """Pack a finished comparison into one small file without models; `evenfed report DEST` reads it."""
    from ..comparison.federations import expanded
    from ..comparison.storage.pack import pack as pack_runs

    page = console()
    (folder,) = _comparisons([folder])
    _say_what_waits([folder])
    for comparison in expanded([folder]):
        packed, unfinished = pack_runs(comparison, target / comparison.relative_to(folder))
        megabytes = packed.stat().st_size / 1e6
        page.put(f"{packed}: {megabytes:.2f} MB")
        for run in unfinished:
            page.put(f"left out: {run} is not finished")


def choose(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folder of a comparison judged on validation data; several: its federations (other data.seed).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Experiment to write, e.g. experiments/confirm.toml.")],
    margin: Annotated[
        float | None,
        typer.Option(min=0, help="Points by which a mean may be below FedAvg's; default: estimated from the runs."),
    ] = None,
    floor: Annotated[
        Path | None, typer.Option(help="Folder of a comparison with more FedAvg runs, to take the margin from.")
    ] = None,
    federations: Annotated[
        str, typer.Option(help="Values of data.seed in the new experiment, e.g. 3,4,5; default: the first DIR's.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds in the new experiment.")] = 3,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing file, even if it was edited by hand.")
    ] = False,
) -> None:
    """Choose the best entry of every method on validation data, and write an experiment to confirm it."""
    from ..comparison.federations import expanded
    from ..comparison.storage.reading import read
    from ..comparison.tuning.choose import choose as choose_entries
    from ..comparison.tuning.tune import tables
    from ..experiments import named_after
    from ..report import choice, terminal
    from ..report.files import write_choice
    from ..report.tuning import toml_text

    splits = _whole_numbers(federations)
    folders = _comparisons(folders)
    comparisons = list(map(read, expanded(folders)))
    if floor is not None:
        (floor,) = _comparisons([floor])
    repetitions = read(floor) if floor else None
    chosen = choose_entries(comparisons, repetitions, margin)
    confirming = chosen.experiment(named_after(out), range(seeds), splits)
    noise = f", margin from {floor}" if floor else ""
    listed = ", ".join(map(str, folders))
    origin = f"Chosen from {listed}{noise}. {chosen.rule}"
    text = toml_text(out, origin, tables(confirming, "validation"))
    _write_experiment(out, text, force)
    page = console()
    shown = choice.tables(chosen)
    page.print(terminal.pages(shown, page))
    names = str(out)
    written = write_choice(chosen, folders[0], floor)
    for path in written.paths:
        if path.suffix == ".svg":
            names += f", {path} (also .pdf, .png)"
        if path.suffix == ".md":
            names += f", {path}"
    page.put(f"\nWritten: {names}")


def _write_experiment(out: Path, text: str, force: bool) -> None:
    """Refuse to replace what was not written by this command or, without `force`, what differs."""
    from ..report.tuning import save_toml

    previous = out.read_text(errors="replace") if out.exists() else None
    if previous is not None and "# Chosen from" not in previous:
        raise InputError(f"{out} exists and was not written by `evenfed choose`; choose another --out")
    if previous not in (None, text) and not force:
        raise InputError(
            f"{out} exists and differs from what would be written: it was edited, or chosen with other options; "
            "choose another --out, or replace it with --force"
        )
    save_toml(out, text)


def _whole_numbers(text: str) -> list[int]:
    """From `3,4,5`; none from an empty text."""
    numbers = []
    for part in text.split(","):
        if not part.strip():
            continue
        if not part.strip().isdigit():
            raise InputError(f"--federations {text}: give whole numbers with commas between them, e.g. 3,4,5")
        numbers.append(int(part))
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--federations {text}: a number appears twice; give different ones, e.g. 3,4,5")
    return numbers


def fill(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Markdown files with blocks to fill.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
) -> None:
    """Fill tables of results into Markdown files, between <!-- evenfed DIR TABLE --> and <!-- /evenfed -->."""
    from ..core.files import replace_text
    from ..report.fill import filled, missing

    texts = {path: filled(path) for path in files}
    stale = []
    for path, text in texts.items():
        if text != path.read_text():
            stale.append(path)
    if check and stale:
        names = ", ".join(map(str, stale))
        raise InputError(f"{names}: out of date; update with: evenfed fill {names}")
    for path in stale:
        replace_text(path, texts[path])
    for path in files:
        places = missing(path)
        if places:
            names = ", ".join(places)
            say(f"{path}: not run yet: {names} (paths are relative to this file)")
