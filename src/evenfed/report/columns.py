"""The columns of figures, and which end of them is better."""

from collections.abc import Sequence
from dataclasses import replace

from ..comparison.analysis.entry_figures import EXPECTED, LASTING
from ..metrics import Metric
from .table import Column

METRIC_COLUMNS = (
    Column("mean", "mean", +1),
    Column("std", "std", -1),
    Column("worst", "worst", +1),
    Column("worst10", "worst 10 %", +1),
    Column("worst20", "worst 20 %", +1),
    Column("best10", "best 10 %", +1),
)
LASTING_COLUMN = Column(LASTING, "lasting worst 10 %", +1)
EXPECTED_WORST10 = Column(f"{EXPECTED}worst10", "expected worst 10 %", +1)
_OF_THE_METRIC = ("mean", "worst", "worst10", "worst20", "best10", LASTING, "mean_gain")
SHARES = ("improved", "degraded")  # of clients, always in percent
SUPPRESSION_COLUMNS = (
    Column("improved", "improved suffering", +1),
    Column("degraded", "degraded well-performing", -1),
    Column("mean_gain", "mean, points", +1),
)


def directed(columns: Sequence[Column], metric: Metric) -> list[Column]:
    """The same columns where less of the metric may be better; a spread is always better small."""
    turned = []
    for column in columns:
        if column.key in _OF_THE_METRIC:
            column = replace(column, better=column.better * metric.sign)
        turned.append(column)
    return turned


def suppression_columns(metric: Metric) -> list[Column]:
    """Table 2's columns; the mean's change in points, or in the metric's own unit."""
    improved, degraded, gain = SUPPRESSION_COLUMNS
    if not metric.is_share:
        gain = replace(gain, title=f"mean {metric.name}")
    return directed((improved, degraded, gain), metric)
