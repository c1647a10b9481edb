"""A run's folder while it is carried out: header, a line a round, checkpoints, and the model at the end."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.server import Record
from ..simulate import checkpoint
from ..simulate.loop import State
from .folder import RunFolder, provenance


class Journal:
    """Writes one run down so that it can go on after its process has died at any moment."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def checkpoints(self) -> dict[int, Path]:
        """The checkpoints by the round they stand before."""
        found = {
            p: re.fullmatch(r"checkpoint-(\d+)\.safetensors", p.name) for p in self.folder.path.glob("checkpoint-*")
        }
        return {int(match[1]): path for path, match in found.items() if match}

    def resumed(self, fresh: State, at: int | None = None) -> State:
        """The run where it was left: at round `at` if there is such a checkpoint, else at the newest."""
        held = self.checkpoints()
        chosen = at if at in held else max(held, default=0)
        return checkpoint.load(fresh, held[chosen]) if chosen else fresh

    def begin(self, header: Mapping[str, Any], state: State) -> None:
        """The header with where the results come from; lines of rounds that will be run again go."""
        before, here, at = self.folder.header() or {}, provenance(), state.server.index
        last = {"from_round": before.get("resumed_at", [0])[-1], **{key: before[key] for key in here if key in before}}
        times = {
            "finished": False,
            "seconds": before.get("seconds", 0.0),
            "resumed_at": [*before.get("resumed_at", []), at],
            "earlier": [each for each in (*before.get("earlier", []), last) if each["from_round"] < at],
        }
        self.folder.write_header({**header, **here, **times})
        self.folder.keep_before(at)

    def write(
        self, records: Sequence[Record], state: State, finished: bool = False, learnt: Mapping[str, Any] | None = None
    ) -> None:
        """Lines first, then the checkpoint: one that exists has all its lines. `learnt` goes into the header."""
        self.folder.append(records)
        header = self.folder.header() or {}
        header["seconds"] += sum(r.seconds for r in records)
        header |= learnt or {}
        if finished:
            checkpoint.model_file(state.server, self.folder.path / "model.safetensors")
            header["finished"] = True
        else:
            checkpoint.save(state, self.folder.path / f"checkpoint-{state.server.index}.safetensors")
        self.folder.write_header(header)

    def forget(self, keep: int | None = None) -> None:
        """Checkpoints go, but for the one of round `keep`."""
        for at, path in self.checkpoints().items():
            if at != keep:
                path.unlink()
