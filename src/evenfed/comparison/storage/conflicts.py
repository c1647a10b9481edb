"""A folder is refused if it holds other runs than those to be written there: nothing is replaced or mixed silently."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import InputError
from ...settings import Settings
from ...simulate.state import Run
from ..analysis.configuration import differences
from .folder import RunFolder
from .header import Header
from .lock import ANOTHER_FOLDER


def folder_named(path: Any) -> Path:
    """The path as a user gives it; an empty one would be the working folder."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"the folder is {path!r}; give a path, e.g. 'runs/mine'")
    if not str(path):
        raise InputError("the folder has no name; give one, e.g. 'runs/mine'")
    return Path(path)


def refuse_other_data(root: Path, config: Mapping[str, Any]) -> None:
    """Raise if a comparison's folder holds runs on other data than the configuration's."""
    current = {"data": config["data"]}
    for folder in RunFolder.all_in(root):
        header = folder.header()
        assert header is not None
        changes = differences({"data": header.data}, current)
        if changes:
            raise InputError(f"{folder.path} was trained on other data ({'; '.join(changes)}); {ANOTHER_FOLDER}")


def refuse_further_runs(root: Path, targets: Sequence[RunFolder]) -> None:
    """Raise if a comparison's folder holds runs in other folders than these."""
    for folder in RunFolder.all_in(root):
        if folder not in targets:
            raise InputError(f"{root} holds another run, {folder.path.name} of {folder.label}; save to a new folder")


def changes_of(header: Header, config: Mapping[str, Any], settings: Settings) -> list[str]:
    """Where a run's configuration differs from the one that it is to resume with, which may have more rounds."""
    as_many = {**config, "train": {**config["train"], "rounds": header.rounds}}
    changes = differences(header.config, as_many)
    if header.device == str(settings.torch_device()):  # whether it was named, or found by "auto"
        return [change for change in changes if not change.startswith("train.device:")]
    return changes


def refuse_other(folder: RunFolder, config: Mapping[str, Any], settings: Settings) -> None:
    """Raise if the folder holds a run with another configuration; more rounds are no other configuration."""
    header = folder.header()
    if header is None:
        return
    rounds = header.rounds
    changes = changes_of(header, config, settings)
    if changes:
        advice = f"{ANOTHER_FOLDER}, or give the same configuration to go on"
        if any(change.startswith("train.last_rounds:") for change in changes):
            comparison = folder.path.parent.parent
            advice += (
                f"; to average over other rounds: evenfed report {comparison} --last-rounds {settings.last_rounds}"
            )
        raise InputError(f"{folder.path} was made with another configuration ({'; '.join(changes)}); {advice}")
    if settings.rounds == rounds:
        return
    if settings.rounds < rounds:
        raise InputError(
            f"{folder.path} has {rounds} rounds and is not cut to {settings.rounds}; nothing was changed. Give "
            f"{rounds} rounds or more (--rounds {rounds}; in Python rounds={rounds}), or {ANOTHER_FOLDER}"
        )
    reason = settings.tied_to_rounds(rounds)
    if reason is None and header.finished and not folder.checkpoints():
        reason = "its last checkpoint is not here (it was removed, packed, or an older version did not keep it)"
    if reason is not None:
        raise InputError(
            f"{folder.path} has {rounds} rounds and cannot go on to {settings.rounds}: {reason}; {ANOTHER_FOLDER} "
            "to train from the start"
        )


def refuse_replacing(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Raise if the folder holds a run that was made with another configuration than the one to be saved here."""
    header = folder.header()
    if header is None:
        return
    changes = differences(header.config, config)
    if changes:
        raise InputError(f"{folder.path} holds another run ({'; '.join(changes)}); save to a new folder")


def refuse_other_initial(root: Path, runs: Sequence[Run], headers: Mapping[str, Header]) -> None:
    """Refuse new runs if those in the folder started from other initial parameters; without new runs, warn.

    A run that has begun resumes from its checkpoint, whatever model is given now.
    """
    changed = []
    fresh = []
    for run in runs:
        folder = RunFolder.of(root, run)
        header = folder.header()
        if header is None or not (folder.checkpoints() or header.finished):
            fresh.append(run.name)
            continue
        new_header = headers[run.name]
        if header.frozen not in (None, new_header.frozen):
            raise InputError(
                f"{root}: {run.name} was trained with other frozen parameters than those given now; give the same "
                "(call torch.manual_seed before the model is made), or choose another folder with out"
            )
        if header.initial not in (None, new_header.initial):
            changed.append(run.name)
    if not changed:
        return
    if fresh:
        raise InputError(
            f"{root}: {changed[0]} started from other initial parameters than those given now, so {fresh[0]} cannot be "
            "compared with it; call torch.manual_seed before the model is made, give a function that makes it, or "
            "choose another folder with out"
        )
    warnings.warn(
        f"{root}: {changed[0]} started from other initial parameters than those given now; it goes on from its own "
        "(call torch.manual_seed before the model is made, or choose another folder with out for a new run)",
        stacklevel=4,
    )
