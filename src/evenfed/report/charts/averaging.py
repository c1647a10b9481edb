"""Differences from FedAvg on every federation, before and after averaging the models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...comparison.analysis.averaging import averaged_rivals, one_decay_each
from ...comparison.analysis.configuration import unaveraged
from ...comparison.analysis.findings import Entry, Findings
from ...comparison.analysis.statistics import Differences
from ..tables import title, when
from .axes import Axis, Extent
from .chart import Chart, Row, Spec, spec_of
from .differences import federation_names, gaps, over_runs, with_intervals
from .elements import (
    aggregated,
    beyond_edges,
    calculated,
    category,
    label_lines,
    named_scale,
    quantity,
    shown,
    text_of,
    where,
    zero_line,
)
from .theme import BLUE, GREY, ORANGE

MOST_ENTRIES = 8  # more would make a picture too long to read
_STAGES = {"before": "before: each round's model", "after": "after: the average of the models"}
_COLOURS = (ORANGE, BLUE)
_SHAPES = ("circle", "diamond")
_GAP = " "  # a row between the federations and their means
_WIDTH = 660  # of all panels together
_ROW_HEIGHT = 13


@dataclass(frozen=True)
class _Measured:
    """Differences in one metric, as measured or expected."""

    heading: str
    metric: str
    comparisons: Sequence[Findings]

    def rows(self, entry: Entry) -> Iterator[Row]:
        """Of one entry, before and after averaging."""
        first = self.comparisons[0]
        deployed = Differences(self.comparisons, late=True)
        label = entry.label
        twin = unaveraged(first.configs).get(label)
        if twin is not None:
            before = gaps(deployed, twin, first.baseline.label, self.metric)
        else:
            current = Differences([findings.current for findings in self.comparisons], late=True)
            before = gaps(current, label, first.baseline.label, self.metric)
        after = gaps(deployed, label, averaged_rivals(first)[label], self.metric)
        for stage, rows in {"before": before, "after": after}.items():
            for row in rows:
                yield {
                    "algorithm": label,
                    "figure": self.heading,
                    "stage": stage,
                    **row,
                }


def chart(comparisons: Sequence[Findings]) -> Chart | None:
    """A row of panels for each entry that deploys an average; None if there is no such entry, or there are too many."""
    first = comparisons[0]
    entries = one_decay_each(first)
    if not 1 <= len(entries) <= MOST_ENTRIES:
        return None
    columns = _columns(comparisons, entries)
    rows: list[Row] = []
    for entry in entries:
        for column in columns:
            rows += column.rows(entry)
    over = "seeds"
    if Differences(comparisons, late=True).are_over_federations:
        over = f"{len(comparisons)} federations"
    data = first.header.data["name"]
    return Chart(
        name="averaging",
        title=f"Difference from FedAvg, before and after averaging: {data}, {when(first, True)}",
        says=f"Each entry minus FedAvg deployed the same way. Bars: mean and its 95 % interval over {over}.",
        spec=_spec(comparisons, entries, columns, rows),
        rows=rows,
    )


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
    rivals = averaged_rivals(findings)
    return all(entry.label in rivals for entry in entries)


def _spec(
    comparisons: Sequence[Findings],
    entries: Sequence[Entry],
    columns: Sequence[_Measured],
    rows: Sequence[Row],
) -> Spec:
    metric = comparisons[0].metric
    federations = federation_names(Differences(comparisons, late=True))
    width = _WIDTH // len(columns) - 16
    lines = []
    for entry in entries:
        views = []
        for column in columns:
            alike = [other.heading for other in columns if other.metric == column.metric]  # have the same axis
            rows_alike = [row for row in rows if row["figure"] in alike]
            axis = _axis(rows_alike)
            is_last = entry is entries[-1]
            x_options = {
                "title": metric.difference if is_last else None,
                "scale": axis.widened(0.05).scale,
                "axis": {
                    "tickCount": 6,
                    "labelFlush": False,
                    "labelSeparation": 6,
                    "labelOverlap": "parity",
                },
            }
            view = _panel(entry, column, federations, axis, x_options, is_first=column is columns[0])
            if entry is entries[0]:
                arrow = "better →" if metric.higher_is_better else "← better"
                view["title"] = {"text": f"{column.heading} ({arrow})", "fontSize": 12}
            views.append({**view, "width": width})
        heading = " ".join(label_lines(entry.label, width=100))
        lines.append(
            {
                "title": {
                    "text": heading,
                    "anchor": "start",
                    "fontSize": 12,
                    "offset": 2,
                },
                "spacing": 16,
                "hconcat": views,
            }
        )
    return spec_of({"spacing": 8, "vconcat": lines})


def _axis(rows: Sequence[Row]) -> Axis:
    """Wide enough for every federation's mean over its seeds, and for the intervals."""
    seeds: dict[tuple[str, ...], list[float]] = {}
    by_entry: dict[str, list[float]] = {}
    for row in rows:
        values = by_entry.setdefault(row["algorithm"], [])
        if "points" in row:
            drawn_as_one = (row["algorithm"], row["figure"], row["stage"], row["federation"])
            points = seeds.setdefault(drawn_as_one, [])
            points.append(row["points"])
        else:
            values += [row["low"], row["high"]]
    for (algorithm, *_), points in seeds.items():
        by_entry[algorithm].append(fmean(points))
    extents = []
    for values in by_entry.values():
        extent = Extent(min(values), max(values))
        extents.append(extent)
    return Axis.of_differences(extents)


