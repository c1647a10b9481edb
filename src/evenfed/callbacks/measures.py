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
    values = {"objective": record.objective, "seconds": record.seconds}
    losses = record.known("losses")
    if len(losses):
        values["loss/mean"] = float(losses.mean())
        values["loss/worst"] = float(losses.max())
    for group, fairness in {"fairness": progress.fairness, "current": progress.current_fairness}.items():
        if fairness is not None:
            for name, value in dataclasses.asdict(fairness).items():
                values[f"{group}/{name}"] = value
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
    values = {
        "loss": record.losses,
        "weight": record.weights,
        "accuracy": record.accuracy,
        "test_loss": record.test_losses,
        "current": record.current,
        "current_loss": record.current_losses,
    }
    return without_none(values)


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
    if path is None or progress.round == 0:
        return {}
    return dict(_notes(path).get(tracker, {}))


def remember(progress: Progress, tracker: str, notes: Mapping[str, Any]) -> None:
    """For the session that resumes this run, if it is kept on disk."""
    path = _notebook(progress)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    everyone = {**_notes(path), tracker: dict(notes)}
    replace_text(path, json.dumps(everyone))


def _notes(path: Path) -> dict[str, Any]:
    """By tracker; nothing if the file is not there or damaged."""
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _notebook(progress: Progress) -> Path | None:
    return None if progress.folder is None else progress.folder / "track.json"
