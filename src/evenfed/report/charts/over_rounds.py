"""Convergence: mean, worst 10 % and spread of every algorithm over rounds, with bands over seeds."""

from collections.abc import Iterator, Sequence

import numpy as np

from ...comparison.analysis.findings import Findings
from ...comparison.analysis.history import History
from ..notes import is_alone, measured_on
from .axes import Axis, Extent
from .chart import Chart, Row, Spec
from .elements import (
    aggregated,
    calculated,
    category,
    named_scale,
    noted_at_right,
    panels,
    quantity,
    rounded,
    shown,
    where,
)
from .theme import BLUE, GREEN, GREY, VERMILION

MOST_ROUNDS = 300  # of a curve: more are averaged in groups
_METRICS = {"mean": "mean", "worst10": "worst 10 %", "std": "spread over clients"}
_COLOURS = (BLUE, VERMILION, GREEN)
_FIGURES = [*_METRICS, *(f"{metric}_baseline" for metric in _METRICS)]


def chart(comparisons: Sequence[Findings]) -> Chart | None:
    """Of one comparison, or of the same on several federations; None where fewer than two rounds were evaluated."""
    first = comparisons[0]
    most = max(len(run.evaluated) for run in first.baseline.histories)
    if most < 2:
        return None
    group = -(-most // MOST_ROUNDS)
    says = _says(comparisons)
    if group > 1:
        says.append(f"Each point is the mean of {group} evaluated rounds.")
    rows: list[Row] = []
    for position, findings in enumerate(comparisons):
        for row in _rows(findings, group):
            if len(comparisons) > 1:
                row["federation"] = findings.header.data.get("seed", position)
            rows.append(row)
    return Chart(
        name="learning-curves",
        title=f"Mean, worst 10 % and spread, round by round: {first.header.data['name']}, {measured_on(first).lower()}",
        says=" ".join(says),
        spec=_spec(first, rows),
        rows=rows,
    )


def _says(comparisons: Sequence[Findings]) -> list[str]:
    """How to read it; one run alone has no bands and nothing to compare with."""
    first = comparisons[0]
    says = []
    over = "seeds"
    if len(comparisons) > 1:
        over = f"{len(comparisons)} federations and their seeds"
    if len(first.seeds) > 1 or len(comparisons) > 1 or not is_alone(first):
        says.append(f"Mean over {over}; bands: one standard deviation, up and down.")
    if not is_alone(first):
        says.append(f"Dashed grey: {first.baseline_name}.")
    return says


def _rows(findings: Findings, group: int) -> Iterator[Row]:
    """A run each, with lists over its rounds, each point the mean of so many."""
    unit = findings.metric.unit
    baselines = {}
    for seed, run in findings.baseline.runs.items():
        curve = _curve(run, unit, group)
        baselines[seed] = dict(curve)
    for entry in findings.planned:
        for seed, run in entry.runs.items():
            row: Row = {"algorithm": entry.label, "seed": seed, "round": []}
            for figure in _FIGURES:
                row[figure] = []
            for number, figures in _curve(run, unit, group):
                row["round"].append(number)
                beside = baselines[seed].get(number, {})
                for metric in _METRICS:
                    own = rounded(figures[metric])
                    baseline = rounded(beside.get(metric, float("nan")))
                    row[metric].append(own)
                    row[f"{metric}_baseline"].append(baseline)
            if row["round"]:
                yield row


def _curve(run: History, unit: float, group: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Round numbers with each metric, averaged over groups of evaluated rounds."""
    numbers = []
    by_round = []
    for record in run.evaluated:
        figures = run.figures(record)
        if figures is None:
            continue
        fairness = run.metric.fairness(figures)
        numbers.append(record.index + 1)
        values = [unit * getattr(fairness, metric) for metric in _METRICS]
        by_round.append(values)
    for first in range(0, len(numbers), group):
        part = slice(first, first + group)
        last = numbers[part][-1]
        means = np.mean(by_round[part], axis=0).tolist()
        yield last, dict(zip(_METRICS, means, strict=True))


def _axis(findings: Findings, rows: list[Row]) -> Axis:
    by_algorithm: dict[str, list[float]] = {}
    for row in rows:
        for metric in _METRICS:
            known = [value for value in row[metric] if value is not None]
            values = by_algorithm.setdefault(row["algorithm"], [])
            values += known
    extents = []
    for values in by_algorithm.values():
        if values:
            extent = Extent(min(values), max(values))
            extents.append(extent)
    return Axis.of(extents, findings.metric.sign, margin=0.02)


def _spec(findings: Findings, rows: list[Row]) -> Spec:
    axis = _axis(findings, rows)
    digits = findings.metric.digits + 1
    colours = dict(zip(_METRICS.values(), _COLOURS, strict=True))
    legend = {
        "title": None,
        "orient": "top",
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,
    }
    colour = category("metric", scale=named_scale(colours), legend=legend)
    x = quantity("round", title="round", axis={"tickCount": 5, "grid": False}, scale={"nice": False, "zero": False})
    y_options = {"title": findings.metric.axis, "scale": axis.scale, "axis": {"tickCount": 5}}
    curve = {
        "type": "line",
        "strokeWidth": 1.5,
        "strokeJoin": "round",
        "clip": True,
    }
    beside = {
        "mark": {**curve, "color": GREY, "strokeDash": [4, 2]},
        "encoding": {"x": x, "y": quantity("beside", **y_options), "detail": category("metric")},
    }
    band = {
        "mark": {"type": "area", "opacity": 0.25, "clip": True},
        "encoding": {
            "x": x,
            "y": quantity("low", **y_options),
            "y2": {"field": "high"},
            "color": colour,
        },
    }
    line = {
        "mark": curve,
        "encoding": {
            "x": x,
            "y": quantity("value", **y_options),
            "color": colour,
            "tooltip": [
                shown("algorithm", "algorithm"),
                shown("round", "round", 0),
                shown("metric", "figure"),
                shown("value", findings.metric.axis, digits),
                shown("spread", "± over seeds", digits),
                shown("beside", findings.baseline_name, digits),
            ],
        },
    }
    labels = [entry.label for entry in findings.planned]
    layers = [band, line, *_beyond(axis)]
    if not is_alone(findings):
        layers.insert(0, beside)
    return panels(labels, layers, _by_round())


def _by_round() -> list[Spec]:
    """From runs to one row for each algorithm, round and figure."""
    name = " : ".join(f"datum.key === '{metric}' ? '{text}'" for metric, text in _METRICS.items())
    return [
        {"flatten": ["round", *_FIGURES]},
        {"fold": list(_METRICS)},
        calculated("metric", f"{name} : ''"),
        calculated("beside", "datum[datum.key + '_baseline']"),
        aggregated(
            ["algorithm", "round", "metric"],
            value=("mean", "value"),
            spread=("stdevp", "value"),
            beside=("mean", "beside"),
        ),
        calculated("low", "datum.value - datum.spread"),
        calculated("high", "datum.value + datum.spread"),
    ]


def _beyond(axis: Axis) -> list[Spec]:
    """Where a curve leaves the picture, how far it goes."""
    text = "'off the scale: ' + format(datum.least, '.3~g') + ' to ' + format(datum.most, '.3~g')"
    transform = [
        where(axis.is_outside("value")),
        aggregated(["algorithm"], least=("min", "value"), most=("max", "value")),
        calculated("text", text),
    ]
    return noted_at_right(transform, y=8)
