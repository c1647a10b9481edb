"""Charts as Vega-Lite specifications, one definition each: the page mounts them, `saving` draws them.

`of` gives all charts of a comparison, `across` those of several federations. A module for each kind of picture.
"""

from collections.abc import Iterable, Sequence

from ...comparison.analysis.findings import Findings
from ...comparison.analysis.statistics import Differences
from . import averaging, clients, differences, federation, guard, over_rounds, trade_off, turns, weights
from .chart import Chart
from .theme import DARK, LIGHT, THEMES, Style, Theme, looks

__all__ = ["DARK", "LIGHT", "THEMES", "Chart", "Style", "Theme", "across", "looks", "of"]


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


def _drawn(charts: Iterable[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart is not None]
