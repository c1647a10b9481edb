"""Mean against the worst 10 %: every algorithm with its spread over seeds, and where chance alone ends up."""

from collections.abc import Iterator

from ...comparison.analysis.findings import Findings
from ...comparison.analysis.history import History
from ..notes import is_alone, measured_on
from ..tables import when
from .chart import Chart, Row, Spec, spec_of
from .elements import (
    aggregated,
    better,
    calculated,
    category,
    coloured,
    percent,
    quantity,
    rounded,
    shaped,
    shown,
    where,
)
from .plot import HEIGHT, LINE, LIST, Plot, repetitions
from .theme import is_own, looks

_NARROW = 290.0  # of the plot on a phone: labels have their places for just this width


def chart(findings: Findings) -> Chart | None:
    """Up is fairer, right is better on average. None where no client has a figure, or an entry is alone."""
    rows = _rows(findings)
    if not rows or is_alone(findings):
        return None
    says = "Bars: one standard deviation over seeds, up and down."
    if repetitions(findings):
        says += f" Shaded: all runs of {findings.baseline_name}, repeated ones included; inside it, all may be chance."
    return Chart(
        name="trade-off",
        title=f"Mean against the worst-served 10 %: {measured_on(findings).lower()}, {when(findings, True)}",
        says=says,
        spec=_spec(findings, Plot.of(findings)),
        narrow=_spec(findings, Plot.of(findings, _NARROW)),
        rows=rows,
    )


def _rows(findings: Findings) -> list[Row]:
    """A run each. Those of the noise floor go by FedAvg's name and seeds: they come and go with it."""
    rows = []
    for entry in findings.planned:
        is_baseline = entry is findings.baseline
        for seed, run in entry.runs.items():
            for row in _row(findings, entry.label, seed, run):
                rows.append(
                    {
                        **row,
                        "own": is_own(entry),
                        "chance": is_baseline,
                        "repetition": 0,
                    }
                )
    for entry in repetitions(findings):
        for seed, run in zip(findings.seeds, entry.histories, strict=False):
            for row in _row(findings, findings.baseline.label, seed, run):
                rows.append(
                    {
                        **row,
                        "own": False,
                        "chance": True,
                        "repetition": 1,
                    }
                )
    return rows


def _row(findings: Findings, label: str, seed: int, run: History) -> Iterator[Row]:
    fairness = run.late_fairness
    if fairness is None:
        return
    unit = findings.metric.unit
    mean = rounded(unit * fairness.mean)
    worst10 = rounded(unit * fairness.worst10)
    if mean is not None and worst10 is not None:
        yield {
            "algorithm": label,
            "seed": seed,
            "mean": mean,
            "worst10": worst10,
        }


def _spec(findings: Findings, plot: Plot) -> Spec:
    name = findings.metric.name
    x_options = {"title": f"mean {name} of all clients{percent(findings)}", "scale": plot.x.scale}
    y_options = {"title": f"{name} of the worst-served 10 %{percent(findings)}", "scale": plot.y.scale}
    return spec_of(
        {
            "width": plot.width,
            "height": HEIGHT,
            "layer": [
                _chance(x_options, y_options),
                {
                    "transform": _by_algorithm(plot),
                    "layer": [*_marks(findings, x_options, y_options), *_off_the_scale(findings, plot)],
                },
                better(findings.metric.sign, plot.width, HEIGHT),
            ],
        }
    )


def _chance(x_options: Spec, y_options: Spec) -> Spec:
    """The rectangle around all runs of FedAvg, if it was run again."""
    ends = aggregated(
        [],
        x=("min", "mean"),
        x2=("max", "mean"),
        y=("min", "worst10"),
        y2=("max", "worst10"),
        repetitions=("sum", "repetition"),
    )
    return {
        "transform": [where("datum.chance"), ends, where("datum.repetitions > 0")],
        "mark": {
            "type": "rect",
            "style": "chance",
            "clip": True,
        },
        "encoding": {
            "x": quantity("x", **x_options),
            "x2": {"field": "x2"},
            "y": quantity("y", **y_options),
            "y2": {"field": "y2"},
        },
    }


