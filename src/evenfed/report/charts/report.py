"""All charts of a comparison or of several federations, and the few of them that reports draw as still pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...comparison.analysis.findings import Findings
from ...comparison.analysis.statistics import Differences
from ..document import Report
from ..every_run import is_of_one_run
from . import averaging, bars, clients, differences, federation, guard, over_rounds, trade_off, turns, weights
from .chart import Chart


def of(findings: Findings) -> list[Chart]:
    """All charts of one comparison, the most telling first; those without anything to show are left out."""
    charts = (
        trade_off.chart(findings),
        clients.changes(findings),
        clients.sorted_curves(findings),
        differences.chart(Differences([findings], late=True)),
        over_rounds.chart([findings]),
        turns.chart(findings),
        weights.chart(findings),
        guard.chart(findings),
        federation.of_findings(findings),
    )
    return _drawn(charts)


def across(comparisons: Sequence[Findings]) -> list[Chart]:
    """All charts of the same comparison on several federations."""
    charts = (
        differences.chart(Differences(comparisons, late=True)),
        averaging.chart(comparisons),
        over_rounds.chart(comparisons),
    )
    return _drawn(charts)


def of_report(report: Report) -> list[Chart]:
    """Differences; what averaging does, where entries deploy an average; of one comparison, the paper's bars."""
    first = report.findings[0]
    if len(report.findings) == 1 and is_of_one_run(first):
        of_run = (clients.sorted_curves(first), over_rounds.chart([first]), weights.chart(first))
        return _drawn(of_run)
    charts: list[Chart | None] = []
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
        charts.append(bars.chart(first, "mean-and-worst10", ("mean", "worst10"), report.papers))
        charts.append(bars.chart(first, "worst20", ("worst20",), report.papers))
    return _drawn(charts)


def _turns(comparisons: Sequence[Findings]) -> Chart | None:
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
    return _drawn(charts)


def _drawn(charts: Iterable[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart is not None]
