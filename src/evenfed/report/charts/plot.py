"""The plot of mean against worst 10 %: its axes, the positions of labels, and a list of points off the scale."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...comparison.analysis.findings import Entry, Findings
from ...comparison.runs import FLOOR_NAMES
from .axes import Axis, Extent
from .chart import Spec
from .elements import WIDTH
from .labels import LETTER, Box, Label, Line, Point
from .labels import place as place_labels

HEIGHT = 420
LIST = "off the scale (mean, worst 10 %):"
LINE = 15  # of the list of those off the scale
_PERCENT = (-2.0, 102.0)  # with room for half a point
_BETTER = (80.0, 28.0)  # pixels that the word "better" with its arrow needs


@dataclass(frozen=True)
class _Figures:
    label: str
    mean: Extent  # its centre is the mean over seeds
    worst10: Extent

    @classmethod
    def of(cls, findings: Findings, entry: Entry) -> "_Figures":
        unit = findings.metric.unit
        late = findings.rows[entry.label].late
        not_known = (math.nan, math.nan)
        extents = []
        for metric in ("mean", "worst10"):
            value, spread = late.get(metric, not_known)
            low = unit * (value - spread)
            high = unit * (value + spread)
            extents.append(Extent(low, high))
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
    """The two axes, and the position of each label."""

    x: Axis
    y: Axis
    labels: Mapping[str, Label]
    outside: Box  # where those off the scale are listed
    width: float = WIDTH

    @classmethod
    def of(cls, findings: Findings, width: float = WIDTH) -> "Plot":
        figures = []
        for entry in findings.planned:
            each = _Figures.of(findings, entry)
            if each.is_known:
                figures.append(each)
        x, y = _axes(findings, figures)
        names = []
        points = []
        outside = []
        for each in figures:
            if x.holds(each.x) and y.holds(each.y):
                names.append(each.label)
                points.append(_point(each, x, y, width))
            else:
                outside.append(each.label)
        across, down = _BETTER
        better = Box(
            left=0,
            top=HEIGHT - down,
            right=across,
            bottom=HEIGHT,
        )
        if findings.metric.sign > 0:
            better = Box(
                left=width - across,
                top=0,
                right=width,
                bottom=down,
            )
        taken = [better]
        listed = _list_place(outside, points, better, width)
        if outside:
            taken.append(listed)
        area = Box(0, 0, width, HEIGHT)
        placed = place_labels(points, area, taken)
        labels = dict(zip(names, placed, strict=True))
        return cls(
            x,
            y,
            labels,
            outside=listed,
            width=width,
        )

    def ends(self, label: str) -> Spec:
        """The label's place and its line's end, in the units of the axes."""
        placed = self.labels[label]
        x, y = self._units(placed.x, placed.box.middle)
        ends: Spec = {
            "label_x": x,
            "label_y": y,
            "align": placed.align,
        }
        leader = placed.leader
        if leader is not None:
            x, y = self._units(leader.x2, leader.y2)
            ends["leader_x"] = x
            ends["leader_y"] = y
        return ends

    def _units(self, x: float, y: float) -> tuple[float, float]:
        across = x / self.width
        up = 1 - y / HEIGHT
        return self.x.value(across), self.y.value(up)


def _axes(findings: Findings, figures: Sequence[_Figures]) -> tuple[Axis, Axis]:
    """Of the mean and of the worst 10 %, with all runs of FedAvg inside."""
    metric = findings.metric
    means = []
    worsts = []
    runs = list(findings.baseline.histories)
    for entry in repetitions(findings):
        runs += entry.histories
    for run in runs:
        fairness = run.late_fairness
        if fairness is not None:
            means.append(metric.unit * fairness.mean)
            worsts.append(metric.unit * fairness.worst10)
    x_extents = [each.mean for each in figures]
    y_extents = [each.worst10 for each in figures]
    x = Axis.of(x_extents, metric.sign, means, margin=0.08)
    y = Axis.of(y_extents, metric.sign, worsts, margin=0.08)
    if metric.is_share:
        x = x.within(*_PERCENT)
        y = y.within(*_PERCENT)
    return x, y


def _point(figures: _Figures, x: Axis, y: Axis, width: float) -> Point:
    def pixels_right(value: float) -> float:
        return width * x.share(x.inside(value))

    def pixels_down(value: float) -> float:
        return HEIGHT * (1 - y.share(y.inside(value)))

    across = pixels_right(figures.x)
    down = pixels_down(figures.y)
    left = pixels_right(figures.mean.low)
    right = pixels_right(figures.mean.high)
    top = pixels_down(figures.worst10.high)
    bottom = pixels_down(figures.worst10.low)
    level = Line(left, down, right, down)
    upright = Line(across, top, across, bottom)
    return Point(across, down, figures.label, bars=(level, upright))


def _list_place(outside: Sequence[str], points: Sequence[Point], taken: Box, plot_width: float) -> Box:
    """A corner without points for the list of those off the scale."""
    letters = len(LIST)
    for label in outside:
        letters = max(letters, len(label) + 14)
    lines = len(outside) + 1
    width = LETTER * letters + 26
    height = LINE * lines + 12
    left = plot_width - width
    top = HEIGHT - height
    corners = (
        Box(0, top, width, HEIGHT),
        Box(left, top, plot_width, HEIGHT),
        Box(0, 0, width, height),
        Box(left, 0, plot_width, height),
    )
    occupied = [taken]
    for point in points:
        occupied.append(point.box)
    for corner in corners:
        is_free = not any(map(corner.meets, occupied))
        if is_free:
            return corner
    return corners[0]


def repetitions(findings: Findings) -> list[Entry]:
    """FedAvg run again, for the noise floor."""
    return [entry for entry in findings.controls if entry.label in FLOOR_NAMES]
