"""The same comparison on several splits of the data: one folder per federation inside the comparison's."""

import re
from collections.abc import Iterable
from pathlib import Path

from .folder import RunFolder
from .pack import PACKED

_FOLDER = re.compile(r"federation-(\d+)")


def folder_name(seed: int) -> str:
    """The folder of the federation that was split with this `data.seed`."""
    return f"federation-{seed}"


def expanded(folders: Iterable[Path]) -> list[Path]:
    """The folders, with those of its federations in place of one that holds some, in the order of their seeds.

    Federations without a finished run are left out: see `waiting`.
    """
    expanded = []
    for folder in folders:
        with_results = [federation for federation in folders_inside(folder) if _has_results(federation)]
        expanded += with_results or [folder]
    return expanded


def waiting(folders: Iterable[Path]) -> list[Path]:
    """The federations in these folders that have no finished run yet."""
    waiting = []
    for folder in folders:
        waiting += [federation for federation in folders_inside(folder) if not _has_results(federation)]
    return waiting


def _has_results(folder: Path) -> bool:
    is_packed = (folder / PACKED).exists()
    return is_packed or any(run.finished for run in RunFolder.all_in(folder))


def folders_inside(folder: Path) -> list[Path]:
    """The folders of federations in a comparison's, in the order of their seeds."""
    seeds = []
    for path in folder.glob("federation-*"):
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            seeds.append(int(match[1]))
    return [folder / folder_name(seed) for seed in sorted(seeds)]
