"""Figures of a comparison: mean against worst-served, the worst-served over rounds, and every client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...comparison.findings import Entry, Findings
from ..tables import measured_on
from .drawing import GREY, Point, Spec, category, colour_by_kind, kind, quantity, save

Box = tuple[float, float, float]  # start, end and height of a label or point

_WIDTH = 620
_HEIGHT = 440


def draw(findings: Findings, folder: Path) -> list[Path]:
    """Every figure as SVG and PNG in `folder`; an empty list where `evenfed[report]` is not installed."""
    figures = {
        "trade-off": trade_off(findings),
        "worst-over-rounds": over_rounds(findings),
        "clients": clients(findings),
    }
    written: list[Path] = []
    for name, figure in figures.items():
        written += save(figure, folder, name)
    return written


def trade_off(findings: Findings) -> Spec:
    """Mean accuracy against the worst 10 %: up is fairer, right is better on average."""
    points = []
    unit = findings.metric.unit
    for entry in findings.planned:
        figures = findings.rows[entry.label].late
        point = {
            "algorithm": entry.label,
            "mean": unit * figures["mean"][0],
            "worst10": unit * figures["worst10"][0],
            "kind": kind(entry),
        }
        points.append(point)
    _place_labels(points)
    scale = {"zero": False, "nice": False, "padding": 24}
    x = quantity("mean", title=f"mean {_named(findings)} of all clients{_percent(findings)}", scale=scale)
    y_title = f"{_named(findings)} of the worst-served 10 %{_percent(findings)}"
    y = quantity("worst10", title=y_title, scale=scale)
    label_y = quantity("label_y", title=y_title, scale=scale)
    colour = colour_by_kind(findings.planned)
    leaders = {
        "mark": {"type": "rule", "color": GREY, "strokeWidth": 0.5},
        "encoding": {"x": x, "y": y, "y2": {"field": "label_y"}},
    }
    dots = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    labels = {
        "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 11},
        "encoding": {"x": x, "y": label_y, "color": colour, "text": category("algorithm")},
    }
    return {
        "title": "Mean against worst-served clients (last rounds)",
        "width": _WIDTH,
        "height": _HEIGHT,
        "data": {"values": points},
        "layer": [leaders, dots, labels],
    }


def _named(findings: Findings) -> str:
    return findings.metric.name


def _percent(findings: Findings) -> str:
    return ", %" if findings.metric.is_share else ""


def _whole_scale(findings: Findings) -> Spec:
    """From 0 to 100 for accuracies; other metrics have no bounds."""
    return {"domain": [0, 100]} if findings.metric.is_share else {"zero": False}


def _place_labels(points: Sequence[Point]) -> None:
    """Set every `label_y`: the point itself, or far enough above it to keep labels off each other and off points."""
    means = [point["mean"] for point in points]
    heights = [point["worst10"] for point in points]
    x_range = max(means) - min(means)
    y_range = max(heights) - min(heights)
    letter_width = 6.5 * x_range / _WIDTH
    line_height = 14 * y_range / _HEIGHT
    for point in points:
        letters = len(point["algorithm"]) + 2
        label_width = letters * letter_width
        point["label_end"] = point["mean"] + label_width
    occupied: list[Box] = []
    for point in points:
        mean = point["mean"]
        occupied.append((mean, mean, point["worst10"]))
    from_below = sorted(points, key=lambda point: (point["worst10"], -point["mean"]))
    for point in from_below:
        point["label_y"] = point["worst10"]
        while _is_covered(point, occupied, line_height):
            point["label_y"] += line_height
        label = (point["mean"], point["label_end"], point["label_y"])
        occupied.append(label)


def _is_covered(point: Point, boxes: Sequence[Box], line_height: float) -> bool:
    """Whether the point's label would lie on one of the boxes."""
    label_start = point["mean"]
    label_end = point["label_end"]
    for start, end, height in boxes:
        distance = abs(point["label_y"] - height)
        is_near = distance < 0.99 * line_height
        is_beside = end <= label_start or label_end < start
        if is_near and not is_beside:
            return True
    return False


def over_rounds(findings: Findings) -> Spec:
    """The worst 10 % round by round, mean over seeds; a panel for each entry beside FedAvg."""
    colour = colour_by_kind(findings.planned)
    baseline = _worst_by_round(findings.baseline)
    panels = []
    for entry in findings.planned:
        points = list(baseline)
        if entry is not findings.baseline:
            points += _worst_by_round(entry)
        panel = {
            "title": entry.label,
            "width": 200,
            "height": 130,
            "data": {"values": points},
            "mark": {"type": "line", "strokeWidth": 1.6},
            "encoding": {
                "x": quantity("round", title=None),
                "y": quantity("worst10", title=None, scale=_whole_scale(findings)),
                "color": colour,
                "detail": category("algorithm"),
            },
        }
        panels.append(panel)
    unit = " (%)" if findings.metric.is_share else ""
    name = findings.metric.name.capitalize()
    return {
        "title": f"{name} of the worst-served 10 % of clients, round by round, beside FedAvg{unit}",
        "columns": 4,
        "concat": panels,
    }


def _worst_by_round(entry: Entry) -> list[Point]:
    points = []
    evaluated = [run.evaluated for run in entry.histories]
    for records in zip(*evaluated, strict=False):  # one record per seed
        worst10 = []
        for record in records:
            figures = entry.metric.of(record)
            if figures is not None:
                fairness = entry.metric.fairness(figures)
                worst10.append(fairness.worst10)
        point = {
            "algorithm": entry.label,
            "kind": kind(entry),
            "round": records[0].index + 1,
            "worst10": entry.metric.unit * float(np.mean(worst10)),
        }
        points.append(point)
    return points


def clients(findings: Findings) -> Spec:
    """Every client's accuracy over the last rounds, one tick each: narrow and far right is fair and good."""
    ticks = []
    for entry in findings.planned:
        of_seeds = [run.late_figures for run in entry.histories if run.late_figures is not None]
        for figure in np.mean(of_seeds, axis=0):
            if not np.isnan(figure):
                tick = {
                    "algorithm": entry.label,
                    "figure": entry.metric.unit * float(figure),
                    "kind": kind(entry),
                }
                ticks.append(tick)
    return {
        "title": "Every client, mean over seeds and last rounds",
        "width": _WIDTH,
        "height": 24 * len(findings.planned),
        "data": {"values": ticks},
        "mark": {"type": "tick", "thickness": 2, "size": 15, "opacity": 0.75},
        "encoding": {
            "x": quantity("figure", title=f"{measured_on(findings)}{_percent(findings)}", scale={"zero": False}),
            "y": category("algorithm", title=None, sort=None),
            "color": colour_by_kind(findings.planned),
        },
    }
