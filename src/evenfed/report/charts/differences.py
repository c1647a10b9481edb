"""Every entry minus the baseline with its interval, over a band of what chance alone does, on each federation."""

from collections.abc import Iterator

from ...comparison.analysis.statistics import Differences
from ..notes import measured_on
from ..tables import judged_by, title, when
from .axes import Axis, Extent
from .chart import Chart, Row, Spec, spec_of
from .elements import (
    aggregated,
    beyond_edges,
    calculated,
    category,
    label_lines,
    names_axis,
    names_extent,
    noted,
    quantity,
    rounded,
    shown,
    where,
    zero_line,
)
from .theme import BLUE, GREY, VERMILION

_COLUMNS = 2
_WIDTH = 760  # of both columns with their labels
_LABEL_LETTERS = 36
BY_VERDICT = {
    "condition": [{"test": "datum.sure > 0", "value": BLUE}, {"test": "datum.sure < 0", "value": VERMILION}],
    "value": GREY,
}


def chart(differences: Differences) -> Chart | None:
    """One panel per metric, one row per entry; None where there is nothing but the baseline."""
    findings = differences.findings
    if len(findings.everyone) < 2:
        return None
    baseline = findings.baseline_name
    over = "seeds"
    if differences.are_over_federations:
        over = f"{differences.federations} federations"
    says = (
        f"Dots with lines: mean and 95 % interval over {over}; blue: better, orange: worse, grey: not shown to differ."
    )
    if differences.federations > 1:
        says += " Rings: each federation."
    if differences.chance("mean", differences.fewest_seeds) is not None:
        repetition = "other batches" if differences.floor.is_paired else "other seeds"
        says += f" Shaded: 95 % of {baseline} against {baseline} with {repetition}."
    data = findings.header.data["name"]
    return Chart(
        name="differences",
        title=f"Difference from {baseline}: {data}, {measured_on(findings).lower()}, {when(findings, True)}",
        says=says,
        spec=_spec(differences),
        rows=list(_rows(differences)),
    )


def federation_names(differences: Differences) -> list[str]:
    """By the seed each was split with, or its position."""
    names = []
    for position, findings in enumerate(differences.comparisons):
        seed = findings.header.data.get("seed", position)
        names.append(str(seed))
    if len(set(names)) < len(names):
        return [str(position) for position, _ in enumerate(names)]
    return names


def gaps(
    differences: Differences,
    label: str,
    rival: str,
    metric: str,
) -> Iterator[Row]:
    """Every seed on every federation, then their interval with what it was computed from."""
    runs = 0
    by_federation = differences.by_seed(label, rival, metric)
    for federation, by_seed in zip(federation_names(differences), by_federation, strict=True):
        for seed, points in by_seed.items():
            runs += 1
            yield {"federation": federation, "seed": seed, "points": rounded(points)}
    pooled = differences.between(label, rival, metric)
    if pooled.is_judged:
        yield {
            "low": rounded(pooled.low),
            "high": rounded(pooled.high),
            "direction": pooled.direction,
            "runs": runs,
        }


def _rows(differences: Differences) -> Iterator[Row]:
    findings = differences.findings
    for entry in findings.everyone[1:]:
        for metric in judged_by(late=not findings.is_of_one_round):
            for row in gaps(differences, entry.label, findings.baseline.label, metric):
                yield {"algorithm": entry.label, "metric": metric, **row}


def with_intervals(*by: str) -> list[Spec]:
    """Whether all runs are shown that the interval was computed from: else there is none."""
    known = [
        {"op": "valid", "field": "points", "as": "runs_shown"},
        {"op": "max", "field": "runs", "as": "runs_of_interval"},
        {"op": "max", "field": "direction", "as": "verdict"},
    ]
    return [
        {"joinaggregate": known, "groupby": list(by)},
        calculated("is_whole", "datum.runs_shown === datum.runs_of_interval"),
        calculated("sure", "datum.is_whole ? datum.verdict : 0"),
    ]


def over_runs(*by: str) -> list[Spec]:
    """Seeds averaged on each federation, then federations."""
    return [
        where("isValid(datum.points)"),
        aggregated([*by, "federation"], points=("mean", "points"), sure=("max", "sure")),
        aggregated(by, points=("mean", "points"), sure=("max", "sure")),
    ]


