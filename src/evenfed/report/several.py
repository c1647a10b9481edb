"""Comparisons beside each other: the same entries on other federations, or in another set-up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..comparison.findings import BASELINE, Entry, Findings
from ..comparison.history import METRICS, History, Row
from ..comparison.statistics import Differences, components
from ..core.errors import InputError
from ..settings import VARIANT
from .against import against_tables, controls
from .beside_paper import paper_line
from .paper import Numbers
from .tables import (
    METRIC_COLUMNS,
    SUPPRESSION_COLUMNS,
    Cell,
    Line,
    Table,
    floor_note,
    joined,
    judged_by,
    metric_cells,
    metric_columns,
    name_of,
    suppression_cells,
    when,
)

_SPLIT = "data.seed"  # comparisons that differ in this alone repeat one on other federations
_IRRELEVANT = ("train.device", "train.engine", "train.seed")
_DEFAULTS = {"data.judge": "test", "model.normalise": False}  # of keys that older runs do not name

MeanAndSpread = tuple[float, float]


def tables(differences: Differences, numbers: Numbers | None, left_out: str) -> list[Table]:
    """Pooled over federations if only the split differs, else side by side."""
    comparisons = differences.comparisons
    names = _names(comparisons)
    tables = [_beside(differences, names, numbers, left_out)]
    if not differ_in_split_only(comparisons):
        return [*tables, _within(differences, names)]
    tables.append(_components(comparisons, differences.late))
    tables.append(_suppression(comparisons, differences.late))
    tables += against_tables(differences, names)
    if differences.findings.controls:
        tables.append(controls(differences))
    return tables


def check(comparisons: Sequence[Findings]) -> None:
    """Refuse comparisons that cannot be put beside each other."""
    folders = []
    tasks = []
    for findings in comparisons:
        data = findings.header.data["name"]
        folders.append(str(findings.folder))
        tasks.append(f"{data}, {findings.rounds} rounds")
    if len(set(_names(comparisons))) < len(comparisons):
        raise InputError(
            f"{', '.join(folders)}: two of them ran FedAvg on the same data in the same set-up; give comparisons that "
            "differ in data.seed (other federations) or in what is to be compared, each once"
        )
    if len(set(tasks)) > 1:
        raise InputError(
            f"{', '.join(folders)} are of {'; '.join(tasks)}; report on comparisons of the same data set and number of "
            "rounds together"
        )


def differ_in_split_only(comparisons: Sequence[Findings]) -> bool:
    """Whether the comparisons are the same on other federations, so that they can be pooled."""
    return _places_that_differ(_settings(comparisons)) == [_SPLIT]


def _names(comparisons: Sequence[Findings]) -> list[str]:
    """A name for each, made of the settings that differ."""
    settings = _settings(comparisons)
    places = _places_that_differ(settings)
    names = []
    for one in settings:
        values = [f"{place}={one.get(place)}" for place in places]
        names.append(", ".join(values))
    return names


def _settings(comparisons: Sequence[Findings]) -> list[dict[str, Any]]:
    return [_DEFAULTS | _flat(findings.header.config) for findings in comparisons]


def _places_that_differ(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    places = set()
    for one in settings:
        for place, value in one.items():
            if any(value != other.get(place) for other in settings):
                places.add(place)
    return sorted(places.difference(_IRRELEVANT))


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, under keys such as `data.seed`."""
    flat = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def in_common(comparisons: Sequence[Findings]) -> list[Findings]:
    """Only the entries that mean the same in all comparisons, in the first one's order."""
    common = []
    for label in comparisons[0].rows:
        meaning, *others = [_meaning(findings, label) for findings in comparisons]
        if all(other == meaning for other in others):
            common.append(label)
    return [findings.only(common) for findings in comparisons]


def _meaning(findings: Findings, label: str) -> str | None:
    """The method, and how it is set beside the FedAvg of the same comparison; None if there is no such entry."""
    if label not in findings.rows:
        return None
    entry = findings.named(label)
    options = entry.config["train"]
    shared = findings.baseline.config["train"]
    own = []
    for key in VARIANT:
        value = options.get(key)
        if value != shared.get(key):
            own.append((key, value))
    return repr((entry.method, entry.config["hyper_parameters"], own))


def not_in_common(comparisons: Sequence[Findings], shared: Findings) -> str:
    """A sentence on the entries that are not in common."""
    labels: dict[str, None] = {}
    for findings in comparisons:
        labels.update(dict.fromkeys(findings.rows))
    others = [label for label in labels if label not in shared.rows]
    if not others:
        return ""
    return f"Left out, as not the same in all of them: {', '.join(others)}."


def _beside(differences: Differences, names: Sequence[str], numbers: Numbers | None, left_out: str) -> Table:
    """Every metric of every entry in each comparison."""
    first = differences.findings
    late = differences.late
    lines = []
    for entry in first.everyone:
        control = entry.is_control
        for name, findings in zip(names, differences.comparisons, strict=True):
            cells = metric_cells(findings.rows[entry.label], late)
            lines.append(Line(entry.label, cells, name, control))
        if numbers and entry.method in numbers and not control and not late:
            lines.append(paper_line(entry.label, numbers[entry.method]))
    note = joined("Accuracy in % over clients, mean ± spread over seeds.", floor_note(first), left_out)
    return Table(
        name=name_of("beside", late),
        title=f"Side by side, {when(first, late)}",
        columns=METRIC_COLUMNS,
        lines=lines,
        notes=(note,),
    )


