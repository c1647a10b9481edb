"""The commands for experiments' files: `experiments` lists those of the package, `new` writes one to start from."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..core.errors import InputError, unknown
from ..core.files import replace_text
from ..experiments import bundled
from .console import console

DEFAULT_MODEL = "mlp"
TEMPLATE = Path(__file__).with_name("template.toml.txt")


def experiments() -> None:
    """List the experiments that come with evenfed: the paper's and our studies of it."""
    page = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, about in bundled().items():
        table.add_row(f"[bold]@{name}[/]", Text(about))
    page.print(table)
    page.put("\nRun one with: evenfed compare @NAME   (--quick: its small version, if it has one)")


def new(
    file: Annotated[Path, typer.Argument(help="TOML file to write, e.g. mine.toml.")],
    data: Annotated[
        str, typer.Option(help="Your folder with one .npz or .parquet file per client, or a data set's name.")
    ] = "digits",
    model: Annotated[
        str, typer.Option(help="A model's name, or module.Class of your own, in the TOML file's folder.")
    ] = DEFAULT_MODEL,
) -> None:
    """Write a commented experiment to start from; it runs as it is, if its data are there."""
    if file.exists():
        raise InputError(f"{file} exists already; choose another name, or remove it first")
    _check_model(model)
    template = TEMPLATE.read_text()
    lines = _data_lines(data, file)
    quoted = shlex.quote(str(file))
    text = template.format(file=quoted, data=lines, model=json.dumps(model))
    try:
        replace_text(file, text)
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}); choose another place") from None
    page = console()
    page.put(f"Written: {file}. Run it with: evenfed compare {quoted}")
    missing = _missing_data(data)
    if missing:
        page.put(f"! {missing}", style="yellow")


def _check_model(name: str) -> None:
    """Refuse a name that is neither a bundled model's nor a class in a module of one's own."""
    if name == DEFAULT_MODEL or "." in name:
        return
    from ..models import BY_NAME  # which loads torch

    if name not in BY_NAME:
        raise unknown("model", name, [*BY_NAME, "module.Class"])


def _missing_data(data: str) -> str:
    """What to do before the experiment can run, if its data are not there."""
    from ..data import store
    from ..data.catalogue import SOURCES

    folder = Path(data)
    if folder.is_dir():
        if any(folder.glob("*.npz")) or any(folder.glob("*.parquet")):
            return ""
        return f"{folder} holds no .npz or .parquet file yet; put one per client there first."
    source = SOURCES[data]
    if source.bundled or data in store.names():
        return ""
    return f"{data} is not in the cache; first {source.how_to_get}."


def _data_lines(data: str, file: Path) -> str:
    """The first lines of [data]: a data set by name, or one's own folder, relative to the experiment's file."""
    from ..data.options import NAMES

    folder = Path(data)
    if not folder.is_dir():
        if data not in NAMES or data == "folder":
            known = ", ".join(name for name in NAMES if name != "folder")
            raise InputError(
                f"--data {data}: there is no such folder or data set; give a folder with one file per client, or one "
                f"of {known}"
            )
        return f'name = "{data}"'
    relative = os.path.relpath(folder.resolve(), file.resolve().parent)
    return f'name = "folder"  # one file per client\npath = {json.dumps(relative)}  # relative to this file'
