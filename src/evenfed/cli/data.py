"""The command line of data sets: `evenfed data list | fetch | add | verify | show`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.errors import InputError
from ..data import store
from ..data.catalogue import SOURCES, find

data_app = typer.Typer(
    help="Data sets: what there is, getting it, and how it falls over clients.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="A data set, as `evenfed data list` names it.")]


class Format(StrEnum):
    table = "table"
    json = "json"


@data_app.command("list")
def list_() -> None:
    """What there is, what is in the cache, and under which terms."""
    page, here = _page(), store.names()
    table = Table(box=None, pad_edge=False)
    for title in ("name", "what", "here", "terms"):
        table.add_column(title)
    for name in [*SOURCES, *(n for n in here if n not in SOURCES)]:
        source = SOURCES.get(name)
        about, terms = (source.about, source.terms) if source else ("", "")
        table.add_row(f"[bold]{name}[/]", escape(about), _presence(name, here), f"[dim]{escape(terms)}[/]")
    page.print(table)
    page.print(f"\nCache: {store.root()} (EVENFED_DATA)\n", markup=False)
    page.print("[dim]evenfed data fetch NAME downloads; evenfed data add NAME PATH takes files on disk[/]")


@data_app.command()
def fetch(
    name: Name, again: Annotated[bool, typer.Option("--again", help="Even if it is in the cache already.")] = False
) -> None:
    """Download the official files, check them and add them; goes on where it was stopped."""
    from ..data.fetch import fetch as fetch_files

    if name in store.names() and not again:
        _page().print(f"{name} is in the cache already: {store.folder(name)}", markup=False)
        return
    fetch_files(name)
    _tell_added(name)


@data_app.command()
def add(name: Name, path: Annotated[Path, typer.Argument(help="The official archive, or what it unpacks to.")]) -> None:
    """Add a data set from files on disk; hashes, sizes and counts are checked."""
    from ..data.fetch import add as add_files

    add_files(name, path)
    _tell_added(name)


@data_app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="One data set; without it, all in the cache.")] = None,
) -> None:
    """Check every array in the cache against the hash taken when it was written."""
    page, broken = _page(), []
    for each in store.names() if name is None else [name]:
        if each in SOURCES and SOURCES[each].bundled:
            page.print(f"{each}: {find(each).how_to_get}", markup=False)
            continue
        damage = store.damage(each)
        broken += damage
        page.print(f"{each}: {'damaged' if damage else 'as it was written'}", markup=False)
    if broken:
        raise InputError("; ".join(broken) + "; every array must be as it was written: add the data set again")


@data_app.command()
def show(
    name: Name,
    clients: Annotated[int, typer.Option(help="How many; for natural clients 0 takes all.")] = 50,
    partition: Annotated[str, typer.Option(help="dirichlet, shards, iid or natural.")] = "dirichlet",
    concentration: Annotated[float, typer.Option(help="Of the Dirichlet label shift; small: few classes each.")] = 0.05,
    train_fraction: Annotated[float, typer.Option(help="Of each client's examples of each class.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    path: Annotated[str | None, typer.Option(help="One's own folder, for the data set `folder`.")] = None,
    format: Annotated[Format, typer.Option(help="json lists every client on stdout.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Draw the picture as SVG and PNG into this folder.")] = None,
) -> None:
    """How a data set falls over clients: classes, sizes and label skew."""
    from ..data import DataSettings, federate
    from ..report import federation as picture
    from ..report.write import prepare

    if out is not None:
        prepare(out)
    given: dict[str, Any] = {"name": name, "path": path, "clients": clients, "partition": partition}
    found = federate(DataSettings(**given, concentration=concentration, train_fraction=train_fraction, seed=seed))
    if format is Format.json:
        print(json.dumps(picture.describe(found)))
    else:
        _page().print(picture.render(found))
    if out is not None:
        drawn = picture.draw(found, out)
        told = ", ".join(map(str, drawn)) if drawn else "none: pip install 'evenfed[report]' draws them"
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"Pictures: {told}", markup=False)


def _page() -> Console:
    from ..report.terminal import console

    return console()


def _presence(name: str, here: list[str]) -> str:
    if name in here:
        rows, size = store.size(name)
        return f"{rows:,} rows, {size / 1e6:,.0f} MB"
    return "bundled" if SOURCES[name].bundled else "[dim]no[/]"


def _tell_added(name: str) -> None:
    rows, size = store.size(name)
    page = _page()
    page.print(f"{name}: {rows:,} examples, {size / 1e6:,.0f} MB in {store.folder(name)}", markup=False)
    for note in store.read(name).notes:
        page.print(f"! {note}", markup=False)
