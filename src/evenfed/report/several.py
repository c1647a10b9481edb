"""Comparisons beside each other: the same entries on other federations, or in another set-up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..comparison.findings import BASELINE, Entry, Findings
from ..comparison.history import METRICS, History, Row
from ..comparison.intervals import Array, components
from ..comparison.statistics import Differences
from ..core.errors import InputError
from ..settings import VARIANT
from .against import against_tables, controls
from .beside_paper import paper_line
from .columns import METRIC_COLUMNS, suppression_columns
from .paper import Numbers
from .table import Cell, Line, MeansAndSpreads, Table
from .tables import floor_note, joined, judged_by, metric_cells, metric_columns, name_of, suppression_cells, when

_SPLIT = "data.seed"  # comparisons that differ in this alone repeat one on other federations
_IRRELEVANT = ("train.device", "train.engine", "train.seed")
_DEFAULTS = {"data.judge": "test", "model.normalise": False}  # of keys that older runs do not name

FlatSettings = dict[str, Any]  # by place, such as `data.seed`


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
    distinct_names = set(_names(comparisons))
    if len(distinct_names) < len(comparisons):
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
        values = []
        for place in places:
            value = one.get(place)
            values.append(f"{place}={value}")
        names.append(", ".join(values))
    return names


def _settings(comparisons: Sequence[Findings]) -> list[FlatSettings]:
    settings = []
    for findings in comparisons:
        named = _flat(findings.header.config)
        settings.append(_DEFAULTS | named)
    return settings


def _places_that_differ(settings: Sequence[FlatSettings]) -> list[str]:
    places = set()
    for one in settings:
        for other in settings:
            for place, value in one.items():
                if value != other.get(place):
                    places.add(place)
    return sorted(places.difference(_IRRELEVANT))


def _flat(table: Mapping[str, Any], prefix: str = "") -> FlatSettings:
    """Nested tables as one, under keys such as `data.seed`."""
    flat: FlatSettings = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            nested = _flat(value, f"{prefix}{key}.")
            flat.update(nested)
        else:
            flat[prefix + key] = value
    return flat


def in_common(comparisons: Sequence[Findings]) -> list[Findings]:
    """Only the entries that mean the same in all comparisons, in the first one's order."""
    common = []
    for label in comparisons[0].rows:
        meanings = set()
        for findings in comparisons:
            meanings.add(_meaning(findings, label))
        if len(meanings) == 1:
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
    hyper_parameters = entry.config["hyper_parameters"]
    return repr((entry.method, hyper_parameters, own))


def not_in_common(comparisons: Sequence[Findings], shared: Findings) -> str:
    """A sentence on the entries that are not in common."""
    labels: dict[str, None] = {}
    for findings in comparisons:
        labels.update(dict.fromkeys(findings.rows))
    others = []
    for label in labels:
        if label not in shared.rows:
            others.append(label)
    if not others:
        return ""
    return f"Left out, as not the same in all of them: {', '.join(others)}."


def _beside(
    differences: Differences,
    names: Sequence[str],
    numbers: Numbers | None,
    left_out: str,
) -> Table:
    """Every metric of every entry in each comparison."""
    first = differences.findings
    late = differences.late
    papers: Numbers = {}  # its figures are of the last round
    if numbers and not late:
        papers = numbers
    lines = []
    for entry in first.everyone:
        control = entry.is_control
        for name, findings in zip(names, differences.comparisons, strict=True):
            row = findings.rows[entry.label]
            cells = metric_cells(row, late)
            lines.append(Line(entry.label, cells, name, control))
        if entry.method in papers and not control:
            figures = papers[entry.method]
            lines.append(paper_line(entry.label, figures))
    note = joined(
        f"{first.metric.title.capitalize()} over clients, mean ± spread over seeds.",
        floor_note(first),
        left_out,
    )
    return Table(
        name=name_of("beside", late),
        title=f"Side by side, {when(first, late)}",
        columns=METRIC_COLUMNS,
        digits=first.metric.digits,
        lines=lines,
        notes=(note,),
    )


