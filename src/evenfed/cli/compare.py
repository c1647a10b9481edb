"""The commands that train: `compare` and `tune`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..algorithms import BUILT_IN
from ..callbacks.naming import chosen as callbacks_chosen
from ..comparison.experiment import DEMO, Experiment
from ..comparison.findings import BASELINE, Findings
from ..comparison.plan import parse_list, seed_list, value_of, with_baseline
from ..comparison.progress import live, progress_page
from ..comparison.runner import complete, files_read, findings_of, take_over
from ..data import Federation
from ..experiments import located
from . import rerun
from .console import NOT_DRAWN, console, say

if TYPE_CHECKING:
    from ..comparison.tune import Tuned


class Format(StrEnum):
    table = "table"
    json = "json"


ExperimentFile = Annotated[
    Path | None,
    typer.Argument(help="TOML file of an experiment, or @NAME (see `evenfed experiments`); the demo if left out."),
]
Full = Annotated[bool, typer.Option("--full", help="Print every table with every column.")]
Quick = Annotated[bool, typer.Option("--quick", help="Run the small form of the experiment: minutes on 2 cores.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds per run.")]
Assignments = Annotated[list[str], typer.Option("--set", help="Set one value, e.g. semi_vred.beta=0.5; repeatable.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto.")]
Precision = Annotated[str | None, typer.Option(help="GPU matmul precision: fp32, tf32 or bf16.")]
Output = Annotated[Path, typer.Option(help="Output folder; reuse it to resume.")]


def compare(
    context: typer.Context,
    experiment: ExperimentFile = None,
    quick: Quick = False,
    data: Annotated[str | None, typer.Option(help="Data set, e.g. digits.")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help='Entries to run, e.g. "fedavg,semi_vred,semi_vred\\[beta=1,smooth=0.25]".')
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds, or a list such as 0,1,5.")] = None,
    rounds: Rounds = None,
    set: Assignments = [],
    engine: Annotated[str | None, typer.Option(help="parallel, reference or flower.")] = None,
    device: Device = None,
    precision: Precision = None,
    out: Output = Path(rerun.OUT),
    reuse: Annotated[
        list[Path], typer.Option(help="Take finished runs from this comparison, packed or not; repeatable.")
    ] = [],
    track: Annotated[
        list[str], typer.Option(help="Write to tensorboard, mlflow or wandb, or use early_stopping; repeatable.")
    ] = [],
    full: Full = False,
    format: Annotated[Format, typer.Option(help="json prints only the table, on stdout.")] = Format.table,
) -> None:
    """Train several algorithms on the same clients and show how each serves the worst-served."""
    settings = {
        "rounds": rounds,
        "engine": engine,
        "device": device,
        "precision": precision,
    }
    files = rerun.states([located(experiment or DEMO)])
    assignments = list(set)
    if data is not None:
        assignments.insert(0, f"data.name='{data}'")
    chosen = _experiment(experiment, quick, algorithms, seeds, settings, assignments)
    named = callbacks_chosen(track)
    chosen = replace(chosen, track={**named, **chosen.track})
    for folder in reuse:
        taken = ", ".join(take_over(chosen, out, folder)) or "nothing"
        say(f"taken from {folder}: {taken}")
    with live() as progress:
        complete(chosen, out, progress, _introduce)
    files |= rerun.states(files_read(chosen, out))
    findings = findings_of(chosen, out)
    drawn: list[Path] = []
    if format is Format.json:
        text = json.dumps(findings.describe(), indent=1) + "\n"
        sys.stdout.write(text)
    else:
        text, drawn = _show(findings, out / chosen.name, full)
    is_complete = bool(drawn) or format is Format.json  # figures may be drawn the next time
    if context.obj is not None and is_complete and not reuse and _prints_the_same(chosen):
        files |= rerun.states(drawn)
        rerun.keep(context.obj, out, text, files)


def _prints_the_same(experiment: Experiment) -> bool:
    """Whether a finished experiment is only printed: no cautions, and nothing of other packages decides about it."""
    if experiment.track:
        return False
    runs, _ = experiment.runs()
    has_cautions = any(planned.settings.caution is not None for planned in runs)
    are_built_in = all(planned.algorithm.name in BUILT_IN for planned in runs)
    return are_built_in and not has_cautions


def _introduce(federation: Federation) -> None:
    """Who takes part, and what was noted about their data."""
    page = progress_page()
    page.print(federation.summary(), markup=False, soft_wrap=True)
    for note in federation.notes:
        page.print(f"! {note}", markup=False, soft_wrap=True)


def _show(findings: Findings, folder: Path, full: bool) -> tuple[str, list[Path]]:
    """Print tables and draw figures; returns all that was printed, and the figures' files."""
    from ..report import held_out
    from ..report.figures import comparison as figures
    from ..report.tables import brief, summary
    from ..report.write import pages

    page = console()
    tables = [brief(findings)]
    if full:
        tables = [*summary(findings), *held_out.tables(findings)]
    with page.capture() as first:
        page.print(pages(tables, page))
        for sentence in findings.stopped:
            page.print(sentence, style="dim", markup=False)
        for sentence in findings.advice:
            page.print(f"! {sentence}", style="yellow", markup=False)
    sys.stdout.write(first.get())
    sys.stdout.flush()
    drawn = figures.draw(findings, folder / "figures")
    shown = NOT_DRAWN
    if drawn:
        pngs = [path.name for path in drawn if path.suffix == ".png"]
        names = ", ".join(pngs)
        shown = f"{folder}/figures: {names}"
    with page.capture() as second:
        page.print(f"\nResults: {folder}/<algorithm>/seed-<k>/header.json and rounds.jsonl", markup=False)
        page.print(f"Figures: {shown}", markup=False)
    sys.stdout.write(second.get())
    return first.get() + second.get(), drawn


