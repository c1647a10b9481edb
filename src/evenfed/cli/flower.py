"""The command line for Flower apps: `evenfed flower new`."""

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
