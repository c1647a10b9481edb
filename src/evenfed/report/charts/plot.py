"""The plot of mean against worst 10 %: its axes, where labels stand, and where those off the scale are listed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...comparison.findings import Entry, Findings
from ...comparison.history import History
from ...comparison.runs import FLOOR_NAMES
from .axes import Axis, Extent
from .chart import Spec
from .labels import LETTER, Box, Label, Line, Point
from .labels import place as place_labels
from .parts import WIDTH

HEIGHT = 420
LIST = "off the scale (mean, worst 10 %):"
LINE = 15  # of the list of those off the scale
_PERCENT = (-2.0, 102.0)  # with room for half a point
_CORNERS = {"best": Box(WIDTH - 80, 0, WIDTH, 28), "worst": Box(0, HEIGHT - 28, 80, HEIGHT)}


@dataclass(frozen=True)
class _Figures:
    """The figures of one algorithm over its seeds."""

    label: str
    mean: Extent  # its centre is the mean over seeds
    worst10: Extent

    @classmethod
    def of(cls, findings: Findings, entry: Entry) -> "_Figures":
        unit = findings.metric.unit
        extents = []
        for metric in ("mean", "worst10"):
            value, spread = findings.rows[entry.label].late.get(metric, (math.nan, math.nan))
            extents.append(Extent(unit * (value - spread), unit * (value + spread)))
        return cls(entry.label, *extents)

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.x) and math.isfinite(self.y)

    @property
    def x(self) -> float:
        return (self.mean.low + self.mean.high) / 2

    @property
    def y(self) -> float:
        return (self.worst10.low + self.worst10.high) / 2


@dataclass(frozen=True)
class Plot:
    """The two axes, and where each label stands."""

    x: Axis
    y: Axis
    labels: Mapping[str, Label]
    outside: Box  # where those off the scale are listed

    @classmethod
    def of(cls, findings: Findings) -> "Plot":
        figures = [_Figures.of(findings, entry) for entry in findings.planned]
        figures = [each for each in figures if each.is_known]
        means = []
        worsts = []
        for run in _by_chance(findings):
            if run.late_fairness is not None:
                means.append(findings.metric.unit * run.late_fairness.mean)
                worsts.append(findings.metric.unit * run.late_fairness.worst10)
        sign = findings.metric.sign
        x = Axis.of([each.mean for each in figures], sign, means, margin=0.08)
        y = Axis.of([each.worst10 for each in figures], sign, worsts, margin=0.08)
        if findings.metric.is_share:
            x = x.within(*_PERCENT)
            y = y.within(*_PERCENT)
        inside = [each for each in figures if x.holds(each.x) and y.holds(each.y)]
        outside = [each.label for each in figures if each not in inside]
        points = [_point(each, x, y) for each in inside]
        better_stands = _CORNERS["best" if sign > 0 else "worst"]
        taken = [better_stands]
        listed = _list_place(outside, points, better_stands)
        if outside:
            taken.append(listed)
        placed = place_labels(points, Box(0, 0, WIDTH, HEIGHT), taken)
        names = [each.label for each in inside]
        return cls(x, y, dict(zip(names, placed, strict=True)), listed)

    def ends(self, label: str) -> Spec:
        """The label's place and its line's end, in the units of the axes."""
        placed = self.labels[label]
        x, y = self._units(placed.x, placed.box.middle)
        ends: Spec = {"label_x": x, "label_y": y, "align": placed.align}
        if placed.leader is not None:
            x, y = self._units(placed.leader.x2, placed.leader.y2)
            ends |= {"leader_x": x, "leader_y": y}
        return ends

    def _units(self, x: float, y: float) -> tuple[float, float]:
        return self.x.value(x / WIDTH), self.y.value(1 - y / HEIGHT)


def _point(figures: _Figures, x: Axis, y: Axis) -> Point:
    def place(axis: Axis, value: float) -> float:
        return axis.share(axis.inside(value))

    across = WIDTH * place(x, figures.x)
    down = HEIGHT * (1 - place(y, figures.y))
    left = WIDTH * place(x, figures.mean.low)
    right = WIDTH * place(x, figures.mean.high)
    top = HEIGHT * (1 - place(y, figures.worst10.high))
    bottom = HEIGHT * (1 - place(y, figures.worst10.low))
    bars = (Line(left, down, right, down), Line(across, top, across, bottom))
    return Point(across, down, figures.label, bars)


def _list_place(outside: Sequence[str], points: Sequence[Point], taken: Box) -> Box:
    """A corner without points for the list of those off the scale."""
    letters = max([len(LIST), *(len(label) + 14 for label in outside)])
    width = LETTER * letters + 26
    height = LINE * (len(outside) + 1) + 12
    corners = (
        Box(0, HEIGHT - height, width, HEIGHT),
        Box(WIDTH - width, HEIGHT - height, WIDTH, HEIGHT),
        Box(0, 0, width, height),
        Box(WIDTH - width, 0, WIDTH, height),
    )
    for corner in corners:
        is_free = not any(corner.meets(point.box) for point in points)
        if is_free and not corner.meets(taken):
            return corner
    return corners[0]


def repetitions(findings: Findings) -> list[Entry]:
    """FedAvg run again, for the noise floor."""
    return [entry for entry in findings.controls if entry.label in FLOOR_NAMES]


def _by_chance(findings: Findings) -> list[History]:
    runs = list(findings.baseline.histories)
    for entry in repetitions(findings):
        runs += entry.histories
    return runs
