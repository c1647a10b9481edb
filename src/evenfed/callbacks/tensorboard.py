"""TensorBoard: one log per run, clients as histograms."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.printable import name_in_markdown
from .measures import configuration, finite, missing, numbers, per_client
from .progress import Callback, Progress


class TensorBoard(Callback):
    """Writes every run to `folder`/LABEL/seed-K; show it with `tensorboard --logdir folder`.

    Without a folder, each run's log goes to `tensorboard` in the run's own folder on disk. A run that resumes
    continues its log: what was logged after its checkpoint is purged. A new run in the same `folder` has a log of its
    own, seed-K-2 and so on.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.writers: dict[str, Any] = {}

    def start(self, runs: Sequence[Progress]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing("tensorboard", "TensorBoard") from None
        for run in runs:
            place = self._place(run)
            try:
                writer = SummaryWriter(str(place), purge_step=run.round + 1)
            except OSError as error:
                raise InputError(f"TensorBoard: {place} cannot be written ({error.strerror}); choose another") from None
            self.writers[run.run.name] = writer
            if run.round == 0:
                lines = ["| option | value |", "|---|---|"]
                for name, value in configuration(run).items():
                    lines.append(f"| {name} | {_cell(value)} |")
                table = "\n".join(lines)
                writer.add_text("configuration", table, 0)

    def round(self, progress: Progress) -> None:
        writer = self.writers[progress.run.name]
        step = progress.round
        for name, value in numbers(progress).items():
            writer.add_scalar(name, value, step)
        for name, values in per_client(progress).items():
            known = finite(values)
            if len(known):
                writer.add_histogram(f"clients/{name}", known, step)

    def end(self, progress: Progress) -> None:
        self.writers.pop(progress.run.name).close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers = {}

    def _place(self, run: Progress) -> Path:
        if self.folder is not None:
            first = self.folder / run.label / f"seed-{run.seed}"
            return _newest(first) if run.round else _free(first)
        if run.folder is None:
            raise InputError("TensorBoard: no folder to write to; give TensorBoard('logs')")
        return run.folder / "tensorboard"


def _logs(first: Path) -> Iterator[Path]:
    """The places of the first log of an entry and a seed, the second and so on."""
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def _free(first: Path) -> Path:
    return next(place for place in _logs(first) if not place.exists())


def _newest(first: Path) -> Path:
    """The last place with a log: a resumed run continues there."""
    existing = list(itertools.takewhile(Path.exists, _logs(first)))
    return existing[-1] if existing else first


def _cell(value: Any) -> str:
    """As Markdown shows it in a table."""
    shown = name_in_markdown(str(value))
    return shown.replace("|", "\\|")
