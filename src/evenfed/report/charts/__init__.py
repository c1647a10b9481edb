"""Charts as Vega-Lite specifications, one definition each: the page mounts them, `saving` draws them.

`of` gives all charts of a comparison. A module for each kind of picture.
"""

from ...comparison.findings import Findings
from . import clients, over_rounds, trade_off
from .chart import Chart
from .theme import DARK, LIGHT, THEMES, Theme, looks

__all__ = ["DARK", "LIGHT", "THEMES", "Chart", "Theme", "looks", "of"]


def of(findings: Findings) -> list[Chart]:
    """All charts of one comparison, the most telling first; those without anything to show are left out."""
    charts = [
        trade_off.chart(findings),
        clients.changes(findings),
        clients.sorted_curves(findings),
        over_rounds.chart(findings),
    ]
    return [chart for chart in charts if chart is not None]
