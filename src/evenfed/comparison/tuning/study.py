"""The Optuna studies that hand out what a search tries, and remember what came of it.

Studies live in a database (SQLite in the output folder by default), so they survive a kill and can be shared by
processes and machines.
"""

import fcntl
import hashlib
import itertools
import json
import operator
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import InputError, first_line
from ...core.printable import without_passwords
from ..experiment import Experiment
from .search import Candidate, Choices, Figures, Search, Space, Values

if TYPE_CHECKING:
    import optuna

STALE_SECONDS = 300.0  # without a heartbeat before a trial's worker counts as dead
HEARTBEAT_SECONDS = STALE_SECONDS / 10
LOCKED_SECONDS = 120.0  # that a process waits while another writes to the SQLite file; SQLite's own 5 are too few


def load_optuna() -> Any:
    """The module, which comes with evenfed[tune] only."""
    try:
        import optuna
    except ImportError:
        raise InputError("tuning needs Optuna; install it with: pip install 'evenfed[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class _Entry:
    """One entry of the experiment: its Optuna study, and the values to try."""

    label: str
    space: Space
    search: Search
    study: "optuna.Study"
    states: Any  # optuna.trial.TrialState
    task: str | None = None  # which worker of a spread search this is

    def trials(self, *states: Any) -> "list[optuna.trial.FrozenTrial]":
        return self.study.get_trials(deepcopy=False, states=states)

    def enqueue(self, values: Values, position: int | None, skip_if_exists: bool = False) -> None:
        """`position`: in the grids of all entries, which decides who trains together."""
        point = dict(values)
        self.study.enqueue_trial(point, {"planned": point, "position": position}, skip_if_exists)

    def enqueue_grid(self, first: int) -> int:
        """All points of the grid, from position `first` on; the position after the last."""
        position = first
        for values in itertools.product(*self.space.values()):
            point = zip(self.space, values, strict=True)
            self.enqueue(dict(point), position, skip_if_exists=True)
            position += 1
        return position

    def revive(self) -> None:
        """Hand out again the trials of workers that died, or in whose place this one has come."""
        storage = self.study._storage
        for trial in self.trials(self.states.RUNNING):
            task = trial.user_attrs.get("errand")
            is_own = task is not None and task == self.task
            if not is_own and not _is_abandoned(trial):
                continue
            storage.set_trial_state_values(trial._trial_id, self.states.FAIL)
            values = trial.user_attrs.get("planned", trial.params)
            if values:
                self.enqueue(values, _position(trial))

    def next_job(self) -> "CandidateTrial | None":
        """A candidate of a Bayesian search that no one else works on."""
        states = self.states
        if not self.trials(states.WAITING):
            begun = self.trials(states.COMPLETE, states.RUNNING)
            if len(begun) >= self.search.trials:
                return None
        return self._begun(self.study.ask())

    def taken(self, trial: "optuna.trial.FrozenTrial") -> "CandidateTrial | None":
        """A waiting candidate of a grid; None if another machine was faster."""
        optuna = load_optuna()
        try:
            is_free = self.study._storage.set_trial_state_values(trial._trial_id, self.states.RUNNING)
        except optuna.exceptions.UpdateFinishedTrialError:
            return None
        if not is_free:
            return None
        own_trial = optuna.Trial(self.study, trial._trial_id)
        return self._begun(own_trial)

    def _begun(self, trial: "optuna.Trial") -> "CandidateTrial":
        host = socket.gethostname()
        process = os.getpid()
        trial.set_user_attr("worker", f"{host}:{process}")
        if self.task is not None:
            trial.set_user_attr("errand", self.task)
        job = CandidateTrial(self, trial, self._suggest(trial))
        job.beat()
        return job

    def _suggest(self, trial: "optuna.Trial") -> Values:
        values = {}
        for name, choices in self.space.items():
            if self.search.method == "grid" or not _are_numbers(choices):
                values[name] = trial.suggest_categorical(name, list(choices))
            else:
                values[name] = _between(trial, name, choices)
        return values


def _position(trial: "optuna.trial.FrozenTrial | optuna.Trial") -> int:
    """The position of a candidate in the grid; studies of older versions do not record it."""
    position = trial.user_attrs.get("position")
    return trial.number if position is None else int(position)


def _are_numbers(choices: Choices) -> bool:
    return all(type(choice) in (int, float) for choice in choices)


def _between(trial: "optuna.Trial", name: str, choices: Choices) -> float:
    """Any number from the lowest to the highest choice."""
    low = min(choices)
    high = max(choices)
    if all(type(choice) is int for choice in choices):
        return int(trial.suggest_int(name, low, high))
    ratio = high / max(low, 1e-9)
    is_wide = ratio > 20
    return float(
        trial.suggest_float(
            name,
            low=max(low, 1e-4),
            high=high,
            log=is_wide or name == "lr",
        )
    )


@dataclass(frozen=True)
class CandidateTrial:
    """One candidate for this process to train."""

    entry: _Entry
    trial: "optuna.Trial"
    values: Values

    @property
    def label(self) -> str:
        return self.entry.label

    def beat(self) -> None:
        """Tell other processes that this one is alive."""
        self.trial.set_user_attr("beat", time.time())

    def finish(self, figures: Figures) -> None:
        self.trial.set_user_attr("figures", figures)
        score = figures[self.entry.search.metric]
        self.entry.study.tell(self.trial, score)

    def put_back(self) -> None:
        """Stopped before it was finished: let whoever resumes try the same values again."""
        entry = self.entry
        entry.study.tell(self.trial, state=entry.states.FAIL)
        entry.enqueue(self.values, _position(self.trial))


class Studies:
    """One Optuna study per entry of the experiment, opened or continued."""

    def __init__(
        self,
        experiment: Experiment,
        search: Search,
        spaces: Mapping[str, Space],
        out: Path,
        task: str | None = None,
    ) -> None:
        database = (out / "tune.db").resolve()
        self.search = search
        self.storage = search.storage or f"sqlite:///{database}"
        self.optuna = load_optuna()
        self.states = self.optuna.trial.TrialState
        self.entries: list[_Entry] = []
        position = 0
        with self._alone():
            for variant in experiment.variants:
                label = variant.label
                entry = _Entry(
                    label=label,
                    space=spaces[label],
                    search=search,
                    study=self._open(experiment, label, spaces[label]),
                    states=self.states,
                    task=task,
                )
                self.entries.append(entry)
                entry.revive()
                if search.method == "grid":
                    position = entry.enqueue_grid(position)

    def batches(self) -> Iterator[list[CandidateTrial]]:
        """Candidates that no one else works on, up to `search.batch` at a time, over all entries.

        Those of a grid come in batches that its order fixes: who else works on it changes no bit of a result.
        """
        while True:
            with self._alone():
                batch = self._next_batch()
            if not batch:
                return
            yield batch

    def progress(self) -> tuple[int, int]:
        """(candidates finished, candidates in all)."""
        states = self.states
        finished = 0
        unfinished = 0
        for entry in self.entries:
            trials = entry.trials(states.COMPLETE, states.WAITING, states.RUNNING)  # at one moment
            complete = sum(trial.state == states.COMPLETE for trial in trials)
            finished += complete
            unfinished += len(trials) - complete
        total = finished + unfinished
        if self.search.method == "bayes":
            total = self.search.trials * len(self.entries)
        return finished, total

    def candidates(self) -> list[Candidate]:
        """All that are finished, by this process or another."""
        candidates = []
        for entry in self.entries:
            for trial in sorted(entry.trials(self.states.COMPLETE), key=_position):
                figures = trial.user_attrs["figures"]
                candidate = Candidate(entry.label, trial.params, figures)
                candidates.append(candidate)
        return candidates

    def _open(self, experiment: Experiment, label: str, space: Space) -> "optuna.Study":
        """The study's name carries what decides its results, so that other searches do not mix in."""
        search = self.search
        name = (
            experiment.name,
            label,
            search.method,
            search.select_on,
            search.metric,
            mark(experiment),
            _digest(space),
        )
        is_upwards = search.judged_by.direction(search.metric) > 0
        direction = "maximize" if is_upwards else "minimize"
        sampler = self.optuna.samplers.TPESampler(seed=0, constant_liar=True)
        try:
            return self.optuna.create_study(  # type: ignore[no-any-return]
                storage=self._patient(),
                load_if_exists=True,
                direction=direction,
                study_name="/".join(name),
                sampler=sampler,
            )
        except Exception as error:
            origin = type(error).__module__
            if origin.startswith(("sqlalchemy", "optuna")) or isinstance(error, ImportError):
                raise self._unusable(first_line(error)) from None
            raise

    def _patient(self) -> "str | optuna.storages.RDBStorage":
        """The database, as Optuna takes it."""
        if not self.storage.startswith("sqlite"):
            return self.storage
        waiting = {"connect_args": {"timeout": LOCKED_SECONDS}}
        return self.optuna.storages.RDBStorage(self.storage, engine_kwargs=waiting)  # type: ignore[no-any-return]

    def _next_batch(self) -> list[CandidateTrial]:
        if self.search.method == "grid":
            return self._next_of_grid()
        batch: list[CandidateTrial] = []
        for entry in self.entries:
            while len(batch) < self.search.batch:
                job = entry.next_job()
                if job is None:
                    break
                batch.append(job)
        return batch

    def _next_of_grid(self) -> list[CandidateTrial]:
        """The first batch that is waiting, or what is left of it."""
        while True:
            waiting: list[tuple[int, _Entry, optuna.trial.FrozenTrial]] = []
            for entry in self.entries:
                for trial in entry.trials(self.states.WAITING):
                    waiting.append((_position(trial), entry, trial))
            if not waiting:
                return []
            waiting.sort(key=operator.itemgetter(0))
            size = self.search.batch
            first_batch = waiting[0][0] // size
            jobs = []
            for position, entry, trial in waiting:
                if position // size > first_batch:
                    break
                job = entry.taken(trial)
                if job is not None:
                    jobs.append(job)
            if jobs:
                return jobs

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time hands out trials: SQLite, unlike a database server, does not lock a row for us."""
        path = self.storage.removeprefix("sqlite:///")
        if path == self.storage:
            yield
            return
        if not Path(path).parent.is_dir():
            raise self._unusable("no such folder")
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _unusable(self, why: str) -> InputError:
        problem = f"storage {self.storage} cannot be used ({why}); give a database URL"
        return InputError(without_passwords(problem))


def mark(experiment: Experiment) -> str:
    """A hash of all that decides what a candidate scores, besides its own values."""
    train = experiment.train.describe()
    for irrelevant in ("engine", "device", "seed"):
        del train[irrelevant]
    deciding = [
        experiment.data.describe(),
        dict(experiment.model),
        train,
        list(experiment.seeds),
    ]
    objective = experiment.objective.describe()
    if objective:
        deciding.append(objective)
    return _digest(deciding)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return digest[:12]


def _is_abandoned(trial: "optuna.trial.FrozenTrial") -> bool:
    """Whether nobody works on a trial any more: its process is gone, or has been silent for long."""
    silent_since = float(trial.user_attrs.get("beat", 0))
    if time.time() - silent_since > STALE_SECONDS:
        return True
    worker = str(trial.user_attrs.get("worker", ":0"))
    host, _, process = worker.rpartition(":")
    if host != socket.gethostname():
        return False
    return not Path(f"/proc/{process}").exists()
