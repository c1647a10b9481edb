"""An entry: the finished runs of one row of a comparison, one per seed, and what to say of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...algorithms import find
from ...core.algorithm import Algorithm
from ...core.errors import InputError
from ...core.server import Record
from ...fairness import Vector
from ...metrics import Metric
from .configuration import Configuration
from .expected import Fit
from .history import History, are_equal


@dataclass(frozen=True)
class Entry:
    """The finished runs of one row of the comparison."""

    label: str
    config: Configuration  # of its first seed; the others differ in the seed alone
    runs: Mapping[int, History]  # by seed
    repeats: str | None = None  # the entry it repeats with other seeds or precision; such a control does not compete

    @property
    def method(self) -> str:
        return str(self.config["algorithm"])

    @property
    def is_control(self) -> bool:
        """Whether it repeats another entry: part of the noise floor, not a competitor."""
        return self.repeats is not None

    @cached_property
    def is_personal(self) -> bool:
        """Whether each client keeps a model of its own (Ditto), so that it competes with no single model."""
        try:
            algorithm = find(self.method)
        except InputError:  # of another system, or of a class that is not registered
            return False
        return algorithm.personal is not Algorithm.personal

    @property
    def precision(self) -> str:
        return str(self.config["train"]["precision"])

    @property
    def histories(self) -> list[History]:
        """The runs in the order of their seeds."""
        return list(self.runs.values())

    @property
    def broken(self) -> list[str]:
        """A sentence for every run that broke down: its figures are those of the model it was left with."""
        sentences = []
        for seed, run in self.runs.items():
            if run.breakdown is not None:
                sentences.append(f"{self.label}, seed {seed}: broke down, {run.breakdown}")
        return sentences

    @property
    def stopped(self) -> list[str]:
        """A sentence for every run that ended early."""
        sentences = []
        for seed, run in self.runs.items():
            if run.stopped is None:
                continue
            sentence = f"{self.label}, seed {seed}: ended after round {len(run.records)}, {run.stopped}"
            if run.model_round is not None:
                sentence += f"; its model is that of round {run.model_round}"
            sentences.append(sentence)
        return sentences

    @property
    def advice(self) -> str | None:
        """What to try, if a run broke down or oscillates."""
        return advice_on(self.label, self.histories)

    @property
    def metric(self) -> Metric:
        return self.histories[0].metric

    @cached_property
    def has_equal_seeds(self) -> bool:
        """Whether all of several seeds gave the same run: nothing was drawn, so they are one observation."""
        return len(self.runs) > 1 and are_equal(self.histories)

    def figures(self, seed: int, late: bool) -> Vector:
        """[evaluations, clients] of one run: all evaluations of the last rounds, or the last one alone."""
        run = self.runs[seed]
        records = run.late
        if not late:
            records = [] if run.final is None else [run.final]
        return np.array([run.figures(record) for record in records])

    def blanked(self, clients: NDArray[np.bool_]) -> "Entry":
        """The same with the figures of these clients unknown."""

        def blank(figures: Vector | None) -> Vector | None:
            return None if figures is None else np.where(clients, np.nan, figures)

        def change(record: Record) -> Record:
            return replace(
                record,
                accuracy=blank(record.accuracy),
                test_losses=blank(record.test_losses),
                unpadded=blank(record.unpadded),
                current=blank(record.current),
                current_losses=blank(record.current_losses),
            )

        return self._with(change)

    def with_last_rounds(self, rounds: int) -> "Entry":
        """The same with late figures averaged over this many rounds."""
        runs = {seed: replace(run, last_rounds=rounds) for seed, run in self.runs.items()}
        return replace(self, runs=runs)

    @property
    def expected(self) -> "Entry | None":
        """The same with expected accuracies; None where these are unknown or do not fit the measured ones."""
        runs = {}
        spreads = []
        for seed, run in self.runs.items():
            if run.expected is None:
                return None
            runs[seed] = run.expected
            spreads += run.spreads
        fit = Fit.of(spreads)
        if fit is None or not fit.is_good:
            return None
        return replace(self, runs=runs)

    @property
    def current(self) -> "Entry | None":
        """The same judged by the models that clients train on; None if these are deployed, not their average."""
        runs = {}
        for seed, run in self.runs.items():
            current = run.current
            if current is None:
                return None
            runs[seed] = current
        return replace(self, runs=runs)

    @property
    def unpadded(self) -> "Entry":
        """The same with accuracy counted without padding positions."""
        return self._with(lambda record: replace(record, accuracy=record.unpadded))

    @property
    def average(self) -> float | None:
        """The decay of the average that it deploys; None: it deploys the model of its last round."""
        average: float | None = self.config["train"].get("average")
        return average

    def with_seeds_of(self, other: "Entry") -> "Entry":
        """The same with the seeds alone that both have; maybe none."""
        shared = {}
        for seed, run in self.runs.items():
            if seed in other.runs:
                shared[seed] = run
        return replace(self, runs=shared)

    def _with(self, change: Callable[[Record], Record]) -> "Entry":
        runs = {}
        for seed, run in self.runs.items():
            runs[seed] = replace(run, records=list(map(change, run.records)))
        return replace(self, runs=runs)


def advice_on(label: str, runs: Sequence[History]) -> str | None:
    """What to try, from the first run that broke down; if none did, from the first that oscillates."""
    for run in _broken(runs) or runs:
        sentence = run.advice(label)
        if sentence is not None:
            return sentence
    return None


def notes_on(label: str, runs: Sequence[History]) -> list[str]:
    """What a reader of an entry's figures should know: runs that broke down; FedAvg's, which are all the same."""
    notes = []
    if len(runs) > 1 and label == "fedavg" and are_equal(runs):
        notes.append("All seeds gave the same FedAvg run: they are one observation and show nothing about chance.")
    sentence = broken_runs(label, runs)
    if sentence is not None:
        notes.append(sentence)
    return notes


def broken_runs(label: str, runs: Sequence[History]) -> str | None:
    """How many runs broke down, and how the first of them did; None if none did."""
    broken = _broken(runs)
    if not broken:
        return None
    first = broken[0]
    return f"{label} broke down in {len(broken)} of {len(runs)} runs: {first.breakdown}."


def _broken(runs: Sequence[History]) -> list[History]:
    return [run for run in runs if run.breakdown is not None]
