"""Runs by themselves: a line for each run; of a run that is reported alone, a line for each client."""

import numpy as np

from ..comparison.analysis.client_history import ClientHistory
from ..comparison.analysis.entry_figures import row
from ..comparison.analysis.findings import Findings
from ..comparison.analysis.history import History
from ..fairness import Vector
from .notes import LASTING_NOTE, is_alone, measured_in, measured_on
from .table import Cell, Column, Line, Table
from .tables import (
    LASTING_COLUMN,
    METRIC_COLUMNS,
    NEGATIVE,
    WEIGHTS,
    correlation,
    directed,
    judged_by,
    metric_cells,
    share,
    title,
)

_SKIPPED = Column("skipped", "skipped rounds")
_MOST_CLIENTS = 100  # shown
_WEIGHTS_NOTE = (
    "Weight moved: half the sum of absolute differences from FedAvg's weights in %, averaged over rounds. Oscillation: "
    "lag-1 correlation, over the later half of the rounds, of each client's loss minus the mean loss, averaged over "
    "clients; below -0.85 the weights chase the last round's losses. Negative rounds: rounds with a negative weight."
)


def runs(findings: Findings) -> Table:
    """Every run by itself: how far seeds are apart, and which runs oscillate."""
    note = f"{measured_in(findings)}."
    columns = directed(METRIC_COLUMNS, findings.metric)
    if not findings.is_of_one_round:
        note += f" Late: average of the last {findings.last_rounds} rounds; last: last round. {LASTING_NOTE}"
        columns = []
        for metric in judged_by(late=False):
            name = title(metric)
            late = Column(f"{metric}-late", f"{name}, late")
            last = Column(f"{metric}-last", f"{name}, last")
            columns += [late, last]
        columns.append(LASTING_COLUMN)
        if findings.origin is None:
            note = f"{note} {_WEIGHTS_NOTE}"
            columns += [*WEIGHTS, NEGATIVE, _SKIPPED]
    lines = []
    for entry in findings.everyone:
        for seed, run in entry.runs.items():
            cells = _run_cells(run)[: len(columns)]
            if findings.is_of_one_round:
                cells = metric_cells(row("", [run], None), late=False)
            lines.append(Line.of(entry, cells, f"seed {seed}"))
    return Table(
        name="runs",
        title="Every run",
        columns=columns,
        lines=lines,
        notes=(note,),
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


def is_of_one_run(findings: Findings) -> bool:
    """Whether a single run of evenfed is reported."""
    return is_alone(findings) and len(findings.seeds) == 1 and findings.origin is None


def each_client(findings: Findings) -> Table:
    """The worst served first: size, last loss and figure, mean weight, rounds in which it took part, or could not."""
    (run,) = findings.baseline.histories
    header = findings.header
    metric = findings.metric
    names = header.clients["names"]
    service = ClientHistory.of(run.records, len(names), metric, run.model_round)
    order = np.argsort(metric.sign * service.figure, kind="stable")  # those without a figure last
    lines = []
    for client in order[:_MOST_CLIENTS].tolist():
        cells = [
            Cell(float(header.train_sizes[client]), digits=0),
            _client_cell(service.loss, client, 3),
            _client_cell(metric.unit * service.figure, client, metric.digits),
            _client_cell(100 * service.weight, client, 1),
            _client_cell(service.rounds, client, 0),
            _client_cell(service.dropped, client, 0),
            _client_cell(service.clipped, client, 0),
        ]
        lines.append(Line(str(names[client]), cells))
    notes = [
        f"Worst first. Loss: before the last round the client took part in. {measured_on(findings)}: of the run's "
        "model, or the last one known. Weight: in %, mean over all rounds. Dropped: rounds without a usable reply. "
        "Clipped: rounds in which the guard held it back."
    ]
    others = len(names) - _MOST_CLIENTS
    if others > 0:
        notes.append(f"{others} more clients are served better; evenfed.load(DIR).to_pandas() has all.")
    columns = [
        Column("size", "size"),
        Column("loss", "loss"),
        Column("figure", metric.title),
        Column("weight", "weight"),
        Column("rounds", "rounds"),
        Column("dropped", "dropped"),
        Column("clipped", "clipped"),
    ]
    return Table(
        name="clients",
        title=f"Each client of {findings.baseline.label}, {len(run.records)} rounds",
        columns=columns,
        lines=lines,
        notes=notes,
        digits=metric.digits,
        head="client",
    )


def _client_cell(values: Vector, client: int, digits: int) -> Cell:
    value = float(values[client])
    return Cell() if np.isnan(value) else Cell(value, digits=digits)
