"""The command line for Flower: new apps, their check, and the files of a deployment."""

from pathlib import Path
from typing import Annotated

import typer

from . import examples
from .console import Page

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
