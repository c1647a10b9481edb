"""Choosing hyper-parameters: the paper's grids or Bayesian search, several candidates trained together.

Candidates are judged on a validation split; the test data stay unseen.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...core import markup
from ...core.errors import InputError
from ...core.tables import changed_fields, without_none
from ...core.words import assignments
from ...data import federate
from ...fairness import FIGURES
from ...simulate.state import Run
from ...spread.options import SpreadOptions
from ..analysis.history import History
from ..driver import Group, Sink, Training, drive
from ..experiment import Experiment
from ..progress import WorkersProgress
from .search import Candidate, Figures, Search, Space, check_grid, space_of, untuned
from .search_workers import SearchProgress, share_out
from .study import HEARTBEAT_SECONDS, CandidateTrial, Studies, load_optuna


@dataclass(frozen=True)
class Tuned:
    """All candidates, and the one chosen for each entry."""

    candidates: list[Candidate]
    chosen: dict[str, Candidate]
    experiment: Experiment  # with the chosen values
    search: Search
    untuned: dict[str, dict[str, Any]]  # label -> hyper-parameters without a grid, at their values

    def _repr_html_(self) -> str:
        judged_by = self.search.judged_by
        rows = []
        for label, best in self.chosen.items():
            row = [label, assignments(best.values)]
            for metric in ("mean", "worst10"):
                figure = judged_by.unit * best.figures[metric]
                row.append(judged_by.text(figure))
            rows.append(row)
        count = len(self.candidates)
        title = f"{count} candidates; chosen by {self.search.metric} on {self.search.select_on} data"
        return markup.table(title, ["entry", "values", "mean", "worst 10 %"], rows)


def tune(
    experiment: Experiment,
    search: Search,
    out: Path,
    listen: Callable[[int, int], None],
    listen_to_each: Callable[[Candidate], None] | None = None,
    spread: SpreadOptions | None = None,
    shares: WorkersProgress = WorkersProgress(),
) -> Tuned:
    """Carry out what is left of the search in its database; `listen(finished, all)` is called after each batch.

    `listen_to_each` is given every candidate that was trained, before that. `spread`: over which workers, if not in
    this process; `shares` shows their progress.
    """
    if spread is None:
        trainer, studies = _opened(experiment, search, out)
        _train_all(trainer, studies, listen, listen_to_each)
    else:
        train = dataclasses.replace(experiment.train, device="cpu")  # workers train, each on its own device
        trainer, studies = _opened(dataclasses.replace(experiment, train=train), search, out)
        share_out(
            out=out,
            spread=spread,
            studies=studies,
            task_of=lambda name: partial(_take_part, experiment, search, out.resolve(), name),
            watcher=SearchProgress(studies, listen, listen_to_each, shares),
        )
    left = {}
    for variant in experiment.variants:
        values = untuned(variant, trainer.spaces[variant.label])
        if values:
            left[variant.label] = values
    return _choose(studies.candidates(), experiment, studies.search, left)


def _take_part(experiment: Experiment, search: Search, out: Path, task: str) -> None:
    """A worker's part of a search: whatever no one else trains. `task`: the name it is started again under."""
    trainer, studies = _opened(experiment, search, out, task)
    _train_all(trainer, studies, lambda finished, total: None, None)


def _opened(
    experiment: Experiment,
    search: Search,
    out: Path,
    task: str | None = None,
) -> "tuple[_CandidateTrainer, Studies]":
    """What trains candidates, and the studies that hand them out."""
    load_optuna()  # which may be missing: before the data are read
    judge = experiment.data.judge
    if judge != "test":
        raise InputError(
            f"data.judge='{judge}': a search sets aside its own validation examples; leave judge at "
            "'test', and say --select-on validation or test"
        )
    check_grid(search.grid, experiment.variants)
    out.mkdir(parents=True, exist_ok=True)
    trainer = _CandidateTrainer(_with_validation(experiment, search), search)
    search = dataclasses.replace(search, judged_by=trainer.problem.metric)
    studies = Studies(
        experiment=trainer.experiment,
        search=search,
        spaces=trainer.spaces,
        out=out,
        task=task,
    )
    return trainer, studies


def _train_all(
    trainer: "_CandidateTrainer",
    studies: Studies,
    listen: Callable[[int, int], None],
    listen_to_each: Callable[[Candidate], None] | None,
) -> None:
    for batch in studies.batches():
        try:
            figures = trainer.train(batch)
        except BaseException:
            for job in batch:
                job.put_back()
            raise
        for job, scores in zip(batch, figures, strict=True):
            job.finish(scores)
            if listen_to_each is not None:
                candidate = Candidate(job.label, job.values, scores)
                listen_to_each(candidate)
        finished, total = studies.progress()
        listen(finished, total)


