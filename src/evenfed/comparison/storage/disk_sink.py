"""Runs go to their folders while they train: lines and checkpoints, written in the background."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from ...core.errors import InputError, Interruption
from ..driver import Group, ListenerSink, Training
from .folder import RunFolder
from .header import Header

StopRequested = Callable[[], bool]


@dataclasses.dataclass(eq=False)
class DiskSink(ListenerSink):
    """Writes every run to its folder. Training continues while a checkpoint is being written."""

    root: Path
    headers: Mapping[str, Header]
    device: torch.device
    checkpoint_seconds: float
    stop: StopRequested
    background: ThreadPoolExecutor
    saving: Future[None] | None = None
    saved_at: float = 0.0

    def begin(self, group: Group) -> None:
        if self.stop():
            raise Interruption
        with _write_errors_explained(self.root):
            for training in group:
                header = self.headers[training.run.name]
                header = dataclasses.replace(header, engine=training.engine)
                self._folder(training).begin(header, training.state)
        self.saved_at = time.monotonic()

    def after_round(self, group: Group) -> None:
        super().after_round(group)
        idle = self.saving is None or self.saving.done()
        seconds = time.monotonic() - self.saved_at
        due = idle and seconds >= self.checkpoint_seconds
        if self.stop() or due:
            self._wait()
            snapshot = self._snapshot(group)
            self.saving = self.background.submit(self._save, snapshot, self._event())
            self.saved_at = time.monotonic()
            first = group[0]
            ended = first.rounds_done == first.run.settings.rounds
            if self.stop() and not ended:
                self._wait()
                raise Interruption

    def end(self, ended: Group, others: Group) -> None:
        """All runs have the checkpoint of this round before any is marked as finished.

        So a kill leaves either all runs to resume together, or those that have ended with no round to train.
        """
        self._wait()
        everyone = [*ended, *others]
        self._save(self._snapshot(everyone), self._event())
        with _write_errors_explained(self.root):
            for training in ended:
                self._folder(training).finish(training.state, training.stopped, training.restored)

    def failed(self, group: Group) -> None:
        self._wait()
        snapshot = self._snapshot(group)
        self._save(snapshot, self._event())

    def _folder(self, training: Training) -> RunFolder:
        return RunFolder.of(self.root, training.run)

    def _wait(self) -> None:
        """Until the last checkpoint is written; an error in writing it is raised here."""
        if self.saving is not None:
            self.saving.result()
        self.saving = None

    def _snapshot(self, group: Group) -> Group:
        """A copy of the group with the records not written yet, which are removed from the group itself."""
        copies = []
        for training in group:
            copies.append(dataclasses.replace(training))
            training.records = []
        return copies

    def _event(self) -> torch.cuda.Event | None:
        """Marks the work queued on the device so far: a copy must wait for it, but not for later work."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _save(self, group: Group, ready: torch.cuda.Event | None) -> None:
        """All checkpoints of this round before any old one goes: a common round always exists."""
        with _write_errors_explained(self.root):
            with _own_stream(ready, self.device):
                for training in group:
                    self._folder(training).save(training.records, training.state, training.engine, training.stopped)
            for training in group:
                self._folder(training).forget(keep=training.rounds_done)


@contextmanager
def _write_errors_explained(root: Path) -> Iterator[None]:
    """A full disk, or a folder that was deleted or made read-only midway, in a sentence."""
    try:
        yield
    except OSError as error:
        place = error.filename or root
        raise InputError(
            f"{place} can no longer be written ({error.strerror or error}), so training has stopped; what was saved "
            "before is kept: free some space or restore the folder, then make the same call again to resume"
        ) from None


@contextmanager
def _own_stream(ready: torch.cuda.Event | None, device: torch.device) -> Iterator[None]:
    """Copies from the device in a stream of their own, so that training need not wait for them."""
    if ready is None:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield
