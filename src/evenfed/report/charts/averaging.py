"""Differences from FedAvg on every federation, before and after averaging the models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...comparison.averaging import averaged_rivals, one_decay_each
from ...comparison.configuration import unaveraged
from ...comparison.findings import BASELINE, Entry, Findings
from ...comparison.statistics import Differences
from ..tables import title, when
from .drawing import (
    AXIS,
    BLACK,
    BLUE,
    GREY,
    HEADING,
    MARGINS,
    NO_FRAME,
    ORANGE,
    Point,
    Spec,
    category,
    label_lines,
    named_scale,
    quantity,
)

MOST_ENTRIES = 8  # more would make a figure too long to read
_BEFORE = "before: each round's model"
_AFTER = "after: the average of the models"
_COLOURS = {_BEFORE: ORANGE, _AFTER: BLUE}
_SHAPES = {_BEFORE: "circle", _AFTER: "diamond"}
_MEANS = {_BEFORE: "mean before", _AFTER: "mean after"}  # rows of the mean over federations
_GAP = " "  # a row between the federations and their means
_WIDTH = 640  # of all panels together
_ROW_HEIGHT = 12
_FAR = 3.0  # an entry that strays so many times as far as the middle one ends at the edge


@dataclass(frozen=True)
class _Axis:
    """The ends of an axis."""

    low: float
    high: float

    @classmethod
    def of(cls, by_entry: Sequence[Sequence[Point]]) -> "_Axis":
        """Around all values and zero, but an entry that strays far does not squeeze the others."""
        lows = []
        highs = []
        extents = []
        for points in by_entry:
            low = min(0.0, *map(_low, points))
            high = max(0.0, *map(_high, points))
            lows.append(low)
            highs.append(high)
            extents.append(max(high, -low))
        most = _FAR * float(np.median(extents))
        low = max(min(lows), -most)
        high = min(max(highs), most)
        margin = 0.06 * (high - low) or 1.0
        return cls(low - margin, high + margin)

    def inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def clipped(self, point: Point) -> Point:
        """The point at the edge if it lies outside, with what it would be as text."""
        value = point["points"]
        clipped = {**point, "points": self.inside(value)}
        if value < self.low:
            clipped |= {"left": f"← {value:.0f}"}
        if value > self.high:
            clipped |= {"right": f"{value:.0f} →"}
        if "low" in point:
            clipped |= {"low": self.inside(point["low"]), "high": self.inside(point["high"])}
        return clipped


def _low(point: Point) -> float:
    low: float = point["low"] if "low" in point else point["points"]
    return low


def _high(point: Point) -> float:
    high: float = point["high"] if "high" in point else point["points"]
    return high


@dataclass(frozen=True)
class _Measured:
    """Differences in one metric, as measured or expected."""

    heading: str
    metric: str
    comparisons: Sequence[Findings]

    def points(self, entries: Sequence[Entry]) -> list[list[Point]]:
        """Of each entry."""
        deployed = Differences(self.comparisons, late=True)
        current = Differences([findings.current for findings in self.comparisons], late=True)
        first = self.comparisons[0]
        rivals = averaged_rivals(first)
        twins = unaveraged(first.configs)
        by_entry = []
        for entry in entries:
            label = entry.label
            points: list[Point] = []
            if label in twins:
                points += _points(deployed, twins[label], BASELINE, self.metric, _BEFORE)
            else:
                points += _points(current, label, BASELINE, self.metric, _BEFORE)
            points += _points(deployed, label, rivals[label], self.metric, _AFTER)
            by_entry.append(points)
        return by_entry


def figure(comparisons: Sequence[Findings]) -> Spec | None:
    """A row of panels for each entry that deploys an average; None if there is no such entry, or there are too many."""
    first = comparisons[0]
    entries = one_decay_each(first)
    if not 1 <= len(entries) <= MOST_ENTRIES:
        return None
    columns = _columns(comparisons, entries)
    rows: list[list[Spec]] = [[] for _ in entries]
    width = _WIDTH // len(columns) - 16
    federations = _federations(comparisons)
    by_column = [column.points(entries) for column in columns]
    for column, by_entry in zip(columns, by_column, strict=True):
        is_first = column is columns[0]
        alike = []  # measured and expected have the same axis
        for other, points_of_other in zip(columns, by_column, strict=True):
            if other.metric == column.metric:
                alike += points_of_other
        axis = _Axis.of(alike)
        for row, points in zip(rows, by_entry, strict=True):
            clipped = list(map(axis.clipped, points))
            unit = first.metric.difference if row is rows[-1] else None
            x = _x(axis, unit)
            row.append(_panel(clipped, x, federations, width, is_first))
    for panel, column in zip(rows[0], columns, strict=True):
        panel["title"] = {"text": column.heading, "fontSize": 12}
    data = first.header.data["name"]
    return {
        "title": {
            "text": f"Difference from FedAvg, before and after averaging: {data}, {when(first, True)}",
            "subtitle": _subtitle(comparisons),
            "offset": 8,
            **HEADING,
        },
        "padding": MARGINS,
        "spacing": 8,
        "vconcat": [_row(entry, panels) for entry, panels in zip(entries, rows, strict=True)],
        "config": {"axis": AXIS, "view": NO_FRAME},
    }


def _columns(comparisons: Sequence[Findings], entries: Sequence[Entry]) -> list[_Measured]:
    """Worst 10 %, the same expected from class recalls where these fit everywhere, and the mean."""
    columns = [_Measured(title("worst10"), "worst10", comparisons)]
    expected = [findings.expected for findings in comparisons]
    fitting = [findings for findings in expected if findings is not None]
    if len(fitting) == len(comparisons) and all(_has_all(findings, entries) for findings in fitting):
        heading = f"expected {title('worst10')}"
        columns.append(_Measured(heading, "worst10", fitting))
    columns.append(_Measured(title("mean"), "mean", comparisons))
    return columns


def _has_all(findings: Findings, entries: Sequence[Entry]) -> bool:
    """Whether all that the figure shows is among the findings."""
    rivals = averaged_rivals(findings)
    return all(entry.label in rivals for entry in entries)


def _row(entry: Entry, panels: Sequence[Spec]) -> Spec:
    heading = " ".join(label_lines(entry.label, width=100))
    return {
        "title": {
            "text": heading,
            "anchor": "start",
            "fontSize": 12,
            "offset": 2,
        },
        "spacing": 16,
        "hconcat": list(panels),
    }


def _subtitle(comparisons: Sequence[Findings]) -> list[str]:
    """What the marks are."""
    over = "seeds"
    if Differences(comparisons, late=True).are_over_federations:
        over = f"{len(comparisons)} federations"
    return [
        "each entry minus FedAvg deployed the same way, on every federation",
        f"bars: mean and its 95 % interval over {over}",
    ]


def _points(
    differences: Differences,
    label: str,
    rival: str,
    metric: str,
    stage: str,
) -> Iterator[Point]:
    """One for every federation, if there are several, and one for their mean."""
    if differences.federations > 1:
        gaps = differences.on_each(label, rival, metric)
        federations = _federations(differences.comparisons)
        for row, gap in zip(federations, gaps, strict=True):
            yield {"row": row, "stage": stage, "points": gap.points}
    pooled = differences.between(label, rival, metric)
    mean: Point = {"row": _MEANS[stage], "stage": stage, "points": pooled.points}
    if pooled.is_judged:
        mean |= {"low": pooled.low, "high": pooled.high}
    yield mean


def _federations(comparisons: Sequence[Findings]) -> list[str]:
    """By the seed each was split with."""
    names = []
    for position, findings in enumerate(comparisons):
        seed = findings.header.data.get("seed", position)
        names.append(str(seed))
    return names


def _x(axis: _Axis, unit: str | None) -> Spec:
    return quantity(
        "points",
        title=unit,
        scale={"domain": [axis.low, axis.high], "nice": False, "zero": False},
        axis={
            "tickCount": 6,
            "labelFlush": False,
            "labelSeparation": 6,
            "labelOverlap": "parity",
        },
    )


def _panel(
    points: Sequence[Point],
    x: Spec,
    federations: Sequence[str],
    width: int,
    is_first: bool,
) -> Spec:
    rows = list(_MEANS.values())
    if len(federations) > 1:
        rows = [*federations, _GAP, *rows]
    y = category(
        "row",
        sort=None,
        title="federation" if is_first and len(federations) > 1 else None,
        scale={"domain": rows},
        axis={
            "labels": is_first,
            "ticks": False,
            "domain": False,
            "labelFontSize": 9.5,
            "labelPadding": 6,
        },
    )
    return {
        "width": width,
        "height": _ROW_HEIGHT * len(rows),
        "layer": _layers(points, x, y),
    }


def _layers(points: Sequence[Point], x: Spec, y: Spec) -> list[Spec]:
    """Zero, the way from before to after, the intervals of the means, all marks, and values beyond the edge."""
    legend = {
        "title": None,
        "orient": "top",
        "symbolSize": 60,
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
    }
    colour = category("stage", scale=named_scale(_COLOURS), legend=legend)
    shape = category("stage", scale=named_scale(_SHAPES), legend=legend)
    values = {"values": list(points)}
    marks = {
        "data": values,
        "mark": {
            "type": "point",
            "size": 38,
            "strokeWidth": 1.8,
            "opacity": 1,
            "fill": "white",
        },
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": shape,
        },
    }
    zero = {
        "data": {"values": [{"zero": 0}]},
        "mark": {"type": "rule", "color": BLACK},
        "encoding": {"x": quantity("zero")},
    }
    ways = {
        "data": {"values": list(_ways(points))},
        "mark": {"type": "rule", "color": GREY, "strokeWidth": 1.2},
        "encoding": {"x": quantity("from"), "x2": {"field": "to"}, "y": y},
    }
    intervals = {
        "data": values,
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 4, "opacity": 0.5},
        "encoding": {
            "x": quantity("low"),
            "x2": {"field": "high"},
            "y": y,
            "color": colour,
        },
    }
    return [zero, ways, intervals, marks, *_beyond(values, x, y, colour)]


def _beyond(values: Spec, x: Spec, y: Spec, colour: Spec) -> list[Spec]:
    """What lies beyond the edge, as text at that edge."""
    layers = []
    for side, shift in (("left", 8), ("right", -8)):
        layer = {
            "data": values,
            "transform": [{"filter": f"isValid(datum.{side})"}],
            "mark": {
                "type": "text",
                "fontSize": 9,
                "align": side,
                "dx": shift,
            },
            "encoding": {
                "x": x,
                "y": y,
                "text": category(side),
                "color": colour,
            },
        }
        layers.append(layer)
    return layers


def _ways(points: Sequence[Point]) -> Iterator[Point]:
    """From before to after, on every federation."""
    starts: dict[str, float] = {}
    for point in points:
        row = point["row"]
        if row in starts:
            yield {"row": row, "from": starts[row], "to": point["points"]}
        elif row not in _MEANS.values():
            starts[row] = point["points"]
