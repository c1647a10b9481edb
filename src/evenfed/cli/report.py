"""The commands that work on results: `report`, `pack`, `choose` and `fill`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError


class ReportFormat(StrEnum):
    table = "table"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="A comparison's folder, e.g. runs/demo; several: beside each other."),
    ],
    paper: Annotated[bool, typer.Option("--paper", help="Set the paper's numbers beside ours.")] = False,
    min_test: Annotated[
        int, typer.Option(min=0, help="Leave out clients judged on fewer examples: a second look.")
    ] = 0,
    format: Annotated[ReportFormat, typer.Option(help="What to print.")] = ReportFormat.table,
    out: Annotated[
        Path | None, typer.Option(help="Where tables and figures go: DIR/report, or the first DIR/beside of several.")
    ] = None,
) -> None:
    """Print a comparison's tables, draw its figures, and say which differences from FedAvg are more than chance."""
    from ..report import write
    from ..report.document import Report
    from ..report.figures import draw
    from ..report.terminal import console

    alone = len(folders) == 1
    made = Report.of(folders, paper, min_test)
    cut = f"-min-test-{min_test}" if min_test else ""
    target = out or folders[0] / (("report" if alone else "beside") + cut)
    write.prepare(target)
    figures = draw(made.findings, target, made.papers)
    written = write.save(made, target, figures)
    if format is not ReportFormat.table:
        sys.stdout.write(write.FORMATS[format.value](made))
        return
    page = console()
    page.print(write.terminal(made, page))
    names = ", ".join(p.name for p in [*written, *(f for f in figures if f.suffix == ".pdf")])
    page.print(f"\nWritten to {target}: {names}" + (" (also .svg, .png)" if figures else ""), markup=False)
    if alone and not figures:
        page.print("Figures: pip install 'evenfed[report]' draws them", markup=False)


def pack(
    folder: Annotated[Path, typer.Argument(metavar="RUNS", help="A comparison's folder, e.g. runs/paper-cifar10.")],
    target: Annotated[Path, typer.Argument(metavar="DEST", help="Where the file goes, e.g. results/cifar10.")],
) -> None:
    """Keep a finished comparison as one small file, without models; `evenfed report DEST` works from it."""
    from ..comparison.pack import pack as packed
    from ..report.terminal import console

    written, unfinished = packed(folder, target)
    console().print(f"{written}: {written.stat().st_size / 1e6:.2f} MB", markup=False)
    for run in unfinished:
        console().print(f"left out, not finished: {run}", markup=False)


def choose(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A comparison judged on validation data.")],
    out: Annotated[Path, typer.Option(help="The experiment to write, e.g. experiments/confirm.toml.")],
    floor: Annotated[
        Path | None, typer.Option(help="A comparison with more FedAvg runs, from which the noise floor is taken.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the experiment written.")] = 3,
) -> None:
    """Choose the best entry of every method on validation data, and write the experiment that confirms it."""
    from ..comparison.choose import choose as choose_entries
    from ..comparison.tune import tables
    from ..report import choice, write
    from ..report.figures import draw_choice
    from ..report.terminal import console
    from ..report.tuning import save_toml

    if out.exists() and "# Chosen from" not in out.read_text(errors="replace"):
        raise InputError(f"{out} is there already and was not written by `evenfed choose`; choose another --out")
    made = choose_entries(folder, floor)
    confirming = made.experiment(out.stem, range(seeds))
    noise = f", noise floor from {floor}" if floor else ""
    save_toml(out, [f"Chosen from {folder}{noise}. {made.rule}"], tables(confirming, "validation"))
    page = console()
    page.print(write.pages(choice.tables(made), page))
    pictures = draw_choice(made, folder / "report")
    written = [str(p) for p in (out, *pictures) if p.suffix in (".toml", ".svg")]
    page.print(f"\nWritten: {', '.join(written)}" + " (also .pdf, .png)" * bool(pictures), markup=False)


def fill(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Markdown files with blocks to fill.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a file is out of date.")] = False,
) -> None:
    """Put tables of results into Markdown files, between <!-- evenfed DIR TABLE --> and <!-- /evenfed -->."""
    from ..comparison.folder import replace_text
    from ..report.fill import filled, missing
    from ..report.terminal import console

    texts = {path: filled(path) for path in files}
    stale = [path for path, text in texts.items() if text != path.read_text()]
    if check and stale:
        named = ", ".join(map(str, stale))
        raise InputError(f"{named}: not what the results say; bring up to date with: evenfed fill {named}")
    for path in stale:
        replace_text(path, texts[path])
    for path in files:
        if places := missing(path):
            told = f"{path}: not run yet, looked for beside that file: {', '.join(places)}"
            console(stderr=True).print(told, markup=False)
