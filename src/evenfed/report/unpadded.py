"""Sequences without their padding: figures, and differences from FedAvg."""

from ..comparison.analysis.findings import Findings
from ..comparison.analysis.statistics import Differences
from .paired_tables import against_rivals, paired, restated
from .table import Table
from .tables import detailed

_WITHOUT = "without padding positions"
_NOTE = "In accuracies over the positions that are not padding; the training losses that give the weights count them."


def figures(findings: Findings, late: bool) -> list[Table]:
    """Every metric of every entry; nothing where there is no padding."""
    unpadded = findings.unpadded
    if unpadded is None:
        return []
    return restated([detailed(unpadded, late)], "unpadded", _WITHOUT)


def differences(findings: Findings, late: bool) -> list[Table]:
    """Each entry against FedAvg; nothing where there is no padding."""
    unpadded = findings.unpadded
    if unpadded is None:
        return []
    shared = Differences([unpadded], late)
    tables = [paired(shared)]
    for kind in ("same-average", "same-rate"):
        tables.append(against_rivals(kind, shared))
    return restated(tables, "unpadded", _WITHOUT, _NOTE)
