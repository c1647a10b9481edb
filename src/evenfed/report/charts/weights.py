"""Weights over rounds, client by client, in units of the weight by size; negative ones are marked."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...comparison.analysis.findings import BASELINE, Findings
from ...comparison.analysis.history import History
from ...fairness import Vector
from .chart import Chart, Row, Spec
from .chart_clients import ChartClients
from .elements import (
    IS_PICKED,
    MANY_CLIENTS,
    NONE_PICKED,
    PANEL_HEIGHT,
    aggregated,
    calculated,
    last_rounds,
    once,
    panels,
    quantity,
    rounded,
    shown,
    where,
)
from .theme import BLUE, GREY, VERMILION

MOST_CELLS = 150_000  # weights of clients; more are shown as quantiles over clients
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_NEGATIVE = -1e-12
_TICKS = (1, 0, 10, -10, 100, -100, 1000, -1000, -1, 3, 30, 300)  # those come first that tell most
_TICK_HEIGHT = 11  # pixels


def chart(findings: Findings) -> Chart | None:
    """None where weights are not known, or nothing but FedAvg was run, whose weights are 1."""
    entries = []
    for entry in findings.planned:
        if entry is not findings.baseline or entry.method != BASELINE:
            entries.append(entry)
    if findings.origin or not entries:
        return None
    people = ChartClients.of(findings)
    rounds = min(last_rounds(len(people)), findings.reached)
    runs = sum(len(entry.runs) for entry in entries)
    cells = runs * rounds * len(people)
    are_quantiles = len(people) > MANY_CLIENTS or cells > MOST_CELLS
    rows: list[Row] = []
    for entry in entries:
        for seed, run in entry.runs.items():
            for row in _rows(run, people, are_quantiles):
                rows.append({"algorithm": entry.label, "seed": seed, **row})
    if not rows:
        return None
    says = f"A line is a client, averaged over seeds, in the last {rounds} rounds."
    if are_quantiles:
        says = f"Lines: quantiles over {len(people):,} clients, averaged over seeds, in the last {rounds} rounds."
    says += " 1: the weight by its size, as FedAvg has it. Orange: a weight that is negative with some seed."
    return Chart(
        name="weights",
        title="Weights of the clients' updates, round by round",
        says=says,
        spec=_spec([entry.label for entry in entries], _y(rows)),
        rows=rows,
    )


def relative_weights(run: History) -> tuple[list[int], Vector]:
    """Round numbers, and [rounds, n] weights over shares among those that took part; NaN for the others."""
    numbers = []
    by_round = []
    for record in run.records[-last_rounds(len(run.shares)) :]:
        took_part = ~np.isnan(record.losses)
        total = record.weights.sum()
        base = run.shares[took_part].sum()
        if not (total > 0 and base > 0):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = (record.weights / total) / (run.shares / base)
        is_known = took_part & np.isfinite(relative)
        relative[~is_known] = np.nan
        numbers.append(record.index + 1)
        by_round.append(relative)
    return numbers, np.array(by_round)


def _rows(run: History, people: ChartClients, are_quantiles: bool) -> Iterator[Row]:
    numbers, weights = relative_weights(run)
    if not numbers:
        return
    if are_quantiles:
        quantiles = np.nanquantile(weights, _QUANTILES, axis=1)
        for share, values in zip(_QUANTILES, quantiles, strict=True):
            yield _row(f"quantile {share:.0%}", numbers, values)
        return
    for client, name in enumerate(people.names):
        of_client = weights[:, client]
        if not np.isnan(of_client).all():
            yield _row(name, numbers, of_client)


def _row(client: str, numbers: list[int], weights: Vector) -> Row:
    known = ~np.isnan(weights)
    rounds = []
    values = []
    for number, weight, is_known in zip(numbers, weights.tolist(), known, strict=True):
        if is_known:
            rounds.append(number)
            values.append(rounded(float(f"{weight:.3g}")))
    return {"client": client, "round": rounds, "weight": values}


def _y(rows: Sequence[Row]) -> Spec:
    """A logarithmic axis that goes on through zero, with as many ticks as there is room for."""
    lows = [min(row["weight"]) for row in rows]
    highs = [max(row["weight"]) for row in rows]
    low = min(0.0, *lows)
    high = max(1.0, *highs)
    pixels = PANEL_HEIGHT / (_height(high) - _height(low))
    ticks: list[int] = []
    for tick in _TICKS:
        distances = [abs(_height(tick) - _height(other)) for other in ticks]
        is_apart = pixels * min(distances, default=math.inf) >= _TICK_HEIGHT
        if low <= tick <= high and is_apart:
            ticks.append(tick)
    return {
        "title": "weight / weight by size",
        "scale": {"type": "symlog", "constant": 1, "domain": [low, high], "nice": False},
        "axis": {"values": ticks, "labelOverlap": False},
    }


def _height(weight: float) -> float:
    return math.copysign(math.log1p(abs(weight)), weight)


def _spec(labels: list[str], y_options: Spec) -> Spec:
    transform = [
        {"flatten": ["round", "weight"]},
        aggregated(["algorithm", "client", "round"], weight=("mean", "weight"), least=("min", "weight")),
        calculated("negative", f"datum.least < {_NEGATIVE}"),
    ]
    x = quantity("round", title="round", axis={"tickCount": 4, "grid": False}, scale={"nice": False, "zero": False})
    y = quantity("weight", **y_options)
    tooltip = [
        shown("client", "client"),
        shown("round", "round", 0),
        shown("weight", "weight / weight by size", 2),
        shown("least", "least over seeds", 2),
    ]
    lines = {
        "mark": {
            "type": "line",
            "color": BLUE,
            "strokeWidth": 0.8,
            "strokeJoin": "round",
        },
        "encoding": {
            "x": x,
            "y": y,
            "detail": {"field": "client", "type": "nominal"},
            "tooltip": [shown("client", "client")],
            "opacity": {"condition": {"test": NONE_PICKED, "value": 0.4}, "value": 0.12},
        },
    }
    one = {
        "transform": [where(IS_PICKED)],
        "mark": {"type": "line", "style": "zero", "strokeWidth": 2},
        "encoding": {"x": x, "y": y},
    }
    negative = {
        "transform": [where("datum.negative")],
        "mark": {
            "type": "point",
            "filled": True,
            "color": VERMILION,
            "opacity": 0.9,
            "size": 9,
        },
        "encoding": {"x": x, "y": quantity("least", **y_options), "tooltip": tooltip},
    }
    by_size = once(
        {
            "mark": {
                "type": "rule",
                "color": GREY,
                "strokeDash": [4, 2],
                "strokeWidth": 1.5,
            },
            "encoding": {"y": {"datum": 1, "type": "quantitative", **y_options}},
        }
    )
    return panels(labels, [by_size, lines, one, negative], transform)
