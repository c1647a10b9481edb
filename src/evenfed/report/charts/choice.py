"""What was chosen from: accuracy over two dials of each method."""

from collections.abc import Iterator, Sequence
from typing import Any

from ...comparison.analysis.findings import BASELINE
from ...comparison.tuning.choose import Choice
from ..choice import FIGURES, Grid, averaged_over, figures_named, grids, in_order, shown
from ..tables import title, when
from .chart import Chart, Row, Spec, spec_of
from .elements import category, named_scale, quantity
from .theme import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION

_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE)  # of a dial's values; grey is "off"


def chart(choice: Choice) -> Chart | None:
    """One line per value of the second dial over the values of the first, with FedAvg; None without such methods.

    FedAvg's own dials are drawn where no other method has two.
    """
    every_method = grids(choice)
    methods = [grid for grid in every_method if grid.method != BASELINE] or every_method
    if not methods:
        return None
    findings = choice.findings
    first = _dial_names(methods, 0)
    second = _dial_names(methods, 1)
    says = f"Figures: {when(findings, True)}, {averaged_over(choice)}."
    for grid in methods:
        if grid.others:
            says += f" {grid.method}: {grid.as_chosen}, as chosen."
    return Chart(
        name="dials",
        title=f"{figures_named(choice)} over {first} and {second}: {findings.header.data['name']}",
        says=f"{says} Dashed: FedAvg, chosen the same way.",
        spec=_spec(choice, methods, first, second),
        rows=list(_rows(choice, methods)),
        letters=min(100, 40 * len(methods)),
    )


def _spec(
    choice: Choice,
    methods: Sequence[Grid],
    first: str,
    second: str,
) -> Spec:
    colours = {}
    for position, value in enumerate(_values(methods, 1)):
        colour = _COLOURS[position % len(_COLOURS)]
        if value is None:
            colour = GREY
        colours[shown(value)] = colour
    axis = choice.findings.metric.axis
    if choice.is_expected:
        axis = f"expected {axis}"
    legend = {
        "title": second,
        "orient": "bottom",
        "symbolType": "circle",
    }
    fedavg = {
        "mark": {
            "type": "rule",
            "style": "zero",
            "strokeDash": [5, 4],
        },
        "encoding": {"y": quantity("fedavg", aggregate="mean")},
    }
    lines = {
        "mark": {
            "type": "line",
            "point": {"size": 45},
            "strokeWidth": 2,
        },
        "encoding": {
            "x": {
                "field": "first",
                "type": "ordinal",
                "title": first,
                "sort": list(map(shown, _values(methods, 0))),
                "axis": {"labelAngle": 0},
            },
            "y": quantity("value", title=axis, scale={"zero": False}),
            "color": category("second", scale=named_scale(colours), legend=legend),
        },
    }
    return spec_of(
        {
            "facet": {
                "row": category("metric", sort=list(map(title, FIGURES)), title=None),
                "column": category("method", sort=[grid.method for grid in methods], title=None),
            },
            "spec": {
                "width": 210,
                "height": 170,
                "layer": [fedavg, lines],
            },
            "resolve": {"scale": {"y": "independent"}},
        }
    )


def _dial_names(methods: Sequence[Grid], position: int) -> str:
    names = dict.fromkeys(grid.dials[position] for grid in methods)
    return " or ".join(names)


def _values(methods: Sequence[Grid], dial: int) -> list[Any]:
    values: set[Any] = set()
    for grid in methods:
        values.update(grid.values(dial))
    return in_order(values)


def _rows(choice: Choice, methods: Sequence[Grid]) -> Iterator[Row]:
    unit = choice.findings.metric.unit
    fedavg = choice.rows[choice.chosen[BASELINE].label]
    for grid in methods:
        for metric in FIGURES:
            for (first, second), entry in grid.entries.items():
                row = choice.rows[entry.label]
                yield {
                    "algorithm": entry.label,
                    "method": grid.method,
                    "metric": title(metric),
                    "first": shown(first),
                    "second": shown(second),
                    "value": unit * row.late[metric][0],
                    "fedavg": unit * fedavg.late[metric][0],
                }
