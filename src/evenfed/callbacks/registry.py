"""Callbacks by name, as experiments and the command line choose them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.choices import check_options
from ..core.errors import InputError, unknown
from .early_stopping import EarlyStopping
from .mlflow import MLflow
from .progress import Callback
from .tensorboard import TensorBoard
from .wandb import WandB

Options = Mapping[str, Any]
Chosen = Mapping[str, Options]  # options by name

BY_NAME: dict[str, type[Callback]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
    "early_stopping": EarlyStopping,
}


def chosen(track: Any) -> dict[str, Options]:
    """From a name, a list of names, or a table of options by name.

    >>> chosen(["tensorboard"])
    {'tensorboard': {}}
    >>> chosen({"early_stopping": {"patience": 5}})
    {'early_stopping': {'patience': 5}}
    """
    if isinstance(track, str):
        track = [track]
    if isinstance(track, list | tuple) and all(isinstance(name, str) for name in track):
        track = {name: {} for name in track}
    if not isinstance(track, Mapping):
        raise InputError(f'track = {track!r}: give names such as ["tensorboard"], or a table [track.tensorboard]')
    options_of: dict[str, Options] = {}
    for spelling, options in track.items():
        name = spelling.lower().replace("-", "_")
        if name not in BY_NAME:
            raise unknown("tracker", spelling, BY_NAME)
        if not isinstance(options, Mapping):
            raise InputError(f"track.{spelling} = {options!r}: give a table of options, e.g. [track.{spelling}]")
        options_of[name] = dict(options)
    by_name(options_of)  # refuses unknown options now
    return options_of


def by_name(track: Chosen) -> list[Callback]:
    """The callbacks themselves."""
    made = []
    for name, options in track.items():
        cls = BY_NAME[name]
        check_options(f"track.{name}", cls, options)
        made.append(cls(**options))
    return made


def deciding(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """What of them decides a run's result, for its configuration: early stopping, with all its options."""
    for callback in callbacks:
        if isinstance(callback, EarlyStopping):
            return {"early_stopping": callback.describe()}
    return {}
