"""The keys of an experiment's file and of its tables, and the right place of a misplaced key."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
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
_DATA = tuple(field.name for field in dataclasses.fields(DataSettings))
_TRAIN = (*loss_and_score.KEYS, *(field.name for field in dataclasses.fields(Settings)))
_TUNE = ("method", "trials", "select_on", "metric", "storage", "batch", "grid", "seeds")
_NAMES_IN_FEDERATE = {
    "test": "test is an argument of evenfed.federate; here give train_fraction, the rest: train_fraction = 0.8.",
    "owners": "owners is an argument of evenfed.federate; here a data set brings its owners: partition = 'natural'.",
}
_SEEDS = ("seed", "batch_seed")  # of one run; an experiment has several


def check_top(keys: Iterable[str]) -> None:
    """Refuse unknown keys at the top of the file. For a key of one of the tables, the error names the table."""
    for key in keys:
        if key not in _TOP:
            raise unknown("key of the experiment", key, _TOP, _hint(key))


def check_data(keys: Iterable[str]) -> None:
    """Refuse what is no key of [data]. The names of `evenfed.federate` are known."""
    for key in keys:
        if key not in _DATA:
            raise unknown("key of data", key, _DATA, _NAMES_IN_FEDERATE.get(key))


def check_tune(keys: Iterable[str]) -> None:
    """Refuse what is no key of [tune]."""
    _check(keys, _TUNE, "tune")


def check_train(options: Mapping[str, Any]) -> None:
    """Refuse what is no key of [train]."""
    for key in _SEEDS:
        if key in options:
            raise InputError(f"train.{key}: an experiment has `seeds` (a number or a list) at its top, not a seed")
    allowed = [key for key in _TRAIN if key not in _SEEDS]
    refuse_unknown("option", options, allowed)


def place_of(key: str) -> str | None:
    """Where a key of a table is set from the command line; None: in no table.

    >>> place_of("rounds"), place_of("concentration")
    ('train.rounds', 'data.concentration')
    """
    for table, keys in (("train", _TRAIN), ("data", _DATA)):
        if key in keys and key not in _SEEDS:
            return f"{table}.{key}"
    return None


def _hint(key: str) -> str | None:
    """The table that a misplaced key belongs in; None if it is in no table."""
    if key == "seed":
        return "did you mean 'seeds' (of the runs), or 'seed' of the table [data] (of the split)?"
    tables = []
    for table, keys in (("train", _TRAIN), ("data", _DATA), ("tune", _TUNE)):
        if key in keys and key not in _SEEDS:
            tables.append(f"[{table}]")
    if not tables:
        return None
    places = " or ".join(tables)
    return f"'{key}' belongs in {places}: put it below that line."


def _check(keys: Iterable[str], allowed: Sequence[str], table: str) -> None:
    for key in keys:
        if key not in allowed:
            raise unknown(f"key of {table}", key, allowed)
