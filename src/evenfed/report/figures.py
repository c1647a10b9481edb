"""Figures of a comparison, one definition each for PDF, SVG and PNG: the paper's two, and differences from FedAvg."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..comparison.choose import Choice
from ..comparison.findings import BASELINE, Findings
from ..comparison.statistics import LOWER_IS_BETTER, Differences
from . import pictures
from .choice import FIGURES, Grid, grids, shown
from .paper import Numbers
from .several import federations
from .tables import accuracy_on, judged_by, measured, spread_of, title, when

_COLOURS = {"mean": "#2f6db5", "worst10": "#c4361d", "worst20": "#c4361d"}
_FIGURES = {"mean-and-worst10": ("mean", "worst10"), "worst20": ("worst20",)}
_SHADES = ("#7a1f0f", "#c4361d", "#ef9a7a", "#8c8c8c")  # of a dial's values, the last being "off"
_HEADING = {"anchor": "start", "subtitleColor": "#555555"}
_ENDINGS = ("pdf", "svg", "png")
_ROOM = {"left": 40, "top": 5, "right": 12, "bottom": 5}  # who looks may have wider letters
_PANEL_HEIGHT, _BAR, _LABEL = 170, 15, 38  # a label of two lines needs that much of the axis


def draw(comparisons: Sequence[Findings], folder: Path, paper: Numbers | None) -> list[Path]:
    """The figures in `folder`; an empty list where the drawing packages are not installed."""
    alt, pooled = pictures.altair(), federations(comparisons)
    if alt is None:
        return []
    written: list[Path] = []
    if pooled and len(pooled[0].everyone) > 1:
        written += pictures.save(differences(alt, pooled), folder, "differences", _ENDINGS)
    for name, metrics in _FIGURES.items() if len(comparisons) == 1 else ():
        chart = figure(alt, comparisons[0], metrics, paper)
        written += pictures.save(chart, folder, name, _ENDINGS)
    return written


def figure(alt: Any, findings: Findings, metrics: Sequence[str], paper: Numbers | None) -> Any:
    """A panel for the last round, as in the paper, and one for the average of the last rounds."""
    panels = [_panel(alt, findings, metrics, late, None if late else paper) for late in (False, True)]
    told = " and ".join(title(m) for m in metrics)
    heading = alt.TitleParams(
        f"{accuracy_on(findings.judge)}, {told}: {findings.header['config']['data']['name']}",
        subtitle="thin lines: spread over seeds; dashed: the best" + ("; diamonds: the paper" if paper else ""),
        offset=12,
        **_HEADING,
    )
    return (
        alt.vconcat(*panels, title=heading, spacing=18)
        .configure_view(stroke=None)
        .configure_axis(gridColor="#e4e4e4", labelLimit=240, titleFontWeight="normal")
        .configure_legend(symbolType="square")
    )


def draw_choice(choice: Choice, folder: Path) -> list[Path]:
    """The figure of a choice in `folder`; nothing where no method has two dials, or nothing draws."""
    alt, found = pictures.altair(), grids(choice)
    return pictures.save(dials(alt, choice, found), folder, "dials", _ENDINGS) if alt and found else []


def dials(alt: Any, choice: Choice, found: Sequence[Grid]) -> Any:
    """What was chosen from: a line for each value of the second dial over those of the first, beside FedAvg."""
    findings = choice.findings
    names = [" or ".join(dict.fromkeys(grid.dials[k] for grid in found)) for k in (0, 1)]
    order = [shown(v) for v in found[0].values(1)]
    colour = alt.Color(
        "second:N",
        scale=alt.Scale(domain=order, range=_SHADES[-len(order) :]),
        legend=alt.Legend(title=names[1], orient="bottom", symbolType="circle"),
    )
    x = alt.X("first:O", title=names[0], axis=alt.Axis(labelAngle=0))
    lines = alt.Chart().mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2)
    layers = [
        alt.Chart().mark_rule(strokeDash=[5, 4]).encode(y="mean(fedavg):Q"),
        lines.encode(x=x, y=alt.Y("value:Q", title="accuracy, %"), color=colour),
    ]
    heading = alt.TitleParams(
        f"{accuracy_on(findings.judge)} over {names[0]} and {names[1]}: {findings.header['config']['data']['name']}",
        subtitle=f"{when(findings, True)}, {spread_of(findings)}; dashed: FedAvg, chosen the same way",
        offset=12,
        **_HEADING,
    )
    return (
        alt.layer(*layers, data=alt.Data(values=list(_dialled(choice, found))))
        .properties(width=210, height=_PANEL_HEIGHT)
        .facet(
            row=alt.Row("metric:N", sort=[title(m) for m in FIGURES], title=None),
            column=alt.Column("method:N", sort=[g.method for g in found], title=None),
            title=heading,
        )
        .configure_axis(gridColor="#e4e4e4", titleFontWeight="normal")
        .configure_view(stroke=None)
    )


def _dialled(choice: Choice, found: Sequence[Grid]) -> Iterator[dict[str, Any]]:
    for grid, metric in itertools.product(found, FIGURES):
        for (first, second), entry in grid.entries.items():
            value, fedavg = (
                100 * choice.findings.rows[e.label].late[metric][0] for e in (entry, choice.chosen[BASELINE])
            )
            yield {
                "method": grid.method,
                "metric": title(metric),
                "first": first,
                "second": shown(second),
                "value": value,
                "fedavg": fedavg,
            }


def differences(alt: Any, several: Sequence[Findings]) -> Any:
    """Every entry minus FedAvg with its interval, over a band of what chance alone does; federations are pooled."""
    findings, against = several[0], Differences(several, late=True)
    seeds = min(len(each.seeds) for each in several)
    order = [title(e.label) for e in findings.everyone[1:]]
    gaps = {metric: list(_gaps(against, metric)) for metric in judged_by(late=True)}
    kinds = [kind for kind in _KINDS if any(gap["kind"] == kind for gap in gaps["mean"])]
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[_KINDS[kind] for kind in kinds]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    panels: list[Any] = []
    for metric, values in gaps.items():
        head = alt.TitleParams(title(metric) + " (less is fairer)" * (metric in LOWER_IS_BETTER))
        base = alt.Chart(alt.Data(values=values)).encode(
            y=alt.Y("entry:N", sort=order, title=None, axis=alt.Axis(labels=not panels, ticks=False, labelLimit=240))
        )
        axis = alt.X(
            "points:Q",
            title="points of accuracy",
            scale=alt.Scale(zero=True),
            axis=alt.Axis(tickCount=6, labelFlush=False, labelOverlap="parity", labelSeparation=6),
        )
        layers = [
            *_band(alt, against, metric, seeds),
            alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color="#222222").encode(x="zero:Q"),
            base.mark_rule(strokeWidth=2, opacity=0.55).encode(x="low:Q", x2="high:Q", color=colour),
            base.mark_point(filled=True, size=70, opacity=1).encode(x=axis, color=colour),
        ]
        if len(several) > 1:
            alone = base.transform_flatten(["each"])
            layers.append(alone.mark_point(size=40, strokeWidth=1.3, opacity=1).encode(x="each:Q", color=colour))
        panels.append(alt.layer(*layers).properties(width=210, height=24 * len(order), title=head))
    floor = ["grey: 95 % of FedAvg against FedAvg with other seeds"] if _band(alt, against, "mean", seeds) else []
    over = f", {len(several)} federations (rings: each)" if len(several) > 1 else ""
    heading = alt.TitleParams(
        f"Difference from FedAvg: {findings.header['config']['data']['name']}, {when(findings, True)}",
        subtitle=[f"lines: 95 % interval over clients and seeds{over}", *floor],
        **_HEADING,
    )
    return (
        alt.hconcat(*panels, title=heading, spacing=14, padding=_ROOM)
        .configure_axis(gridColor="#e4e4e4", titleFontWeight="normal")
        .configure_view(stroke=None)
    )


_KINDS = {"VRed, Semi-VRed": "#c4361d", "other": "#2f6db5", "repetition": "#888888"}


def _gaps(against: Differences, metric: str) -> Iterator[dict[str, Any]]:
    for entry in against.findings.everyone[1:]:
        gap = against.between(entry.label, BASELINE, metric)
        each = against.on_each(entry.label, BASELINE, metric)
        kind = "VRed, Semi-VRed" if "vred" in entry.method else "other"
        yield {
            "entry": title(entry.label),
            "kind": kind if entry.repeats is None else "repetition",
            "points": gap.points,
            "low": gap.low,
            "high": gap.high,
            "each": [one.points for one in each],
        }


def _band(alt: Any, against: Differences, metric: str, seeds: int) -> list[Any]:
    floor = against.chance(metric, seeds)
    if floor is None:
        return []
    edges = [{"from": -floor.bound, "to": floor.bound}]
    return [alt.Chart(alt.Data(values=edges)).mark_rect(color="#dddddd", opacity=0.7).encode(x="from:Q", x2="to:Q")]


def _panel(alt: Any, findings: Findings, metrics: Sequence[str], late: bool, paper: Numbers | None) -> Any:
    data = list(_bars(findings, metrics, late, paper))
    order = [title(e.label) for e in findings.everyone]
    names = [title(m) for m in metrics]
    colour = alt.Color(
        "metric:N",
        scale=alt.Scale(domain=names, range=[_COLOURS[m] for m in metrics]),
        legend=alt.Legend(title=None, orient="top") if len(names) > 1 and not late else None,
    )
    in_lines = "split(replace(datum.label, '[', '\\n['), '\\n')"  # options under the name: long labels stay short
    axis = alt.Axis(labelAngle=-40, title=None, labels=late, ticks=late, labelExpr=in_lines)
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X("entry:N", sort=order, axis=axis, scale=alt.Scale(paddingInner=0.25)),
        xOffset=alt.XOffset("metric:N", sort=names, scale=alt.Scale(domain=names)),
    )
    value = alt.Y("value:Q", title="accuracy, %", scale=alt.Scale(zero=True))
    opacity = alt.condition("datum.chance", alt.value(0.4), alt.value(1))
    bars = base.mark_bar().encode(y=value, color=colour, opacity=opacity)
    spread = base.mark_rule(color="#222222", strokeWidth=1.3).encode(y="low:Q", y2="high:Q")
    best = _best(alt, data, colour)
    layers = [bars, spread, best]
    if paper:
        there = base.transform_filter("isValid(datum.paper)")
        layers.append(
            there.mark_point(shape="diamond", fill="white", stroke="#111111", strokeWidth=1, opacity=1, size=46).encode(
                y="paper:Q"
            )
        )
    width = max(260, len(order) * max(_BAR * len(metrics) + 8, _LABEL))
    return alt.layer(*layers).properties(
        width=width, height=_PANEL_HEIGHT, title=alt.TitleParams(when(findings, late), anchor="start", fontSize=11)
    )


def _best(alt: Any, data: Sequence[dict[str, Any]], colour: Any) -> Any:
    """A dashed line at the best of each metric, as the paper draws it."""
    tops: dict[str, float] = {}
    for bar in data:
        if not bar["chance"]:
            tops[bar["metric"]] = max(bar["value"], tops.get(bar["metric"], bar["value"]))
    values = [{"metric": metric, "top": top} for metric, top in tops.items()]
    return alt.Chart(alt.Data(values=values)).mark_rule(strokeDash=[5, 4]).encode(y="top:Q", color=colour)


def _bars(findings: Findings, metrics: Sequence[str], late: bool, paper: Numbers | None) -> Iterator[dict[str, Any]]:
    for entry in findings.everyone:
        row = findings.rows[entry.label]
        theirs = (paper or {}).get(entry.method)
        for metric in metrics:
            cell = measured(row, late, metric)
            if cell.value is None:
                continue
            spread = cell.spread or 0.0
            chance = entry.repeats is not None
            yield {
                "entry": title(entry.label),
                "metric": title(metric),
                "value": cell.value,
                "low": max(0.0, cell.value - spread),
                "high": cell.value + spread,
                "chance": chance,
                "paper": theirs[metric][0] if theirs and not chance else None,
            }
