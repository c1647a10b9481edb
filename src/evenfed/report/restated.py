"""Other figures than the measured ones: expected accuracies, and sequences without their padding."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..comparison.analysis.entry_figures import EXPECTED
from ..comparison.analysis.findings import BASELINE, Findings
from ..comparison.analysis.side_by_side import in_expectation
from ..comparison.analysis.statistics import Differences
from .notes import accuracy_note, definitions, fit_notes, is_alone, personal_note
from .paired_tables import against_rivals, paired
from .table import Cell, Column, Line, Table
from .tables import EXPECTED_WORST10, METRIC_COLUMNS, detailed, measured, name_of, when

_MEAN, _STD, _, _WORST10, _, _ = METRIC_COLUMNS
_COLUMNS = (
    _WORST10,
    EXPECTED_WORST10,
    _STD,
    Column(f"{EXPECTED}std", "expected std", -1),
)
_WITHOUT_PADDING = "without padding positions"
_NOTE = "In accuracies over the positions that are not padding; the training losses that give the weights count them."
_EXPLAINED = (Column("classes", "by classes, %"), Column("noise", "by noise, %"))


def beside_measured(findings: Findings, late: bool) -> list[Table]:
    """Measured and expected figures; no table where none are known.

    The late ones come with what explains the spread of the measured ones: it is known for the last rounds alone.
    """
    about_fit = fit_notes(findings)
    if not about_fit:
        return []
    lines = []
    for entry in findings.everyone:
        row = findings.rows[entry.label]
        cells = []
        for column in _COLUMNS:
            cells.append(measured(row, late, column.key))
        if late:
            classes = Cell()
            noise = Cell()
            if row.fit is not None:
                classes = Cell(100 * row.fit.classes, digits=0)
                noise = Cell(100 * row.fit.noise, digits=0)
            cells += [classes, noise]
        lines.append(Line.of(entry, cells))
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
        notes=definitions(accuracy_note(findings, not is_alone(findings)), *about_fit, fit, personal_note(findings)),
    )
    return [table.with_best()]


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


def expected_differences(comparisons: Sequence[Findings], late: bool, names: Sequence[str] = ()) -> list[Table]:
    """Each entry against FedAvg in expected accuracies; nothing where these do not fit on every federation."""
    shared = in_expected(comparisons, late)
    if shared is None:
        return []
    note = "In accuracies expected from class shares and recalls: the test sets' own noise is left out of both sides."
    tables = (paired(shared, names), against_rivals("same-average", shared, names))
    return _restated(tables, "expected", "expected accuracy", note)


def unpadded_figures(findings: Findings, late: bool) -> list[Table]:
    """Every metric of every entry; nothing where there is no padding."""
    unpadded = findings.unpadded
    if unpadded is None:
        return []
    return _restated([detailed(unpadded, late)], "unpadded", _WITHOUT_PADDING)


def unpadded_differences(findings: Findings, late: bool) -> list[Table]:
    """Each entry against FedAvg; nothing where there is no padding."""
    unpadded = findings.unpadded
    if unpadded is None:
        return []
    shared = Differences([unpadded], late)
    tables = [paired(shared)]
    for kind in ("same-average", "same-rate"):
        tables.append(against_rivals(kind, shared))
    return _restated(tables, "unpadded", _WITHOUT_PADDING, _NOTE)


def _restated(tables: Iterable[Table | None], kind: str, measure: str, *notes: str) -> list[Table]:
    renamed = []
    for table in tables:
        if table is not None:
            own = replace(
                table,
                name=f"{kind}-{table.name}",
                title=f"{table.title}, {measure}",
                notes=(*notes, *table.notes),
            )
            renamed.append(own)
    return renamed
