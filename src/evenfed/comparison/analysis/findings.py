"""The findings of a comparison: its finished runs by entry and seed, and what they add up to."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import InputError, check_whole
from ...metrics import Metric
from ..runs import FLOOR_LABEL, FLOOR_NAMES, PAIRED_FLOOR_LABEL
from ..storage.header import Header, RunProvenance
from .configuration import Configuration
from .entry import Entry
from .entry_figures import EntryFigures, row
from .history import History, are_equal

__all__ = ["BASELINE", "Entry", "Findings", "seeds_named"]

BASELINE = "fedavg"


@dataclass(frozen=True)
class Origin:
    """Where audited results come from: another system, of which only the clients' figures are known."""

    facts: tuple[str, ...]  # what was read, and as what
    groups: Mapping[str, str] = field(default_factory=dict)  # of clients, by name
    has_sizes: bool = False  # whether it is known on how many examples clients were judged
    source: Mapping[str, str] = field(default_factory=dict)  # the file: its name, size, hash and date
    command: str = ""  # that audits it again; empty if it is no file


@dataclass(frozen=True)
class Findings:
    """The findings of a comparison: FedAvg, the entries that share seeds with it, and the noise floor.

    The noise floor consists of repetitions: FedAvg with other batches, FedAvg with other seeds, and entries that differ
    from another in precision alone.
    """

    folder: Path
    entries: tuple[Entry, ...]  # FedAvg first, then in the order of the paper's tables, then by name
    controls: tuple[Entry, ...]  # of FedAvg with other seeds, the k-th run is compared with FedAvg's k-th
    repeated: tuple[tuple[Entry, ...], ...]  # FedAvg's entries, in groups whose runs differ in the seed alone
    header: Header  # of FedAvg's first run
    made: tuple[RunProvenance, ...] = ()  # of all runs, in order of time
    left_out: tuple[str, ...] = ()  # a sentence for each thing that had to be left out
    lost: tuple[Entry, ...] = ()  # entries that broke down and have no finite figures
    min_test: int = 0  # clients judged on fewer examples are left out
    origin: Origin | None = None  # of audited results; None: of runs of evenfed

    @property
    def baseline(self) -> Entry:
        """What the others are compared with: FedAvg, or the entry that an audit was given."""
        return self.entries[0]

    @property
    def baseline_name(self) -> str:
        """As prose has it."""
        label = self.baseline.label
        return "FedAvg" if label == BASELINE else label

    @property
    def floor(self) -> Entry | None:
        """FedAvg with other seeds."""
        return self.by_label.get(FLOOR_LABEL)

    @property
    def other_batches(self) -> Entry | None:
        """FedAvg from the same initial models with other batches."""
        return self.by_label.get(PAIRED_FLOOR_LABEL)

    @cached_property
    def paired_floor(self) -> Entry | None:
        """The same; None if it only repeats FedAvg, as where every client is one batch: that is no chance."""
        again = self.other_batches
        if again is None:
            return None
        of_baseline = self.baseline.runs
        if all(are_equal([of_baseline[seed], run]) for seed, run in again.runs.items()):
            return None
        return again

    @cached_property
    def floor_of_seeds(self) -> Entry | None:
        """FedAvg with other seeds; None if these only repeat FedAvg, as where no seed changes anything."""
        again = self.floor
        if again is None or are_equal([*self.baseline.histories, *again.histories]):
            return None
        return again

    @property
    def observations(self) -> int:
        """The number of seeds; one if each entry's seeds gave the same run."""
        if all(entry.has_equal_seeds for entry in self.entries):
            return 1
        return len(self.seeds)

    @property
    def everyone(self) -> list[Entry]:
        """The entries, then the controls."""
        return [*self.entries, *self.controls]

    @property
    def planned(self) -> list[Entry]:
        """What was asked for: everyone but FedAvg with other batches or seeds."""
        return [entry for entry in self.everyone if entry.label not in FLOOR_NAMES]

    @cached_property
    def by_label(self) -> Mapping[str, Entry]:
        return {entry.label: entry for entry in self.everyone}

    @property
    def configs(self) -> dict[str, Configuration]:
        return {entry.label: entry.config for entry in self.entries}

    def named(self, label: str) -> Entry:
        return self.by_label[label]

    @property
    def seeds(self) -> list[int]:
        return list(self.baseline.runs)

    @property
    def rounds(self) -> int:
        return self.header.rounds

    @property
    def reached(self) -> int:
        """The rounds that runs have come to: fewer than planned in runs that are not finished, or that ended early."""
        if self.origin is not None:
            return self.rounds
        reached = 0
        for entry in self.everyone:
            for run in entry.histories:
                rounds = len(run.records)
                reached = max(reached, rounds)
        return reached

    @property
    def is_so_far(self) -> bool:
        """Whether the runs were not finished when they were read."""
        return self.reached < self.rounds and not self.stopped

    @property
    def last_rounds(self) -> int:
        """The number of last rounds that late figures are averaged over."""
        return min(self.baseline.histories[0].last_rounds, self.reached)

    @property
    def is_of_one_round(self) -> bool:
        """Whether audited figures are of one round: there are no averages over the last ones."""
        return self.origin is not None and self.last_rounds == 1

    @property
    def metric(self) -> Metric:
        return self.baseline.metric

    @property
    def judge(self) -> str:
        """What figures are measured on: "test" or "validation"."""
        return self.header.judge

    @property
    def judged_sizes(self) -> list[int]:
        """The number of examples each client is judged on, without clients that are left out."""
        return [size for size in self.header.judged_sizes if size >= self.min_test]

    @property
    def broken(self) -> list[str]:
        """A sentence for every run that broke down."""
        sentences = []
        for entry in self.everyone:
            sentences += entry.broken
        return sentences

    @property
    def stopped(self) -> list[str]:
        """A sentence for every run that a callback ended early."""
        sentences = []
        for entry in self.everyone:
            sentences += entry.stopped
        return sentences

    @property
    def advice(self) -> list[str]:
        """What to try, one sentence for every entry that broke down or oscillates."""
        sentences = []
        for entry in (*self.planned, *self.lost):
            if entry.label in FLOOR_NAMES:
                continue
            sentence = entry.advice
            if sentence is not None:
                sentences.append(sentence)
        return sentences

    @cached_property
    def rows(self) -> dict[str, EntryFigures]:
        """The figures of every entry and control, by label."""
        rows = {}
        for entry in self.everyone:
            baseline = self.beside(entry)
            rows[entry.label] = row(entry.label, entry.histories, baseline)
        return rows

    def beside(self, entry: Entry) -> list[History]:
        """For each run of the entry, the run of FedAvg it is compared with."""
        if entry.label == FLOOR_LABEL:
            return self.baseline.histories[: len(entry.runs)]
        return [self.baseline.runs[seed] for seed in entry.runs]

    def describe(self) -> dict[str, Any]:
        floor = None
        repetition = self.paired_floor or self.floor_of_seeds
        if repetition is not None:
            row = self.rows[repetition.label]
            floor = replace(row, label=FLOOR_NAMES[repetition.label]).describe()
        return {
            "rows": [self.rows[entry.label].describe() for entry in self.planned],
            "noise_floor": floor,
            "last_rounds": self.last_rounds,
            "seeds": len(self.seeds),
            "broke_down": [entry.label for entry in self.lost],
            "stopped": self.stopped,
            "advice": self.advice,
        }

    @property
    def unpadded(self) -> "Findings | None":
        """The same with accuracy counted without padding positions; None if the data have none."""
        evaluated = self.baseline.histories[0].evaluated
        if self.metric.is_loss or not evaluated:
            return None
        if evaluated[-1].unpadded is None:
            return None
        return self._with(lambda entry: entry.unpadded)

    @property
    def expected(self) -> "Findings | None":
        """The same with expected accuracies, for decisions: only the entries where they fit. None: not FedAvg's."""

        def fitting(entries: Iterable[Entry]) -> tuple[Entry, ...]:
            expected = [entry.expected for entry in entries]
            return tuple(entry for entry in expected if entry is not None)

        if self.baseline.expected is None:
            return None
        return replace(
            self,
            entries=fitting(self.entries),
            controls=fitting(self.controls),
            repeated=tuple(map(fitting, self.repeated)),
        )

    @property
    def current(self) -> "Findings":
        """The same with every entry judged by the models that clients train on, whatever it deploys."""
        return self._with(lambda entry: entry.current or entry)

    def with_min_test(self, examples: int) -> "Findings":
        """The same without clients that are judged on fewer examples."""
        sizes = np.array(self.header.judged_sizes)
        judged = sizes > 0
        few = judged & (sizes < examples)
        if not few.any():
            return self
        if few.sum() == judged.sum():
            raise InputError(
                f"{self.folder}: no client has {examples} examples or more, the most are {sizes.max()}; ask for fewer"
            )
        left_out = few.sum()
        note = f"{left_out} of {judged.sum()} clients left out: judged on fewer than {examples} examples"
        blanked = self._with(lambda entry: entry.blanked(few))
        return replace(blanked, left_out=(*self.left_out, note), min_test=examples)

    def with_last_rounds(self, rounds: int | None) -> "Findings":
        """The same with late figures averaged over this many rounds; None: as many as the runs say."""
        if rounds is None:
            return self
        check_whole("last_rounds", rounds, 1)
        return self._with(lambda entry: entry.with_last_rounds(rounds))

    def only(self, labels: Collection[str]) -> "Findings":
        """The same with fewer entries."""

        def chosen(entries: Iterable[Entry]) -> tuple[Entry, ...]:
            return tuple(entry for entry in entries if entry.label in labels)

        return replace(self, entries=chosen(self.entries), controls=chosen(self.controls))

    def _with(self, change: Callable[[Entry], Entry]) -> "Findings":

        def changed(entries: Iterable[Entry]) -> tuple[Entry, ...]:
            return tuple(map(change, entries))

        return replace(
            self,
            entries=changed(self.entries),
            controls=changed(self.controls),
            repeated=tuple(map(changed, self.repeated)),
        )


def seeds_named(seeds: Collection[int]) -> str:
    """Seeds in words.

    >>> seeds_named([2]), seeds_named([0, 1])
    ('seed 2', 'seeds 0, 1')
    """
    word = "seed" if len(seeds) == 1 else "seeds"
    return f"{word} {', '.join(map(str, seeds))}"
