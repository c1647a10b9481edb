"""A federation as a picture: clients x classes heat map, sizes and label skew, in the terminal and as SVG and PNG."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..data import Federation
from . import pictures

SHADES = " ·░▒▓█"  # readable without colour
SHOWN = 60  # clients in the terminal
DRAWN = 200  # clients in the picture
MAP_WIDTH, BAR_WIDTH = 30, 8  # characters: all columns together fit into 80
COLOURS = ("#2f6db5", "#a9c4e4")  # train, test


def label_skew(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far each client's classes are from everyone's: total variation distance, 0 the same, towards 1 apart.

    >>> label_skew(np.array([[10, 0], [0, 10], [5, 5]])).tolist()
    [0.5, 0.5, 0.0]
    """
    overall = counts.sum(0) / max(counts.sum(), 1)
    distances: NDArray[np.float64] = np.abs(shares(counts) - overall).sum(1) / 2
    return np.where(counts.sum(1) > 0, distances, np.nan)


def shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each client's counts as shares of its own examples; zeros for an empty client."""
    of_all: NDArray[np.float64] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return of_all


def describe(federation: Federation) -> dict[str, Any]:
    """The federation for machines: each client's name, train and test counts and class counts."""
    counts = federation.class_counts
    return {
        "name": federation.name,
        "clients": [
            {
                "name": name,
                "train": int(train),
                "test": int(test),
                "classes": None if counts is None else counts[i].tolist(),
            }
            for i, (name, train, test) in enumerate(
                zip(federation.names, federation.train_sizes, federation.judged_sizes, strict=True)
            )
        ],
        "notes": list(federation.notes),
    }


def render(federation: Federation) -> RenderableType:
    """The picture in characters: darker means a larger share of that client's own examples."""
    counts, sizes = federation.class_counts, federation.train_sizes + federation.judged_sizes
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, collapse_padding=True)
    table.add_column("client", no_wrap=True, max_width=14 if counts is not None else 40, overflow="ellipsis")
    if counts is not None:
        table.add_column(_map_title(federation.classes), no_wrap=True)
        table.add_column("skew", justify="right")
    for title in ("train", "test"):
        table.add_column(title, justify="right")
    table.add_column("size", no_wrap=True, width=BAR_WIDTH)
    cells = None if counts is None else _cells(shares(counts))
    skew = None if counts is None else label_skew(counts)
    for i, name in enumerate(federation.names[:SHOWN]):
        row: list[RenderableType] = [Text(name)]
        if cells is not None and skew is not None:
            row += [_heat(cells[i] / max(cells.max(), 1e-9)), "-" if np.isnan(skew[i]) else f"{skew[i]:.2f}"]
        row += [
            f"{federation.train_sizes[i]:,}",
            f"{federation.judged_sizes[i]:,}",
            _bar(sizes[i] / max(sizes.max(), 1)),
        ]
        table.add_row(*row)
    return Group(table, *(Text(line, style="dim") for line in _summary(federation)))


def draw(federation: Federation, folder: Path) -> list[Path]:
    """The picture as SVG and PNG in `folder`; an empty list where the drawing packages are not installed."""
    alt = pictures.altair()
    if alt is None:
        return []
    return pictures.save(chart(alt, federation), folder, f"federation-{federation.name}")