def tables(experiment: Experiment, selected_on: str) -> dict[str, Any]:
    """The experiment as the tables of a TOML file, defaults left out."""
    train = changed_fields(experiment.train)
    entries = {}
    for variant in experiment.variants:
        algorithm = variant.algorithm
        entry = {
            "algorithm": algorithm.name,
            **algorithm.describe(),
            **variant.options,
        }
        entries[variant.label] = without_none(entry)
    data = dict(experiment.data.describe())
    if experiment.federations:
        del data["seed"]
    content = {
        "name": experiment.name,
        "seeds": list(experiment.seeds),
        "selected_on": selected_on,
        "data": without_none(data),
        "model": dict(experiment.model),
        "train": {**train, **experiment.objective.describe()},
        "algorithms": entries,
    }
    if "." in str(experiment.model["name"]) or experiment.objective.is_own:
        content["modules"] = list(experiment.modules)
    if experiment.federations:
        content["federations"] = list(experiment.federations)
    if experiment.track:
        track = {}
        for name, options in experiment.track.items():
            track[name] = dict(options)
        content["track"] = track
    return content


class _CandidateTrainer:
    def __init__(self, experiment: Experiment, search: Search) -> None:
        federation = dataclasses.replace(federate(experiment.data), unseen=None)  # nothing is chosen by them
        judged = federation.validation if search.select_on == "validation" else federation.judged
        sizes = federation.train_sizes
        kind = "sequences" if federation.holds_sequences else "images"
        self.experiment = experiment
        self.problem, self.initial = experiment.problem(federation, judged)
        self.shares = sizes / sizes.sum()
        self.spaces: dict[str, Space] = {}  # the values to try, by entry
        for variant in experiment.variants:
            self.spaces[variant.label] = space_of(variant, kind, search.grid)

    def train(self, batch: Sequence[CandidateTrial]) -> list[Figures]:
        """Train all candidates of the batch with all seeds together; each one's figures."""
        experiment = self.experiment
        variants = {variant.label: variant for variant in experiment.variants}
        trainings = []
        for job in batch:
            variant = variants[job.label]
            for key, value in job.values.items():
                variant = variant.changed(key, value)
            for seed in experiment.seeds:
                settings = dataclasses.replace(
                    experiment.train,
                    seed=seed,
                    **variant.options,
                )
                run = Run(job.label, variant.algorithm, settings)
                training = Training.start(run, self.problem, self.initial)
                trainings.append(training)
        drive(trainings, _Heartbeat(batch))
        seeds = len(experiment.seeds)
        figures = []
        for first in range(0, len(trainings), seeds):
            end = first + seeds
            one_candidate = trainings[first:end]
            figures.append(self._figures(one_candidate))
        return figures

    def _figures(self, trainings: Sequence[Training]) -> Figures:
        last_rounds = self.experiment.train.last_rounds
        fairness = []
        for training in trainings:
            history = History(training.records, self.shares, last_rounds, judged_by=self.problem.metric)
            of_seed = history.late_fairness
            if of_seed is not None:
                fairness.append(of_seed)
        figures = {}
        for metric in FIGURES:
            over_seeds = [getattr(of_seed, metric) for of_seed in fairness]
            mean = np.mean(over_seeds)
            figures[metric] = float(mean)
        return figures


class _Heartbeat(Sink):
    """Notes in the database from time to time that the candidates are still in training."""

    def __init__(self, batch: Sequence[CandidateTrial]) -> None:
        self.batch = batch
        self.last = 0.0

    def after_round(self, group: Group) -> None:
        silent = time.time() - self.last
        if silent > HEARTBEAT_SECONDS:
            self.last = time.time()
            for job in self.batch:
                job.beat()


def _with_validation(experiment: Experiment, search: Search) -> Experiment:
    """A fifth of each client's training data is set aside if the experiment names no validation split."""
    if search.select_on == "test" or experiment.data.validation_fraction:
        return experiment
    data = dataclasses.replace(experiment.data, validation_fraction=0.2)
    return dataclasses.replace(experiment, data=data)


def _choose(
    candidates: list[Candidate],
    experiment: Experiment,
    search: Search,
    left: dict[str, dict[str, Any]],
) -> Tuned:
    """The best candidate of each entry; of equals, the first."""
    chosen: dict[str, Candidate] = {}
    for candidate in candidates:
        best = chosen.setdefault(candidate.label, candidate)
        rank = search.rank(candidate.figures)
        if rank > search.rank(best.figures):
            chosen[candidate.label] = candidate
    for label, best in chosen.items():
        for key, value in best.values.items():
            experiment = experiment.with_value(f"{label}.{key}", value)
    return Tuned(candidates, chosen, experiment, search, left)
