"""The keys of an experiment's file and of its tables, and the right place of a misplaced key."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.choices import refuse_unknown
from ..core.errors import InputError, unknown
from ..data import DataSettings
from ..settings import Settings
from . import loss_and_score

_TOP = (
    "name",
    "seeds",
    "federations",
    "noise_floor",
    "data",
    "model",
    "train",
    "algorithms",
    "quick",
    "selected_on",
    "track",
    "tune",
    "modules",
)
_KEYS = {  # of tables
    "train": (*loss_and_score.KEYS, *(field.name for field in dataclasses.fields(Settings))),
    "data": tuple(field.name for field in dataclasses.fields(DataSettings)),
    "tune": ("method", "trials", "select_on", "metric", "storage", "batch", "grid", "seeds"),
}
_HINTS = {  # for the names of `evenfed.federate`
    "data.test": "test is an argument of evenfed.federate; here give train_fraction, the rest: train_fraction = 0.8.",
    "data.owners": "owners is an argument of evenfed.federate; a data set brings its own: partition = 'natural'.",
}
_SEEDS = ("seed", "batch_seed")  # of one run; an experiment has several


def check_top(keys: Iterable[str]) -> None:
    """Refuse unknown keys at the top of the file. For a key of one of the tables, the error names the table."""
    for key in keys:
        if key not in _TOP:
            raise unknown("key of the experiment", key, _TOP, _hint(key))


def check(table: str, keys: Iterable[str]) -> None:
    """Refuse what is no key of the table: `data` or `tune`."""
    for key in keys:
        if key not in _KEYS[table]:
            raise unknown(f"key of {table}", key, _KEYS[table], _HINTS.get(f"{table}.{key}"))


def check_train(options: Mapping[str, Any]) -> None:
    for key in _SEEDS:
        if key in options:
            raise InputError(f"train.{key}: an experiment has `seeds` (a number or a list) at its top, not a seed")
    allowed = [key for key in _KEYS["train"] if key not in _SEEDS]
    refuse_unknown("option", options, allowed)


def place_of(key: str) -> str | None:
    """Where a key of a table is set from the command line; None: in no table.

    >>> place_of("rounds"), place_of("concentration")
    ('train.rounds', 'data.concentration')
    """
    for table in _tables_with(key):
        if table != "tune":
            return f"{table}.{key}"
    return None


def _tables_with(key: str) -> list[str]:
    if key in _SEEDS:
        return []
    return [table for table, keys in _KEYS.items() if key in keys]


def _hint(key: str) -> str | None:
    """The table that a misplaced key belongs in; None if it is in no table."""
    if key == "seed":
        return "did you mean 'seeds' (of the runs), or 'seed' of the table [data] (of the split)?"
    tables = [f"[{table}]" for table in _tables_with(key)]
    if not tables:
        return None
    return f"'{key}' belongs in {' or '.join(tables)}: put it below that line."
