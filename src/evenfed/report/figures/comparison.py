"""Figures of a comparison: mean against worst-served, the worst-served over rounds, and every client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...comparison.findings import Entry, Findings
from ...comparison.runs import FLOOR_NAMES
from ..tables import measured_on
from .drawing import GREY, HEADING, Point, Spec, category, colour_by_kind, is_own, kind, quantity, save_changed

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
    return save_changed(figures, folder)


def trade_off(findings: Findings) -> Spec:
    """Mean accuracy against the worst 10 %: up is fairer, right is better on average.

    Bars: the spread over seeds. Shaded: where FedAvg alone ends up, with these seeds and with others.
    """
    points = []
    for entry in findings.planned:
        points.append(_trade_off_point(findings, entry))
    chance = _chance(findings)
    _place_labels(points, [*points, *chance])
    scale = {"zero": False, "nice": False, "padding": 24}
    x_options = {"title": f"mean {_named(findings)} of all clients{_percent(findings)}", "scale": scale}
    y_options = {"title": f"{_named(findings)} of the worst-served 10 %{_percent(findings)}", "scale": scale}
    x = quantity("mean", **x_options)
    y = quantity("worst10", **y_options)
    label_y = quantity("label_y", **y_options)
    colour = colour_by_kind(findings.planned)
    bars = _bars(x_options, y_options, colour)
    region = [_rectangle(corners, x_options, y_options) for corners in chance]
    leaders = {
        "mark": {"type": "rule", "color": GREY, "strokeWidth": 0.5},
        "encoding": {"x": x, "y": y, "y2": {"field": "label_y"}},
    }
    size = {"condition": {"test": "datum.own", "value": 190}, "value": 90}
    weight = {"condition": {"test": "datum.own", "value": "bold"}, "value": "normal"}
    dots = {
        "mark": {"type": "point", "filled": True, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": colour, "size": size},
    }
    text = {"type": "text", "align": "left", "dx": 8, "fontSize": 11}
    placed = {"x": x, "y": label_y, "text": category("algorithm"), "fontWeight": weight}
    halo = {"mark": {**text, "stroke": "white", "strokeWidth": 3}, "encoding": placed}  # keeps bars off the letters
    labels = {"mark": text, "encoding": {**placed, "color": colour}}
    return {
        "title": {
            "text": "Mean against worst-served clients (last rounds)",
            "subtitle": "Bars: spread over seeds. Shaded: all runs of FedAvg, repetitions included.",
            **HEADING,
        },
        "width": _WIDTH,
        "height": _HEIGHT,
        "data": {"values": points},
        "layer": [*region, leaders, *bars, dots, halo, labels],
    }


def _named(findings: Findings) -> str:
    return findings.metric.name


def _percent(findings: Findings) -> str:
    return ", %" if findings.metric.is_share else ""


def _whole_scale(findings: Findings) -> Spec:
    """From 0 to 100 for accuracies; other metrics have no bounds."""
    return {"domain": [0, 100]} if findings.metric.is_share else {"zero": False}


def _trade_off_point(findings: Findings, entry: Entry) -> Point:
    figures = findings.rows[entry.label].late
    unit = findings.metric.unit
    point: Point = {"algorithm": entry.label, "kind": kind(entry), "own": is_own(entry)}
    for metric in ("mean", "worst10"):
        value, spread = figures[metric]
        if len(entry.runs) < 2:
            spread = 0.0
        point[metric] = unit * value
        point[f"{metric}_low"] = unit * (value - spread)
        point[f"{metric}_high"] = unit * (value + spread)
    return point


def _bars(x_options: Spec, y_options: Spec, colour: Spec) -> list[Spec]:
    """The spread over seeds, of both metrics."""
    bar = {"type": "rule", "strokeWidth": 1, "opacity": 0.35}
    across = {
        "x": quantity("mean_low", **x_options),
        "x2": {"field": "mean_high"},
        "y": quantity("worst10", **y_options),
        "color": colour,
    }
    upright = {
        "x": quantity("mean", **x_options),
        "y": quantity("worst10_low", **y_options),
        "y2": {"field": "worst10_high"},
        "color": colour,
    }
    return [{"mark": bar, "encoding": across}, {"mark": bar, "encoding": upright}]


def _chance(findings: Findings) -> list[Point]:
    """The corners around all runs of FedAvg, repetitions included; none without a noise floor."""
    floors = [entry for entry in findings.controls if entry.label in FLOOR_NAMES]
    if not floors:
        return []
    unit = findings.metric.unit
    means = []
    worsts = []
    runs = list(findings.baseline.histories)
    for floor in floors:
        runs += floor.histories
    for run in runs:
        fairness = run.late_fairness
        if fairness is not None:
            means.append(unit * fairness.mean)
            worsts.append(unit * fairness.worst10)
    if len(means) < 2:
        return []
    corners = {
        "mean_low": min(means),
        "mean_high": max(means),
        "worst10_low": min(worsts),
        "worst10_high": max(worsts),
    }
    return [corners]


def _rectangle(corners: Point, x_options: Spec, y_options: Spec) -> Spec:
    return {
        "data": {"values": [corners]},
        "mark": {"type": "rect", "color": GREY, "opacity": 0.15},
        "encoding": {
            "x": quantity("mean_low", **x_options),
            "x2": {"field": "mean_high"},
            "y": quantity("worst10_low", **y_options),
            "y2": {"field": "worst10_high"},
        },
    }


def _place_labels(points: Sequence[Point], everything: Sequence[Point]) -> None:
    """Set every `label_y`: the point itself, or far enough above it to keep labels off each other and off points.

    `everything` in the figure says how much of an axis a letter takes.
    """
    x_range = _extent(everything, "mean")
    y_range = _extent(everything, "worst10")
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


def _extent(points: Sequence[Point], metric: str) -> float:
    """How far the points reach with their bars."""
    lowest = min(point[f"{metric}_low"] for point in points)
    highest = max(point[f"{metric}_high"] for point in points)
    return float(highest - lowest)


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