def _spec(differences: Differences) -> Spec:
    findings = differences.findings
    names = {}
    for entry in findings.everyone[1:]:
        names[entry.label] = label_lines(title(entry.label), _LABEL_LETTERS)
    lines = max(map(len, names.values()))
    panel_width = (_WIDTH - names_extent(names) - 20) // _COLUMNS
    views = []
    metrics = judged_by(late=not findings.is_of_one_round)
    for position, metric in enumerate(metrics):
        heading = title(metric)
        sign = findings.metric.direction(metric)
        y_axis = {"labels": False, "ticks": False, "domain": False, "grid": False}
        if position % _COLUMNS == 0:
            y_axis = names_axis(names, domain=False)
        y = category("algorithm", title=None, scale={"domain": list(names)}, axis=y_axis)
        view = {
            "title": {"text": f"{heading} ({'← better' if sign < 0 else 'better →'})", "fontSize": 12},
            "width": panel_width,
            "height": {"step": 10 + 12 * lines},
            "transform": [where(f"datum.metric === '{metric}'"), *with_intervals("algorithm")],
            "layer": _layers(differences, metric, y),
        }
        views.append(view)
    return spec_of({"concat": views, "columns": _COLUMNS, "spacing": 18})


def _layers(differences: Differences, metric: str, y: Spec) -> list[Spec]:
    """What chance does, zero, intervals, means, and each federation's if there are several."""
    axis = _axis(differences, metric)
    whole = axis.widened(0.04)
    digits = differences.findings.metric.digits + 1
    x_options = {
        "title": differences.findings.metric.difference,
        "scale": whole.scale,
        "axis": {"tickCount": 6, "labelFlush": False, "labelOverlap": "parity", "labelSeparation": 6},
    }
    interval = {
        "transform": [where("isValid(datum.low) && datum.is_whole")],
        "mark": {"type": "rule", "strokeWidth": 2.5, "opacity": 0.6, "clip": True},
        "encoding": {
            "x": quantity("low", **x_options),
            "x2": {"field": "high"},
            "y": y,
            "color": BY_VERDICT,
            "tooltip": [shown("algorithm", "algorithm"), shown("low", "from", digits), shown("high", "to", digits)],
        },
    }
    x = quantity("shown", **x_options)
    tooltip = [shown("algorithm", "algorithm"), shown("points", "difference", digits)]
    means = {
        "transform": [*over_runs("algorithm"), calculated("shown", axis.clamped("points"))],
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": BY_VERDICT, "tooltip": tooltip},
            },
            *beyond_edges(axis, x, y),
        ],
    }
    cut = _cut_intervals(whole, y)
    layers = [*_chance(differences, metric, x_options), zero_line("x"), interval, *cut, means]
    if differences.federations > 1:
        each = [
            where("isValid(datum.points)"),
            aggregated(["algorithm", "federation"], points=("mean", "points"), sure=("max", "sure")),
            calculated("shown", axis.clamped("points")),
        ]
        rings = {
            "transform": each,
            "mark": {"type": "point", "size": 38, "strokeWidth": 1.3, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "color": BY_VERDICT,
                "tooltip": [shown("federation", "federation"), *tooltip],
            },
        }
        layers.append(rings)
    return layers


def _cut_intervals(axis: Axis, y: Spec) -> list[Spec]:
    """An arrow and the value where an interval goes on beyond the axis; a mean beyond it has its own."""
    mean = "(datum.low + datum.high) / 2"
    is_known = "isValid(datum.low) && datum.is_whole"
    below = [
        where(f"{is_known} && datum.low < {axis.low} && {mean} >= {axis.low}"),
        calculated("text", "'← ' + format(datum.low, '.3~g')"),
    ]
    above = [
        where(f"{is_known} && datum.high > {axis.high} && {mean} <= {axis.high}"),
        calculated("text", "format(datum.high, '.3~g') + ' →'"),
    ]
    at_left = noted(below, {"datum": axis.low}, y, align="left", dx=2, dy=-7, fontSize=9)
    at_right = noted(above, {"datum": axis.high}, y, align="right", dx=-2, dy=-7, fontSize=9)
    return [*at_left, *at_right]


def _axis(differences: Differences, metric: str) -> Axis:
    findings = differences.findings
    extents = []
    for entry in findings.everyone[1:]:
        pooled = differences.between(entry.label, findings.baseline.label, metric)
        on_each = differences.on_each(entry.label, findings.baseline.label, metric)
        values = [pooled.points, *(gap.points for gap in on_each)]
        if pooled.is_judged:
            values += [pooled.low, pooled.high]
        extents.append(Extent(min(values), max(values)))
    return Axis.of_differences(extents)


def _chance(differences: Differences, metric: str, x_options: Spec) -> list[Spec]:
    """What chance alone does; nothing where it is not known."""
    floor = differences.chance(metric, differences.fewest_seeds)
    if floor is None:
        return []
    band = {
        "data": {"values": [{"from": -floor.bound, "to": floor.bound}]},
        "mark": {"type": "rect", "style": "chance", "clip": True},
        "encoding": {"x": quantity("from", **x_options), "x2": {"field": "to"}},
    }
    return [band]
