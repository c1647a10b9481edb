"""The table of what sets the entries apart: hyper-parameters, learning rates, and other options that differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..comparison.analysis.findings import Entry, Findings
from ..core.tables import without_none
from ..core.words import assignments
from .table import Cell, Column, Line, Table

_ALWAYS = "lr"
_OF_A_RUN = ("seed", "batch_seed", "device", "engine")  # and not of an entry


def tables(findings: Findings) -> list[Table]:
    """One; none for audits, which know no settings."""
    if findings.origin is not None:
        return []
    options = _differing(findings.everyone)
    lines = []
    for entry in findings.everyone:
        settings = dict(entry.config.get("hyper_parameters", {}))
        for option in options:
            settings[option] = entry.config["train"].get(option)
        cell = Cell(verdict=assignments(without_none(settings), _written))
        line = Line.of(entry, [cell])
        lines.append(line)
    table = Table(
        name="settings",
        title="Settings",
        columns=[Column("settings", "hyper-parameters and options")],
        lines=lines,
        notes=(
            "Hyper-parameters of the algorithm, the learning rate, and options of training that are not the same for "
            "all entries. Every run's header has all settings.",
        ),
    )
    return [table]


def _differing(entries: Sequence[Entry]) -> list[str]:
    """The learning rate, and other options of training that are not the same for all entries."""
    first_value: dict[str, Any] = {}  # older runs do not name every option
    differing = [_ALWAYS]
    for entry in entries:
        for option, value in entry.config["train"].items():
            if option in _OF_A_RUN or option in differing:
                continue
            if value != first_value.setdefault(option, value):
                differing.append(option)
    return differing


def _written(value: Any) -> str:
    """As in an experiment's file, without quotes.

    >>> _written({"name": "sgd", "momentum": 0.9}), _written({"size": 5.0}), _written(True)
    ('sgd (momentum=0.9)', '(size=5.0)', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        name = value.get("name", "")
        others = {key: inner for key, inner in value.items() if key != "name"}
        if not others:
            return str(name)
        return f"{name} ({assignments(others, _written)})".lstrip()
    return str(value)
