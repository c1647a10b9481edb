"""What a search tries, and the Optuna studies that hand it out and remember what came of it.

Studies live in a database (SQLite in the output folder by default), so they survive a kill and can be shared by
processes and machines.
"""

import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import InputError, first_line, unknown
from ..core.visible import without_passwords
from ..metrics import ACCURACY, Metric
from .experiment import Experiment
from .history import METRICS
from .space import Choices, Grid, Space

if TYPE_CHECKING:
    import optuna

BATCH = 12
STALE_SECONDS = 300.0  # without a heartbeat before a trial's worker counts as dead
HEARTBEAT_SECONDS = STALE_SECONDS / 10

Values = dict[str, Any]  # of a candidate, by hyper-parameter or option
Figures = dict[str, float]  # what a candidate scored, by metric


@dataclass(frozen=True)
class Search:
    """How to search, and what to choose by."""

    method: Literal["grid", "bayes"] = "grid"
    trials: int = 20  # per entry, for method = "bayes"
    select_on: Literal["validation", "test"] = "validation"
    metric: str = "worst10"
    storage: str | None = None  # a database's URL; None: SQLite in the output folder
    batch: int = BATCH  # candidates trained together
    judged_by: Metric = ACCURACY  # what clients are judged by, which the metric is of
    grid: Grid = field(default_factory=dict)  # values to try by name, beside or instead of those declared

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Search":
        """From a table [tune] of an experiment."""
        allowed = [option.name for option in dataclasses.fields(cls) if option.name != "judged_by"]
        for name in table:
            if name not in allowed:
                raise unknown("key of tune", name, allowed)
        return cls(**table)

    def __post_init__(self) -> None:
        _check_choice("method", self.method, ("grid", "bayes"))
        _check_choice("select-on", self.select_on, ("validation", "test"))
        _check_choice("metric", self.metric, METRICS)
        _check_positive("trials", self.trials)
        _check_positive("batch", self.batch)
        if not isinstance(self.grid, Mapping):
            raise InputError(f"tune.grid = {self.grid!r}; give a table of lists, e.g. [tune.grid]")

    def rank(self, figures: Figures) -> tuple[float, float]:
        """What is compared: the metric, and the mean where it ties."""
        sign = self.judged_by.sign
        score = -figures["std"] if self.metric == "std" else sign * figures[self.metric]
        return score, sign * figures["mean"]


@dataclass(frozen=True)
class Candidate:
    """One finished trial: what was tried, and its scores (mean over seeds, last rounds)."""

    label: str
    values: Values
    figures: Figures


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

    def trials(self, *states: Any) -> "list[optuna.trial.FrozenTrial]":
        return self.study.get_trials(deepcopy=False, states=states)

    def enqueue(self, values: Values, skip_if_exists: bool = False) -> None:
        point = dict(values)
        self.study.enqueue_trial(point, {"planned": point}, skip_if_exists)

    def enqueue_grid(self) -> None:
        for values in itertools.product(*self.space.values()):
            point = zip(self.space, values, strict=True)
            self.enqueue(dict(point), skip_if_exists=True)

    def revive(self) -> None:
        """Hand out again the trials of workers that died."""
        storage = self.study._storage
        for trial in self.trials(self.states.RUNNING):
            if not _is_abandoned(trial):
                continue
            storage.set_trial_state_values(trial._trial_id, self.states.FAIL)
            values = trial.user_attrs.get("planned", trial.params)
            if values:
                self.enqueue(values)

    def next_job(self) -> "Job | None":
        """A candidate that no one else works on."""
        states = self.states
        is_grid = self.search.method == "grid"
        waiting = self.trials(states.WAITING)
        if not waiting:
            begun = self.trials(states.COMPLETE, states.RUNNING)
            if is_grid or len(begun) >= self.search.trials:
                return None
        trial = self.study.ask()
        if is_grid and "planned" not in trial.user_attrs:
            self.study.tell(trial, state=states.FAIL)  # another machine took the last one
            return None
        host = socket.gethostname()
        process = os.getpid()
        trial.set_user_attr("worker", f"{host}:{process}")
        job = Job(self, trial, self._suggest(trial))
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
class Job:
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
        """Record what the candidate scored."""
        self.trial.set_user_attr("figures", figures)
        score = figures[self.entry.search.metric]
        self.entry.study.tell(self.trial, score)

    def put_back(self) -> None:
        """Stopped before it was finished: let whoever resumes try the same values again."""
        entry = self.entry
        entry.study.tell(self.trial, state=entry.states.FAIL)
        entry.enqueue(self.values)


class Studies:
    """One Optuna study per entry of the experiment, opened or continued."""

    def __init__(
        self,
        optuna: Any,
        experiment: Experiment,
        search: Search,
        spaces: Mapping[str, Space],
        out: Path,
    ) -> None:
        database = (out / "tune.db").resolve()
        self.search = search
        self.storage = search.storage or f"sqlite:///{database}"
        self.states = optuna.trial.TrialState
        self.entries: list[_Entry] = []
        with self._alone():
            for variant in experiment.variants:
                label = variant.label
                entry = _Entry(
                    label=label,
                    space=spaces[label],
                    search=search,
                    study=self._open(optuna, experiment, label, spaces[label]),
                    states=self.states,
                )
                self.entries.append(entry)
                entry.revive()
                if search.method == "grid":
                    entry.enqueue_grid()

    def batches(self) -> Iterator[list[Job]]:
        """Candidates that no one else works on, up to `search.batch` at a time, over all entries."""
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
            finished += len(entry.trials(states.COMPLETE))
            unfinished += len(entry.trials(states.WAITING, states.RUNNING))
        total = finished + unfinished
        if self.search.method == "bayes":
            total = self.search.trials * len(self.entries)
        return finished, total

    def candidates(self) -> list[Candidate]:
        """All that are finished, by this process or another."""
        candidates = []
        for entry in self.entries:
            for trial in entry.trials(self.states.COMPLETE):
                figures = trial.user_attrs["figures"]
                candidate = Candidate(entry.label, trial.params, figures)
                candidates.append(candidate)
        return candidates

    def _open(self, optuna: Any, experiment: Experiment, label: str, space: Space) -> "optuna.Study":
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
        is_spread = search.metric == "std"
        is_upwards = search.judged_by.higher_is_better and not is_spread
        direction = "maximize" if is_upwards else "minimize"
        sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
        try:
            return optuna.create_study(  # type: ignore[no-any-return]
                storage=self.storage,
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

    def _next_batch(self) -> list[Job]:
        batch: list[Job] = []
        for entry in self.entries:
            while len(batch) < self.search.batch:
                job = entry.next_job()
                if job is None:
                    break
                batch.append(job)
        return batch

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


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise unknown(name, str(value), allowed)


def _check_positive(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise InputError(f"{name}={value}: give a whole number, at least 1")
