"""The command line for Flower: new apps, their check, and the files of a deployment."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..core.printable import printable
from . import examples
from .console import console, put, say

if TYPE_CHECKING:
    from ..flower.deployment.app_check import Row

SIMULATED = '--federation-config "num-supernodes=5"'  # of two sites, Flower's default, neither can be favoured much
AppFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a Flower app.")]
flower_app = typer.Typer(help="Run the same algorithms on real machines with Flower.", no_args_is_help=True)


@flower_app.command(epilog=examples.of("flower new"))
def new(folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the app.")]) -> None:
    """Write a complete Flower app, ready for `flwr run`."""
    from ..flower.deployment.new import write_app

    for path in write_app(folder):
        put(str(path))
    quoted = shlex.quote(str(folder))
    put(f"\ncd {quoted} && set -a && . ./quiet.env && set +a && flwr run . --stream {SIMULATED}")


@flower_app.command("deploy-files", epilog=examples.of("flower deploy-files"))
def deploy_files(
    server: Annotated[str, typer.Option(metavar="HOST", help="Host name or IP for sites to connect to, or HOST:PORT.")],
    sites: Annotated[str, typer.Option(metavar="NAMES", help="The sites' names, or their number.")] = "3",
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the files.")] = Path("deploy"),
    bin_folder: Annotated[
        str, typer.Option("--bin", metavar="DIR", help="Folder of Flower's commands on all machines.")
    ] = "/opt/evenfed/bin",
    signed: Annotated[
        bool, typer.Option("--signed", help="Make sites refuse unsigned apps (see `evenfed flower sign`).")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Renew certificates and units in DIR; keep the authority and keys.")
    ] = False,
) -> None:
    """Write keys, certificates, a proxy and systemd units for a federation on real machines."""
    from ..flower.deployment.deploy import federation, write_files

    for path in write_files(out, federation(server, sites, bin_folder, signed), force):
        put(str(path))
    safe = "ca.key and release.key belong" if signed else "ca.key belongs"
    put(f"\nRead {out / 'README.md'}: what goes where. {safe} in a safe place.")


@flower_app.command(epilog=examples.of("flower sign"))
def sign(
    folder: AppFolder,
    key: Annotated[Path, typer.Option(metavar="FILE", help="The release key of `deploy-files --signed`.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the signature; default: NAME.signature.json.")
    ] = None,
) -> None:
    """Sign an app as it is now, for sites that run only signed apps."""
    from ..flower.deployment.signing import sign_app

    put(str(sign_app(folder, key, out)))


@flower_app.command(epilog=examples.of("flower admit"))
def admit(
    signature: Annotated[Path, typer.Argument(metavar="FILE", help="Signature that `evenfed flower sign` wrote.")],
    database: Annotated[Path, typer.Option(metavar="FILE", help="The SuperLink's database.")] = Path(
        "/var/lib/flower/superlink.db"
    ),
) -> None:
    """Let this machine's SuperLink pass an app's signature on to the sites, which verify it."""
    from ..flower.deployment.signing import admit as let_in

    name = let_in(signature, database)
    put(f"{name} is admitted as it was signed.")


@flower_app.command(epilog=examples.of("flower check"))
def check(
    folder: AppFolder = Path("."),
    sites: Annotated[int, typer.Option(metavar="N", help="Number of sites to try it as.")] = 2,
    run_config: Annotated[str, typer.Option(metavar="PAIRS", help="As in `flwr run --run-config`.")] = "",
) -> None:
    """Try an app in this process before `flwr run`: data, model and one local step of each site."""
    from ..flower.deployment.app_check import check_app

    report = check_app(folder, sites, run_config)
    if report.rows:
        loss_title = "loss before" if report.own else "training loss"
        console().print(_table(report.rows, loss_title))
    for note in report.notes:
        say(f"note: {note}")
    for sentence in report.sentences():
        say(f"wrong: {sentence}")
    if report.faults:
        raise typer.Exit(1)


def _table(rows: "list[Row]", loss_title: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("site")
    table.add_column("name")
    for title in ("train", "test", loss_title, "accuracy", "seconds"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            str(row.site),
            Text(printable(row.name)),
            _shown(row.train, "d"),
            _shown(row.test, "d"),
            _shown(row.loss, ".4g"),
            _shown(row.accuracy, ".3f"),
            _shown(row.seconds, ".2f"),
        )
    return table


def _shown(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return format(value, form)
