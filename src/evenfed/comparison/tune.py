"""Choosing hyper-parameters: the paper's grids or Bayesian search, several candidates trained together, on Optuna.

A study lives in a database (SQLite in the output folder unless told otherwise), so it survives a kill and can
be shared by processes and machines. Candidates are judged on a validation split; the test data stay unseen.
"""

import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.errors import InputError, first_line, unknown
from ..data import federate
from ..settings import VARIANT
from ..simulate.loop import Run, start
from .driver import Group, Sink, Training, drive
from .experiment import Experiment
from .history import METRICS, History
from .plan import Variant

if TYPE_CHECKING:
    import optuna

LEARNING_RATES = {
    "images": (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    "sequences": (1e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0),
}  # the paper's; 0.2 is not in its stated grid for sequences, but is the best value it reports
GRIDS: dict[str, tuple[str, tuple[float, ...]]] = {
    "qffl": ("q", (0.01, 0.1, 1.0)),
    "term": ("alpha", (0.01, 0.1, 0.5, 1.0)),
    "propfair": ("baseline", (2.0, 3.0, 4.0, 5.0)),
    "gifair": ("strength", (0.1, 0.5, 1.0)),
    "delta_fl": ("alpha", tuple(round(0.1 * k, 1) for k in range(1, 10))),
    "vred": ("beta", (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)),
    "semi_vred": ("beta", (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)),
    "ditto": ("lam", (0.1, 1.0, 2.0)),
    "climb": ("epsilon", (0.01, 0.1, 0.5, 1.0)),
    "fedmgda": ("epsilon", (0.05, 0.1, 0.5, 1.0)),
    "fedfv": ("alpha", (0.0, 0.1, 0.3, 0.5)),
}  # those of the paper, then our own for methods it did not run; AFL's and DRFA's step stay at their default, as there
BATCH = 12
STALE_SECONDS = 300.0

Space = dict[str, tuple[float, ...]]
Job = tuple[str, "optuna.Trial", Mapping[str, float]]  # label, trial, values to try


@dataclass(frozen=True)
class Search:
    """How to search, and on what to choose."""

    method: Literal["grid", "bayes"] = "grid"
    trials: int = 20  # of each entry, for method = "bayes"
    select_on: Literal["validation", "test"] = "validation"
    metric: str = "worst10"
    storage: str | None = None  # a database's URL; None: SQLite in the output folder
    batch: int = BATCH  # candidates trained together

    def __post_init__(self) -> None:
        for name, allowed in (
            ("method", ("grid", "bayes")),
            ("select_on", ("validation", "test")),
            ("metric", METRICS),
        ):
            if getattr(self, name) not in allowed:
                raise unknown(name.replace("_", "-"), str(getattr(self, name)), allowed)
        for name in ("trials", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: give a whole number, at least 1")

    def rank(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """What is compared: the metric, and the mean where it ties."""
        return (-1 if self.metric == "std" else 1) * figures[self.metric], figures["mean"]


@dataclass(frozen=True)
class Candidate:
    """One trial that was carried out: what was tried and what it gave (mean over seeds, last rounds)."""

    label: str
    values: Mapping[str, float]
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Tuned:
    """All candidates, and the chosen one of each entry."""

    candidates: list[Candidate]
    chosen: dict[str, Candidate]
    experiment: Experiment  # with the chosen values
    search: Search


def tune(experiment: Experiment, search: Search, out: Path, listen: Callable[[int, int], None]) -> Tuned:
    """Carry out what of the search is not done yet in its database; `listen(done, all)` after each batch."""
    optuna = _optuna()
    if experiment.data.judge != "test":
        raise InputError(
            f"data.judge='{experiment.data.judge}': a search sets aside its own validation examples; leave judge at "
            "'test', and say --select-on validation or test"
        )
    given, experiment = experiment, _with_validation(experiment, search)
    out.mkdir(parents=True, exist_ok=True)
    storage = search.storage or f"sqlite:///{(out / 'tune.db').resolve()}"
    bench = _Bench(experiment, search)
    alone = _lock(storage)
    with alone():
        studies = {v.label: _study(optuna, storage, experiment, v, search) for v in experiment.variants}
        for variant in experiment.variants:
            _revive(optuna, studies[variant.label])
            if search.method == "grid":
                for point in _grid(bench.space(variant)):
                    studies[variant.label].enqueue_trial(point, {"planned": point}, skip_if_exists=True)
    for batch in _batches(optuna, studies, bench, search, alone):
        try:
            bench.carry_out(batch)
        except BaseException:  # a stopped batch is tried again by whoever goes on
            for label, trial, values in batch:
                studies[label].tell(trial, state=optuna.trial.TrialState.FAIL)
                again = dict(values)
                studies[label].enqueue_trial(again, {"planned": again})
            raise
        for label, trial, _ in batch:
            studies[label].tell(trial, trial.user_attrs["figures"][search.metric])
        listen(*_progress(optuna, studies, search))
    return _tuned(optuna, studies, given, search)


class _Bench:
    """One federation on which batches of candidates are trained together."""

    def __init__(self, experiment: Experiment, search: Search) -> None:
        self.experiment, self.search = experiment, search
        self.federation = federate(experiment.data)
        judged = self.federation.validation if search.select_on == "validation" else self.federation.judged
        self.problem, self.initial = experiment.problem(self.federation, judged)

    def space(self, variant: Variant) -> Space:
        """The values to try: learning rates, and the algorithm's own parameter where it has one."""
        kind = "sequences" if self.federation.class_counts is None else "images"
        space: Space = {"lr": LEARNING_RATES[kind]}
        if variant.algorithm.name in GRIDS:
            name, values = GRIDS[variant.algorithm.name]
            space[name] = values
        return space

    def carry_out(self, batch: Sequence[Job]) -> None:
        """Train all candidates of the batch with all seeds together, and leave each trial its figures."""
        variants = {v.label: v for v in self.experiment.variants}
        runs = []
        for label, _, values in batch:
            variant = variants[label]
            for key, value in values.items():
                variant = variant.changed(key, value)
            for seed in self.experiment.seeds:
                settings = dataclasses.replace(self.experiment.train, seed=seed, **variant.options)
                runs.append(Run(label, variant.algorithm, settings))
        trainings = [Training(run, start(run, self.problem, self.initial)) for run in runs]
        drive(trainings, self.problem, _Heartbeat([trial for _, trial, _ in batch]))
        sizes = self.problem.train.sizes.numpy()
        shares, seeds = sizes / sizes.sum(), len(self.experiment.seeds)
        for k, (_, trial, _) in enumerate(batch):
            own = [
                History(training.records, shares, self.experiment.train.last_rounds)
                for training in trainings[k * seeds : (k + 1) * seeds]
            ]
            fair = [h.late_fairness for h in own if h.late_fairness is not None]
            trial.set_user_attr("figures", {m: float(np.mean([getattr(f, m) for f in fair])) for m in METRICS})


class _Heartbeat(Sink):
    """Marks the trials now and then as being worked on."""

    def __init__(self, trials: "Sequence[optuna.Trial]") -> None:
        self.trials = trials
        self.last = 0.0

    def after_round(self, group: Group) -> bool:
        if time.time() - self.last > STALE_SECONDS / 10:
            self.last = time.time()
            for trial in self.trials:
                trial.set_user_attr("beat", self.last)
        return False


def _batches(
    optuna: Any,
    studies: Mapping[str, "optuna.Study"],
    bench: _Bench,
    search: Search,
    alone: Callable[[], AbstractContextManager[None]],
) -> Iterator[list[Job]]:
    """Candidates that no one else works on, up to `batch` at a time, over all entries."""
    while True:
        found: list[Job] = []
        with alone():
            for variant in bench.experiment.variants:
                study = studies[variant.label]
                while len(found) < search.batch and _more(optuna, study, search):
                    trial = study.ask()
                    if search.method == "grid" and "planned" not in trial.user_attrs:
                        study.tell(trial, state=optuna.trial.TrialState.FAIL)  # another machine took the last one
                        break
                    trial.set_user_attr("worker", f"{socket.gethostname()}:{os.getpid()}")
                    trial.set_user_attr("beat", time.time())
                    found.append((variant.label, trial, _values(trial, bench.space(variant), search.method)))
        if not found:
            return
        yield found


def _lock(storage: str) -> Callable[[], AbstractContextManager[None]]:
    """One process at a time hands out trials: SQLite, unlike a database server, does not lock a row for us."""

    @contextmanager
    def alone() -> Iterator[None]:
        path = storage.removeprefix("sqlite:///")
        if path == storage:
            yield
            return
        if not Path(path).parent.is_dir():
            raise InputError(f"storage {storage} cannot be used (no such folder); give a database URL")
        with Path(path + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    return alone


def _values(trial: "optuna.Trial", space: Space, method: str) -> dict[str, float]:
    if method == "grid":
        return {name: float(trial.suggest_categorical(name, list(values))) for name, values in space.items()}
    return {
        name: trial.suggest_float(
            name, max(min(values), 1e-4), max(values), log=name == "lr" or max(values) / max(min(values), 1e-9) > 20
        )
        for name, values in space.items()
    }


def _grid(space: Space) -> Iterator[dict[str, float]]:
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def _more(optuna: Any, study: "optuna.Study", search: Search) -> bool:
    state = optuna.trial.TrialState
    waiting = study.get_trials(deepcopy=False, states=[state.WAITING])
    if search.method == "grid" or waiting:
        return bool(waiting)
    return len(study.get_trials(deepcopy=False, states=[state.COMPLETE, state.RUNNING])) < search.trials


def _revive(optuna: Any, study: "optuna.Study") -> None:
    """Trials of workers that died are handed out again."""
    running = optuna.trial.TrialState.RUNNING
    for trial in study.get_trials(deepcopy=False, states=[running]):
        host, _, process = str(trial.user_attrs.get("worker", ":0")).rpartition(":")
        old = time.time() - float(trial.user_attrs.get("beat", 0)) > STALE_SECONDS
        if old or (host == socket.gethostname() and not Path(f"/proc/{process}").exists()):
            study._storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.FAIL)
            values = trial.user_attrs.get("planned", trial.params)
            if values:
                study.enqueue_trial(values, {"planned": values})


def _mark(experiment: Experiment) -> str:
    """Of all that decides what a candidate scores beside its own values."""
    train = {k: v for k, v in experiment.train.describe().items() if k not in ("engine", "device", "seed")}
    held = [dataclasses.asdict(experiment.data), dict(experiment.model), train, list(experiment.seeds)]
    return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _study(optuna: Any, storage: str, experiment: Experiment, variant: Variant, search: Search) -> "optuna.Study":
    """One study an entry; its name carries what decides its results, so other searches do not mix in."""
    asked = search.method, search.select_on, search.metric
    try:
        return optuna.create_study(  # type: ignore[no-any-return]
            storage=storage,
            load_if_exists=True,
            direction="minimize" if search.metric == "std" else "maximize",
            study_name="/".join((experiment.name, variant.label, *asked, _mark(experiment))),
            sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True),
        )
    except Exception as error:
        if type(error).__module__.startswith(("sqlalchemy", "optuna")):
            raise InputError(f"storage {storage} cannot be used ({first_line(error)}); give a database URL") from None
        raise


def _progress(optuna: Any, studies: Mapping[str, "optuna.Study"], search: Search) -> tuple[int, int]:
    complete = optuna.trial.TrialState.COMPLETE
    done = sum(len(s.get_trials(deepcopy=False, states=[complete])) for s in studies.values())
    if search.method == "bayes":
        return done, search.trials * len(studies)
    left = [complete, optuna.trial.TrialState.WAITING, optuna.trial.TrialState.RUNNING]
    return done, sum(len(s.get_trials(deepcopy=False, states=left)) for s in studies.values())


def _tuned(optuna: Any, studies: Mapping[str, "optuna.Study"], experiment: Experiment, search: Search) -> Tuned:
    candidates: list[Candidate] = []
    chosen: dict[str, Candidate] = {}
    for label, study in studies.items():
        for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
            candidate = Candidate(label, dict(trial.params), dict(trial.user_attrs["figures"]))
            candidates.append(candidate)
            best = chosen.get(label)
            if best is None or search.rank(candidate.figures) > search.rank(best.figures):
                chosen[label] = candidate
    for label, best in chosen.items():
        for key, value in best.values.items():
            experiment = experiment.with_value(f"{label}.{key}", value)
    return Tuned(candidates, chosen, experiment, search)


def _with_validation(experiment: Experiment, search: Search) -> Experiment:
    """A fifth of each client's training data is set aside where the experiment names no validation split."""
    if search.select_on == "test" or experiment.data.validation_fraction:
        return experiment
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, validation_fraction=0.2))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("tuning needs Optuna; install it with: pip install 'evenfed[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other candidate beats in both mean and worst10."""

    def beaten(one: Candidate) -> bool:
        return any(
            two.figures["mean"] >= one.figures["mean"]
            and two.figures["worst10"] >= one.figures["worst10"]
            and (two.figures["mean"], two.figures["worst10"]) != (one.figures["mean"], one.figures["worst10"])
            for two in candidates
        )

    return sorted((c for c in candidates if not beaten(c)), key=lambda c: c.figures["mean"])


def tables(experiment: Experiment, selected_on: str) -> dict[str, Any]:
    """The experiment as the tables of a TOML file, defaults left out."""
    changed = {
        f.name: getattr(experiment.train, f.name)
        for f in dataclasses.fields(experiment.train)
        if getattr(experiment.train, f.name) != f.default
    }
    data = {k: v for k, v in dataclasses.asdict(experiment.data).items() if v is not None}
    entries = {}
    for variant in experiment.variants:
        hyper = {k: v for k, v in variant.algorithm.describe().items() if v is not None}
        own = {k: v for k, v in variant.options.items() if k in VARIANT and v is not None}
        entries[variant.label] = {"algorithm": variant.algorithm.name, **hyper, **own}
    seeds = list(experiment.seeds)
    return {
        "name": experiment.name,
        "seeds": seeds,
        "selected_on": selected_on,
        "data": data,
        "model": dict(experiment.model),
        "train": changed,
        "algorithms": entries,
    }
