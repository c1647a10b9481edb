"""A finished comparison written once more, round by round, as a training process writes it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from evenfed.comparison.storage.folder import RunFolder, replace_text
from evenfed.comparison.storage.rounds_file import chained


class Growing:
    """The runs of `source` in `folder`, as far as the test has let them come."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self.runs = {}
        for run in RunFolder.all_in(source):
            self.runs[run.label, run.seed] = (run, RunFolder.at(folder, run.label, run.seed))

    def write(self, rounds: int, which: Callable[[str, int], bool] = lambda label, seed: True) -> None:
        """Let these runs come so far: the lines that are missing are added."""
        for (label, seed), (source, target) in self.runs.items():
            if not which(label, seed):
                continue
            header = source.header()
            texts = source.lines.texts()[:rounds]
            if not target.header_path.exists():
                target.path.mkdir(parents=True)
                self._put(target, dataclasses.replace(header, finished=False, lines_digest=None))
                target.rounds_path.touch()
            target.lines.append(texts[len(target.lines.whole()) :])

    def finish(self, which: Callable[[str, int], bool] = lambda label, seed: True) -> None:
        """Let these runs end."""
        self.write(1000, which)
        for (label, seed), (source, target) in self.runs.items():
            if which(label, seed):
                digest = chained("", target.lines.texts())
                self._put(target, dataclasses.replace(source.header(), finished=True, lines_digest=digest))

    def _put(self, target: RunFolder, header: object) -> None:
        replace_text(target.header_path, json.dumps(header.to_json()))
