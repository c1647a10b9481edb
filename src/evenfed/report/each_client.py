"""A run that is reported alone: a row for each client."""

import numpy as np

from ..comparison.analysis.client_history import ClientHistory
from ..comparison.analysis.findings import Findings
from ..fairness import Vector
from .notes import is_alone, measured_on
from .table import Cell, Column, Line, Table

_MOST = 100  # clients shown


def is_of_one_run(findings: Findings) -> bool:
    """Whether there is one run of evenfed's, beside nothing."""
    return is_alone(findings) and len(findings.seeds) == 1 and findings.origin is None


def table(findings: Findings) -> Table:
    """The worst served first: size, last loss and figure, mean weight, rounds in which it took part, or could not."""
    (run,) = findings.baseline.histories
    header = findings.header
    metric = findings.metric
    names = header.clients["names"]
    service = ClientHistory.of(run.records, len(names), metric, run.model_round)
    order = np.argsort(metric.sign * service.figure, kind="stable")  # those without a figure last
    lines = []
    for client in order[:_MOST].tolist():
        cells = [
            Cell(float(header.train_sizes[client]), digits=0),
            _cell(service.loss, client, 3),
            _cell(metric.unit * service.figure, client, metric.digits),
            _cell(100 * service.weight, client, 1),
            _cell(service.rounds, client, 0),
            _cell(service.dropped, client, 0),
            _cell(service.clipped, client, 0),
        ]
        lines.append(Line(str(names[client]), cells))
    notes = [
        f"Worst first. Loss: before the last round the client took part in. {measured_on(findings)}: of the run's "
        "model, or the last one known. Weight: in %, mean over all rounds. Dropped: rounds without a usable reply. "
        "Clipped: rounds in which the guard held it back."
    ]
    if len(names) > _MOST:
        notes.append(f"{len(names) - _MOST} more clients are served better; evenfed.load(DIR).to_pandas() has all.")
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


def _cell(values: Vector, client: int, digits: int) -> Cell:
    value = float(values[client])
    return Cell() if np.isnan(value) else Cell(value, digits=digits)
