"""Mean against the worst 10 %: every algorithm with its spread over seeds, and where chance alone ends up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...comparison.findings import Entry, Findings
from ...comparison.history import History
from ...comparison.runs import FLOOR_NAMES
from ..tables import measured_on, when
from .axes import Axis, Extent
from .chart import Chart, Row, Spec, spec_of
from .labels import LETTER, Box, Label, Line, Point
from .labels import place as place_labels
from .parts import (
    WIDTH,
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
from .theme import is_own, looks

_HEIGHT = 420
_LIST = "off the scale (mean, worst 10 %):"
_LINE = 15  # of the list of those off the scale
_CORNERS = {"best": Box(WIDTH - 80, 0, WIDTH, 28), "worst": Box(0, _HEIGHT - 28, 80, _HEIGHT)}


def chart(findings: Findings) -> Chart:
    """Up is fairer, right is better on average."""
    says = "Bars: one standard deviation over seeds, up and down."
    if _repetitions(findings):
        says += f" Shaded: all runs of {findings.baseline_name}, repeated ones included; inside it, all may be chance."
    return Chart(
        name="trade-off",
        title=f"Mean against the worst-served 10 %: {measured_on(findings).lower()}, {when(findings, True)}",
        says=says,
        spec=_spec(findings, _Plot.of(findings)),
        rows=_rows(findings),
    )


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
            value, spread = findings.rows[entry.label].late[metric]
            extents.append(Extent(unit * (value - spread), unit * (value + spread)))
        return cls(entry.label, *extents)

    @property
    def x(self) -> float:
        return (self.mean.low + self.mean.high) / 2

    @property
    def y(self) -> float:
        return (self.worst10.low + self.worst10.high) / 2


@dataclass(frozen=True)
class _Plot:
    """The two axes, and where each label stands."""

    x: Axis
    y: Axis
    labels: Mapping[str, Label]
    outside: Box  # where those off the scale are listed

    @classmethod
    def of(cls, findings: Findings) -> "_Plot":
        figures = [_Figures.of(findings, entry) for entry in findings.planned]
        figures = [each for each in figures if each.x == each.x]  # known
        means = []
        worsts = []
        for run in _by_chance(findings):
            if run.late_fairness is not None:
                means.append(findings.metric.unit * run.late_fairness.mean)
                worsts.append(findings.metric.unit * run.late_fairness.worst10)
        sign = findings.metric.sign
        x = Axis.of([each.mean for each in figures], sign, means, margin=0.08)
        y = Axis.of([each.worst10 for each in figures], sign, worsts, margin=0.08)
        inside = [each for each in figures if x.holds(each.x) and y.holds(each.y)]
        outside = [each.label for each in figures if each not in inside]
        points = [_point(each, x, y) for each in inside]
        better_stands = _CORNERS["best" if sign > 0 else "worst"]
        taken = [better_stands]
        listed = _list_place(outside, points, better_stands)
        if outside:
            taken.append(listed)
        placed = place_labels(points, Box(0, 0, WIDTH, _HEIGHT), taken)
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
        return self.x.value(x / WIDTH), self.y.value(1 - y / _HEIGHT)


def _point(figures: _Figures, x: Axis, y: Axis) -> Point:
    def place(axis: Axis, value: float) -> float:
        return axis.share(axis.inside(value))

    across = WIDTH * place(x, figures.x)
    down = _HEIGHT * (1 - place(y, figures.y))
    left = WIDTH * place(x, figures.mean.low)
    right = WIDTH * place(x, figures.mean.high)
    top = _HEIGHT * (1 - place(y, figures.worst10.high))
    bottom = _HEIGHT * (1 - place(y, figures.worst10.low))
    bars = (Line(left, down, right, down), Line(across, top, across, bottom))
    return Point(across, down, figures.label, bars)


def _list_place(outside: Sequence[str], points: Sequence[Point], taken: Box) -> Box:
    """A corner without points for the list of those off the scale."""
    letters = max([len(_LIST), *(len(label) + 14 for label in outside)])
    width = LETTER * letters + 26
    height = _LINE * (len(outside) + 1) + 12
    corners = (
        Box(0, _HEIGHT - height, width, _HEIGHT),
        Box(WIDTH - width, _HEIGHT - height, WIDTH, _HEIGHT),
        Box(0, 0, width, height),
        Box(WIDTH - width, 0, WIDTH, height),
    )
    for corner in corners:
        is_free = not any(corner.meets(point.box) for point in points)
        if is_free and not corner.meets(taken):
            return corner
    return corners[0]


def _repetitions(findings: Findings) -> list[Entry]:
    """FedAvg run again, for the noise floor."""
    return [entry for entry in findings.controls if entry.label in FLOOR_NAMES]


def _by_chance(findings: Findings) -> list[History]:
    runs = list(findings.baseline.histories)
    for entry in _repetitions(findings):
        runs += entry.histories
    return runs


def _rows(findings: Findings) -> list[Row]:
    """A run each. Those of the noise floor go by FedAvg's name and seeds: they come and go with it."""
    rows = []
    for entry in findings.planned:
        is_baseline = entry is findings.baseline
        for seed, run in entry.runs.items():
            for row in _row(findings, entry.label, seed, run):
                rows.append({**row, "own": is_own(entry), "chance": is_baseline, "repetition": 0})
    for entry in _repetitions(findings):
        for seed, run in zip(findings.seeds, entry.histories, strict=False):
            for row in _row(findings, findings.baseline.label, seed, run):
                rows.append({**row, "own": False, "chance": True, "repetition": 1})
    return rows


