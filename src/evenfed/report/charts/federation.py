"""A federation: a heat map of clients and classes, their sizes and their label skew."""

from collections.abc import Sequence

import numpy as np

from ...comparison.analysis.findings import Findings
from ...data import Federation
from ..federation import label_skew, shares
from .chart import Chart, Row, Spec, spec_of
from .chart_clients import ChartClients, unique
from .elements import IS_PICKED, NONE_PICKED, calculated, category, named_scale, quantity, rounded, shown
from .theme import BLUE, SKY, VERMILION

MOST_CLIENTS = 200  # more are shown by some of them, evenly spaced in order of size
_MOST_CLASSES = 400  # of a map; more would be narrower than a pixel


def chart(federation: Federation) -> Chart:
    """Heat map, sizes and skew side by side, one row per client."""
    people = ChartClients(
        names=unique(federation.names),
        train_sizes=federation.train_sizes.tolist(),
        judged_sizes=federation.judged_sizes.tolist(),
        label_counts=federation.class_counts,
    )
    return _chart(people, f"federation-{federation.name}", federation.name, federation.notes, "its examples")


def of_findings(findings: Findings) -> Chart | None:
    """The same from the header of a comparison; None where clients' sizes are not known."""
    people = ChartClients.of(findings)
    if not people.has_sizes:
        return None
    return _chart(people, "federation", str(findings.header.data["name"]), (), "the examples it is judged on")


def _chart(
    people: ChartClients,
    name: str,
    data: str,
    notes: Sequence[str],
    counted: str,
) -> Chart:
    chosen = _chosen(people)
    says = [*notes]
    clients = f"{len(people)} clients"
    if len(chosen) < len(people):
        clients = f"{len(chosen)} of {len(people):,} clients, evenly spaced in order of size"
    if people.label_counts is not None:
        says.insert(0, f"Map: each client's classes, in % of {counted}. Label skew: 0 is everyone's mix, 1 none of it.")
    return Chart(
        name=name,
        title=f"The clients of {data}: {clients}",
        says=" ".join(says),
        spec=_spec(people, chosen),
        rows=_rows(people, chosen),
    )


def _chosen(people: ChartClients) -> list[int]:
    if len(people) <= MOST_CLIENTS:
        return list(range(len(people)))
    order = np.argsort(people.train_sizes, kind="stable")
    evenly = np.linspace(0, len(order) - 1, MOST_CLIENTS)
    places = evenly.round().astype(int)
    chosen: list[int] = order[places].tolist()
    return chosen


def _rows(people: ChartClients, chosen: Sequence[int]) -> list[Row]:
    rows = []
    counts = people.label_counts
    for client in chosen:
        row: Row = {
            "client": people.names[client],
            "train": int(people.train_sizes[client]),
            "test": int(people.judged_sizes[client]),
        }
        rows.append(row)
    if counts is None:
        return rows
    skews = label_skew(counts)
    of_clients = shares(counts)
    for row, client in zip(rows, chosen, strict=True):
        classes = np.flatnonzero(of_clients[client])
        row["skew"] = rounded(float(skews[client]))
        row["class"] = classes.tolist()
        row["share"] = [round(100 * float(share), 2) for share in of_clients[client][classes]]
    return rows


def _spec(people: ChartClients, chosen: Sequence[int]) -> Spec:
    counts = people.label_counts
    panels = [_sizes()]
    if counts is not None and counts.shape[1] <= _MOST_CLASSES:
        panels = [_classes(counts.shape[1]), _sizes(), _skews()]
    names = [people.names[client] for client in chosen]
    row_height = max(3, min(14, 700 // len(names)))
    for position, panel in enumerate(panels):
        is_first = position == 0
        panel["encoding"]["y"] = category(
            "client",
            title="client" if is_first else None,
            axis={
                "labelOverlap": True,
                "labelLimit": 140,
                "ticks": False,
                "grid": False,
            }
            if is_first
            else None,
            scale={"domain": names},  # the same rows in every panel, also for empty clients
        )
        panel["height"] = {"step": row_height}
        faint = {"condition": {"test": f"{NONE_PICKED} || {IS_PICKED}", "value": 1}, "value": 0.25}
        panel["encoding"].setdefault("opacity", faint)
    return spec_of(
        {
            "spacing": 12,
            "hconcat": panels,
            "resolve": {"scale": {"color": "independent"}},
        }
    )


def _classes(classes: int) -> Spec:
    return {
        "title": {"text": "classes", "fontSize": 12},
        "width": max(200, min(380, 24 * classes)),
        "transform": [
            {"flatten": ["class", "share"]},
            calculated("strength", f"datum.share * ({NONE_PICKED} || {IS_PICKED} ? 1 : 0.25)"),
        ],
        "mark": {"type": "rect", "color": BLUE},
        "encoding": {
            "x": {
                "field": "class",
                "type": "ordinal",
                "title": "class",
                "axis": {
                    "labelOverlap": True,
                    "labelAngle": 0,
                    "grid": False,
                },
                "scale": {"domain": list(range(classes))},
            },
            "opacity": quantity(
                "strength",
                scale={"domain": [0, 100], "range": [0.12, 1]},
                legend={
                    "title": "% of the client",
                    "orient": "bottom",
                    "values": [10, 25, 50, 75, 100],
                    "symbolType": "square",
                    "symbolFillColor": BLUE,
                    "symbolStrokeWidth": 0,
                },
            ),
            "tooltip": [shown("client", "client"), shown("class", "class"), shown("share", "% of the client", 1)],
        },
    }


def _sizes() -> Spec:
    colours = {"train": BLUE, "test": SKY}
    return {
        "title": {"text": "sizes", "fontSize": 12},
        "width": 170,
        "transform": [{"fold": list(colours), "as": ["part", "examples"]}],
        "mark": {"type": "bar"},
        "encoding": {
            "x": quantity("examples", title="examples", axis={"tickCount": 4}),
            "color": category("part", scale=named_scale(colours), legend={"title": None, "orient": "bottom"}),
            "order": category("part", sort="descending"),
            "tooltip": [shown("client", "client"), shown("part", "part"), shown("examples", "examples", 0)],
        },
    }


def _skews() -> Spec:
    return {
        "title": {"text": "label skew", "fontSize": 12},
        "width": 100,
        "mark": {"type": "bar", "color": VERMILION},
        "encoding": {
            "x": quantity("skew", title="distance from all", scale={"domain": [0, 1]}, axis={"tickCount": 3}),
            "tooltip": [shown("client", "client"), shown("skew", "label skew", 2)],
        },
    }
