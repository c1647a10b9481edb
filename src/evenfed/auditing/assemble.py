"""Findings from checked figures: the same that runs of evenfed give, so that reports and pages serve both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..comparison.analysis.findings import BASELINE, Entry, Findings, Origin
from ..comparison.analysis.history import History
from ..comparison.runs import FLOOR_LABEL, FLOOR_NAMES
from ..comparison.storage.header import Header
from ..core.errors import InputError, unknown
from ..core.server import Record
from ..core.words import counted
from ..fairness import Vector
from ..metrics import Metric
from .column_roles import normal
from .gather import Codes, Figures

MOST_ROUNDS = 10_000  # kept by their number; more are kept by their order
MOST_CELLS = 50_000_000  # rounds x clients of one run in memory
_Entries = Mapping[str, Entry]  # by label
_Mask = NDArray[np.bool_]  # of clients
_Seeds = Mapping[tuple[int, int], int]  # algorithm and seed, by their codes -> the seed's number


class FindingsBuilder:
    """Turns the figures of one metric into findings, and collects a sentence for each thing worth knowing."""

    def __init__(
        self,
        figures: Figures,
        values: Vector,
        metric: Metric,
        last_rounds: int,
        drops_missing: bool,
    ) -> None:
        self.figures = figures
        self.values = values
        self.metric = metric
        self.last_rounds = last_rounds
        self.drops_missing = drops_missing
        self.notes: list[str] = []
        clients = len(figures.clients)
        sizes = [figures.sizes.get(client, 0.0) for client in range(clients)]
        total = sum(sizes)
        self.sizes = list(map(int, sizes))
        self.shares = np.full(clients, 1 / clients)
        if total > 0:
            self.shares = np.array(sizes) / total
        self._unknown = np.full(clients, np.nan)
        self._nothing = np.zeros(clients)
        self._first_round = min(1, int(figures.round.min()))

    def findings(self, path: Path, origin: Origin, baseline: str | None) -> Findings:
        """Of all algorithms; the first one is what the others are compared with."""
        entries = {}
        seeds = _seeds(self.figures)
        for code, label in enumerate(self.figures.algorithms):
            entries[label] = self._entry(code, label, seeds)
        chosen = self._baseline(baseline)
        rounds = self._rounds(entries)
        if self.figures.sizes_differ:
            self._say("Sizes of clients differ between rows; the first of each client is shown.")
        first = entries.pop(chosen)
        others, controls = self._arranged(first, entries)
        shared_clients = self._shared_clients([first, *others, *controls])
        first = _only(first, shared_clients)
        others = [_only(entry, shared_clients) for entry in others]
        controls = [_only(entry, shared_clients) for entry in controls]
        repeated = [first]
        for entry in controls:
            if entry.label == FLOOR_LABEL:
                repeated.append(entry)
        groups = {}
        for client, group in self.figures.groups.items():
            name = self.figures.clients[client]
            groups[name] = group
        has_sizes = bool(self.figures.sizes)
        return Findings(
            folder=path,
            entries=(first, *others),
            controls=tuple(controls),
            repeated=(tuple(repeated),),
            header=self._header(path.name, rounds),
            left_out=tuple(self.notes),
            origin=replace(origin, groups=groups, has_sizes=has_sizes),
        )

    def _header(self, name: str, rounds: int) -> Header:
        train = {"rounds": rounds, "last_rounds": self.last_rounds}
        clients = {"names": list(self.figures.clients), "train": self.sizes, "test": self.sizes}
        return Header(config={"data": {"name": name}, "train": train}, clients=clients)

    def _baseline(self, asked: str | None) -> str:
        """What was asked for, FedAvg, or the first."""
        labels = self.figures.algorithms
        if asked is not None:
            if asked not in labels:
                raise unknown("baseline", asked, labels)
            return asked
        if len(labels) == 1:
            return labels[0]
        for label in labels:
            if normal(label).replace("_", "") == BASELINE:
                self._say(f"Compared with {label}; --baseline NAME chooses another.")
                return label
        self._say(f"Compared with {labels[0]}, the first in the table; --baseline NAME chooses another.")
        return labels[0]

    def _entry(self, code: int, label: str, seeds: _Seeds) -> Entry:
        is_own = self.figures.algorithm == code
        runs = {}
        every_seed = self.figures.seed
        for seed in np.unique(every_seed[is_own]).tolist():
            is_of_run = is_own & (every_seed == seed)
            rows = np.flatnonzero(is_of_run)
            number = seeds[code, seed]
            runs[number] = self._history(label, rows)
        in_order = {number: runs[number] for number in sorted(runs)}
        config = {"algorithm": label, "train": {"precision": ""}}
        return Entry(label, config, in_order)

    def _history(self, label: str, rows: Codes) -> History:
        """A record per round; figures where there are any."""
        by_round = self._by_round(label, rows)
        last = max(by_round)
        if last > MOST_ROUNDS:
            self._say(f"Rounds are counted in their order, since their numbers go up to {last}.")
            in_order = enumerate(by_round.values(), start=self._first_round)
            by_round = dict(in_order)
            last = max(by_round)
        records = []
        for index, number in enumerate(range(self._first_round, last + 1)):
            figures = by_round.get(number)
            records.append(self._record(index, figures))
        return History(records, self.shares, self.last_rounds, judged_by=self.metric)

    def _by_round(self, label: str, rows: Codes) -> dict[int, Vector]:
        """[n] figures of each round of one run that was evaluated; a client without one keeps its latest.

        `rows`: of the run, in any order. As many rounds as fit into memory, and the last ones in any case.
        """
        values = self.values[rows]
        rounds = self.figures.round[rows]
        clients = self.figures.client[rows]
        is_known = ~np.isnan(values)
        evaluated = np.unique(rounds[is_known])
        if len(evaluated) == 0:
            raise InputError(f"{self.figures.sheet}: {label} has no figures; remove its rows")
        is_missing = ~is_known & np.isin(rounds, evaluated)
        self._check_missing(label, rows[is_missing])
        first_kept = self._first_kept(len(evaluated))
        order = np.argsort(rounds, kind="stable")
        in_order = rounds[order]
        starts = np.searchsorted(in_order, evaluated)
        ends = np.searchsorted(in_order, evaluated, side="right")
        count = len(self.figures.clients)
        latest = np.full(count, np.nan)
        by_round: dict[int, Vector] = {}
        incomplete = 0
        for k, round_number in enumerate(evaluated):
            at = order[starts[k] : ends[k]]
            present = clients[at]
            figures = np.full(count, np.nan)
            figures[present] = values[at]
            is_carried = np.isnan(figures) & ~np.isnan(latest)
            if is_carried.any():
                incomplete += 1
            latest = np.where(is_carried, latest, figures)
            if k >= first_kept:
                by_round[int(round_number)] = latest
        if incomplete:
            self._say(
                f"{label}: in {incomplete} of {len(evaluated)} rounds some clients were not evaluated; they "
                "keep their latest figure."
            )
        return by_round

    def _first_kept(self, rounds: int) -> int:
        clients = len(self.figures.clients)
        most = max(self.last_rounds, MOST_CELLS // clients)
        if rounds <= most:
            return 0
        self._say(f"Only the last {most} rounds are kept: there are {clients:,} clients.")
        return rounds - most

    def _check_missing(self, label: str, missing: Codes) -> None:
        """Refuse rows without a number in rounds that were evaluated, unless they are to be left out."""
        count = len(missing)
        if count == 0:
            return
        first = self.figures.describe(int(missing[0]))
        if not self.drops_missing:
            raise InputError(
                f"{self.figures.sheet}: {first} has no figure (NaN or empty; {counted(count, 'such cell')} in this "
                "run). Fill in the figures, or leave these clients out with --missing drop"
            )
        rows = counted(count, "row")
        self._say(f"{label}: left out {rows} without a figure, such as that of {first}.")

    def _record(self, index: int, figures: Vector | None) -> Record:
        is_loss = self.metric.is_loss
        return Record(
            index=index,
            losses=self._unknown,
            weights=self._nothing,
            objective=float("nan"),
            negative_weights=0,
            accuracy=None if is_loss else figures,
            test_losses=figures if is_loss else None,
        )

    def _arranged(self, first: Entry, others: _Entries) -> tuple[list[Entry], list[Entry]]:
        """Entries that share seeds with the first, and repetitions of it, which evenfed's own tables have."""
        entries = []
        controls = []
        shared_clients = _known_clients(first)
        for label, entry in others.items():
            left = shared_clients & _known_clients(entry)
            if not left.any():
                self._say(f"{label}: left out, no client in common with {first.label} and the others.")
                continue
            shared_clients = left
            if first.label == BASELINE and label in FLOOR_NAMES:
                controls.append(Entry(label, entry.config, entry.runs, repeats=BASELINE))
                continue
            shared = entry.with_seeds_of(first)
            count = len(shared.runs)
            own_count = len(entry.runs)
            if count == 0:
                self._say(f"{label}: left out, no seed in common with {first.label}.")
                continue
            if count < own_count:
                self._say(f"{label}: {count} of {own_count} seeds, those in common with {first.label}.")
            entries.append(shared)
        return entries, controls

    def _rounds(self, entries: _Entries) -> int:
        """The most that any run has; differences are said."""
        lengths = set()
        for entry in entries.values():
            for run in entry.histories:
                lengths.add(len(run.records))
        most = max(lengths)
        if len(lengths) > 1:
            self._say(f"Runs end in different rounds, from {min(lengths)} to {most}: each is judged at its end.")
        return most

    def _shared_clients(self, entries: Sequence[Entry]) -> _Mask:
        """[n] the clients that every run has a figure of.

        A client that only some runs have is refused, or left out of all: without its worst client, an algorithm would
        look better than it is.
        """
        known = {entry.label: _known_clients(entry) for entry in entries}
        shared: _Mask = np.all(list(known.values()), axis=0)
        names = np.array(self.figures.clients)
        known_somewhere = [_known_clients(entry, np.any) for entry in entries]
        judged: _Mask = np.any(known_somewhere, axis=0)
        for label, own in known.items():
            absent = names[judged & ~own]
            if len(absent) == 0:
                continue
            clients = counted(int(judged.sum()), "client")
            number = f"{len(absent)} of {clients}, such as {absent[0]}"
            if not self.drops_missing:
                raise InputError(
                    f"{self.figures.sheet}: {label} has no figure for {number}. Add the rows, or compare only the "
                    "clients that all runs have: --missing drop"
                )
            self._say(f"{label} has no figure for {number}: left out of all algorithms.")
        return shared

    def _say(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _known_clients(entry: Entry, combine: Callable[..., _Mask] = np.all) -> _Mask:
    """[n] whether all its runs have a figure of the client; `np.any`: whether one has."""
    known = []
    for run in entry.histories:
        assert run.last_figures is not None
        known.append(~np.isnan(run.last_figures))
    return combine(known, axis=0)


def _only(entry: Entry, clients: _Mask) -> Entry:
    """The same with figures of these clients alone."""
    if np.array_equal(_known_clients(entry, np.any), clients):
        return entry
    return entry.blanked(~clients)


def _seeds(figures: Figures) -> _Seeds:
    """Numbers of seeds: their own, if they are numbers; else names get numbers.

    Runs that are named one by one, as trackers do, are numbered within each algorithm, so that they can be paired.
    """
    algorithms = figures.algorithm.tolist()
    seeds = figures.seed.tolist()
    pairs = sorted(set(zip(algorithms, seeds, strict=True)))
    are_numbers = all(map(_is_short_number, figures.seeds))
    are_shared = len(pairs) > len(figures.seeds)
    numbers: dict[tuple[int, int], int] = {}
    counts: dict[int, int] = {}
    for algorithm, seed in pairs:
        count = counts.get(algorithm, 0)
        counts[algorithm] = count + 1
        number = count
        if are_numbers:
            number = int(figures.seeds[seed])
        elif are_shared:
            number = seed
        numbers[algorithm, seed] = number
    return numbers


def _is_short_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 18
