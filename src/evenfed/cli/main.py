"""The command line: `evenfed compare` and `evenfed algorithms`."""

import dataclasses
import json
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import __version__
from ..algorithms import find, names
from ..comparison.experiment import DEMO, Experiment
from ..comparison.findings import Findings
from ..comparison.plan import parse_list, seed_list, value_of, with_baseline
from ..comparison.runner import Interruption, run, take_over
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..settings import VARIANT
from .data import data_app
from .flower import flower_app
from .report import choose, fill, pack, report

app = typer.Typer(
    help="Fair federated learning: compare algorithms on many clients and see who is served worst.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
for _command in (report, pack, choose, fill):
    app.command()(_command)


class Format(StrEnum):
    table = "table"
    json = "json"


@app.command()
def compare(
    experiment: Annotated[Path | None, typer.Argument(help="An experiment's TOML file; without one, the demo.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The experiment's small form: minutes on 2 cores.")] = False,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits.")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help='Entries, e.g. "fedavg,semi_vred,semi_vred\\[beta=1,smooth=0.25]".')
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds, or a list such as 0,1,5.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run.")] = None,
    set: Annotated[list[str], typer.Option("--set", help="One value, e.g. semi_vred.beta=0.5; may be repeated.")] = [],
    engine: Annotated[str | None, typer.Option(help="parallel, reference, or flower.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16: of products on a GPU.")] = None,
    out: Annotated[Path, typer.Option(help="Where results go; the same folder goes on where it stopped.")] = Path(
        "runs"
    ),
    reuse: Annotated[
        list[Path], typer.Option(help="Another comparison, packed or not: runs it has finished are not run again.")
    ] = [],
    format: Annotated[Format, typer.Option(help="json prints the table alone on stdout.")] = Format.table,
) -> None:
    """Train several algorithms on the same clients and show what each does to the worst served."""
    train = {"rounds": rounds, "engine": engine, "device": device, "precision": precision}
    chosen = _chosen(experiment, quick, data, algorithms, seeds, set, **train)
    for folder in reuse:
        taken = take_over(chosen, out, folder)
        Console(stderr=True, highlight=False).print(
            f"taken from {folder}: {', '.join(taken) or 'nothing'}", markup=False
        )
    outcome = _run(chosen, out)
    if format is Format.json:
        print(json.dumps(outcome.describe(), indent=1))
    else:
        _show(chosen, outcome, out)


@app.command()
def tune(
    experiment: Annotated[Path | None, typer.Argument(help="An experiment's TOML file; without one, the demo.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The experiment's small form: minutes on 2 cores.")] = False,
    algorithms: Annotated[str | None, typer.Option(help="Entries to tune; all of the experiment otherwise.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds every candidate is trained with: a number or a list.")] = "1",
    rounds: Annotated[int | None, typer.Option(help="Rounds of every candidate.")] = None,
    set: Annotated[list[str], typer.Option("--set", help="One value, e.g. data.clients=20; may be repeated.")] = [],
    method: Annotated[str, typer.Option(help="grid (the paper's grids) or bayes.")] = "grid",
    trials: Annotated[int, typer.Option(help="Candidates of each entry, with --method bayes.")] = 20,
    select_on: Annotated[str, typer.Option(help="validation, or test as the paper did (labelled so).")] = "validation",
    metric: Annotated[
        str, typer.Option(help="What to choose by: worst10, mean, worst, worst20, std, best10.")
    ] = "worst10",
    storage: Annotated[str | None, typer.Option(help="A database URL that processes and machines share.")] = None,
    batch: Annotated[int, typer.Option(help="Candidates trained together.")] = 12,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16: of products on a GPU.")] = None,
    out: Annotated[Path, typer.Option(help="Where the study and what it chose go.")] = Path("runs"),
    format: Annotated[Format, typer.Option(help="json prints all candidates on stdout.")] = Format.table,
) -> None:
    """Choose learning rates and hyper-parameters on a validation split; stopped or killed, it goes on where it was."""
    from ..comparison import tune as tuning
    from ..report import tuning as found
    from ..report.terminal import console
    from .console import page

    train = {"rounds": rounds, "device": device, "precision": precision}
    chosen = _chosen(experiment, quick, None, algorithms, seeds, set, **train)
    search = tuning.Search(method, trials, select_on, metric, storage, batch)  # type: ignore[arg-type]
    folder, told = out / f"{chosen.name}-tune", page()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); choose another --out") from None
    result = tuning.tune(chosen, search, folder, lambda done, all: told.print(f"{done} of {all} candidates"))
    found.write_toml(result, folder / "tuned.toml")
    if format is Format.json:
        print(json.dumps(found.describe(result), indent=1))
        return
    console().print(found.render(result))
    pictures = found.draw(result, folder)
    console().print(
        f"Chosen values: {folder}/tuned.toml\nPicture: {pictures[-1] if pictures else 'needs evenfed[report]'}"
    )


