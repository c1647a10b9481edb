"""Pictures of a comparison: one chart definition each, drawn as SVG and PNG (extra `evenfed[report]`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..comparison.findings import Findings
from ..comparison.history import History, Row
from ..fairness import Fairness
from . import pictures

BASELINE = "fedavg"


def draw(outcome: Findings, folder: Path) -> list[Path]:
    """Every chart as SVG and PNG in `folder`; an empty list where the drawing packages are not installed."""
    alt = pictures.altair()
    if alt is None:
        return []
    histories = {entry.label: entry.histories for entry in outcome.planned}
    charts = {
        "trade-off": trade_off(alt, [outcome.rows[label] for label in histories]),
        "worst-over-rounds": over_rounds(alt, histories),
        "clients": clients(alt, histories),
    }
    return [path for name, chart in charts.items() for path in pictures.save(chart, folder, name)]


def trade_off(alt: Any, rows: Sequence[Row]) -> Any:
    """Mean accuracy against the worst 10 %: up is fairer, right is better on average."""
    data = [
        {
            "algorithm": r.label,
            "mean": 100 * r.late["mean"][0],
            "worst10": 100 * r.late["worst10"][0],
            "kind": _kind(r.label),
        }
        for r in rows
        if "mean" in r.late
    ]
    base = alt.Chart(
        alt.Data(values=data), width=620, height=440, title="Mean against worst-served clients (last rounds)"
    ).encode(
        x=alt.X("mean:Q", title="mean accuracy of all clients, %", scale=alt.Scale(zero=False, padding=24)),
        y=alt.Y("worst10:Q", title="accuracy of the worst-served 10 %, %", scale=alt.Scale(zero=False, padding=24)),
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(color=_colour(alt))
    names = base.mark_text(align="left", dx=8, fontSize=11).encode(text="algorithm:N", color=_colour(alt))
    return points + names


def over_rounds(alt: Any, histories: Mapping[str, Sequence[History]]) -> Any:
    """The worst 10 % round by round, mean over seeds; every algorithm in a panel of its own beside FedAvg."""
    data = []
    for label, runs in histories.items():
        for records in zip(*(h.evaluated for h in runs), strict=False):
            worst = [Fairness.of(r.accuracy).worst10 for r in records if r.accuracy is not None]
            data.append({"algorithm": label, "round": records[0].index + 1, "worst10": 100 * float(np.mean(worst))})
    baseline = [d for d in data if d["algorithm"] == BASELINE]
    panels = []
    for label in histories:
        values = [{**d, "kind": "FedAvg"} for d in baseline] + [
            {**d, "kind": _kind(label)} for d in data if d["algorithm"] == label and label != BASELINE
        ]
        panels.append(
            alt.Chart(alt.Data(values=values), width=200, height=130, title=label)
            .mark_line(strokeWidth=1.6)
            .encode(
                x=alt.X("round:Q", title=None),
                y=alt.Y("worst10:Q", title=None, scale=alt.Scale(domain=[0, 100])),
                color=_colour(alt),
            )
        )
    return alt.concat(
        *panels, columns=4, title="Accuracy of the worst-served 10 % of clients, round by round, beside FedAvg (%)"
    )


def clients(alt: Any, histories: Mapping[str, Sequence[History]]) -> Any:
    """Every client's accuracy over the last rounds, a dot each: a narrow, high column is a fair and good model."""
    data = []
    for label, runs in histories.items():
        found = [h.late_accuracy for h in runs if h.late_accuracy is not None]
        if found:
            data += [
                {"algorithm": label, "accuracy": 100 * float(value), "kind": _kind(label)}
                for value in np.mean(found, axis=0)
                if not np.isnan(value)
            ]
    return (
        alt.Chart(
            alt.Data(values=data),
            width=620,
            height=24 * max(len(histories), 1),
            title="Every client, mean over seeds and last rounds",
        )
        .mark_tick(thickness=2, size=15, opacity=0.75)
        .encode(
            x=alt.X("accuracy:Q", title="test accuracy, %", scale=alt.Scale(zero=False)),
            y=alt.Y("algorithm:N", title=None, sort=list(histories)),
            color=_colour(alt),
        )
    )


def _kind(label: str) -> str:
    if label == BASELINE:
        return "FedAvg"
    return "VRed, Semi-VRed" if "vred" in label else "other"


def _colour(alt: Any) -> Any:
    scale = alt.Scale(domain=["FedAvg", "VRed, Semi-VRed", "other"], range=["#444444", "#c4361d", "#2f6db5"])
    return alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None, orient="bottom"))
