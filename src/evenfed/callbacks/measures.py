"""What all trackers write of a round: a few numbers, and one value per client in arrays."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.files import replace_text
from ..core.tables import without_none
from .progress import Progress

Numbers = dict[str, float]
PerClient = dict[str, NDArray[np.float64]]


def numbers(progress: Progress) -> Numbers:
    """Of the round just done; what is unknown or not finite is left out."""
    record = progress.record
    values = {
        "objective": record.objective,
        "seconds": record.seconds,
    }
    losses = record.known("losses")
    if len(losses):
        values["loss/mean"] = float(losses.mean())
        values["loss/worst"] = float(losses.max())
    fairness = progress.fairness
    if fairness is not None:
        for name, value in dataclasses.asdict(fairness).items():
            values[f"fairness/{name}"] = value
    current = progress.current_fairness
    if current is not None:
        for name, value in dataclasses.asdict(current).items():
            values[f"current/{name}"] = value
    for name, value in (record.central or {}).items():
        values[f"central/{name}"] = value
    finite = {}
    for name, value in values.items():
        if math.isfinite(value):
            finite[name] = float(value)
    return finite


def per_client(progress: Progress) -> PerClient:
    """[n] losses, weights and, where the round was evaluated, accuracies; NaN where a client has none.

    With `average`, accuracies are those of the average; `current` and `current_loss` are of the model clients train on.
    """
    record = progress.record
    values = {"loss": record.losses, "weight": record.weights}
    if record.accuracy is not None:
        values["accuracy"] = record.accuracy
    if record.test_losses is not None:
        values["test_loss"] = record.test_losses
    if record.current is not None:
        values["current"] = record.current
    if record.current_losses is not None:
        values["current_loss"] = record.current_losses
    return values


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known: NDArray[np.float64] = values[np.isfinite(values)]
    return known


def configuration(progress: Progress) -> Mapping[str, Any]:
    """What the run is, flat."""
    options = {
        "label": progress.label,
        "algorithm": progress.algorithm.name,
        **progress.algorithm.describe(),
        **progress.settings.describe(),
        "clients": len(progress.client_names),
    }
    return without_none(options)


def missing(package: str, tracker: str) -> InputError:
    return InputError(f"{tracker} needs {package}; install it with: pip install 'evenfed[track]'")


def remembered(progress: Progress, tracker: str) -> dict[str, Any]:
    """What a tracker noted in the run's folder in an earlier session; nothing for a run that begins."""
    path = _notebook(progress)
    if path is None or progress.round == 0 or not path.exists():
        return {}
    try:
        notes = json.loads(path.read_text())
    except ValueError:
        return {}
    return dict(notes.get(tracker, {}))


def remember(progress: Progress, tracker: str, notes: Mapping[str, Any]) -> None:
    """For the session that resumes this run, if it is kept on disk."""
    path = _notebook(progress)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    everyone: dict[str, Any] = {}
    if path.exists():
        try:
            everyone = json.loads(path.read_text())
        except ValueError:
            everyone = {}
    everyone[tracker] = dict(notes)
    replace_text(path, json.dumps(everyone))


def _notebook(progress: Progress) -> Path | None:
    return None if progress.folder is None else progress.folder / "track.json"