def _within(differences: Differences, names: Sequence[str]) -> Table:
    """Each entry against FedAvg in the same set-up."""
    findings = differences.findings
    metrics = judged_by(differences.late)
    lines = []
    for entry in findings.everyone[1:]:
        by_comparison: list[list[Cell]] = [[] for _ in names]
        for metric in metrics:
            gaps = differences.on_each(entry.label, BASELINE, metric)
            for cells, gap in zip(by_comparison, gaps, strict=True):
                cells.append(Cell.of(gap))
        for name, cells in zip(names, by_comparison, strict=True):
            line = Line(entry.label, cells, name, entry.is_control)
            lines.append(line)
    note = "Points, entry minus FedAvg in the same set-up, with the 95 % interval over seeds."
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
            beside = findings.beside(same_entry)
            own.append(same_entry.runs)
            fedavg.append(dict(zip(same_entry.runs, beside, strict=True)))
        shared_seeds = set.intersection(*map(set, own))
        seeds = sorted(shared_seeds)
        if len(seeds) < max(map(len, own)):
            only_some_seeds = "Only the seeds that all federations have."
        if len(seeds) < 2:
            continue
        figures = _figures(own, seeds, late)
        lines += _spreads(entry, "figure", figures)
        if entry.label != BASELINE:
            gaps = figures - _figures(fedavg, seeds, late)
            lines += _spreads(entry, "minus FedAvg", gaps)
    full_note = joined(note, only_some_seeds)
    return Table(
        name=name_of("components", late),
        title=f"Spread over federations and over seeds, {when(first, late)}",
        columns=METRIC_COLUMNS,
        digits=first.metric.digits,
        lines=lines,
        notes=(full_note,),
    )


def _figures(
    runs: Sequence[Mapping[int, History]],
    seeds: Sequence[int],
    late: bool,
) -> Array:
    """[federations, seeds, metrics] as shown: accuracies in percent."""
    shape = (len(runs), len(seeds), len(METRICS))
    figures = np.zeros(shape)
    for i, by_seed in enumerate(runs):
        for j, seed in enumerate(seeds):
            run = by_seed[seed]
            fairness = run.late_fairness if late else run.fairness
            for k, metric in enumerate(METRICS):
                figures[i, j, k] = run.metric.unit * getattr(fairness, metric)
    return figures


def _spreads(entry: Entry, what: str, values: Array) -> list[Line]:
    """`values` [federations, seeds, metrics] as three lines."""
    means = []
    between_federations = []
    between_seeds = []
    is_gap = what != "figure"
    for k, mean in enumerate(values.mean(axis=(0, 1))):
        of_metric = values[:, :, k]
        between, within = components(of_metric)
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
        rows = [findings.rows[entry.label] for findings in comparisons]
        cells = suppression_cells(_pooled(rows), late)
        line = Line(entry.label, cells, control=entry.is_control)
        lines.append(line)
    note = f"In % of the clients, mean ± spread over federations and seeds; in brackets the mean {first.metric.change}."
    full_note = joined(note, floor_note(first))
    table = Table(
        name=name_of("suppression", late),
        title=f"Clients against FedAvg over {len(comparisons)} federations, {when(first, late)}",
        columns=suppression_columns(first.metric),
        digits=first.metric.digits,
        lines=lines,
        notes=(full_note,),
    )
    return table.with_best()


def _pooled(rows: Sequence[Row]) -> Row:
    """One row of all federations' runs."""
    last = _pooled_figures([row.last for row in rows])
    late = _pooled_figures([row.late for row in rows])
    return replace(rows[0], last=last, late=late)


def _pooled_figures(by_federation: Sequence[MeansAndSpreads]) -> MeansAndSpreads:
    """The mean over federations; the spread is that over seeds and that between federations together."""
    pooled = {}
    for name in by_federation[0]:
        pairs = np.array([figures[name] for figures in by_federation])
        means, spreads = pairs.T
        over_seeds = np.mean(np.square(spreads))
        over_federations = np.var(means)
        mean = float(np.mean(means))
        spread = float(np.sqrt(over_seeds + over_federations))
        pooled[name] = (mean, spread)
    return pooled
