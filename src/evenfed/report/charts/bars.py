"""The paper's bars of accuracy: every entry in the last round and over the last rounds."""

import json
from collections.abc import Iterator, Sequence

from ...comparison.analysis.findings import Findings
from ..notes import measured_on
from ..paper import Numbers
from ..tables import title, when
from .chart import Chart, Row, Spec, spec_of
from .elements import (
    aggregated,
    calculated,
    category,
    label_lines,
    named_scale,
    names_axis,
    names_extent,
    quantity,
    rounded,
    shown,
    where,
)
from .theme import BLUE, VERMILION

_COLOURS = {"mean": BLUE, "worst10": VERMILION, "worst20": VERMILION}
_WIDTH = 700  # of both panels with the entries' names
_LETTERS = 26


def chart(
    findings: Findings,
    name: str,
    metrics: Sequence[str],
    paper: Numbers | None,
) -> Chart:
    """A panel for the last round, as in the paper, and one for the average of the last rounds."""
    names = " and ".join(map(title, metrics))
    says = "Thin lines: one standard deviation over seeds, up and down. Dashed: the best."
    if paper:
        says += " Diamonds: the paper."
    return Chart(
        name=name,
        title=f"{measured_on(findings)}, {names}: {findings.header.data['name']}",
        says=says,
        spec=_spec(findings, metrics),
        rows=list(_rows(findings, metrics, paper)),
    )


def _rows(findings: Findings, metrics: Sequence[str], paper: Numbers | None) -> Iterator[Row]:
    """A figure of a run each, and the paper's."""
    unit = findings.metric.unit
    for entry in findings.everyone:
        published = None
        if paper and not entry.is_control:
            published = paper.get(entry.method)
        for metric in metrics:
            about: Row = {"algorithm": entry.label, "metric": title(metric), "repetition": entry.is_control}
            for seed, run in entry.runs.items():
                for late, fairness in ((False, run.fairness), (True, run.late_fairness)):
                    if fairness is not None:
                        value = rounded(unit * getattr(fairness, metric))
                        yield {
                            **about,
                            "seed": seed,
                            "when": when(findings, late),
                            "value": value,
                        }
            if published:
                yield {**about, "when": when(findings, False), "paper": published[metric][0]}


def _spec(findings: Findings, metrics: Sequence[str]) -> Spec:
    labels = {entry.label: label_lines(title(entry.label), _LETTERS) for entry in findings.everyone}
    lines = max(map(len, labels.values()))
    is_share = findings.metric.is_share
    transform = [
        aggregated(
            ["algorithm", "metric", "when", "repetition"],
            value=("mean", "value"),
            spread=("stdevp", "value"),
            paper=("max", "paper"),
        ),
        calculated("low", "max(0, datum.value - datum.spread)" if is_share else "datum.value - datum.spread"),
        calculated("high", "datum.value + datum.spread"),
    ]
    views = []
    whens = list(dict.fromkeys([when(findings, False), when(findings, True)]))
    for text in whens:
        is_first = text == whens[0]
        y_axis = names_axis(labels) if is_first else {"labels": False, "ticks": False, "grid": False}
        view = {
            "title": {"text": text, "anchor": "start", "fontSize": 12},
            "width": (_WIDTH - names_extent(labels)) // len(whens),
            "height": {"step": max(13 * len(metrics) + 6, 13 * lines + 4), "for": "position"},
            "transform": [where(f"datum.when === {json.dumps(text)}")],
            "layer": _layers(findings, metrics, category("algorithm", title=None, sort=list(labels), axis=y_axis)),
        }
        views.append(view)
    return spec_of({"transform": transform, "spacing": 16, "hconcat": views})


def _layers(findings: Findings, metrics: Sequence[str], y: Spec) -> list[Spec]:
    names = list(map(title, metrics))
    legend = {"title": None, "orient": "top", "symbolType": "square"} if len(names) > 1 else None
    colours = {title(metric): _COLOURS[metric] for metric in metrics}
    colour = category("metric", scale=named_scale(colours), legend=legend)
    place = {"y": {**y, "scale": {"paddingInner": 0.25}}, "yOffset": category("metric", scale={"domain": names})}
    arrow = "better →" if findings.metric.higher_is_better else "← better"
    x_options = {"title": f"{findings.metric.axis} ({arrow})", "scale": {"zero": True}, "axis": {"tickCount": 6}}
    digits = findings.metric.digits + 1
    best = "max" if findings.metric.higher_is_better else "min"
    return [
        {
            "mark": {"type": "bar"},
            "encoding": {
                **place,
                "x": quantity("value", **x_options),
                "color": colour,
                "opacity": {"condition": {"test": "datum.repetition", "value": 0.45}, "value": 1},
                "tooltip": [
                    shown("algorithm", "algorithm"),
                    shown("metric", "figure"),
                    shown("value", findings.metric.axis, digits),
                    shown("spread", "± over seeds", digits),
                ],
            },
        },
        {
            "mark": {"type": "rule", "style": "error"},
            "encoding": {**place, "x": quantity("low", **x_options), "x2": {"field": "high"}},
        },
        {
            "transform": [where("!datum.repetition"), aggregated(["metric"], best=(best, "value"))],
            "mark": {"type": "rule", "strokeDash": [5, 4]},
            "encoding": {"x": quantity("best", **x_options), "color": colour},
        },
        {
            "transform": [where("isValid(datum.paper)")],
            "mark": {
                "type": "point",
                "shape": "diamond",
                "style": "hollow",
                "opacity": 1,
                "size": 46,
            },
            "encoding": {**place, "x": quantity("paper", **x_options)},
        },
    ]