def _by_algorithm(plot: Plot) -> list[Spec]:
    """From runs to one row for each algorithm, with its label's place."""
    x = plot.x
    y = plot.y
    places = [{"algorithm": label, **plot.ends(label)} for label in plot.labels]
    columns = ["label_x", "label_y", "align", "leader_x", "leader_y"]
    return [
        where("!datum.repetition"),
        aggregated(
            ["algorithm"],
            mean=("mean", "mean"),
            worst10=("mean", "worst10"),
            mean_spread=("stdevp", "mean"),
            worst10_spread=("stdevp", "worst10"),
            own=("max", "own"),
        ),
        {
            "lookup": "algorithm",
            "from": {
                "data": {"values": places},
                "key": "algorithm",
                "fields": columns,
            },
        },
        calculated("x_low", "datum.mean - datum.mean_spread"),
        calculated("x_high", "datum.mean + datum.mean_spread"),
        calculated("y_low", "datum.worst10 - datum.worst10_spread"),
        calculated("y_high", "datum.worst10 + datum.worst10_spread"),
        calculated("outside", f"{x.is_outside('mean')} || {y.is_outside('worst10')}"),
    ]


def _marks(findings: Findings, x_options: Spec, y_options: Spec) -> list[Spec]:
    """Lines to labels, error bars, points and names."""
    known = looks(findings.planned)
    digits = findings.metric.digits + 1
    colour = coloured(known)
    x = quantity("mean", **x_options)
    y = quantity("worst10", **y_options)
    bar = {
        "type": "rule",
        "strokeWidth": 1.2,
        "opacity": 0.5,
        "clip": True,
    }
    across = {
        "x": quantity("x_low", **x_options),
        "x2": {"field": "x_high"},
        "y": y,
        "color": colour,
    }
    upright = {
        "x": x,
        "y": quantity("y_low", **y_options),
        "y2": {"field": "y_high"},
        "color": colour,
    }
    leader = {
        "transform": [where("isValid(datum.leader_x)")],
        "mark": {"type": "rule", "style": "leader"},
        "encoding": {
            "x": x,
            "x2": {"field": "leader_x"},
            "y": y,
            "y2": {"field": "leader_y"},
        },
    }
    dots = {
        "mark": {
            "type": "point",
            "filled": True,
            "opacity": 1,
        },
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": shaped(known),
            "size": {"condition": {"test": "datum.own", "value": 190}, "value": 95},
            "tooltip": [
                shown("algorithm", "algorithm"),
                shown("mean", "mean", digits),
                shown("mean_spread", "± over seeds", digits),
                shown("worst10", "worst 10 %", digits),
                shown("worst10_spread", "± over seeds ", digits),
            ],
        },
    }
    bars = [{"mark": bar, "encoding": across}, {"mark": bar, "encoding": upright}]
    drawn = [*bars, leader, dots, *_names(x_options, y_options)]
    return [{"transform": [where("!datum.outside")], "layer": drawn}]


def _names(x_options: Spec, y_options: Spec) -> list[Spec]:
    """Labels, each on a ground that keeps bars off the letters."""
    placed = {
        "x": quantity("label_x", **x_options),
        "y": quantity("label_y", **y_options),
        "text": category("algorithm"),
    }
    text = {
        "type": "text",
        "align": {"expr": "datum.align"},
        "baseline": "middle",
        "fontSize": 11,
    }
    halo = {"mark": {**text, "style": "halo"}, "encoding": placed}
    return [halo, {"mark": text, "encoding": placed}]


def _off_the_scale(findings: Findings, plot: Plot) -> list[Spec]:
    """A list in a corner, so that one diverging algorithm does not squeeze the others."""
    left = plot.outside.left + 10
    top = plot.outside.top + 12
    known = looks(findings.planned)
    form = ".1f" if findings.metric.is_share else ".4~g"  # losses have no bound
    place = {"y": quantity("place", scale=None, axis=None)}
    numbers = f"format(datum.mean, '{form}') + ', ' + format(datum.worst10, '{form}')"
    heading = {
        "transform": [aggregated([], number=("count", "mean")), where("datum.number > 0")],
        "mark": {
            "type": "text",
            "style": "note",
            "align": "left",
            "text": LIST,
        },
        "encoding": {"x": {"value": left}, "y": {"value": top}},
    }
    symbols = {
        "mark": {
            "type": "point",
            "filled": True,
            "opacity": 1,
            "size": 60,
        },
        "encoding": {
            "x": {"value": left + 5},
            **place,
            "color": coloured(known),
            "shape": shaped(known),
        },
    }
    names = {
        "transform": [calculated("text", f"datum.algorithm + ': ' + {numbers}")],
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "middle",
            "fontSize": 11,
        },
        "encoding": {
            "x": {"value": left + 14},
            **place,
            "text": category("text"),
        },
    }
    rank = {
        "window": [{"op": "row_number", "as": "number"}],
        "sort": [{"field": "mean", "order": "descending"}],
    }
    each = {
        "transform": [rank, calculated("place", f"{top} + {LINE} * datum.number")],
        "layer": [symbols, names],
    }
    return [{"transform": [where("datum.outside")], "layer": [heading, each]}]
