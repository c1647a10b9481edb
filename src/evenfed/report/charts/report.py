"""Figures of a report: the paper's bars of accuracy, and the differences from FedAvg."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...comparison.findings import Findings
from ..document import Report
from ..paper import Numbers
from ..tables import measured, measured_on, title, when
from . import averaging, curves, differences, turns
from .drawing import AXIS, BLACK, BLUE, HEADING, NO_FRAME, RED, Point, Spec, category, quantity, save

_METRICS = {"mean-and-worst10": ("mean", "worst10"), "worst20": ("worst20",)}
_COLOURS = {"mean": BLUE, "worst10": RED, "worst20": RED}
_BAR_WIDTH = 15
_LABEL_WIDTH = 38  # a label of two lines needs that much of the axis
_IN_LINES = "split(replace(datum.label, '[', '\\n['), '\\n')"  # options below the name keep long labels short


def draw(report: Report, folder: Path) -> list[Path]:
    """The figures in `folder`; an empty list where `evenfed[report]` is not installed."""
    written: list[Path] = []
    if report.pooled and len(report.pooled.findings.everyone) > 1:
        figure = differences.figure(report.pooled)
        written += save(figure, folder, "differences", with_pdf=True)
    if report.pooled:
        written += _draw_averaging(report.pooled.comparisons, folder)
    if len(report.findings) == 1:
        for name, metrics in _METRICS.items():
            figure = accuracy(report.findings[0], metrics, report.papers)
            written += save(figure, folder, name, with_pdf=True)
    return written


def _draw_averaging(comparisons: Sequence[Findings], folder: Path) -> list[Path]:
    """What averaging does, where entries deploy an average."""
    drawings = {
        "averaging": averaging.figure(comparisons),
        "turns": turns.figure(comparisons[0]),
        "learning-curves": curves.figure(comparisons),
    }
    written: list[Path] = []
    for name, figure in drawings.items():
        if figure is not None:
            written += save(figure, folder, name, with_pdf=True)
    return written


def accuracy(findings: Findings, metrics: Sequence[str], paper: Numbers | None) -> Spec:
    """A panel for the last round, as in the paper, and one for the average of the last rounds."""
    names = " and ".join(map(title, metrics))
    data = findings.header.data["name"]
    subtitle = "thin lines: spread over seeds; dashed: the best"
    if paper:
        subtitle += "; diamonds: the paper"
    return {
        "title": {
            "text": f"{measured_on(findings)}, {names}: {data}",
            "subtitle": subtitle,
            "offset": 12,
            **HEADING,
        },
        "spacing": 18,
        "vconcat": [_panel(findings, metrics, False, paper), _panel(findings, metrics, True, None)],
        "config": {"axis": {**AXIS, "labelLimit": 240}, "legend": {"symbolType": "square"}, "view": NO_FRAME},
    }


def _panel(
    findings: Findings,
    metrics: Sequence[str],
    late: bool,
    paper: Numbers | None,
) -> Spec:
    """Bars with their spread over seeds. The upper panel has the legend, the lower one, the late one, the labels."""
    bars = list(_bars(findings, metrics, late, paper))
    names = list(map(title, metrics))
    has_legend = len(names) > 1 and not late
    colour = category(
        "metric",
        scale={"domain": names, "range": [_COLOURS[metric] for metric in metrics]},
        legend={"title": None, "orient": "top"} if has_legend else None,
    )
    axis = {"labelAngle": -40, "title": None, "labels": late, "ticks": late, "labelExpr": _IN_LINES}
    place = {
        "x": category(
            "entry",
            sort=None,
            axis=axis,
            scale={"paddingInner": 0.25},
        ),
        "xOffset": category("metric", scale={"domain": names}),
    }
    height = quantity("value", title=findings.metric.axis, scale={"zero": True})
    opacity = {"condition": {"test": "datum.repetition", "value": 0.4}, "value": 1}
    layers: list[Spec] = [
        {"mark": {"type": "bar"}, "encoding": {**place, "y": height, "color": colour, "opacity": opacity}},
        {
            "mark": {"type": "rule", "color": BLACK, "strokeWidth": 1.3},
            "encoding": {**place, "y": quantity("low"), "y2": {"field": "high"}},
        },
        {
            "data": {"values": _best(bars, findings.metric.sign)},
            "mark": {"type": "rule", "strokeDash": [5, 4]},
            "encoding": {"y": quantity("top"), "color": colour},
        },
    ]
    if paper:
        diamond = {"shape": "diamond", "fill": "white", "stroke": "#111111", "strokeWidth": 1, "opacity": 1, "size": 46}
        published = {
            "transform": [{"filter": "isValid(datum.paper)"}],
            "mark": {"type": "point", **diamond},
            "encoding": {**place, "y": quantity("paper")},
        }
        layers.append(published)
    width_of_entry = max(_BAR_WIDTH * len(metrics) + 8, _LABEL_WIDTH)
    return {
        "title": {"text": when(findings, late), "anchor": "start", "fontSize": 11},
        "width": max(260, len(findings.everyone) * width_of_entry),
        "height": 170,
        "data": {"values": bars},
        "layer": layers,
    }


def _bars(
    findings: Findings,
    metrics: Sequence[str],
    late: bool,
    paper: Numbers | None,
) -> Iterator[Point]:
    for entry in findings.everyone:
        row = findings.rows[entry.label]
        is_repetition = entry.repeats is not None
        published = None
        if paper and not is_repetition:
            published = paper.get(entry.method)
        for metric in metrics:
            cell = measured(row, late, metric)
            if cell.value is None:
                continue
            spread = cell.spread or 0.0
            yield {
                "entry": title(entry.label),
                "metric": title(metric),
                "value": cell.value,
                "low": max(0.0, cell.value - spread),
                "high": cell.value + spread,
                "repetition": is_repetition,
                "paper": published[metric][0] if published else None,
            }


def _best(bars: Sequence[Point], sign: int) -> list[Point]:
    """The best of each metric, as the paper draws it."""
    best: dict[str, float] = {}
    for bar in bars:
        if not bar["repetition"]:
            metric = bar["metric"]
            value = bar["value"]
            before = best.get(metric, value)
            best[metric] = max(value, before) if sign > 0 else min(value, before)
    return [{"metric": metric, "top": value} for metric, value in best.items()]