def chart(alt: Any, federation: Federation) -> Any:
    """Heat map, sizes and skew side by side, a row a client."""
    shown = min(len(federation.names), DRAWN)
    row = {"height": alt.Step(max(3, min(14, 700 // shown)))}
    scale = alt.Scale(domain=_labels(federation)[:shown])  # the same rows in every panel, empty clients too
    clients = alt.Y("client:N", title="client", axis=alt.Axis(labelOverlap=True), scale=scale)
    bare = alt.Y("client:N", title=None, axis=None, scale=scale)
    panels = []
    if federation.class_counts is not None:
        panels.append(_heat_map(alt, federation, shown).encode(y=clients).properties(**row))
    panels.append(_sizes(alt, federation, shown).encode(y=bare if panels else clients).properties(**row))
    if federation.class_counts is not None:
        panels.append(_skews(alt, federation, shown).encode(y=bare).properties(**row))
    of = f"the first {shown} of {len(federation.names):,}" if shown < len(federation.names) else f"{shown}"
    title = alt.Title(f"{federation.name}: {of} clients", subtitle=list(federation.notes))
    return alt.hconcat(*panels, title=title, spacing=12).resolve_scale(color="independent")


def _labels(federation: Federation) -> list[str]:
    """Names without the data set's, or numbers where names are not unique."""
    names = [name.removeprefix(f"{federation.name}-") for name in federation.names]
    return names if len(set(names)) == len(names) else [str(i) for i in range(len(names))]


def _heat_map(alt: Any, federation: Federation, shown: int) -> Any:
    assert federation.class_counts is not None
    of_client, labels = shares(federation.class_counts), _labels(federation)
    cells = [
        {"client": labels[i], "class": int(k), "share": 100 * float(of_client[i, k])}
        for i in range(shown)
        for k in np.flatnonzero(of_client[i])
    ]
    return (
        alt.Chart(alt.Data(values=cells), width=max(200, min(420, 24 * federation.classes)), title="classes")
        .mark_rect()
        .encode(
            x=alt.X(
                "class:O",
                title="class",
                axis=alt.Axis(labelOverlap=True, labelAngle=0),
                scale=alt.Scale(domain=list(range(federation.classes))),
            ),
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(scheme="blues", domainMin=0),
                legend=alt.Legend(title="% of the client", orient="bottom"),
            ),
        )
    )


def _sizes(alt: Any, federation: Federation, shown: int) -> Any:
    labels = _labels(federation)
    bars = [
        {"client": labels[i], "part": part, "examples": int(sizes[i])}
        for part, sizes in (("train", federation.train_sizes), ("test", federation.judged_sizes))
        for i in range(shown)
    ]
    scale = alt.Scale(domain=["train", "test"], range=list(COLOURS))
    return (
        alt.Chart(alt.Data(values=bars), width=180, title="sizes")
        .mark_bar()
        .encode(
            x=alt.X("examples:Q", title="examples"),
            color=alt.Color("part:N", scale=scale, legend=alt.Legend(title=None, orient="bottom")),
            order=alt.Order("part:N", sort="descending"),
        )
    )


def _skews(alt: Any, federation: Federation, shown: int) -> Any:
    assert federation.class_counts is not None
    rows = zip(_labels(federation)[:shown], label_skew(federation.class_counts)[:shown], strict=True)
    bars = [{"client": label, "skew": None if np.isnan(value) else float(value)} for label, value in rows]
    return (
        alt.Chart(alt.Data(values=bars), width=110, title="label skew")
        .mark_bar(color="#c4361d")
        .encode(x=alt.X("skew:Q", title="distance from all", scale=alt.Scale(domain=[0, 1])))
    )


def _map_title(classes: int) -> str:
    if classes > MAP_WIDTH:
        return f"classes 0 to {classes - 1}"
    width = _cell_width(classes)
    return "".join(f"{k % 10}".ljust(width) for k in range(classes))


def _cell_width(classes: int) -> int:
    return max(1, min(3, MAP_WIDTH // classes))


def _cells(of_client: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most as many cells as fit: neighbouring classes share one where there are more."""
    groups = np.array_split(np.arange(of_client.shape[1]), min(of_client.shape[1], MAP_WIDTH))
    return np.stack([of_client[:, group].sum(1) for group in groups], axis=1)


def _heat(strengths: NDArray[np.float64]) -> Text:
    """One client's classes: none is blank, few a dot, and the largest share of the whole map a full block."""
    line, width = Text(), _cell_width(len(strengths))
    for strength in strengths:
        level = int(np.ceil(strength * (len(SHADES) - 1)))
        blue = Style(color=f"rgb({int(60 - 20 * strength)},{int(90 + 60 * strength)},{int(140 + 115 * strength)})")
        line.append(SHADES[level] * width, style=blue)
    return line


def _bar(part: float) -> Text:
    return Text("█" * max(round(part * BAR_WIDTH), int(part > 0)), style=Style(color=COLOURS[0]))


def _summary(federation: Federation) -> list[str]:
    train, test = federation.train_sizes, federation.judged_sizes
    sizes = train + test
    lines = []
    if len(sizes) > SHOWN:
        lines.append(f"... and {len(sizes) - SHOWN:,} clients more; --format json lists all.")
    lines.append(
        f"{len(sizes):,} clients, {train.sum():,} train and {test.sum():,} test examples; a client has "
        f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}."
    )
    if (counts := federation.class_counts) is not None:
        skew = label_skew(counts)
        told = "none" if np.isnan(skew).all() else f"mean {np.nanmean(skew):.2f}, most {np.nanmax(skew):.2f}"
        lines.append(
            f"Shade: share of the client's own examples, darkest {100 * _cells(shares(counts)).max():.0f} %. "
            f"Skew: distance of its classes from everyone's, 0 to 1 ({told})."
        )
    return lines + [f"! {note}" for note in federation.notes]
