"""A federation: a heat map of clients and classes, their sizes and their label skew."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...data import Federation
from ..federation import label_skew, shares
from .drawing import BLUE, RED, Spec, category, quantity, save

MOST_CLIENTS = 200
PART_COLOURS = {"domain": ["train", "test"], "range": [BLUE, "#a9c4e4"]}


def draw(federation: Federation, folder: Path) -> list[Path]:
    """The figure as SVG and PNG in `folder`; an empty list where `evenfed[report]` is not installed."""
    name = f"federation-{federation.name}"
    return save(figure(federation), folder, name)


def figure(federation: Federation) -> Spec:
    """Heat map, sizes and skew side by side, one row per client."""
    labels = _labels(federation)[:MOST_CLIENTS]
    counts = federation.class_counts
    sizes = _sizes(federation, labels)
    panels = [sizes]
    if counts is not None:
        classes = _classes(counts, labels)
        skews = _skews(counts, labels)
        panels = [classes, sizes, skews]
    scale = {"domain": labels}  # the same rows in every panel, also for empty clients
    room = 700 // len(labels)
    row_height = max(3, min(14, room))
    for k, panel in enumerate(panels):
        axis = {"labelOverlap": True} if k == 0 else None
        heading = "client" if k == 0 else None
        panel["encoding"]["y"] = category(
            "client",
            title=heading,
            axis=axis,
            scale=scale,
        )
        panel["height"] = {"step": row_height}
    total = len(federation.names)
    clients = f"{len(labels)} clients"
    if len(labels) < total:
        clients = f"the first {len(labels)} of {total:,} clients"
    return {
        "title": {"text": f"{federation.name}: {clients}", "subtitle": list(federation.notes)},
        "spacing": 12,
        "hconcat": panels,
        "resolve": {"scale": {"color": "independent"}},
    }


def _labels(federation: Federation) -> list[str]:
    """Names without the data set's prefix, or numbers where names are not unique."""
    prefix = f"{federation.name}-"
    names = [name.removeprefix(prefix) for name in federation.names]
    if len(set(names)) == len(names):
        return names
    positions = range(len(names))
    return list(map(str, positions))


def _classes(counts: NDArray[np.int64], labels: list[str]) -> Spec:
    classes = counts.shape[1]
    cells = []
    for label, of_client in zip(labels, shares(counts), strict=False):
        for k in np.flatnonzero(of_client):
            cell = {
                "client": label,
                "class": int(k),
                "share": 100 * float(of_client[k]),
            }
            cells.append(cell)
    return {
        "title": "classes",
        "width": max(200, min(420, 24 * classes)),
        "data": {"values": cells},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {
                "field": "class",
                "type": "ordinal",
                "title": "class",
                "axis": {"labelOverlap": True, "labelAngle": 0},
                "scale": {"domain": list(range(classes))},
            },
            "color": quantity(
                "share",
                scale={"scheme": "blues", "domainMin": 0},
                legend={"title": "% of the client", "orient": "bottom"},
            ),
        },
    }


def _sizes(federation: Federation, labels: list[str]) -> Spec:
    bars = []
    parts = {"train": federation.train_sizes, "test": federation.judged_sizes}
    for part, sizes in parts.items():
        for label, size in zip(labels, sizes, strict=False):
            bar = {"client": label, "part": part, "examples": int(size)}
            bars.append(bar)
    return {
        "title": "sizes",
        "width": 180,
        "data": {"values": bars},
        "mark": {"type": "bar"},
        "encoding": {
            "x": quantity("examples", title="examples"),
            "color": category("part", scale=PART_COLOURS, legend={"title": None, "orient": "bottom"}),
            "order": category("part", sort="descending"),
        },
    }


def _skews(counts: NDArray[np.int64], labels: list[str]) -> Spec:
    bars = []
    for label, skew in zip(labels, label_skew(counts), strict=False):
        height = None if np.isnan(skew) else float(skew)
        bar = {"client": label, "skew": height}
        bars.append(bar)
    return {
        "title": "label skew",
        "width": 110,
        "data": {"values": bars},
        "mark": {"type": "bar", "color": RED},
        "encoding": {"x": quantity("skew", title="distance from all", scale={"domain": [0, 1]})},
    }
