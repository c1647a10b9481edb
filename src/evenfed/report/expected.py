"""Expected accuracies next to the measured ones: figures, differences from FedAvg, and whether they fit."""

from collections.abc import Sequence

from ..comparison.analysis.entry_figures import EXPECTED
from ..comparison.analysis.expected import Fit
from ..comparison.analysis.findings import BASELINE, Findings
from ..comparison.analysis.side_by_side import in_expectation
from ..comparison.analysis.statistics import Differences
from .columns import EXPECTED_WORST10, METRIC_COLUMNS
from .notes import accuracy_note, fit_notes, is_alone
from .paired_tables import against_rivals, paired, restated
from .table import Cell, Column, Line, Table
from .tables import measured, name_of, when

_MEAN, _STD, _, _WORST10, _, _ = METRIC_COLUMNS
_COLUMNS = (
    _WORST10,
    EXPECTED_WORST10,
    _STD,
    Column(f"{EXPECTED}std", "expected std", -1),
)
_EXPLAINED = (Column("classes", "by classes, %"), Column("noise", "by noise, %"))


def beside_measured(findings: Findings, late: bool) -> Table | None:
    """Measured and expected figures; None where none are known.

    The late ones come with what explains the spread of the measured ones: it is known for the last rounds alone.
    """
    about_fit = fit_notes(findings)
    if not about_fit:
        return None
    lines = []
    for entry in findings.everyone:
        row = findings.rows[entry.label]
        cells = []
        for column in _COLUMNS:
            cells.append(measured(row, late, column.key))
        if late:
            cells += _explained(row.fit)
        lines.append(Line(entry.label, cells, control=entry.is_control))
    columns = list(_COLUMNS)
    fit = f"The fit is that of the last {findings.last_rounds} rounds."
    if late:
        columns += _EXPLAINED
        fit = "By classes, by noise: the part of the spread between clients' accuracies that each explains."
    table = Table(
        name=name_of("expected", late),
        title=f"Measured and expected {findings.metric.name}, {when(findings, late)}",
        columns=columns,
        lines=lines,
        digits=findings.metric.digits,
        notes=(accuracy_note(findings, not is_alone(findings)), *about_fit, fit),
    )
    return table.with_best()


def _explained(fit: Fit | None) -> list[Cell]:
    if fit is None:
        return [Cell(), Cell()]
    classes = Cell(100 * fit.classes, digits=0)
    noise = Cell(100 * fit.noise, digits=0)
    return [classes, noise]


def in_expected(comparisons: Sequence[Findings], late: bool) -> Differences | None:
    """Differences in expected accuracies; None where these do not fit on every federation."""
    expected = in_expectation(comparisons)
    if expected is None:
        return None
    common = set(expected[0].by_label)
    for findings in expected:
        common &= set(findings.by_label)
    if common == {BASELINE}:
        return None
    return Differences([findings.only(common) for findings in expected], late)


def differences(comparisons: Sequence[Findings], late: bool, names: Sequence[str] = ()) -> list[Table]:
    """Each entry against FedAvg in expected accuracies; nothing where these do not fit on every federation."""
    shared = in_expected(comparisons, late)
    if shared is None:
        return []
    note = "In accuracies expected from class shares and recalls: the test sets' own noise is left out of both sides."
    tables = (paired(shared, names), against_rivals("same-average", shared, names))
    return restated(tables, "expected", "expected accuracy", note)
