"""A search by several workers: each takes batches of candidates from the database that they share."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.words import counted
from ...spread.dispatcher import Dispatcher, DispatchObserver, raise_failures
from ...spread.options import SpreadOptions
from ...spread.remote_call import JobResult, Task
from ..parts import places_in
from ..progress import WorkersProgress
from ..session import stop_requested
from .search import Candidate
from .study import Studies

_STOPPING = b"\nstopping; candidates in training are put back\n"
_KEPT = "candidates that are finished are kept; run the same command again to go on"


def share_out(
    out: Path,
    spread: SpreadOptions,
    studies: Studies,
    task_of: Callable[[str], Task],
    watcher: "SearchProgress",
) -> None:
    """Have all candidates trained. `task_of`: a worker's work, under a name that its successors take over."""
    finished, total = studies.progress()
    batches = -(-(total - finished) // studies.search.batch)
    if batches == 0:
        return
    places = places_in(out, spread, batches)
    count = min(len(places), batches)
    search = uuid.uuid4().hex
    tasks = [task_of(f"{search}/{number}") for number in range(count)]
    watcher.begin(batches, count)
    if spread.cluster is not None and studies.storage.startswith("sqlite"):
        watcher.shares.say("! the study is in SQLite, which network file systems may damage; --storage names a server")
    with stop_requested(_STOPPING) as stop:
        outcomes = Dispatcher(tasks, places[:count], watcher, stop).carry_out()
        if stop():
            raise KeyboardInterrupt
    raise_failures(outcomes, _KEPT)


@dataclass(eq=False)
class SearchProgress(DispatchObserver):
    """Shows how far a search is, by its database."""

    studies: Studies
    listen: Callable[[int, int], None]
    listen_to_each: Callable[[Candidate], None] | None
    shares: WorkersProgress

    def __post_init__(self) -> None:
        self.finished, _ = self.studies.progress()
        self.announced = {_key(candidate) for candidate in self.studies.candidates()}

    def begin(self, batches: int, workers: int) -> None:
        size = self.studies.search.batch
        left = counted(batches, "batch", "batches")
        shared = counted(workers, "worker")
        self.shares.say(f"{left} of up to {size} candidates, {shared}; a smaller --batch makes more of them")

    def progress(self, task: int) -> int:
        finished, _ = self.studies.progress()
        return finished

    def started(self, task: int, place: str) -> None:
        self.shares.say(f"{place}: started", detail=True)

    def lost(self, task: int, place: str, why: str) -> None:
        self.shares.say(f"{place} was lost: {why}; another worker trains its candidates")

    def ended(self, task: int, place: str, outcome: JobResult) -> None:
        if outcome.message:
            self.shares.say(f"{place} failed: {outcome.message}")
        self.look()

    def look(self) -> None:
        finished, total = self.studies.progress()
        if finished == self.finished:
            return
        self.finished = finished
        if self.listen_to_each is not None:
            for candidate in self.studies.candidates():
                if _key(candidate) not in self.announced:
                    self.listen_to_each(candidate)
                    self.announced.add(_key(candidate))
        self.listen(finished, total)


def _key(candidate: Candidate) -> str:
    return f"{candidate.label} {sorted(candidate.values.items())}"