@app.command(name="algorithms")
def show_algorithms(name: Annotated[str | None, typer.Argument(help="One algorithm, in full.")] = None) -> None:
    """What each algorithm minimises, its hyper-parameters and their dangers."""
    from ..report.terminal import console

    if name is not None:
        _show_algorithm(console(), find(name))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "what it minimises", "hyper-parameters"):
        table.add_column(title)
    for each in names():
        cls = find(each)
        given = ", ".join(f"{f.name}={f.default!r}" for f in dataclasses.fields(cls))
        table.add_row(f"[bold]{each}[/]", escape(_summary(cls)), escape(given))
    console().print(table)
    console().print("\n[dim]evenfed algorithms NAME: formula, FedAvg values and danger bounds[/]")


def main() -> NoReturn:
    """Entry point: bad input ends in one message and a non-zero exit, never in a traceback."""
    try:
        app(standalone_mode=False)
    except InputError as error:
        _fail(str(error), 2)
    except Interruption:
        _fail(f"stopped; every finished round is kept. Go on with:\n  {shlex.join(['evenfed', *sys.argv[1:]])}", 130)
    except (KeyboardInterrupt, typer.Abort):
        _fail(f"stopped; go on from the last checkpoint with:\n  {shlex.join(['evenfed', *sys.argv[1:]])}", 130)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()
            sys.exit(getattr(error, "exit_code", 2))
        raise
    sys.exit(0)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"evenfed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _chosen(
    path: Path | None,
    quick: bool,
    data: str | None,
    algorithms: str | None,
    seeds: str | None,
    assignments: list[str],
    **train: Any,
) -> Experiment:
    """The experiment of a file (or the demo), changed as the options say."""
    chosen = Experiment.read(path or DEMO)
    if quick:
        chosen = chosen.in_quick_form()
    if algorithms is not None:
        entries = {v.label: v for v in chosen.variants}
        wanted = parse_list(algorithms, entries)
        named = any(v.label == "fedavg" for v in wanted)
        baseline = [entries["fedavg"]] if "fedavg" in entries and not named else []
        chosen = dataclasses.replace(chosen, variants=tuple(with_baseline(baseline + wanted)))
    if seeds is not None:
        numbers = value_of(seeds if seeds.strip().lstrip("-").isdigit() else f"[{seeds.strip('[] ')}]")
        chosen = dataclasses.replace(chosen, seeds=tuple(seed_list(numbers)))
    given = {k: v for k, v in train.items() if v is not None}
    chosen = dataclasses.replace(chosen, train=dataclasses.replace(chosen.train, **given))
    return chosen.changed([*([f"data.name='{data}'"] if data is not None else []), *assignments])


def _run(experiment: Experiment, out: Path) -> Findings:
    from .console import live

    with live() as listener:
        return run(experiment, out, listener, float(os.environ.get("EVENFED_CHECKPOINT_SECONDS", "2")))


def _show(experiment: Experiment, outcome: Findings, out: Path) -> None:
    from ..report.charts import draw
    from ..report.terminal import console, render

    page, folder = console(), out / experiment.name
    page.print(render(outcome, page))
    pictures = draw(outcome, folder / "pictures")
    page.print(f"\nResults:  {folder}/<algorithm>/seed-<k>/header.json and rounds.jsonl", markup=False)
    shown = ", ".join(p.name for p in pictures if p.suffix == ".png")
    page.print(
        f"Pictures: {folder}/pictures: {shown}" if pictures else "Pictures: pip install 'evenfed[report]' draws them",
        markup=False,
    )


def _show_algorithm(page: Console, cls: type[Algorithm]) -> None:
    about = (cls.__doc__ or "").strip().splitlines()
    page.print(f"[bold]{cls.name}[/]  ({cls.__name__})\n")
    page.print("\n".join(line.strip() for line in about), markup=False)
    page.print(f"\nReference: {cls.reference or 'none given'}", markup=False)
    page.print(f"With every algorithm: {', '.join(VARIANT)}; smooth=0.25 damps weights that oscillate.", markup=False)
    for spec in dataclasses.fields(cls):
        meta = spec.metadata
        page.print(f"\n[bold]{spec.name}[/] = {spec.default!r}  {escape(meta.get('help', ''))}")
        bounds = [
            f"{w} {meta[k]}"
            for k, w in (("above", "above"), ("least", "at least"), ("most", "at most"))
            if meta.get(k) is not None
        ]
        lines = {
            "allowed": f"{' and '.join(bounds)}: {meta.get('reason')}" if bounds else "",
            "FedAvg at": "" if meta.get("fedavg") is None else str(meta["fedavg"]),
            "danger": meta.get("danger", ""),
        }
        for word, told in lines.items():
            if told:
                page.print(f"    {word}: {told}", markup=False)


def _summary(cls: type[Algorithm]) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _fail(message: str, code: int) -> NoReturn:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"evenfed: {message}", markup=False)
    sys.exit(code)
