"""The command `evenfed audit`: how evenly any system serves its clients, from a table of their results."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .console import console
from .report import Full, PrintedFormat, ReportFormat


class Unit(StrEnum):
    fraction = "fraction"
    percent = "percent"


class Missing(StrEnum):
    refuse = "refuse"
    drop = "drop"


def _column(what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        metavar="COLUMN", help=f"Column of {what}.", rich_help_panel="Columns"
    )
    return option


ResultsFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Table of clients' results (.csv, .json, .jsonl, .parquet), mlflow.db, or a folder of TensorBoard, "
        "MLflow or evenfed runs.",
    ),
]
Baseline = Annotated[
    str | None, typer.Option(help="Algorithm to compare the others with; default: FedAvg, or the first.")
]
Metrics = Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to judge clients by; repeatable.")]
Direction = Annotated[
    bool | None,
    typer.Option("--lower-is-better/--higher-is-better", help="Which is better, if the metric's name does not tell."),
]
LastRounds = Annotated[int | None, typer.Option(min=1, help="Average over this many last rounds; default: 1.")]
Output = Annotated[Path | None, typer.Option(help="Folder for tables, figures and page; default: FILE-audit.")]


def audit(
    file: ResultsFile,
    baseline: Baseline = None,
    metric: Metrics = [],
    lower_is_better: Direction = None,
    unit: Annotated[Unit | None, typer.Option(help="Unit of accuracies; default: guessed from the numbers.")] = None,
    missing: Annotated[Missing, typer.Option(help="What to do with rows without a result.")] = Missing.refuse,
    last_rounds: LastRounds = None,
    client: Annotated[str | None, _column("clients")] = None,
    algorithm: Annotated[str | None, _column("algorithms")] = None,
    seed: Annotated[str | None, _column("seeds, or of runs")] = None,
    round: Annotated[str | None, _column("rounds")] = None,
    size: Annotated[str | None, _column("clients' numbers of test examples")] = None,
    group: Annotated[str | None, _column("clients' groups")] = None,
    full: Full = False,
    format: PrintedFormat = ReportFormat.table,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw figures and the page.")] = True,
    out: Output = None,
) -> None:
    """Audit the clients' results of any system: who is served worst, who gains and who pays."""
    from ..auditing.audit import audit as audit_results
    from ..report import terminal, write

    results = audit_results(
        file,
        metric=metric,
        baseline=baseline,
        lower_is_better=lower_is_better,
        unit=unit,
        missing=missing.value,
        last_rounds=last_rounds,
        client=client,
        algorithm=algorithm,
        seed=seed,
        round=round,
        size=size,
        group=group,
    )
    target = out or _place(file)
    written = results.write(target, figures)
    documents = results.documents()
    if format is not ReportFormat.table:
        in_format = write.FORMATS[format.value]
        sys.stdout.write("\n".join(map(in_format, documents)))
        return
    page = console()
    for document in documents:
        to_print = document if full else document.in_brief()
        page.print(terminal.terminal(to_print, page, document.headlines))
    names: dict[str, None] = {}
    for each in written:
        names.update(dict.fromkeys(path.name for path in each.tables))
    page.put(f"\nWritten to {target}: {', '.join(names)}")
    for each in written:
        page.where_page_is(each.page, figures)


def _place(file: Path) -> Path:
    """`clients-audit` beside `clients.csv`."""
    whole = file.resolve()
    name = whole.name
    if not whole.is_dir():
        name = name.partition(".")[0]
    return whole.parent / f"{name}-audit"
