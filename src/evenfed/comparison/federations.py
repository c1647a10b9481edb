"""The same comparison on several splits of the data: one folder per federation inside the comparison's."""

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..core.errors import InputError
from .storage.folder import RunFolder
from .storage.pack import PACKED, holds_runs

_FOLDER = re.compile(r"federation-(\d+)")


def folder_name(seed: int) -> str:
    """The folder of the federation that was split with this `data.seed`."""
    return f"federation-{seed}"


def comparison_in(folder: Path) -> Path:
    """The folder or, if it holds no comparison itself, the one below it: `compare --out DIR` writes to DIR/NAME."""
    if not folder.is_dir() or _is_comparison(folder):
        return folder
    run = RunFolder(folder)
    if run.header_path.exists():
        return folder
    inside = []
    for path in sorted(folder.iterdir()):
        if _is_comparison(path):
            inside.append(path)
    if len(inside) > 1:
        names = ", ".join(map(str, inside))
        raise InputError(f"{folder} holds {len(inside)} comparisons: {names}; give one of them")
    return inside[0] if inside else folder


def _is_comparison(folder: Path) -> bool:
    return holds_runs(folder) or bool(folders_inside(folder))


def expanded(folders: Iterable[Path]) -> list[Path]:
    """The folders, with those of its federations in place of one that holds some, in the order of their seeds.

    Federations without a finished run are left out: see `waiting`.
    """
    expanded = []
    for folder in folders:
        with_results = list(filter(has_results, folders_inside(folder)))
        expanded += with_results or [folder]
    return expanded


def waiting(folders: Iterable[Path]) -> list[Path]:
    """The federations in these folders that have no finished run yet."""
    waiting: list[Path] = []
    for folder in folders:
        waiting += itertools.filterfalse(has_results, folders_inside(folder))
    return waiting


def has_results(folder: Path) -> bool:
    """Whether a comparison's folder holds a finished run, packed or not."""
    if (folder / PACKED).exists():
        return True
    return any(run.finished for run in RunFolder.all_in(folder))


def folders_inside(folder: Path) -> list[Path]:
    """The folders of federations in a comparison's, in the order of their seeds."""
    seeds = []
    for path in folder.glob("federation-*"):
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            seeds.append(int(match[1]))
    return [folder / folder_name(seed) for seed in sorted(seeds)]


def title(folders: Sequence[Path]) -> str:
    """The comparison's name if all folders are its federations, else their own names.

    >>> title([Path("/runs/study/federation-3"), Path("/runs/study/federation-4")])
    'study'
    """
    paths = [folder.resolve() for folder in folders]
    parents = {path.parent for path in paths}
    if len(parents) == 1 and _are_federations(paths):
        return parents.pop().name
    return in_words(paths)


def in_words(folders: Sequence[Path]) -> str:
    """The folders' names, shorter for federations.

    >>> in_words([Path("runs/federation-3"), Path("runs/federation-4")])
    'federations 3, 4'
    >>> in_words([Path("results/cifar10"), Path("results/cifar10-split-1")])
    'cifar10, cifar10-split-1'
    """
    names = [folder.name for folder in folders]
    if len(folders) == 1 or not _are_federations(folders):
        return ", ".join(names)
    seeds = [name.removeprefix("federation-") for name in names]
    return f"federations {', '.join(seeds)}"


def _are_federations(folders: Sequence[Path]) -> bool:
    return all(_FOLDER.fullmatch(folder.name) for folder in folders)
