"""The paper's two figures from our results: bars with spreads, one chart definition for PDF, SVG and PNG."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import pictures
from .findings import Findings
from .paper import Numbers
from .tables import measured, title, when

_COLOURS = {"mean": "#2f6db5", "worst10": "#c4361d", "worst20": "#c4361d"}
_FIGURES = {"mean-and-worst10": ("mean", "worst10"), "worst20": ("worst20",)}
_PANEL_HEIGHT, _BAR, _LABEL = 170, 15, 38  # a label of two lines needs that much of the axis


def draw(findings: Findings, folder: Path, paper: Numbers | None) -> list[Path]:
    """Both figures in `folder`; an empty list where the drawing packages are not installed."""
    alt = pictures.altair()
    if alt is None:
        return []
    written: list[Path] = []
    for name, metrics in _FIGURES.items():
        chart = figure(alt, findings, metrics, paper)
        written += pictures.save(chart, folder, name, ("pdf", "svg", "png"))
    return written


def figure(alt: Any, findings: Findings, metrics: Sequence[str], paper: Numbers | None) -> Any:
    """A panel for the last round, as in the paper, and one for the average of the last rounds."""
    panels = [_panel(alt, findings, metrics, late, None if late else paper) for late in (False, True)]
    told = " and ".join(title(m) for m in metrics)
    heading = alt.TitleParams(
        f"Test accuracy, {told}: {findings.header['config']['data']['name']}",
        subtitle="thin lines: spread over seeds; dashed: the best" + ("; diamonds: the paper" if paper else ""),
        anchor="start",
        subtitleColor="#555555",
        offset=12,
    )
    return (
        alt.vconcat(*panels, title=heading, spacing=18)
        .configure_view(stroke=None)
        .configure_axis(gridColor="#e4e4e4", labelLimit=240, titleFontWeight="normal")
        .configure_legend(symbolType="square")
    )


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
    value = alt.Y("value:Q", title="test accuracy, %", scale=alt.Scale(zero=True))
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
                "low": cell.value - spread,
                "high": cell.value + spread,
                "chance": chance,
                "paper": theirs[metric][0] if theirs and not chance else None,
            }
