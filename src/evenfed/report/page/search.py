"""The page of a search: what was chosen for each entry, every candidate, and the picture of both."""

import shlex
from collections import Counter
from pathlib import Path

from ...comparison.tuning.search import Candidate
from ...comparison.tuning.tune import Tuned
from ...fairness import FIGURES
from ..charts import tuning as pareto
from ..table import Cell, Line, Table
from ..tables import METRIC_COLUMNS, directed, title
from ..tuning import judged_on, not_tuned, rounds_of, ties, values_of
from .contents import Page
from .glance import Described, Glance, level_cell, line_of
from .verdict import Verdict
from .words import level, marked

_COLUMNS = (
    {"key": "entry", "title": "Entry", "kind": "name"},
    {"key": "values", "title": "Chosen values", "kind": "words"},
    {"key": "worst10", "title": "Worst 10 %", "kind": "level"},
    {"key": "mean", "title": "Mean", "kind": "level"},
    {"key": "candidates", "title": "Candidates", "kind": "level"},
)


def of_search(tuned: Tuned, folder: Path) -> Page:
    """`folder` holds the search's database and tuned.toml."""
    left = not_tuned(tuned)
    count = len(tuned.candidates)
    metric = title(tuned.search.metric)
    facts = [f"{count} candidates, chosen by {metric} on {judged_on(tuned)}."]
    facts += ties(tuned)
    if left is not None:
        facts.append(left)
    return Page(
        title=folder.resolve().name,
        facts=facts,
        verdicts=[_verdict(tuned, folder)],
        glances=[_glance(tuned)],
        tables=[_candidates(tuned)],
        charts=[pareto.chart(tuned)],
        labels=list(tuned.chosen),
        commands=[_command(folder)],
        elsewhere="`evenfed tune --format json` prints the same figures.",
    )


def _command(folder: Path) -> str:
    return shlex.join(["evenfed", "compare", str(folder / "tuned.toml")])


def _judged_on(tuned: Tuned) -> str:
    return "a validation split" if tuned.search.select_on == "validation" else "the TEST data"


def _verdict(tuned: Tuned, folder: Path) -> Verdict:
    """The best of all, which is optimistic: it was chosen for its figure."""
    search = tuned.search
    metric = search.judged_by
    by = search.metric

    def rank(candidate: Candidate) -> float:
        return metric.direction(by) * candidate.figures[by]

    best = max(tuned.chosen.values(), key=rank)
    reached = level(metric, metric.unit * best.figures[by])
    values = values_of(best)
    count = len(tuned.candidates)
    sentence = f"{marked(best.label)} with {values} has the best {title(by)} of {count} candidates: {reached}."
    confirm = (
        f"Not yet: the best of many looks better than it is. `{_command(folder)}` trains the "
        "chosen entries again and judges them on test data."
    )
    if search.select_on == "test":
        confirm = "Values were chosen on the TEST data, as in the paper: all figures are optimistic."
    return Verdict(sentence, [("How sure", confirm)])


def _glance(tuned: Tuned) -> Glance:
    metric = tuned.search.judged_by
    tried = Counter(candidate.label for candidate in tuned.candidates)
    lines = []
    for label, candidate in tuned.chosen.items():
        number = tried[label]
        cells: list[Described] = [
            {"text": values_of(candidate)},
            level_cell(metric, metric.unit * candidate.figures["worst10"]),
            level_cell(metric, metric.unit * candidate.figures["mean"]),
            {"value": number, "text": str(number)},
        ]
        lines.append(line_of(label, cells))
    subtitle = f"{metric.title.capitalize()} on {judged_on(tuned)}, {rounds_of(tuned)}"
    return Glance(_COLUMNS, lines, subtitle, [], metric.sign, first=2)


def _candidates(tuned: Tuned) -> Table:
    metric = tuned.search.judged_by
    lines = []
    for candidate in tuned.candidates:
        cells = []
        for name in FIGURES:
            value = candidate.figures.get(name)
            cells.append(Cell() if value is None else Cell(metric.unit * value))
        lines.append(Line(candidate.label, cells, values_of(candidate)))
    table = Table(
        name="candidates",
        title="Every candidate",
        columns=directed(METRIC_COLUMNS, metric),
        lines=lines,
        digits=metric.digits,
    )
    return table.with_best()
