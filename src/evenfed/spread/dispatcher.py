"""Tasks handed out to workers, whoever runs them; what a lost worker was at is handed out again."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..core.errors import InputError
from .remote_call import JobResult, Task, packed

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
MOST_LOSSES = 3  # of one task in a row, without any progress between


class JobHandle(Protocol):
    """A task that runs."""

    def outcome(self) -> JobResult | None:
        """What came of it; None while it is at work."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def kill(self) -> None:
        """End it at once."""


class WorkerSlot(Protocol):
    """Where one task at a time is carried out."""

    @property
    def name(self) -> str: ...

    def start(self, package: bytes) -> JobHandle:
        """Begin a task."""


class DispatchObserver:
    """Follows the tasks. This one shows nothing."""

    def progress(self, task: int) -> int:
        """A number that grows as the task advances."""
        return 0

    def started(self, task: int, place: str) -> None:
        """A task has begun, or resumes after its worker was lost."""

    def lost(self, task: int, place: str, why: str) -> None:
        """A worker is gone; its task is handed out again."""

    def ended(self, task: int, place: str, outcome: JobResult) -> None:
        """A task has ended, well or not."""

    def look(self) -> None:
        """About a second has passed."""


@dataclass
class _Post:
    place: WorkerSlot
    job: JobHandle | None = None
    task: int = 0
    losses: int = 0  # in a row


@dataclass
class _Losses:
    """How often a task was lost in a row, and how far it was then."""

    count: int = 0
    progress: int = 0


@dataclass
class Dispatcher:
    """Carries out all tasks, each by one worker at a time. `stop()` says whether the user wants to stop.

    A task is packed when it is handed out: with its data it may be large.
    """

    tasks: Sequence[Task]
    places: Sequence[WorkerSlot]
    watcher: DispatchObserver
    stop: Callable[[], bool]
    posts: list[_Post] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    losses: dict[int, _Losses] = field(default_factory=dict)
    outcomes: dict[int, JobResult] = field(default_factory=dict)
    looked_at: float = 0.0

    def carry_out(self) -> list[JobResult]:
        """The outcome of each task, in order; "stopped" for those that the user ended."""
        self.posts = [_Post(place) for place in self.places]
        self.waiting = deque(range(len(self.tasks)))
        asked = False
        try:
            while self._is_at_work():
                if self.stop() and not asked:
                    asked = True
                    for post in self.posts:
                        if post.job is not None:
                            post.job.stop()
                if not asked:
                    self._hand_out()
                for post in self.posts:
                    self._check(post)
                self._look()
                time.sleep(POLL_SECONDS)
        finally:
            for post in self.posts:
                if post.job is not None:
                    with suppress(Exception):
                        post.job.kill()
        stopped = JobResult("stopped")
        return [self.outcomes.get(task, stopped) for task in range(len(self.tasks))]

    def _look(self) -> None:
        """Looking reads folders or a database, so it is done less often than workers are asked."""
        if time.monotonic() - self.looked_at >= LOOK_SECONDS:
            self.watcher.look()
            self.looked_at = time.monotonic()

    def _is_at_work(self) -> bool:
        busy = any(post.job is not None for post in self.posts)
        return busy or (bool(self.waiting) and not self.stop())

    def _hand_out(self) -> None:
        """Places that have lost two workers in a row come last: others may do better."""
        for post in sorted(self.posts, key=lambda post: post.losses >= 2):
            if post.job is None and self.waiting:
                task = self.waiting.popleft()
                post.job = post.place.start(packed(self.tasks[task]))
                post.task = task
                self.watcher.started(task, post.place.name)

    def _check(self, post: _Post) -> None:
        outcome = None if post.job is None else post.job.outcome()
        if outcome is None:
            return
        post.job = None
        if outcome.kind == "lost" and not self.stop():
            post.losses += 1
            outcome = self._again(post, outcome)
            if outcome is None:
                return
        else:
            post.losses = 0
        self.outcomes[post.task] = outcome
        self.watcher.ended(post.task, post.place.name, outcome)

    def _again(self, post: _Post, outcome: JobResult) -> JobResult | None:
        """Another worker takes the task over; unless too many were lost with it."""
        task = post.task
        progress = self.watcher.progress(task)
        losses = self.losses.setdefault(task, _Losses())
        if progress > losses.progress:
            losses.count = 0
        losses.count += 1
        losses.progress = progress
        if losses.count >= MOST_LOSSES:
            message = f"{losses.count} workers in a row were lost with it, the last one because {outcome.message}"
            return JobResult("failed", message)
        self.waiting.append(task)
        self.watcher.lost(task, post.place.name, outcome.message)
        return None


def raise_failures(outcomes: Sequence[JobResult], kept: str) -> None:
    """The sentences of tasks that ended badly, each once; `kept` says what became of the others."""
    sentences = []
    for outcome in outcomes:
        if outcome.kind in ("refused", "failed"):
            sentences.append(outcome.message)
    distinct = list(dict.fromkeys(sentences))
    if distinct:
        reasons = "; ".join(distinct)
        raise InputError(f"{reasons} ({len(sentences)} of {len(outcomes)} parts; {kept})")