def _within(differences: Differences, names: Sequence[str]) -> Table:
    """Each entry against FedAvg in the same set-up."""
    findings = differences.findings
    metrics = judged_by(differences.late)
    lines = []
    for entry in findings.everyone[1:]:
        by_metric = [differences.on_each(entry.label, BASELINE, metric) for metric in metrics]
        for name, gaps in zip(names, zip(*by_metric, strict=True), strict=True):
            cells = list(map(Cell.of, gaps))
            lines.append(Line(entry.label, cells, name, entry.is_control))
    note = "Points, entry minus FedAvg in the same set-up, with the 95 % interval over clients and seeds."
    return Table(
        name=name_of("paired", differences.late),
        title=f"Paired difference from FedAvg in each set-up, {when(findings, differences.late)}",
        columns=metric_columns(metrics),
        lines=lines,
        notes=(note,),
    )


def _components(comparisons: Sequence[Findings], late: bool) -> Table:
    """How far federations and seeds move a figure, and its difference from FedAvg: standard deviations."""
    first = comparisons[0]
    note = (
        f"Points: the mean over {len(comparisons)} federations and their seeds, and standard deviations by analysis of "
        "variance: what a new federation adds to a figure, and what a new seed on the same federation adds. With so "
        "few of each they are rough; estimates below 0 count as 0."
    )
    lines: list[Line] = []
    only_some_seeds = ""
    for entry in first.everyone:
        own = []
        fedavg = []
        for findings in comparisons:
            same_entry = findings.named(entry.label)
            own.append(same_entry.runs)
            fedavg.append(dict(zip(same_entry.runs, findings.beside(same_entry), strict=True)))
        seeds = sorted(set.intersection(*map(set, own)))
        if len(seeds) < max(map(len, own)):
            only_some_seeds = "Only the seeds that all federations have."
        if len(seeds) < 2:
            continue
        figures = _figures(own, seeds, late)
        lines += _spreads(entry, "figure", figures)
        if entry.label != BASELINE:
            gaps = figures - _figures(fedavg, seeds, late)
            lines += _spreads(entry, "minus FedAvg", gaps)
    return Table(
        name=name_of("components", late),
        title=f"Spread over federations and over seeds, {when(first, late)}",
        columns=METRIC_COLUMNS,
        lines=lines,
        notes=(joined(note, only_some_seeds),),
    )


def _figures(runs: Sequence[Mapping[int, History]], seeds: Sequence[int], late: bool) -> NDArray[np.float64]:
    """[federations, seeds, metrics] in percent."""
    figures = np.zeros((len(runs), len(seeds), len(METRICS)))
    for i, by_seed in enumerate(runs):
        for j, seed in enumerate(seeds):
            run = by_seed[seed]
            fairness = run.late_fairness if late else run.fairness
            figures[i, j] = [100 * getattr(fairness, metric) for metric in METRICS]
    return figures


def _spreads(entry: Entry, what: str, values: NDArray[np.float64]) -> list[Line]:
    """`values` [federations, seeds, metrics] as three lines."""
    means = []
    between_federations = []
    between_seeds = []
    for k, mean in enumerate(values.mean(axis=(0, 1))):
        between, within = components(values[:, :, k])
        is_gap = what != "figure"
        means.append(Cell(float(mean), signed=is_gap))
        between_federations.append(Cell(between))
        between_seeds.append(Cell(within))
    control = entry.is_control
    return [
        Line(entry.label, means, what, control),
        Line(entry.label, between_federations, f"{what}: federations", control),
        Line(entry.label, between_seeds, f"{what}: seeds", control),
    ]


def _suppression(comparisons: Sequence[Findings], late: bool) -> Table:
    """Table 2 over all federations: each client against itself under FedAvg."""
    first = comparisons[0]
    lines = []
    for entry in first.everyone[1:]:
        row = _pooled([findings.rows[entry.label] for findings in comparisons])
        cells = suppression_cells(row, late)
        lines.append(Line(entry.label, cells, control=entry.is_control))
    note = "In % of the clients, mean ± spread over federations and seeds; in brackets the mean change in points."
    table = Table(
        name=name_of("suppression", late),
        title=f"Clients against FedAvg over {len(comparisons)} federations, {when(first, late)}",
        columns=SUPPRESSION_COLUMNS,
        lines=lines,
        notes=(joined(note, floor_note(first)),),
    )
    return table.with_best()


def _pooled(rows: Sequence[Row]) -> Row:
    """One row of all federations' runs."""
    last = _pooled_figures([row.last for row in rows])
    late = _pooled_figures([row.late for row in rows])
    return replace(rows[0], last=last, late=late)


def _pooled_figures(figures: Sequence[Mapping[str, MeanAndSpread]]) -> dict[str, MeanAndSpread]:
    """The mean over federations; the spread is that over seeds and that between federations together."""
    pooled = {}
    for name in figures[0]:
        means, spreads = np.array([each[name] for each in figures]).T
        mean = np.mean(means)
        spread = np.sqrt(np.mean(np.square(spreads)) + np.var(means))
        pooled[name] = (float(mean), float(spread))
    return pooled
