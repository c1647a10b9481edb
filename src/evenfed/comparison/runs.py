"""The runs of a comparison: entries x seeds, and FedAvg once more for the noise floor."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.scalars import unwrapped
from ..settings import Settings
from ..simulate.state import Run
from .analysis.configuration import Configuration
from .storage.conflicts import changes_of
from .storage.folder import RunFolder
from .variants import Variant

MOST_SEEDS = 10_000
FLOOR_LABEL = "fedavg-other-seeds"
PAIRED_FLOOR_LABEL = "fedavg-other-batches"  # from the same initial models
FLOOR_NAMES = {  # as a report calls them
    PAIRED_FLOOR_LABEL: "fedavg, other batches",
    FLOOR_LABEL: "fedavg, other seeds",
}
_LABELS = {
    "batches": (PAIRED_FLOOR_LABEL,),
    "seeds": (FLOOR_LABEL,),
    "both": (PAIRED_FLOOR_LABEL, FLOOR_LABEL),
}
_OTHER_SEEDS = 1000  # what is added to a seed for FedAvg with another one
_OTHER_BATCHES = 1_000_000  # what is added to a seed for FedAvg with other batches

NoiseFloorChoice = bool | str  # yes, no, or which: "batches", "seeds", "both"


def check_noise_floor(choice: Any) -> NoiseFloorChoice:
    """The choice, if it is one."""
    if isinstance(choice, bool):
        return choice
    if isinstance(choice, str) and choice in _LABELS:
        return choice
    raise InputError(f"noise_floor={choice!r}: give true or false, or which: 'batches', 'seeds' or 'both'")


def plan_runs(
    variants: Sequence[Variant],
    seeds: Sequence[int],
    shared: Settings,
    noise_floor: NoiseFloorChoice,
) -> tuple[list[Run], list[Run]]:
    """The runs of a comparison, and those of its noise floor: FedAvg with other batches, or with other seeds."""
    runs = []
    floor = []
    for variant in variants:
        if variant.label in FLOOR_NAMES:
            raise InputError(f"the label '{variant.label}' stands for the noise floor; give that entry another label")
        settings = dataclasses.replace(shared, **variant.options)
        for seed in seeds:
            seeded = dataclasses.replace(settings, seed=seed)
            runs.append(Run(variant.label, variant.algorithm, seeded))
        if variant.label == "fedavg":
            for label in _floor_labels(noise_floor, settings):
                floor += _repeated(label, variant, settings, seeds)
    return runs, floor


def refuse_repeated(runs: Sequence[Run], from_file: Collection[str] = ()) -> None:
    """Raise if an entry occurs twice in different spellings; entries with labels of the user's own may be equal.

    `from_file`: labels of an experiment's file, whose entries may equal each other.
    """
    first_seed = runs[0].settings.seed
    spelled = []
    for run in runs:
        if run.settings.seed == first_seed and _names_its_algorithm(run, run.label):
            spelled.append(run)
    for first, second in itertools.combinations(spelled, 2):
        if first.label in from_file and second.label in from_file:
            continue
        if first.algorithm == second.algorithm and first.settings == second.settings:
            raise InputError(
                f"'{first.label}' and '{second.label}' are the same entry: their options are equal; leave one out, or "
                "give each a label of its own, in Python {'my label': 'vred'}"
            )


def refuse_respelled(root: Path, runs: Sequence[Run], configs: Mapping[str, Configuration]) -> None:
    """Raise if the folder holds one of the runs under another spelling of its entry.

    `configs`: by the run's name, all that decides its result.
    """
    labels = {run.label for run in runs}
    fresh = [run for run in runs if not RunFolder.of(root, run).header_path.exists()]
    for folder in RunFolder.all_in(root):
        if folder.label in labels:
            continue
        header = folder.header()
        assert header is not None
        for run in fresh:
            if header.seed != run.settings.seed:
                continue
            is_spelled = _names_its_algorithm(run, run.label) and _names_its_algorithm(run, header.label)
            if is_spelled and not changes_of(header, configs[run.name], run.settings):
                raise InputError(
                    f"{root} holds '{run.label}' already, as '{header.label}': their options are equal; write "
                    f"'{header.label}', or choose another folder with out"
                )


def _names_its_algorithm(run: Run, label: str) -> bool:
    """Whether a label is the algorithm's name, in some spelling, and not one of the user's own."""
    try:
        return Variant.parse(label).algorithm == run.algorithm
    except InputError:
        return False


def _floor_labels(choice: NoiseFloorChoice, fedavg: Settings) -> Sequence[str]:
    """Which repetitions of FedAvg. Other batches by default; other seeds without `batch_size`."""
    if choice is False:
        return ()
    if choice is True:
        choice = "seeds" if fedavg.batch_size is None else "batches"
    return _LABELS[choice]


def _repeated(
    label: str,
    fedavg: Variant,
    settings: Settings,
    seeds: Sequence[int],
) -> list[Run]:
    step = _OTHER_BATCHES if label == PAIRED_FLOOR_LABEL else _OTHER_SEEDS
    away = step
    while any(seed + away in seeds for seed in seeds):
        away += step
    runs = []
    for seed in seeds:
        if label == PAIRED_FLOOR_LABEL:
            changed = dataclasses.replace(settings, seed=seed, batch_seed=seed + away)
        else:
            changed = dataclasses.replace(settings, seed=seed + away)
        runs.append(Run(label, fedavg.algorithm, changed))
    return runs


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """3 -> [0, 1, 2]; a list stays as it is."""
    numbers: Any = unwrapped(seeds)
    if isinstance(numbers, np.ndarray):
        numbers = numbers.tolist()
    is_bool = isinstance(numbers, bool)
    if isinstance(numbers, int) and not is_bool:
        numbers = range(numbers)
    if not are_seeds(numbers):
        raise InputError(
            f"seeds={seeds!r}: give a number of seeds, 1 to {MOST_SEEDS:,}, or a list such as [0] of distinct whole "
            "numbers"
        )
    return list(numbers)


def are_seeds(numbers: Any) -> bool:
    """Whether these are distinct whole numbers from 0, not absurdly many."""
    if not isinstance(numbers, Sequence) or numbers[MOST_SEEDS:]:
        return False
    for seed in numbers:
        if type(seed) is not int or seed < 0:
            return False
    distinct_numbers = set(numbers)
    return 0 < len(numbers) == len(distinct_numbers)