def _panel(
    entry: Entry,
    column: _Measured,
    federations: Sequence[str],
    axis: Axis,
    x_options: Spec,
    is_first: bool,
) -> Spec:
    are_several = len(federations) > 1
    names = ["mean before", "mean after"]
    if are_several:
        names = [*federations, _GAP, *names]
    y = category(
        "row",
        title="federation" if is_first and are_several else None,
        scale={"domain": names},
        axis={
            "labels": is_first,
            "ticks": False,
            "domain": False,
            "labelFontSize": 9.5,
            "labelPadding": 6,
            "titlePadding": 10,
        },
    )
    before = text_of(_STAGES["before"])
    after = text_of(_STAGES["after"])
    chosen = f"datum.algorithm === {text_of(entry.label)} && datum.figure === {text_of(column.heading)}"
    return {
        "height": _ROW_HEIGHT * len(names),
        "transform": [
            where(chosen),
            *with_intervals("stage"),
            calculated("model", f"datum.stage === 'before' ? {before} : {after}"),
        ],
        "layer": _layers(axis, x_options, y, are_several),
    }


def _layers(axis: Axis, x_options: Spec, y: Spec, are_several: bool) -> list[Spec]:
    """Zero, the way from before to after, the intervals of the means, all marks, and values beyond the edge."""
    legend = {
        "title": None,
        "orient": "top",
        "symbolSize": 60,
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
    }
    stages = list(_STAGES.values())
    colours = dict(zip(stages, _COLOURS, strict=True))
    shapes = dict(zip(stages, _SHAPES, strict=True))
    colour = category("model", scale=named_scale(colours), legend=legend)
    shape = category("model", scale=named_scale(shapes), legend=legend)
    x = quantity("shown", **x_options)
    on_each = [
        where("isValid(datum.points)"),
        aggregated(["federation", "stage", "model"], points=("mean", "points")),
        calculated("row", "datum.federation"),
        calculated("shown", axis.clamped("points")),
    ]
    mean_row = calculated("row", "'mean ' + datum.stage")
    means = [*over_runs("stage", "model"), mean_row, calculated("shown", axis.clamped("points"))]
    marks = _marks(x, y, colour, shape)
    ways = {
        "transform": [*on_each[:2], *_side_by_side(axis)],
        "mark": {"type": "rule", "color": GREY, "strokeWidth": 1.2},
        "encoding": {"x": quantity("from", **x_options), "x2": {"field": "to"}, "y": y},
    }
    intervals = {
        "transform": [where("isValid(datum.low) && datum.is_whole"), mean_row],
        "mark": {
            "type": "rule",
            "strokeWidth": 4,
            "opacity": 0.5,
            "clip": True,
        },
        "encoding": {
            "x": quantity("low", **x_options),
            "x2": {"field": "high"},
            "y": y,
            "stroke": colour,
        },
    }
    dots = [marks, *beyond_edges(axis, x, y)]
    layers = [zero_line("x"), intervals, {"transform": means, "layer": dots}]
    if are_several:
        layers += [ways, {"transform": on_each, "layer": dots}]
    return layers


def _marks(x: Spec, y: Spec, colour: Spec, shape: Spec) -> Spec:
    return {
        "mark": {
            "type": "point",
            "style": "hollow",
            "size": 42,
            "strokeWidth": 1.8,
            "opacity": 1,
        },
        "encoding": {
            "x": x,
            "y": y,
            "stroke": colour,
            "shape": shape,
            "tooltip": [shown("row", "federation"), shown("model", "model"), shown("points", "difference", 2)],
        },
    }


def _side_by_side(axis: Axis) -> list[Spec]:
    return [
        {"pivot": "stage", "value": "points", "groupby": ["federation"]},
        where("isValid(datum.before) && isValid(datum.after)"),
        calculated("row", "datum.federation"),
        calculated("from", axis.clamped("before")),
        calculated("to", axis.clamped("after")),
    ]
