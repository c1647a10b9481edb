"""Every entry minus FedAvg with its interval, over a band of what chance alone does; federations are pooled."""

from collections.abc import Iterator

from ...comparison.intervals import LOWER_IS_BETTER
from ...comparison.statistics import Differences
from ..tables import judged_by, title, when
from .drawing import AXIS, BLACK, HEADING, NO_FRAME, Point, Spec, category, colour_by_kind, kind, quantity

_PADDING = {"left": 40, "top": 5, "right": 12, "bottom": 5}  # a reader's fonts may be wider
_ROW_HEIGHT = 24


def figure(differences: Differences) -> Spec:
    """One panel per metric, one row per entry."""
    findings = differences.findings
    data = findings.header.data["name"]
    lines = "lines: 95 % interval over seeds"
    if differences.are_over_federations:
        lines = f"lines: 95 % interval over {differences.federations} federations (rings: each)"
    elif differences.federations > 1:
        lines += f", {differences.federations} federations (rings: each)"
    subtitle = [lines]
    panels: list[Spec] = []
    for metric in judged_by(late=True):
        heading = title(metric)
        if metric in LOWER_IS_BETTER:
            heading += " (less is fairer)"
        elif not findings.metric.higher_is_better:
            heading += " (less is better)"
        band = _band(differences, metric)
        if band and not panels:
            repetition = "other batches" if differences.floor.is_paired else "other seeds"
            subtitle.append(f"grey: 95 % of FedAvg against FedAvg with {repetition}")
        panel = {
            "title": {"text": heading},
            "width": 210,
            "height": _ROW_HEIGHT * len(findings.everyone[1:]),
            "layer": [*band, *_marks(differences, metric, with_labels=not panels)],
        }
        panels.append(panel)
    return {
        "title": {
            "text": f"Difference from {findings.baseline_name}: {data}, {when(findings, True)}",
            "subtitle": subtitle,
            **HEADING,
        },
        "padding": _PADDING,
        "spacing": 14,
        "hconcat": panels,
        "config": {"axis": AXIS, "view": NO_FRAME},
    }


def _band(differences: Differences, metric: str) -> list[Spec]:
    """What chance alone does; nothing where it is not known."""
    floor = differences.chance(metric, differences.fewest_seeds)
    if floor is None:
        return []
    band = {
        "data": {"values": [{"from": -floor.bound, "to": floor.bound}]},
        "mark": {"type": "rect", "color": "#dddddd", "opacity": 0.7},
        "encoding": {"x": quantity("from"), "x2": {"field": "to"}},
    }
    return [band]


def _marks(differences: Differences, metric: str, with_labels: bool) -> list[Spec]:
    """Zero, and for every entry its interval, its difference and, if several are pooled, that on each federation."""
    entries = differences.findings.everyone[1:]
    colour = colour_by_kind(entries)
    gaps = {"values": list(_gaps(differences, metric))}
    y_axis = {"labels": with_labels, "ticks": False, "labelLimit": 240}
    y = category("entry", sort=None, title=None, axis=y_axis)
    x_axis = {"tickCount": 6, "labelFlush": False, "labelOverlap": "parity", "labelSeparation": 6}
    x = quantity(
        "points",
        title=differences.findings.metric.difference,
        scale={"zero": True},
        axis=x_axis,
    )
    zero = {
        "data": {"values": [{"zero": 0}]},
        "mark": {"type": "rule", "color": BLACK},
        "encoding": {"x": quantity("zero")},
    }
    interval = {
        "data": gaps,
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.55},
        "encoding": {"x": quantity("low"), "x2": {"field": "high"}, "y": y, "color": colour},
    }
    difference = {
        "data": gaps,
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    if differences.federations == 1:
        return [zero, interval, difference]
    rings = {
        "data": gaps,
        "transform": [{"flatten": ["each"]}],
        "mark": {"type": "point", "size": 40, "strokeWidth": 1.3, "opacity": 1},
        "encoding": {"x": quantity("each"), "y": y, "color": colour},
    }
    return [zero, interval, difference, rings]


def _gaps(differences: Differences, metric: str) -> Iterator[Point]:
    for entry in differences.findings.everyone[1:]:
        pooled = differences.between(entry.label, differences.findings.baseline.label, metric)
        of_federations = differences.on_each(entry.label, differences.findings.baseline.label, metric)
        yield {
            "entry": title(entry.label),
            "kind": kind(entry),
            "points": pooled.points,
            "low": pooled.low if pooled.is_judged else pooled.points,
            "high": pooled.high if pooled.is_judged else pooled.points,
            "each": [gap.points for gap in of_federations],
        }
