"""The same comparison on several splits of the data: one folder per federation inside the comparison's."""

import re
from collections.abc import Iterable
from pathlib import Path

_FOLDER = re.compile(r"federation-(\d+)")


def folder_name(seed: int) -> str:
    """The folder of the federation that was split with this `data.seed`."""
    return f"federation-{seed}"


def expanded(folders: Iterable[Path]) -> list[Path]:
    """The folders, with those of its federations in place of one that holds some, in the order of their seeds."""
    expanded = []
    for folder in folders:
        federations = _inside(folder)
        expanded += federations or [folder]
    return expanded


def _inside(folder: Path) -> list[Path]:
    seeds = []
    for path in folder.glob("federation-*"):
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            seeds.append(int(match[1]))
    return [folder / folder_name(seed) for seed in sorted(seeds)]
