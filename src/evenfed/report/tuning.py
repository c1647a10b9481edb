"""What a search chose: a table, JSON with all candidates, and the chosen values as an experiment's TOML."""

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from ..comparison.tuning.search import Candidate
from ..comparison.tuning.tune import Tuned, tables
from ..core.errors import InputError
from ..core.files import replace_text
from ..core.words import assignments
from ..experiments import shown
from .tables import title


def render(tuned: Tuned) -> Table:
    """The chosen values of each entry, and the accuracy they reached."""
    search = tuned.search
    data = "the TEST data (as the paper did)"
    if search.select_on == "validation":
        data = "the validation split"
    judged_by = search.judged_by
    of = "" if judged_by.is_share else f" of the {judged_by.name}"
    heading = f"chosen by {title(search.metric)}{of} on {data}, {rounds_of(tuned)}"
    table = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left")
    table.add_column("entry")
    table.add_column("values")
    table.add_column("mean", justify="right")
    table.add_column("worst 10 %", justify="right")
    table.add_column("candidates", justify="right")
    tried = Counter(candidate.label for candidate in tuned.candidates)
    for label, best in tuned.chosen.items():
        mean = judged_by.unit * best.figures["mean"]
        worst10 = judged_by.unit * best.figures["worst10"]
        table.add_row(
            escape(label),
            escape(values_of(best)),
            judged_by.text(mean),
            judged_by.text(worst10),
            str(tried[label]),
        )
    return table


def values_of(candidate: Candidate) -> str:
    """A candidate's values as text."""

    def written(value: Any) -> str:
        return f"{value:g}" if isinstance(value, float) else str(value)

    return assignments(candidate.values, written)


def rounds_of(tuned: Tuned) -> str:
    """The rounds that figures are averaged over."""
    train = tuned.experiment.train
    rounds = min(train.last_rounds, train.rounds)
    return "last round" if rounds == 1 else f"average of the last {rounds} rounds"


def judged_on(tuned: Tuned) -> str:
    return "a validation split" if tuned.search.select_on == "validation" else "the TEST data"


def ties(tuned: Tuned) -> list[str]:
    """A sentence for each entry whose best candidate is not alone at the top."""
    search = tuned.search
    metric = search.judged_by
    name = title(search.metric)
    sentences = []
    for label, best in tuned.chosen.items():
        value = best.figures[search.metric]
        rivals = [candidate for candidate in tuned.candidates if candidate.label == label]
        level = sum(candidate.figures[search.metric] == value for candidate in rivals)
        if level == 1:
            continue
        shown = metric.text(metric.unit * value)
        who = f"all {level}" if level == len(rivals) else f"{level} of {len(rivals)}"
        sentence = f"{label}: {who} candidates tie at the same {name} ({shown})"
        if search.metric == "mean":
            sentences.append(f"{sentence}; the one tried first is taken.")
            continue
        sentence += "; the best mean decides, then the order of trial."
        if level == len(rivals):
            sentence += f" The {name} decides nothing here: train longer, or use --metric mean."
        sentences.append(sentence)
    return sentences


def not_tuned(tuned: Tuned) -> str | None:
    """Which hyper-parameters stay at their values, and what to do about it."""
    left = []
    for label, values in tuned.untuned.items():
        for name, value in values.items():
            left.append(f"{label}.{name} = {value}")
    if not left:
        return None
    listed = ", ".join(left)
    return (
        f"Not tuned, as no grid is declared: {listed}. To tune one, give its values in [tune.grid], "
        "or declare hyper(..., grid=[...]) in its class."
    )


def describe(tuned: Tuned) -> dict[str, Any]:
    """All candidates and the chosen ones, for programs."""
    chosen = {}
    for label, candidate in tuned.chosen.items():
        chosen[label] = _describe(candidate)
    return {
        "metric": tuned.search.metric,
        "selected_on": tuned.search.select_on,
        "chosen": chosen,
        "not_tuned": {label: dict(values) for label, values in tuned.untuned.items()},
        "candidates": list(map(_describe, tuned.candidates)),
    }


def _describe(candidate: Candidate) -> dict[str, Any]:
    return {
        "label": candidate.label,
        "values": dict(candidate.values),
        "figures": dict(candidate.figures),
    }


def write_toml(tuned: Tuned, path: Path) -> None:
    """The experiment with the chosen values: what `evenfed compare` takes next."""
    search = tuned.search
    data = "TEST DATA: not comparable with others"
    if search.select_on == "validation":
        data = "a validation split"
    origin = f"Values chosen by {search.metric} on {data}."
    experiment = tables(tuned.experiment, search.select_on)
    save_toml(path, toml_text(path, origin, experiment))


def toml_text(path: Path, origin: str, experiment: Mapping[str, Any]) -> str:
    """An experiment as the text of a file that says how to run it and where its values come from."""
    try:
        import tomli_w
    except ImportError:
        raise InputError("writing TOML needs tomli-w; install it with: pip install 'evenfed[tune]'") from None
    comment = textwrap.fill(origin, 110, initial_indent="# ", subsequent_indent="# ")
    content = tomli_w.dumps(experiment)
    command = shlex.join(["evenfed", "compare", shown(path)])
    return f"# {command}\n{comment}\n{content}"


def save_toml(path: Path, text: str) -> None:
    """Write an experiment's file."""
    try:
        replace_text(path, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another --out") from None
