"""The commands that train: `compare` and `tune`. Torch is loaded when they run: their help is shown at once."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import InputError
from ..core.tables import without_none
from .common_options import Format, Quiet, Verbose, data_sets_like, detail_of, experiments_like
from .printed_output import OUT, keep, states

if TYPE_CHECKING:
    from ..comparison.tuning.search import Search


ExperimentFile = Annotated[
    Path | None,
    typer.Argument(
        help="TOML file of an experiment, or @NAME (see `evenfed experiments`); the demo if left out.",
        autocompletion=experiments_like,
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Print every table with every column.")]
Quick = Annotated[bool, typer.Option("--quick", help="Run a small version of the experiment, to try it out.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds per run.")]
Assignments = Annotated[list[str], typer.Option("--set", help="Set one value, e.g. semi_vred.beta=0.5; repeatable.")]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or auto. For one worker per GPU: cuda:all, or a list such as cuda:0,cuda:2."),
]
Workers = Annotated[
    int | None, typer.Option(help="Spread the runs over this many processes, or workers of the cluster.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Spread the runs over Ray (auto, or its address) or SLURM jobs, e.g. slurm:partition=gpu,time=60."
    ),
]
Precision = Annotated[str | None, typer.Option(help="GPU matmul precision: fp32, tf32 or bf16.")]
Output = Annotated[Path, typer.Option(help="Output folder; reuse it to resume.")]
SelectOn = Annotated[str | None, typer.Option(help="validation (default), or test as the paper did (results say so).")]
ChosenBy = Annotated[
    str | None, typer.Option(help="Metric to choose by: worst10 (default), mean, worst, worst20, std or best10.")
]

Reuse = Annotated[list[Path], typer.Option(help="Take finished runs from this comparison, packed or not; repeatable.")]
Track = Annotated[
    list[str], typer.Option(help="Write to tensorboard, mlflow or wandb, or use early_stopping; repeatable.")
]


def compare(
    context: typer.Context,
    experiment: ExperimentFile = None,
    quick: Quick = False,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits.", autocompletion=data_sets_like)] = None,
    algorithms: Annotated[
        str | None, typer.Option(help='Entries or tables to run, e.g. "fedavg,semi_vred\\[beta=1,smooth=0.25]".')
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds, or a list such as 0,1,5.")] = None,
    rounds: Rounds = None,
    set: Assignments = [],
    engine: Annotated[str | None, typer.Option(help="parallel, reference or flower.")] = None,
    device: Device = None,
    workers: Workers = None,
    cluster: Cluster = None,
    precision: Precision = None,
    out: Output = Path(OUT),
    reuse: Reuse = [],
    track: Track = [],
    full: Full = False,
    format: Annotated[Format, typer.Option(help="json prints only the table, on stdout.")] = Format.table,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train several algorithms on the same clients and show how each serves the worst-served."""
    from ..callbacks.registry import chosen as callbacks_chosen
    from ..comparison.runner import files_read, findings_of
    from ..spread.options import spread_of
    from . import training

    detail = detail_of(quiet, verbose)
    spread, device = spread_of(device, workers, cluster)
    settings = {
        "rounds": rounds,
        "engine": engine,
        "device": device,
        "precision": precision,
    }
    files = states([training.file_of(experiment)])
    assignments = list(set)
    if data is not None:
        assignments.insert(0, f"data.name='{data}'")
    chosen = training.experiment_of(experiment, quick, algorithms, seeds, settings, assignments)
    chosen = replace(chosen, track={**callbacks_chosen(track), **chosen.track})
    training.train(chosen, out, reuse, detail, spread)
    if chosen.federations:
        findings_of_all = [findings_of(member, out) for member in chosen.members]
        training.show_federations(findings_of_all, out / chosen.name, full, format is Format.json, detail)
        return
    files |= states(files_read(chosen, out))
    findings = findings_of(chosen, out)
    drawn: list[Path] = []
    if format is Format.json:
        text = json.dumps(findings.describe(), indent=1) + "\n"
        sys.stdout.write(text)
    else:
        text, drawn = training.show(findings, out / chosen.name, full, detail)
    is_complete = bool(drawn) or format is Format.json  # figures may be drawn the next time
    if context.obj is not None and is_complete and not reuse and training.prints_the_same(chosen):
        files |= states(drawn)
        keep(context.obj, out, text, files)


def tune(
    experiment: ExperimentFile = None,
    quick: Quick = False,
    algorithms: Annotated[str | None, typer.Option(help="Tables or entries to tune; default: all.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of every candidate: a number (default 1) or a list.")] = None,
    rounds: Rounds = None,
    set: Assignments = [],
    method: Annotated[str | None, typer.Option(help="grid (default) or bayes.")] = None,
    trials: Annotated[int | None, typer.Option(help="Candidates per entry, with --method bayes (default 20).")] = None,
    select_on: SelectOn = None,
    metric: ChosenBy = None,
    storage: Annotated[str | None, typer.Option(help="URL of a database shared by processes and machines.")] = None,
    batch: Annotated[int | None, typer.Option(help="Candidates trained together (default 12).")] = None,
    device: Device = None,
    workers: Workers = None,
    cluster: Cluster = None,
    precision: Precision = None,
    out: Output = Path(OUT),
    format: Annotated[Format, typer.Option(help="json prints all candidates on stdout.")] = Format.table,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose learning rates and hyper-parameters on a validation split; rerun to resume.

    Options override the experiment's table `tune`. Its table `tune.grid` may give values to try.
    """
    from ..comparison.progress import shown_shares
    from ..comparison.tuning import tune as tuning
    from ..core.files import made
    from ..report import tuning as result
    from ..report.files import prepare
    from ..spread.options import spread_of
    from . import training

    detail = detail_of(quiet, verbose)
    spread, device = spread_of(device, workers, cluster)
    settings = {"rounds": rounds, "device": device, "precision": precision}
    chosen = training.experiment_of(experiment, quick, algorithms, seeds, settings, set)
    table = dict(chosen.tune)
    own_seeds = table.pop("seeds", 1)
    if seeds is None:
        chosen = chosen.with_value("seeds", own_seeds)
    options = {
        "method": method,
        "trials": trials,
        "select_on": select_on,
        "metric": metric,
        "storage": storage,
        "batch": batch,
    }
    search = _search({**table, **without_none(options)}, trials)
    folder = out / f"{chosen.name}-tune"
    show_progress, show_each = training.tuning_progress(detail)
    with made(folder), shown_shares(detail) as shares:
        prepare(folder)
        tuned = tuning.tune(chosen, search, folder, show_progress, show_each, spread, shares)
    result.write_toml(tuned, folder / "tuned.toml")
    if format is Format.json:
        description = result.describe(tuned)
        print(json.dumps(description, indent=1))
        return
    training.show_tuned(tuned, folder)


def _search(table: dict[str, Any], trials: int | None) -> "Search":
    """What a table `tune` with the command's options asks for; `--trials` is for a Bayesian search alone."""
    from ..comparison.tuning.search import Search

    search = Search(**table)
    if trials is not None and search.method == "grid":
        raise InputError(
            f"--trials {trials}: a grid tries every combination; add --method bayes, or leave --trials out"
        )
    return search
