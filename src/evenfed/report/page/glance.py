"""The page's first table: five columns that a choice is made by, differences as small bars with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...comparison.analysis.findings import Entry, Findings
from ...comparison.analysis.intervals import Difference
from ...comparison.runs import FLOOR_NAMES
from ...metrics import Metric
from ..notes import floor_notes, is_alone, measured_in
from ..tables import when
from .evidence import Basis
from .words import signed

Described = dict[str, Any]  # as JSON
_FIGURES = {"worst10": "Worst 10 %", "mean": "Mean"}


@dataclass(frozen=True)
class Glance:
    """One line per entry, FedAvg first; the noise floor last."""

    columns: Sequence[dict[str, str]]
    lines: Sequence[Described]
    subtitle: str
    notes: Sequence[str]
    sign: int  # +1 if more is better
    title: str = ""  # of a set-up
    first: int = 1  # the column that lines are sorted by to begin with


def of(basis: Basis, name: str = "") -> Glance:
    """The levels of worst 10 % and mean, and how far each is from FedAvg's; what is alone has levels only."""
    everyone = basis.findings.everyone
    has_gaps = not is_alone(basis.findings)
    baseline = basis.baseline_name
    columns = [_column("algorithm", "Algorithm", "name")]
    for figure, title in _FIGURES.items():
        columns.append(_column(figure, title, "level"))
        if has_gaps:
            columns.append(_column(f"{figure}_gap", f"{title} against {baseline}", "gap"))
    lines = [_line(basis, entry, has_gaps) for entry in everyone]
    for entry in basis.lost:
        no_figures: list[Described] = [{} for _ in columns[2:]]
        lines.append(line_of(entry.label, [{"text": "broke down"}, *no_figures]))
    what = measured_in(basis.findings)
    if basis.is_expected:
        what = f"Expected {what.lower()}"
    if basis.is_unpadded:
        what += " without padding positions"
    return Glance(
        columns,
        lines,
        subtitle=f"{what}, {when(basis.findings, late=True)}",
        notes=_notes(basis) if has_gaps else [],
        sign=basis.metric.sign,
        title=name,
    )


def _column(key: str, title: str, kind: str) -> dict[str, str]:
    return {"key": key, "title": title, "kind": kind}


def _line(basis: Basis, entry: Entry, has_gaps: bool) -> Described:
    label = entry.label
    cells: list[Described] = []
    for figure in _FIGURES:
        value = basis.level(label, figure)
        cells.append({"text": "-"} if np.isnan(value) else level_cell(basis.metric, value))
        if not has_gaps:
            continue
        if basis.is_compared(entry) and not _changes_nothing(basis.findings, entry):
            difference = basis.change(label, figure)
            cells.append(_gap(basis.metric, difference, entry.is_control))
        else:
            cells.append({})
    line = line_of(label, cells)
    line["name"] = FLOOR_NAMES.get(label, label)
    line["control"] = entry.is_control
    return line


def line_of(label: str, cells: Sequence[Described]) -> Described:
    """A line of the table."""
    return {
        "entry": label,
        "name": label,
        "control": False,
        "cells": cells,
    }


def level_cell(metric: Metric, value: float) -> Described:
    return {"value": value, "text": metric.text(value)}


def _gap(metric: Metric, difference: Difference, is_chance: bool) -> Described:
    """A difference, its interval, and what it comes to; between repetitions it is chance, whatever its interval."""
    if np.isnan(difference.points):
        return {}
    cell: Described = {
        "value": difference.points,
        "text": signed(metric, difference.points),
        "direction": 0 if is_chance else difference.direction,
        "word": "chance alone" if is_chance else difference.verdict,
    }
    if difference.is_judged:
        cell["low"] = difference.low
        cell["high"] = difference.high
        low = signed(metric, difference.low)
        high = signed(metric, difference.high)
        cell["range"] = f"{low} to {high}"
    return cell


def _notes(basis: Basis) -> list[str]:
    metric = basis.metric
    unit = "Points" if metric.is_share else f"Differences in {metric.name}"
    towards = "right" if metric.higher_is_better else "left"
    notes = [
        f"{unit}, paired by seed. The dot is the estimate, the bar its 95 % interval; {towards} of 0 is better, and "
        "colour says that the interval excludes 0."
    ]
    findings = basis.findings
    if any(_changes_nothing(findings, entry) for entry in findings.controls):
        return [*notes, *floor_notes(findings)]
    if findings.controls:
        notes.append("The lines in italics repeat an entry: they show what chance alone does, and have no colour.")
    return notes


def _changes_nothing(findings: Findings, entry: Entry) -> bool:
    """Whether an entry repeats FedAvg run by run, which shows nothing about chance."""
    if entry is findings.other_batches:
        return findings.paired_floor is None
    if entry is findings.floor:
        return findings.floor_of_seeds is None
    return False
