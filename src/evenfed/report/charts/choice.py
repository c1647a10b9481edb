"""What was chosen from: accuracy over the two dials of each method."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...comparison.choose import Choice
from ...comparison.findings import BASELINE
from ..choice import FIGURES, Grid, grids, shown
from ..tables import measured_on, spread_of, title, when
from .drawing import AXIS, HEADING, NO_FRAME, RED, Point, Spec, category, quantity, save

_SHADES = ("#7a1f0f", RED, "#ef9a7a", "#8c8c8c")  # of a dial's values, the last being "off"


def draw(choice: Choice, folder: Path) -> list[Path]:
    """The figure in `folder`; nothing where no method has two dials, or `evenfed[report]` is not installed."""
    methods = grids(choice)
    if not methods:
        return []
    return save(figure(choice, methods), folder, "dials", with_pdf=True)


def figure(choice: Choice, methods: Sequence[Grid]) -> Spec:
    """One line per value of the second dial over the values of the first, beside FedAvg."""
    findings = choice.findings
    data = findings.header.data["name"]
    first = _dial_names(methods, 0)
    second = _dial_names(methods, 1)
    second_values = list(map(shown, methods[0].values(1)))
    colour = category(
        "second",
        scale={"domain": second_values, "range": _SHADES[-len(second_values) :]},
        legend={"title": second, "orient": "bottom", "symbolType": "circle"},
    )
    fedavg = {
        "mark": {"type": "rule", "strokeDash": [5, 4]},
        "encoding": {"y": quantity("fedavg", aggregate="mean")},
    }
    lines = {
        "mark": {"type": "line", "point": {"size": 45}, "strokeWidth": 2},
        "encoding": {
            "x": {"field": "first", "type": "ordinal", "title": first, "axis": {"labelAngle": 0}},
            "y": quantity("value", title=findings.metric.axis),
            "color": colour,
        },
    }
    return {
        "title": {
            "text": f"{measured_on(findings)} over {first} and {second}: {data}",
            "subtitle": f"{when(findings, True)}, {spread_of(findings)}; dashed: FedAvg, chosen the same way",
            "offset": 12,
            **HEADING,
        },
        "data": {"values": list(_points(choice, methods))},
        "facet": {
            "row": category("metric", sort=list(map(title, FIGURES)), title=None),
            "column": category("method", sort=[grid.method for grid in methods], title=None),
        },
        "spec": {"width": 210, "height": 170, "layer": [fedavg, lines]},
        "config": {"axis": AXIS, "view": NO_FRAME},
    }


def _dial_names(methods: Sequence[Grid], position: int) -> str:
    names = dict.fromkeys(grid.dials[position] for grid in methods)
    return " or ".join(names)


def _points(choice: Choice, methods: Sequence[Grid]) -> Iterator[Point]:
    rows = choice.rows
    unit = choice.findings.metric.unit
    fedavg = rows[choice.chosen[BASELINE].label]
    for grid in methods:
        for metric in FIGURES:
            for (first, second), entry in grid.entries.items():
                row = rows[entry.label]
                yield {
                    "method": grid.method,
                    "metric": title(metric),
                    "first": first,
                    "second": shown(second),
                    "value": unit * row.late[metric][0],
                    "fedavg": unit * fedavg.late[metric][0],
                }