def tune(
    experiment: ExperimentFile = None,
    quick: Quick = False,
    algorithms: Annotated[str | None, typer.Option(help="Entries to tune; all of the experiment if left out.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of every candidate: a number or a list; 1.")] = None,
    rounds: Rounds = None,
    set: Assignments = [],
    method: Annotated[str | None, typer.Option(help="grid (default) or bayes.")] = None,
    trials: Annotated[int | None, typer.Option(help="Candidates per entry, with --method bayes; 20.")] = None,
    select_on: Annotated[
        str | None, typer.Option(help="validation (default), or test as the paper did (results say so).")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to choose by: worst10 (default), mean, worst, worst20, std or best10.")
    ] = None,
    storage: Annotated[str | None, typer.Option(help="URL of a database shared by processes and machines.")] = None,
    batch: Annotated[int | None, typer.Option(help="Candidates trained together; 12.")] = None,
    device: Device = None,
    precision: Precision = None,
    out: Output = Path(rerun.OUT),
    format: Annotated[Format, typer.Option(help="json prints all candidates on stdout.")] = Format.table,
) -> None:
    """Choose learning rates and hyper-parameters on a validation split; rerun to resume.

    Options go before the experiment's table [tune], which may also give values to try in [tune.grid].
    """
    from ..comparison import tune as tuning
    from ..comparison.study import Search
    from ..report import tuning as result
    from ..report.write import prepare

    settings = {"rounds": rounds, "device": device, "precision": precision}
    chosen = _experiment(experiment, quick, algorithms, seeds, settings, set)
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
    search = Search.of({**table, **_given(options)})
    folder = out / f"{chosen.name}-tune"
    prepare(folder)
    progress = progress_page()

    def show_progress(done: int, total: int) -> None:
        progress.print(f"{done} of {total} candidates")

    tuned = tuning.tune(chosen, search, folder, show_progress)
    result.write_toml(tuned, folder / "tuned.toml")
    if format is Format.json:
        description = result.describe(tuned)
        print(json.dumps(description, indent=1))
        return
    _show_tuned(tuned, folder)


def _show_tuned(tuned: "Tuned", folder: Path) -> None:
    from ..report import tuning as result
    from ..report.figures import tuning as figures

    page = console()
    page.print(result.render(tuned))
    left = result.not_tuned(tuned)
    if left:
        page.print(f"! {left}", style="yellow", markup=False)
    drawn = figures.draw(tuned, folder)
    shown = drawn[-1] if drawn else NOT_DRAWN
    page.print(f"Chosen values: {folder}/tuned.toml\nFigure: {shown}", markup=False)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def _experiment(
    path: Path | None,
    quick: bool,
    algorithms: str | None,
    seeds: str | None,
    settings: Mapping[str, Any],
    assignments: Sequence[str],
) -> Experiment:
    """The experiment of a file (or the demo), changed as the options say."""
    experiment = Experiment.read(path or DEMO)
    if quick:
        experiment = experiment.in_quick_form()
    if algorithms is not None:
        entries = {variant.label: variant for variant in experiment.variants}
        variants = parse_list(algorithms, entries)
        labels = [variant.label for variant in variants]
        if BASELINE in entries and BASELINE not in labels:
            variants.insert(0, entries[BASELINE])
        variants = with_baseline(variants)
        experiment = replace(experiment, variants=tuple(variants))
    if seeds is not None:
        is_number = seeds.strip().lstrip("-").isdigit()
        if not is_number:
            without_brackets = seeds.strip("[] ")
            seeds = f"[{without_brackets}]"
        numbers = seed_list(value_of(seeds))
        experiment = replace(experiment, seeds=tuple(numbers))
    train = replace(experiment.train, **_given(settings))
    experiment = replace(experiment, train=train)
    experiment = experiment.changed(assignments)
    runs, _ = experiment.runs()
    cautions = dict.fromkeys(run.settings.caution for run in runs)
    for caution in cautions:
        if caution is not None:
            say(f"evenfed: {caution}")
    return experiment
