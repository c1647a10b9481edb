"""What a server says of its rounds: a line for each, and a table of the clients at the end."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..comparison.service import Service
from ..core.server import Record
from ..core.visible import visible

Column = NDArray[np.float64]  # one number per client
Name = Callable[[int], str]  # of a client, by its position


def round_line(record: Record, rounds: int | None, name: Name) -> str:
    """One round in one line.

    >>> record = Record(2, np.array([0.2, 0.54]), np.array([0.4, 0.6]), 0.41, 0, accuracy=np.array([0.95, 0.83]))
    >>> round_line(record, 20, lambda client: f"hospital-{client + 1}")
    'round 3/20: objective 0.41, worst hospital-2 (loss 0.54, accuracy 83 %), dropped: none'
    """
    number = record.index + 1
    of_all = "" if rounds is None else f"/{rounds}"
    parts = []
    if not math.isnan(record.objective):
        parts.append(f"objective {record.objective:.3g}")
    worst = _worst(record)
    if worst is not None:
        who = visible(name(worst))
        service = _service(record, worst)
        parts.append(f"worst {who} ({service})")
    scores = record.scores or {}
    for title, value in scores.items():
        parts.append(f"{title} {value:.3g}")
    central = record.central or {}
    for title, value in central.items():
        parts.append(f"central {visible(title)} {value:.3g}")
    dropped = _names(record.dropped, name)
    parts.append(f"dropped: {dropped}")
    if record.clipped:
        held = sorted({clip.client for clip in record.clipped})
        parts.append(f"held back by the guard: {_names(held, name)}")
    if record.skipped:
        reason = record.reason or "nothing usable came back"
        cause = f" (because of {_names(record.caused_by, name)})" if record.caused_by else ""
        parts.append(f"skipped: {reason}{cause}")
    if record.refused:
        parts.append(f"refused: {'; '.join(visible(reason) for reason in record.refused)}")
    told = ", ".join(parts)
    return f"round {number}{of_all}: {told}"


def final_table(records: Sequence[Record], sizes: Sequence[float], name: Name) -> list[str]:
    """A row per client: size, last loss and accuracy that are known, mean weight, rounds in which it was dropped."""
    rows = [["client", "size", "loss", "accuracy", "mean weight", "rounds dropped"]]
    service = Service.of(records, len(sizes))
    for client, size in enumerate(sizes):
        who = visible(name(client))
        count = f"{size:g}"
        loss = service.loss[client]
        accuracy = service.figure[client]
        weight = service.weight[client]
        shown = [f"{loss:.3g}", f"{accuracy:.1%}", f"{weight:.3f}"]
        cells = ["-" if "nan" in cell else cell for cell in shown]
        dropped = f"{service.dropped[client]:.0f}"
        rows.append([who, count, *cells, dropped])
    widths = [0] * len(rows[0])
    for row in rows:
        for column, cell in enumerate(row):
            width = len(cell)
            widths[column] = max(widths[column], width)
    lines = []
    for row in rows:
        padded: list[str] = []
        for cell, width in zip(row, widths, strict=True):
            aligned = cell.rjust(width) if padded else cell.ljust(width)
            padded.append(aligned)
        line = "  ".join(padded)
        lines.append(line)
    return lines


def _newer(column: Column | None, client: int, before: float) -> float:
    """The client's number in this column, if it has one."""
    if column is None or client >= len(column):
        return before
    value = float(column[client])
    return before if math.isnan(value) else value


def _names(clients: Sequence[int], name: Name) -> str:
    names = [visible(name(client)) for client in clients]
    return ", ".join(names) or "none"


def _worst(record: Record) -> int | None:
    """The client with the lowest accuracy; where none is known, with the highest loss."""
    accuracy = record.accuracy
    if accuracy is not None and not np.isnan(accuracy).all():
        lowest = np.nanargmin(accuracy)
        return int(lowest)
    if np.isnan(record.losses).all():
        return None
    highest = np.nanargmax(record.losses)
    return int(highest)


def _service(record: Record, client: int) -> str:
    """How well a client was served: its loss before the round, its accuracy after it."""
    loss = _newer(record.losses, client, math.nan)
    accuracy = _newer(record.accuracy, client, math.nan)
    parts = []
    if not math.isnan(loss):
        parts.append(f"loss {loss:.2f}")
    if not math.isnan(accuracy):
        percent = 100 * accuracy
        parts.append(f"accuracy {percent:.0f} %")
    return ", ".join(parts)
