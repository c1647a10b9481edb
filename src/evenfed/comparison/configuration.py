"""Configurations of runs beside each other: where they differ, and which repeat another."""

from collections.abc import Iterator, Mapping
from typing import Any

Configuration = Mapping[str, Any]  # all that decides a run's result, as `Experiment.config` writes it


def without(config: Configuration, *options: str) -> dict[str, Any]:
    """The configuration without some of its training options."""
    train = dict(config["train"])
    for option in options:
        train.pop(option, None)
    return {**config, "train": train}


def repetitions(configs: Mapping[str, Configuration], usual: str) -> dict[str, str]:
    """Entries that repeat another one in a precision other than the `usual`: label -> the label it repeats."""
    return _twins(configs, "precision", usual)


def undamped(configs: Mapping[str, Configuration]) -> dict[str, str]:
    """Entries with smoothed losses that are also there without: label -> the label without."""
    return _twins(configs, "smooth", None)


def _twins(configs: Mapping[str, Configuration], option: str, usual: Any) -> dict[str, str]:
    """Entries that differ in `option` alone from one that has the usual value: label -> that one's label."""
    usual_ones = {}
    for label, config in configs.items():
        if config["train"].get(option) == usual:
            usual_ones[label] = without(config, option, "seed")
    twins = {}
    for label, config in configs.items():
        if label in usual_ones:
            continue
        shared = without(config, option, "seed")
        for twin, config_of_twin in usual_ones.items():
            if config_of_twin == shared:
                twins[label] = twin
                break
    return twins


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Where two configurations differ, in words."""
    sentences = []
    for place, old, new in _leaves(there, here):
        # Participation 1 is one client and 1.0 is every client.
        other_kind = place == "train.participation" and isinstance(old, int) != isinstance(new, int)
        if old != new or other_kind:
            sentences.append(f"{place}: {old!r} there, {new!r} here")
    return sentences


def _leaves(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            inside = f"{place}.{key}" if place else key
            yield from _leaves(old.get(key), new.get(key), inside)
    else:
        comparable = list(new) if isinstance(new, tuple) else new  # JSON has lists only
        yield place, old, comparable
