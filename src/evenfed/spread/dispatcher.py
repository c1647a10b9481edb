"""Errands handed out to workers, whoever runs them; what a lost worker was at is handed out again."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..core.errors import InputError
from .remote_call import Errand, JobResult, packed

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
MOST_LOSSES = 3  # of one errand in a row, without any progress between


class JobHandle(Protocol):
    """An errand at work."""

    def outcome(self) -> JobResult | None:
        """What came of it; None while it is at work."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def kill(self) -> None:
        """End it at once."""


class WorkerSlot(Protocol):
    """Where one errand at a time is carried out."""

    @property
    def name(self) -> str: ...

    def start(self, package: bytes) -> JobHandle:
        """Begin an errand."""


class DispatchObserver:
    """Follows the errands. This one shows nothing."""

    def standing(self, errand: int) -> int:
        """A number that grows as the errand advances."""
        return 0

    def started(self, errand: int, place: str) -> None:
        """An errand has begun, or resumes after its worker was lost."""

    def lost(self, errand: int, place: str, why: str) -> None:
        """A worker is gone; its errand is handed out again."""

    def ended(self, errand: int, place: str, outcome: JobResult) -> None:
        """An errand has ended, well or not."""

    def look(self) -> None:
        """About a second has passed."""


@dataclass
class _Post:
    place: WorkerSlot
    job: JobHandle | None = None
    errand: int = 0
    losses: int = 0  # in a row


@dataclass
class _Losses:
    """How often an errand was lost in a row, and how far it was then."""

    count: int = 0
    standing: int = 0


@dataclass
class Dispatcher:
    """Carries out all errands, each by one worker at a time. `stop()` says whether the user wants to stop.

    An errand is packed when it is handed out: with its data it may be large.
    """

    errands: Sequence[Errand]
    places: Sequence[WorkerSlot]
    watcher: DispatchObserver
    stop: Callable[[], bool]
    posts: list[_Post] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    losses: dict[int, _Losses] = field(default_factory=dict)
    outcomes: dict[int, JobResult] = field(default_factory=dict)
    looked_at: float = 0.0

    def carry_out(self) -> list[JobResult]:
        """The outcome of each errand, in order; "stopped" for those that the user ended."""
        self.posts = [_Post(place) for place in self.places]
        self.waiting = deque(range(len(self.errands)))
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
        return [self.outcomes.get(errand, stopped) for errand in range(len(self.errands))]

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
                errand = self.waiting.popleft()
                post.job = post.place.start(packed(self.errands[errand]))
                post.errand = errand
                self.watcher.started(errand, post.place.name)

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
        self.outcomes[post.errand] = outcome
        self.watcher.ended(post.errand, post.place.name, outcome)

    def _again(self, post: _Post, outcome: JobResult) -> JobResult | None:
        """Another worker takes the errand over; unless too many were lost with it."""
        errand = post.errand
        standing = self.watcher.standing(errand)
        losses = self.losses.setdefault(errand, _Losses())
        if standing > losses.standing:
            losses.count = 0
        losses.count += 1
        losses.standing = standing
        if losses.count >= MOST_LOSSES:
            message = f"{losses.count} workers in a row were lost with it, the last one because {outcome.message}"
            return JobResult("failed", message)
        self.waiting.append(errand)
        self.watcher.lost(errand, post.place.name, outcome.message)
        return None


def raise_failures(outcomes: Sequence[JobResult], kept: str) -> None:
    """The sentences of errands that ended badly, each once; `kept` says what became of the others."""
    sentences = []
    for outcome in outcomes:
        if outcome.kind in ("refused", "failed"):
            sentences.append(outcome.message)
    distinct = list(dict.fromkeys(sentences))
    if distinct:
        reasons = "; ".join(distinct)
        raise InputError(f"{reasons} ({len(sentences)} of {len(outcomes)} parts; {kept})")
