"""What is held out of training, in tables of its own: clients that never train, and a test set of no client's."""

import dataclasses
from dataclasses import replace

import numpy as np

from ..comparison.analysis.findings import Findings
from ..fairness import FIGURES
from .notes import measured_in, spread_of
from .table import Cell, Column, Line, Table
from .tables import METRIC_COLUMNS, directed


def tables(findings: Findings) -> list[Table]:
    """Those that the runs have figures for."""
    run = findings.baseline.histories[0]
    shown = []
    if run.unseen is not None:
        shown.append(_unseen(findings))
    if run.test:
        shown.append(_test(findings))
    return shown


def _unseen(findings: Findings) -> Table:
    metric = findings.metric
    unit = metric.unit
    lines = []
    for entry in findings.everyone:
        known = []
        for run in entry.histories:
            if run.unseen is not None:
                known.append(dataclasses.asdict(run.unseen))
        cells = []
        for name in FIGURES:
            values = [figures[name] for figures in known]
            cells.append(Cell.over_seeds(values, unit))
        lines.append(Line.of(entry, cells))
    record = findings.baseline.histories[0].held_out
    assert record is not None and record.unseen_losses is not None
    clients = len(record.unseen_losses)
    table = Table(
        name="unseen",
        title=f"Clients never trained on ({clients}), last round",
        columns=directed(METRIC_COLUMNS, metric),
        lines=lines,
        notes=(f"Part of no other figure. {measured_in(findings)}, {spread_of(findings)}.",),
        digits=metric.digits,
    )
    return table.with_best()


def _test(findings: Findings) -> Table:
    metric = findings.metric
    columns = [Column("loss", "loss", -1)]
    if not metric.is_loss:
        own = Column("accuracy", metric.name, metric.sign)
        columns.insert(0, own)
    lines = []
    for entry in findings.everyone:
        cells = []
        for column in columns:
            is_loss = column.key == "loss"
            values = [run.test.get(column.key, np.nan) for run in entry.histories]
            cell = Cell.over_seeds(values, 1.0 if is_loss else metric.unit)
            cells.append(replace(cell, digits=3) if is_loss else cell)
        lines.append(Line.of(entry, cells))
    table = Table(
        name="global-test",
        title="Global test set, last round",
        columns=columns,
        lines=lines,
        notes=(f"Examples that belong to no client. {measured_in(findings)}, {spread_of(findings)}.",),
        digits=metric.digits,
    )
    return table.with_best()
