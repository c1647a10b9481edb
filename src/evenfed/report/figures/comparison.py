"""Figures of a comparison: mean against worst-served, the worst-served over rounds, and every client."""

from pathlib import Path
from typing import Any

import numpy as np

from ...comparison.findings import Entry, Findings
from ...fairness import Fairness
from ..tables import accuracy_on
from .drawing import Spec, category, colour_by_kind, kind, quantity, save


def draw(findings: Findings, folder: Path) -> list[Path]:
    """Every figure as SVG and PNG in `folder`; an empty list where `evenfed[report]` is not installed."""
    figures = {
        "trade-off": trade_off(findings),
        "worst-over-rounds": over_rounds(findings),
        "clients": clients(findings),
    }
    written: list[Path] = []
    for name, figure in figures.items():
        written += save(figure, folder, name)
    return written


def trade_off(findings: Findings) -> Spec:
    """Mean accuracy against the worst 10 %: up is fairer, right is better on average."""
    points = []
    for entry in findings.planned:
        figures = findings.rows[entry.label].late
        point = {
            "algorithm": entry.label,
            "mean": 100 * figures["mean"][0],
            "worst10": 100 * figures["worst10"][0],
            "kind": kind(entry),
        }
        points.append(point)
    scale = {"zero": False, "padding": 24}
    position = {
        "x": quantity("mean", title="mean accuracy of all clients, %", scale=scale),
        "y": quantity("worst10", title="accuracy of the worst-served 10 %, %", scale=scale),
        "color": colour_by_kind(findings.planned),
    }
    dots = {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1}, "encoding": position}
    labels = {
        "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 11},
        "encoding": {**position, "text": {"field": "algorithm", "type": "nominal"}},
    }
    return {
        "title": "Mean against worst-served clients (last rounds)",
        "width": 620,
        "height": 440,
        "data": {"values": points},
        "layer": [dots, labels],
    }


def over_rounds(findings: Findings) -> Spec:
    """The worst 10 % round by round, mean over seeds; a panel for each entry beside FedAvg."""
    colour = colour_by_kind(findings.planned)
    baseline = _worst_by_round(findings.baseline)
    panels = []
    for entry in findings.planned:
        points = list(baseline)
        if entry is not findings.baseline:
            points += _worst_by_round(entry)
        panel = {
            "title": entry.label,
            "width": 200,
            "height": 130,
            "data": {"values": points},
            "mark": {"type": "line", "strokeWidth": 1.6},
            "encoding": {
                "x": quantity("round", title=None),
                "y": quantity("worst10", title=None, scale={"domain": [0, 100]}),
                "color": colour,
                "detail": category("algorithm"),
            },
        }
        panels.append(panel)
    return {
        "title": "Accuracy of the worst-served 10 % of clients, round by round, beside FedAvg (%)",
        "columns": 4,
        "concat": panels,
    }


def _worst_by_round(entry: Entry) -> list[dict[str, Any]]:
    points = []
    evaluated = [run.evaluated for run in entry.histories]
    for records in zip(*evaluated, strict=False):  # one record per seed
        worst10 = [Fairness.of(record.accuracy).worst10 for record in records if record.accuracy is not None]
        point = {
            "algorithm": entry.label,
            "kind": kind(entry),
            "round": records[0].index + 1,
            "worst10": 100 * float(np.mean(worst10)),
        }
        points.append(point)
    return points


def clients(findings: Findings) -> Spec:
    """Every client's accuracy over the last rounds, one tick each: narrow and far right is fair and good."""
    ticks = []
    for entry in findings.planned:
        of_seeds = [run.late_accuracy for run in entry.histories if run.late_accuracy is not None]
        for accuracy in np.mean(of_seeds, axis=0):
            if not np.isnan(accuracy):
                tick = {"algorithm": entry.label, "accuracy": 100 * float(accuracy), "kind": kind(entry)}
                ticks.append(tick)
    labels = [entry.label for entry in findings.planned]
    return {
        "title": "Every client, mean over seeds and last rounds",
        "width": 620,
        "height": 24 * len(labels),
        "data": {"values": ticks},
        "mark": {"type": "tick", "thickness": 2, "size": 15, "opacity": 0.75},
        "encoding": {
            "x": quantity("accuracy", title=f"{accuracy_on(findings.judge)}, %", scale={"zero": False}),
            "y": category("algorithm", title=None, sort=labels),
            "color": colour_by_kind(findings.planned),
        },
    }
