"""The command `evenfed report`: tables and figures of a finished comparison, from its folder alone."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ReportFormat(StrEnum):
    table = "table"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A comparison's folder, e.g. runs/demo.")],
    paper: Annotated[bool, typer.Option("--paper", help="Set the paper's numbers beside ours.")] = False,
    format: Annotated[ReportFormat, typer.Option(help="What to print.")] = ReportFormat.table,
    out: Annotated[
        Path | None, typer.Option(help="Where report.md, tables.csv, tables.tex and figures go; DIR/report by default.")
    ] = None,
) -> None:
    """Print a comparison's tables, draw its figures, and say which differences from FedAvg are more than chance."""
    from .report import write
    from .report.document import Report
    from .report.figures import draw
    from .report.terminal import console

    made, target = Report.of(folder, beside_paper=paper), out or folder / "report"
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
    if not figures:
        page.print("Figures: pip install 'evenfed[report]' draws them", markup=False)
