"""The command line for data sets: `evenfed data list | fetch | add | verify | show`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..core.errors import InputError
from ..data import store
from ..data.catalogue import SOURCES
from . import examples
from .common_options import Format, Quiet, Verbose, data_sets_like, detail_of
from .console import NOT_DRAWN, console, say

data_app = typer.Typer(
    help="Data sets: list, download or add them, and see how they are split across clients.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Data set, as named by `evenfed data list`.", autocompletion=data_sets_like)]


@data_app.command("list", epilog=examples.of("data list"))
def list_() -> None:
    """List all data sets, which of them are in the cache, and their terms."""
    page = console()
    cached = store.names()
    table = Table(box=None, pad_edge=False)
    for title in ("name", "what", "in the cache", "terms"):
        table.add_column(title)
    known = dict.fromkeys([*SOURCES, *cached])
    for name in known:
        source = SOURCES.get(name)
        about = escape(source.about) if source else ""
        terms = escape(source.terms) if source else ""
        table.add_row(
            f"[bold]{name}[/]",
            about,
            _presence(name, cached),
            f"[dim]{terms}[/]",
        )
    page.print(table)
    page.put(f"\nCache: {store.root()} (EVENFED_DATA)\n")
    page.print("[dim]evenfed data fetch NAME downloads; evenfed data add NAME PATH takes files on disk[/]")


def _presence(name: str, cached: list[str]) -> str:
    if name in cached:
        rows, size = store.size(name)
        megabytes = size / 1e6
        return f"{rows:,} rows, {megabytes:,.0f} MB"
    if SOURCES[name].bundled:
        return "bundled"
    return "[dim]no[/]"


@data_app.command(epilog=examples.of("data fetch"))
def fetch(
    name: Name,
    again: Annotated[bool, typer.Option("--again", help="Download it even if it is in the cache.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Download the official files, check them and add them; rerun to resume."""
    from ..data.fetch import fetch as fetch_files

    detail = detail_of(quiet, verbose)
    if name in store.names() and not again:
        folder = store.folder(name)
        console().put(f"{name} is in the cache already: {folder}")
        return
    fetch_files(name, detail)
    _say_added(name)


@data_app.command(epilog=examples.of("data add"))
def add(
    name: Name, path: Annotated[Path, typer.Argument(help="The official archive, or the folder it unpacks to.")]
) -> None:
    """Add a data set from files on disk, after checking hashes, sizes and counts."""
    from ..data.fetch import add as add_files

    add_files(name, path)
    _say_added(name)


def _say_added(name: str) -> None:
    page = console()
    rows, size = store.size(name)
    megabytes = size / 1e6
    folder = store.folder(name)
    page.put(f"{name}: {rows:,} examples, {megabytes:,.0f} MB in {folder}")
    for note in store.read(name).notes:
        page.put(f"! {note}")


@data_app.command(epilog=examples.of("data verify"))
def verify(
    name: Annotated[str | None, typer.Argument(help="One data set; all in the cache if left out.")] = None,
) -> None:
    """Check every array in the cache against the hash taken when it was written."""
    page = console()
    broken: list[str] = []
    names = store.names() if name is None else [name]
    if not names:
        page.put(f"nothing to check: the cache is empty ({store.root()})")
    for each in names:
        if each in SOURCES and SOURCES[each].bundled:
            page.put(f"{each}: comes with its package; there is nothing to verify")
            continue
        damage = store.damage(each)
        broken += damage
        state = "damaged" if damage else "intact"
        page.put(f"{each}: {state}")
    if broken:
        raise InputError("; ".join(broken) + "; add the data set again")


@data_app.command(epilog=examples.of("data show"))
def show(
    name: Name,
    clients: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of clients; default: 50, or every file of your own folder. 0: all natural ones."
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="dirichlet (default), shards, iid or natural (default for your own folder).")
    ] = None,
    concentration: Annotated[
        float, typer.Option(help="Dirichlet concentration; small values give each client few classes.")
    ] = 0.05,
    train_fraction: Annotated[
        float, typer.Option(help="Share of each client's examples of a class used for training.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    path: Annotated[str | None, typer.Option(help="Your own folder, for the data set `folder`.")] = None,
    format: Annotated[Format, typer.Option(help="json lists every client on stdout.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Draw the figure as SVG and PNG in this folder.")] = None,
) -> None:
    """Show how a data set is split across clients: classes, sizes and label skew."""
    from ..data import DataSettings, federate
    from ..report import federation as split
    from ..report.charts import federation as federation_chart
    from ..report.charts.saving import save
    from ..report.files import prepare

    if name == "folder" and path is None:
        raise InputError("folder needs --path DIR, the folder with one .npz or .parquet file per client")
    if name != "folder" and path is not None:
        raise InputError(f"--path {path} goes with the data set `folder`, not with {name}")
    if out is not None:
        prepare(out)
    if clients is None and name != "folder":
        clients = 50
    settings = DataSettings(
        name=name,
        path=path,
        clients=clients,  # type: ignore[arg-type]
        partition=partition,  # type: ignore[arg-type]
        concentration=concentration,
        train_fraction=train_fraction,
        seed=seed,
    )
    federation = federate(settings)
    if format is Format.json:
        print(json.dumps(split.describe(federation)))
    else:
        console().print(split.render(federation))
    if out is not None:
        drawn = save(federation_chart.chart(federation), out)
        say(f"Figures: {', '.join(map(str, drawn)) or NOT_DRAWN}")
