"""The still pictures of a report, of a choice and of a comparison that has just ended."""

from collections.abc import Sequence
from dataclasses import replace

from ...comparison.analysis.findings import Findings
from ..document import Report
from ..every_run import is_of_one_run
from . import averaging, bars, clients, differences, over_rounds, trade_off, turns, weights
from .chart import Chart


def of_report(report: Report) -> list[Chart]:
    """Differences; what averaging does, where entries deploy an average; of one comparison, the paper's bars."""
    charts: list[Chart | None] = []
    if len(report.findings) == 1 and is_of_one_run(report.findings[0]):
        return _of_one_run(report.findings[0])
    if report.pooled:
        charts.append(differences.chart(report.pooled))
        averaged = averaging.chart(report.pooled.comparisons)
        if averaged is not None:
            charts += [
                averaged,
                _turns(report.pooled.comparisons),
                over_rounds.chart(report.pooled.comparisons),
            ]
    if len(report.findings) == 1:
        (findings,) = report.findings
        charts.append(bars.chart(findings, "mean-and-worst10", ("mean", "worst10"), report.papers))
        charts.append(bars.chart(findings, "worst20", ("worst20",), report.papers))
    return [chart for chart in charts if chart is not None]


def _of_one_run(findings: Findings) -> list[Chart]:
    """Its clients from the worst served to the best, how that came about, and the weights they had."""
    charts = [
        clients.sorted_curves(findings),
        over_rounds.chart([findings]),
        weights.chart(findings),
    ]
    return [chart for chart in charts if chart is not None]


def _turns(comparisons: Sequence[Findings]) -> Chart | None:
    """Of the first federation."""
    first = comparisons[0]
    chart = turns.chart(first)
    if chart is None or len(comparisons) == 1:
        return chart
    return replace(chart, title=f"{chart.title}, federation {first.header.data.get('seed', 0)}")


def of_comparison(findings: Findings) -> list[Chart]:
    """What `evenfed compare` draws: a few of the page's charts."""
    charts = [
        trade_off.chart(findings),
        clients.changes(findings),
        clients.sorted_curves(findings),
        over_rounds.chart([findings]),
    ]
    return [chart for chart in charts if chart is not None]
