"""The configurations of runs: what is in one, where two differ, and which repeat another."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import InputError
from ...core.naming import matches_stored
from ...local.optimizer import optimizer_of
from ...simulate.state import Run

Configuration = Mapping[str, Any]  # all that decides a run's result, as `config_of` writes it
Labelled = Mapping[str, Configuration]


def config_of(run: Run, data: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All that decides a run's result. `model`: None where only clients know it."""
    config: dict[str, Any] = {"data": data}
    if model is not None:
        config["model"] = model
    config["algorithm"] = run.algorithm.name
    config["hyper_parameters"] = run.algorithm.describe()
    config["train"] = run.settings.describe()
    return config


def without(config: Configuration, *options: str) -> Configuration:
    """The configuration without some of its training options."""
    train = dict(config["train"])
    for option in options:
        train.pop(option, None)
    return {**config, "train": train}


def repetitions(configs: Labelled, usual: str) -> dict[str, str]:
    """Entries that repeat another one in a precision other than the `usual`: label -> the label it repeats."""
    return _twins(configs, "precision", usual)


def undamped(configs: Labelled) -> dict[str, str]:
    """Entries with smoothed losses that are also there without: label -> the label without."""
    return _twins(configs, "smooth", None)


def unaveraged(configs: Labelled) -> dict[str, str]:
    """Entries that deploy an average and are also there without: label -> the label without."""
    return _twins(configs, "average", None)


def _twins(configs: Labelled, option: str, usual: Any) -> dict[str, str]:
    """Entries that differ in `option` alone from one that has the usual value: label -> that one's label."""
    rests = {}
    usual_ones = []
    for label, config in configs.items():
        rests[label] = without(config, option, "seed")
        value = config["train"].get(option)
        if value == usual:
            usual_ones.append(label)
    twins: dict[str, str] = {}
    for label, rest in rests.items():
        if label in usual_ones:
            continue
        for candidate in usual_ones:
            if rests[candidate] == rest:
                twins.setdefault(label, candidate)
    return twins


def differences(stored: Configuration, current: Configuration) -> list[str]:
    """Where two configurations differ, in words."""
    sentences = []
    has_same_optimizer = _optimizer_in(stored) == _optimizer_in(current)
    for place, old, new in _leaves(stored, current):
        differs = old != new
        if place == "train.participation" and type(old) is not type(new):
            differs = True  # 1 is one client and 1.0 is every client
        if place == "train.guard":  # older versions had none, and did not say so
            stored_guard = old or "off"
            current_guard = new or "off"
            differs = stored_guard != current_guard
        if place.startswith("train.optimizer") and has_same_optimizer:
            differs = False
        if place in ("model.loss", "model.score"):
            differs = not matches_stored(old, new)
        if place == "model.kept_in_evaluation" and old is None:  # older versions did not say
            differs = False
        if place == "model.evaluated" and new is None:  # in its stead: also modules that act the same in both modes
            differs = False
        if place == "data.path" and old and new:
            differs = not _same_folder(Path(old), Path(new))
        if differs:
            sentences.append(f"{place}: {old!r} there, {new!r} here")
    return sentences


def _optimizer_in(config: Configuration) -> Any:
    """The clients' optimiser, whatever its spelling; as it is written where this version does not know it."""
    choice = config.get("train", {}).get("optimizer")
    try:
        return optimizer_of(choice)
    except InputError:
        return choice


def _same_folder(stored: Path, current: Path) -> bool:
    """Also one that was moved, or that was written relative to the working folder."""
    old = stored.resolve()
    new = current.resolve()
    is_moved = old.name == new.name and not old.exists()
    return old == new or is_moved


def _leaves(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place of both, with its two values."""
    if isinstance(old, str) != isinstance(new, str):  # a name, or a table with this name alone
        old = _without_table(old)
        new = _without_table(new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            inside = f"{place}.{key}" if place else key
            yield from _leaves(old.get(key), new.get(key), inside)
    else:
        comparable = list(new) if isinstance(new, tuple) else new  # JSON has lists only
        yield place, old, comparable


def _without_table(choice: Any) -> Any:
    """The name that a table holds, if it holds nothing else."""
    if isinstance(choice, Mapping) and set(choice) == {"name"}:
        return choice["name"]
    return choice