def _row(findings: Findings, label: str, seed: int, run: History) -> Iterator[Row]:
    fairness = run.late_fairness
    if fairness is None:
        return
    unit = findings.metric.unit
    yield {
        "algorithm": label,
        "seed": seed,
        "mean": rounded(unit * fairness.mean),
        "worst10": rounded(unit * fairness.worst10),
    }


def _spec(findings: Findings, plot: _Plot) -> Spec:
    name = findings.metric.name
    x_options = {"title": f"mean {name} of all clients{percent(findings)}", "scale": plot.x.scale}
    y_options = {"title": f"{name} of the worst-served 10 %{percent(findings)}", "scale": plot.y.scale}
    return spec_of(
        {
            "width": WIDTH,
            "height": _HEIGHT,
            "layer": [
                _chance(x_options, y_options),
                {
                    "transform": _by_algorithm(plot),
                    "layer": [*_marks(findings, x_options, y_options), *_off_the_scale(findings, plot)],
                },
                better(findings.metric.sign, WIDTH, _HEIGHT),
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
        "mark": {"type": "rect", "style": "chance", "clip": True},
        "encoding": {
            "x": quantity("x", **x_options),
            "x2": {"field": "x2"},
            "y": quantity("y", **y_options),
            "y2": {"field": "y2"},
        },
    }


def _by_algorithm(plot: _Plot) -> list[Spec]:
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
        {"lookup": "algorithm", "from": {"data": {"values": places}, "key": "algorithm", "fields": columns}},
        calculated("x_low", "datum.mean - datum.mean_spread"),
        calculated("x_high", "datum.mean + datum.mean_spread"),
        calculated("y_low", "datum.worst10 - datum.worst10_spread"),
        calculated("y_high", "datum.worst10 + datum.worst10_spread"),
        calculated("outside", f"{x.is_outside('mean')} || {y.is_outside('worst10')}"),
    ]


def _marks(findings: Findings, x_options: Spec, y_options: Spec) -> list[Spec]:
    """Lines to labels, error bars, points and"""
    known = looks(findings.planned)
    colour = coloured(known)
    x = quantity("mean", **x_options)
    y = quantity("worst10", **y_options)
    bar = {"type": "rule", "strokeWidth": 1.2, "opacity": 0.5, "clip": True}
    across = {"x": quantity("x_low", **x_options), "x2": {"field": "x_high"}, "y": y, "color": colour}
    upright = {"x": x, "y": quantity("y_low", **y_options), "y2": {"field": "y_high"}, "color": colour}
    leader = {
        "transform": [where("isValid(datum.leader_x)")],
        "mark": {"type": "rule", "style": "leader"},
        "encoding": {"x": x, "x2": {"field": "leader_x"}, "y": y, "y2": {"field": "leader_y"}},
    }
    digits = findings.metric.digits + 1
    dots = {
        "mark": {"type": "point", "filled": True, "opacity": 1},
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
    placed = {
        "x": quantity("label_x", **x_options),
        "y": quantity("label_y", **y_options),
        "text": category("algorithm"),
    }
    text = {"type": "text", "align": {"expr": "datum.align"}, "baseline": "middle", "fontSize": 11}
    halo = {"mark": {**text, "style": "halo"}, "encoding": placed}  # keeps bars off the letters
    names = {"mark": text, "encoding": placed}
    drawn = [{"mark": bar, "encoding": across}, {"mark": bar, "encoding": upright}, leader, dots, halo, names]
    return [{"transform": [where("!datum.outside")], "layer": drawn}]


def _off_the_scale(findings: Findings, plot: _Plot) -> list[Spec]:
    """A list in a corner, so that one diverging algorithm does not squeeze the others."""
    left = plot.outside.left + 10
    top = plot.outside.top + 12
    known = looks(findings.planned)
    digits = findings.metric.digits
    place = {"y": quantity("place", scale=None, axis=None)}
    numbers = f"format(datum.mean, '.{digits}f') + ', ' + format(datum.worst10, '.{digits}f')"
    heading = {
        "transform": [aggregated([], number=("count", "mean")), where("datum.number > 0")],
        "mark": {"type": "text", "style": "note", "align": "left", "text": _LIST},
        "encoding": {"x": {"value": left}, "y": {"value": top}},
    }
    symbols = {
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 60},
        "encoding": {"x": {"value": left + 5}, **place, "color": coloured(known), "shape": shaped(known)},
    }
    names = {
        "transform": [calculated("text", f"datum.algorithm + ': ' + {numbers}")],
        "mark": {"type": "text", "align": "left", "baseline": "middle", "fontSize": 11},
        "encoding": {"x": {"value": left + 14}, **place, "text": category("text")},
    }
    rank = {
        "window": [{"op": "row_number", "as": "number"}],
        "sort": [{"field": "mean", "order": "descending"}],
    }
    each = {
        "transform": [rank, calculated("place", f"{top} + {_LINE} * datum.number")],
        "layer": [symbols, names],
    }
    return [{"transform": [where("datum.outside")], "layer": [heading, each]}]
