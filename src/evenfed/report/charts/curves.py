"""Learning curves of the mean and the worst 10 %: of the model that is deployed, and of each round's own."""

from collections.abc import Iterator, Sequence

import numpy as np

from ...comparison.averaging import averaged_rivals, one_decay_each
from ...comparison.findings import Entry, Findings
from ..tables import title
from .averaging import MOST_ENTRIES
from .drawing import (
    AXIS,
    BLACK,
    BLUE,
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

_METRICS = ("mean", "worst10")
_CURRENT = "each round's model"
_DEPLOYED = "average of the models"
_FEDAVG = "FedAvg's average"
_COLOURS = {_CURRENT: ORANGE, _DEPLOYED: BLUE, _FEDAVG: BLACK}
_DASHES: dict[str, list[int]] = {_CURRENT: [1, 0], _DEPLOYED: [1, 0], _FEDAVG: [4, 3]}
_COLUMNS = 4
_WIDTH = 660  # of all panels of a row
_FIRST = 0.1  # of the rounds: curves begin after them, so that the first steps do not squeeze the rest


def figure(comparisons: Sequence[Findings]) -> Spec | None:
    """A column for each entry that deploys an average, beside FedAvg; None if there is none, or there are too many."""
    first = comparisons[0]
    entries = one_decay_each(first)
    if not 1 <= len(entries) <= MOST_ENTRIES:
        return None
    columns = min(_COLUMNS, len(entries))
    width = _WIDTH // columns - 12
    by_entry = [list(_curves(comparisons, entry)) for entry in entries]
    scales = {metric: _scale(by_entry, metric) for metric in _METRICS}
    panels = []
    for position, (entry, points) in enumerate(zip(entries, by_entry, strict=True)):
        is_left = position % columns == 0
        column = []
        for metric in _METRICS:
            y_title = None
            if is_left:
                y_title = f"{title(metric)}: {first.metric.axis}"
            column.append(_panel(points, metric, scales[metric], y_title, width))
        heading = {
            "text": label_lines(entry.label, width // 6),
            "fontSize": 11,
            "anchor": "start",
            "offset": 4,
        }
        panels.append({"title": heading, "spacing": 8, "vconcat": column})
    data = first.header.data["name"]
    over = "mean over seeds"
    if len(comparisons) > 1:
        over = f"mean over {len(comparisons)} federations and their seeds"
    return {
        "title": {
            "text": f"Learning curves: {data}",
            "subtitle": over,
            "offset": 8,
            **HEADING,
        },
        "padding": MARGINS,
        "columns": columns,
        "spacing": 14,
        "concat": panels,
        "resolve": {"scale": {"color": "shared"}},
        "config": {"axis": AXIS, "view": NO_FRAME},
    }


def _curves(comparisons: Sequence[Findings], entry: Entry) -> Iterator[Point]:
    """Three lines: of the entry's current model and of its average, and of FedAvg's average."""
    rival = averaged_rivals(comparisons[0])[entry.label]
    lines = {
        _CURRENT: [findings.current.named(entry.label) for findings in comparisons],
        _FEDAVG: [findings.named(rival) for findings in comparisons],
        _DEPLOYED: [findings.named(entry.label) for findings in comparisons],
    }
    for name, runs in lines.items():
        yield from _points(name, runs)


def _points(name: str, entries: Sequence[Entry]) -> Iterator[Point]:
    """Both metrics in every evaluated round, averaged over federations and seeds."""
    figures: dict[tuple[int, str], list[float]] = {}
    for entry in entries:
        for run in entry.histories:
            for record in run.evaluated:
                of_clients = run.figures(record)
                number = record.index + 1
                if of_clients is None or number <= _FIRST * len(run.records):
                    continue
                fairness = entry.metric.fairness(of_clients)
                for metric in _METRICS:
                    value = entry.metric.unit * getattr(fairness, metric)
                    figures.setdefault((number, metric), []).append(value)
    for (number, metric), values in figures.items():
        yield {
            "line": name,
            "round": number,
            "metric": metric,
            "value": float(np.mean(values)),
        }


def _scale(by_entry: Sequence[Sequence[Point]], metric: str) -> Spec:
    """The same in the panels of all entries."""
    values = []
    for points in by_entry:
        values += [point["value"] for point in points if point["metric"] == metric]
    return {"domain": [min(values), max(values)], "zero": False, "nice": True}


def _panel(
    points: Sequence[Point],
    metric: str,
    scale: Spec,
    y_title: str | None,
    width: int,
) -> Spec:
    legend = {"title": None, "orient": "top", "symbolStrokeWidth": 3}
    is_last = metric == _METRICS[-1]
    x_axis = {"tickCount": 5, "labelFlush": False}
    return {
        "width": width,
        "height": 130,
        "data": {"values": [point for point in points if point["metric"] == metric]},
        "mark": {"type": "line"},
        "encoding": {
            "x": quantity("round", title="round" if is_last else None, axis=x_axis),
            "y": quantity("value", title=y_title, scale=scale, axis={"tickCount": 5}),
            "color": category("line", scale=named_scale(_COLOURS), legend=legend),
            "strokeWidth": {"condition": {"test": f"datum.line == '{_DEPLOYED}'", "value": 2.2}, "value": 1.2},
            "strokeDash": category("line", scale=named_scale(_DASHES), legend=None),
        },
    }
