"""How a federation is split across clients: classes, sizes and label skew, in the terminal and as JSON."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..core.printable import printable
from ..data import Federation

SHADES = " ·░▒▓█"  # readable without colour
SHOWN = 60  # clients
MAP_WIDTH = 30  # characters: all columns together fit into 80
BAR_WIDTH = 8
BAR_COLOUR = "#2f6db5"
Counts = NDArray[np.int64]  # [clients, classes]
Floats = NDArray[np.float64]


def label_skew(counts: Counts) -> Floats:
    """Total variation distance of each client's classes from everyone's: 0 is the same, near 1 is disjoint.

    >>> label_skew(np.array([[10, 0], [0, 10], [5, 5]])).tolist()
    [0.5, 0.5, 0.0]
    """
    of_class = counts.sum(0)
    total = max(counts.sum(), 1)
    overall = of_class / total
    gaps = np.abs(shares(counts) - overall)
    sizes = counts.sum(1)
    is_empty = sizes == 0
    skew: Floats = gaps.sum(1) / 2
    skew[is_empty] = np.nan
    return skew


def shares(counts: Counts) -> Floats:
    """Each client's class counts as shares of its own examples; zeros for an empty client."""
    totals = counts.sum(1, keepdims=True)
    of_client: Floats = counts / np.maximum(totals, 1)
    return of_client


def describe(federation: Federation) -> dict[str, Any]:
    """The federation for programs: each client's name, train and test counts and class counts."""
    counts = federation.class_counts
    clients = []
    for i, name in enumerate(federation.names):
        classes = None
        if counts is not None:
            classes = counts[i].tolist()
        client = {
            "name": name,
            "train": int(federation.train_sizes[i]),
            "test": int(federation.judged_sizes[i]),
            "classes": classes,
        }
        clients.append(client)
    return {
        "name": federation.name,
        "clients": clients,
        "notes": list(federation.notes),
    }


def render(federation: Federation) -> RenderableType:
    """One line per client; darker cells hold a larger share of that client's own examples."""
    counts = federation.class_counts
    sizes = federation.train_sizes + federation.judged_sizes
    largest = max(sizes.max(), 1)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        collapse_padding=True,
    )
    name_width = 40 if counts is None else 14
    table.add_column("client", no_wrap=True, max_width=name_width, overflow="ellipsis")
    if counts is not None:
        table.add_column(_map_title(federation.classes), no_wrap=True)
        table.add_column("skew", justify="right")
        skew = label_skew(counts)
        shades = _columns(counts)
        shades /= max(shades.max(), 1e-9)
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("size", no_wrap=True, width=BAR_WIDTH)
    names = federation.names[:SHOWN]
    for i, name in enumerate(names):
        row: list[RenderableType] = [Text(printable(name))]
        if counts is not None:
            row.append(_heat(shades[i]))
            is_known = not np.isnan(skew[i])
            row.append(f"{skew[i]:.2f}" if is_known else "-")
        train = federation.train_sizes[i]
        test = federation.judged_sizes[i]
        share = sizes[i] / largest
        length = max(round(share * BAR_WIDTH), int(share > 0))
        row.append(f"{train:,}")
        row.append(f"{test:,}")
        row.append(Text("█" * length, style=Style(color=BAR_COLOUR)))
        table.add_row(*row)
    summary = "\n".join(_summary(federation))
    return Group(table, Text(summary, style="dim"))


def _map_title(classes: int) -> str:
    if classes > MAP_WIDTH:
        return f"classes 0 to {classes - 1}"
    width = _cell_width(classes)
    title = ""
    for k in range(classes):
        digit = str(k % 10)
        title += digit.ljust(width)
    return title


def _cell_width(classes: int) -> int:
    room = MAP_WIDTH // classes
    return max(1, min(3, room))


def _columns(counts: Counts) -> Floats:
    """Shares in at most as many columns as fit: with more classes, neighbouring ones share a column."""
    of_client = shares(counts)
    classes = counts.shape[1]
    width = min(classes, MAP_WIDTH)
    groups = np.array_split(of_client, width, axis=1)
    columns = [group.sum(1) for group in groups]
    return np.stack(columns, axis=1)


def _heat(strengths: Floats) -> Text:
    """One client's classes: blank for none, a dot for few, a full block for the largest share of the whole map."""
    line = Text()
    width = _cell_width(len(strengths))
    darkest_level = len(SHADES) - 1
    for strength in strengths:
        level = np.ceil(strength * darkest_level)
        shade = SHADES[int(level)]
        red = int(60 - 20 * strength)
        green = int(90 + 60 * strength)
        blue = int(140 + 115 * strength)
        colour = Style(color=f"rgb({red},{green},{blue})")
        line.append(shade * width, style=colour)
    return line


def _summary(federation: Federation) -> list[str]:
    train = federation.train_sizes.sum()
    test = federation.judged_sizes.sum()
    sizes = federation.train_sizes + federation.judged_sizes
    least = sizes.min()
    most = sizes.max()
    median = np.median(sizes)
    clients = len(sizes)
    lines = []
    if clients > SHOWN:
        more = clients - SHOWN
        lines.append(f"... and {more:,} more clients; --format json lists all.")
    lines.append(
        f"{clients:,} clients, {train:,} train and {test:,} test examples; "
        f"{least:,} to {most:,} per client, median {median:,.0f}."
    )
    counts = federation.class_counts
    if counts is not None:
        largest_share = _columns(counts).max()
        darkest = 100 * largest_share
        skew = label_skew(counts)
        skews = "none"
        if not np.isnan(skew).all():
            mean_skew = np.nanmean(skew)
            most_skew = np.nanmax(skew)
            skews = f"mean {mean_skew:.2f}, most {most_skew:.2f}"
        lines.append(
            f"Shade: share of the client's own examples, darkest {darkest:.0f} %. "
            f"Skew: distance of its classes from everyone's, 0 to 1 ({skews})."
        )
    lines += [f"! {printable(note)}" for note in federation.notes]
    return lines
