"""The table of every run by itself: how far seeds are apart, and which runs oscillate."""

from ..comparison.analysis.entry_figures import row
from ..comparison.analysis.findings import Findings
from ..comparison.analysis.history import History
from .columns import LASTING_COLUMN, METRIC_COLUMNS, directed
from .notes import LASTING_NOTE, in_percent, measured_on
from .table import Cell, Column, Line, Table
from .tables import NEGATIVE, WEIGHTS, correlation, judged_by, metric_cells, share, title

_SKIPPED = Column("skipped", "skipped rounds")
_WEIGHTS_NOTE = (
    "Weight moved: half the sum of absolute differences from FedAvg's weights in %, averaged over rounds. Oscillation: "
    "lag-1 correlation, over the later half of the rounds, of each client's loss minus the mean loss, averaged over "
    "clients; below -0.85 the weights chase the last round's losses. Negative rounds: rounds with a negative weight."
)


def runs(findings: Findings) -> Table:
    """Every run by itself: how far seeds are apart, and which runs oscillate."""
    if findings.is_of_one_round:
        return _one_round(findings)
    columns = []
    for metric in judged_by(late=False):
        name = title(metric)
        late = Column(f"{metric}-late", f"{name}, late")
        last = Column(f"{metric}-last", f"{name}, last")
        columns += [late, last]
    columns.append(LASTING_COLUMN)
    if findings.origin is None:
        columns += [*WEIGHTS, NEGATIVE, _SKIPPED]
    lines = []
    for entry in findings.everyone:
        for seed, run in entry.runs.items():
            line = Line(
                entry=entry.label,
                cells=_run_cells(run)[: len(columns)],
                part=f"seed {seed}",
                control=entry.is_control,
            )
            lines.append(line)
    what = f"{measured_on(findings)}{in_percent(findings)}"
    note = f"{what}. Late: average of the last {findings.last_rounds} rounds; last: last round. {LASTING_NOTE}"
    if findings.origin is None:
        note = f"{note} {_WEIGHTS_NOTE}"
    return Table(
        name="runs",
        title="Every run",
        columns=columns,
        lines=lines,
        notes=(note,),
        digits=findings.metric.digits,
    )


def _one_round(findings: Findings) -> Table:
    """Every run where figures are of one round."""
    lines = []
    for entry in findings.everyone:
        for seed, run in entry.runs.items():
            cells = metric_cells(row("", [run], None), late=False)
            lines.append(Line(entry.label, cells, f"seed {seed}", entry.is_control))
    return Table(
        name="runs",
        title="Every run",
        columns=directed(METRIC_COLUMNS, findings.metric),
        lines=lines,
        notes=(f"{measured_on(findings)}{in_percent(findings)}.",),
        digits=findings.metric.digits,
    )


def _run_cells(run: History) -> list[Cell]:
    unit = run.metric.unit
    cells = []
    for metric in judged_by(late=False):
        for fairness in (run.late_fairness, run.fairness):
            if fairness is None:
                cells.append(Cell())
            else:
                figure = getattr(fairness, metric)
                cells.append(Cell(unit * figure))
    lasting = Cell()
    if run.lasting is not None:
        lasting = Cell(unit * run.lasting)
    negative_rounds = float(run.negative_rounds)
    skipped_rounds = float(run.skipped_rounds)
    cells.append(lasting)
    cells.append(share(run.moved))
    cells.append(correlation(run.oscillation))
    cells.append(Cell(negative_rounds, digits=0))
    cells.append(Cell(skipped_rounds, digits=0))
    return cells
