"""The command line for Flower: new apps, their check, and the files of a deployment."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..core.visible import visible
from . import examples
from .console import Page, console, say

if TYPE_CHECKING:
    from ..flower.checking import Row

flower_app = typer.Typer(help="Run the same algorithms on real machines with Flower.", no_args_is_help=True)


@flower_app.callback()
def _root() -> None:
    pass


@flower_app.command(epilog=examples.of("flower new"))
def new(folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the app.")]) -> None:
    """Write a complete Flower app, ready for `flwr run`."""
    from ..flower.new import write_app

    page = Page(highlight=False, soft_wrap=True)
    for path in write_app(folder):
        page.print(str(path), markup=False)
    page.print(f"\ncd {folder} && set -a && . ./quiet.env && set +a && flwr run . --stream", markup=False)


@flower_app.command("deploy-files", epilog=examples.of("flower deploy-files"))
def deploy_files(
    server: Annotated[str, typer.Option(metavar="HOST", help="What sites dial: a name or IP address; HOST:PORT.")],
    sites: Annotated[str, typer.Option(metavar="NAMES", help="The sites' names, or how many there are.")] = "3",
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the files.")] = Path("deploy"),
    bin_folder: Annotated[
        str, typer.Option("--bin", metavar="DIR", help="Where the machines have Flower's commands.")
    ] = "/opt/evenfed/bin",
    force: Annotated[
        bool, typer.Option("--force", help="Renew certificates and units in DIR; the authority and keys stay.")
    ] = False,
) -> None:
    """Write keys, certificates, a proxy and systemd units for a federation on real machines."""
    from ..flower.deploy import federation, write_files

    page = Page(highlight=False, soft_wrap=True)
    for path in write_files(out, federation(server, sites, bin_folder), force):
        page.print(str(path), markup=False)
    page.print(f"\nRead {out / 'README.md'}: what goes where. ca.key belongs in a safe place.", markup=False)


@flower_app.command(epilog=examples.of("flower check"))
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a Flower app.")] = Path("."),
    sites: Annotated[int, typer.Option(metavar="N", help="As how many sites to try it.")] = 2,
    run_config: Annotated[str, typer.Option(metavar="PAIRS", help="As in `flwr run --run-config`.")] = "",
) -> None:
    """Try an app in this process before `flwr run`: its data, its model and one local step at each site."""
    from ..flower.checking import check_app

    report = check_app(folder, sites, run_config)
    if report.rows:
        console().print(_table(report.rows, "loss before" if report.own else "training loss"))
    for note in report.notes:
        say(f"note: {note}")
    for sentence in report.sentences():
        say(f"wrong: {sentence}")
    if report.faults:
        raise typer.Exit(1)


def _table(rows: "list[Row]", loss_title: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("site")
    for title in ("name", "train", "test", loss_title, "accuracy", "seconds"):
        table.add_column(title, justify="left" if title == "name" else "right")
    for row in rows:
        accuracy = "-" if row.accuracy is None else f"{row.accuracy:.3f}"
        loss = "-" if row.loss is None else f"{row.loss:.4g}"
        train = "-" if row.train is None else str(row.train)
        test = "-" if row.test is None else str(row.test)
        name = Text(visible(row.name))
        table.add_row(str(row.site), name, train, test, loss, accuracy, f"{row.seconds:.2f}")
    return table
