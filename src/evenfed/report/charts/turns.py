"""Clients that take turns at being last, and what averaging does to it."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...comparison.averaging import one_decay_each
from ...comparison.findings import Entry, Findings
from ...fairness import Vector
from .drawing import AXIS, BLUE, HEADING, MARGINS, NO_FRAME, ORANGE, Point, Spec, category, label_lines

ROUNDS = 60  # the last ones, of which those evaluated are shown
_WORST = 0.1
_PANEL_WIDTH = 320


def figure(findings: Findings) -> Spec | None:
    """Who is among the worst 10 % in each of the last rounds: of the round's model, and of the average beside it.

    Of the entry that oscillates most, its first seed; None if no entry deploys an average.
    """
    entry = most_oscillating(findings)
    if entry is None:
        return None
    seed = next(iter(entry.runs))
    current = _worst_by_round(entry.current or entry, seed)
    average = _worst_by_round(entry, seed)
    times = Counter[int]()
    for clients in [*current.values(), *average.values()]:
        times.update(clients)
    rows = [str(client) for client, _ in times.most_common()]
    panels = [
        _panel(current, "each round's model", ORANGE, rows, with_labels=True),
        _panel(average, "average of the models", BLUE, rows, with_labels=False),
    ]
    data = findings.header.data
    label = " ".join(label_lines(entry.label, width=100))
    shown = "clients that never are among them are left out"
    return {
        "title": {
            "text": f"Clients among the worst 10 %, round by round: {label}",
            "subtitle": f"{data['name']}, federation {data.get('seed', 0)}, seed {seed}; {shown}",
            "offset": 8,
            **HEADING,
        },
        "padding": MARGINS,
        "spacing": 16,
        "hconcat": panels,
        "config": {"axis": AXIS, "view": NO_FRAME},
    }


def most_oscillating(findings: Findings) -> Entry | None:
    """Of the entries that deploy an average; FedAvg only if it is alone."""
    candidates = one_decay_each(findings)
    if not candidates:
        candidates = [entry for entry in findings.entries if entry.average is not None]
    if not candidates:
        return None
    return min(candidates, key=lambda entry: findings.rows[entry.label].oscillation)


def worst_clients(figures: Vector, higher_is_better: bool) -> list[int]:
    """The tenth of the clients that is served worst, at least one; those without a figure do not count."""
    known = np.flatnonzero(~np.isnan(figures))
    number = max(1, round(_WORST * len(known)))
    order = np.argsort(figures[known], kind="stable")
    if not higher_is_better:
        order = order[::-1]
    return [int(client) for client in known[order[:number]]]


def _worst_by_round(entry: Entry, seed: int) -> dict[int, list[int]]:
    """The worst clients of every evaluated one of the last rounds, by the round's number."""
    run = entry.runs[seed]
    first = len(run.records) - ROUNDS
    by_round = {}
    for record in run.evaluated:
        figures = run.figures(record)
        if record.index >= first and figures is not None:
            by_round[record.index + 1] = worst_clients(figures, entry.metric.higher_is_better)
    return by_round


def _panel(
    by_round: dict[int, list[int]],
    name: str,
    colour: str,
    rows: Sequence[str],
    with_labels: bool,
) -> Spec:
    cells: list[Point] = []
    clients = set()
    for number, worst in by_round.items():
        for client in worst:
            clients.add(client)
            cells.append({"round": number, "client": str(client)})
    row_height = max(7, min(13, 420 // max(1, len(rows))))
    x = {
        "field": "round",
        "type": "ordinal",
        "title": "round",
        "scale": {"domain": list(by_round), "paddingInner": 0.08},
        "axis": {
            "labelAngle": 0,
            "labelOverlap": "parity",
            "labelSeparation": 6,
            "grid": False,
        },
    }
    axis = {
        "labels": with_labels,
        "ticks": False,
        "grid": False,
        "labelFontSize": 9,
    }
    y = category(
        "client",
        sort=None,
        title="client" if with_labels else None,
        scale={"domain": list(rows), "paddingInner": 0.12},
        axis=axis,
    )
    return {
        "title": {"text": f"{name}: {len(clients)} different clients", "fontSize": 12},
        "width": _PANEL_WIDTH,
        "height": row_height * len(rows),
        "data": {"values": cells},
        "mark": {"type": "rect", "color": colour},
        "encoding": {"x": x, "y": y},
    }
