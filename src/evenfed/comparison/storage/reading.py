"""Read the findings of a comparison from its folder or packed file."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from ...core.errors import InputError
from ...simulate.state import Run
from ..analysis.configuration import repetitions, unaveraged, without
from ..analysis.entry_order import by_size
from ..analysis.findings import BASELINE, Entry, Findings, seeds_named
from ..analysis.history import History
from ..runs import FLOOR_LABEL, PAIRED_FLOOR_LABEL
from .client_table import are_same_clients
from .folder import RunFolder
from .header import Header, RunProvenance
from .pack import unpacked

PAPER_ORDER = ("fedavg", "qffl", "afl", "gifair", "term", "propfair", "delta_fl", "vred", "semi_vred")
_SEEDS = ("seed", "batch_seed")
_WHICH_FOLDER = (
    "give a folder that `evenfed compare` or `evenfed pack` has written, such as runs/demo, or one run's, such as "
    "runs/demo/fedavg/seed-0"
)


def read(folder: Path) -> Findings:
    """The findings of all finished runs in a comparison's folder or packed file whose clients were judged.

    Of one run's own folder they are of that run, finished or not.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; {_WHICH_FOLDER}")
    run = RunFolder(folder)
    header = run.header()
    if header is not None:
        return _Reader(folder).of_one_run(run, header)
    with unpacked(folder) as place:
        return _Reader(folder).findings(RunFolder.all_in(place))


def read_runs(root: Path, runs: Sequence[Run]) -> Findings:
    """The findings of these runs in `root` alone; runs without test data are kept."""
    folders = [RunFolder.of(root, run) for run in runs]
    return read_folders(root, folders, needs_figures=False)


def read_folders(root: Path, folders: Sequence[RunFolder], needs_figures: bool = True) -> Findings:
    """The findings of the runs in these folders, some of those in `root`."""
    reader = _Reader(root, needs_figures)
    return reader.findings(folders)


class RunRead(Protocol):
    """A run as it was read."""

    @property
    def header(self) -> Header: ...

    @property
    def history(self) -> History: ...


Runs = Mapping[int, RunRead]  # of one label, by seed in ascending order


def findings_of_runs(folder: Path, runs: Mapping[str, Runs], labels: Collection[str]) -> Findings:
    """The findings of runs by label and seed, finished or not; they must have figures of their clients.

    `labels`: of all runs that have begun.
    """
    return _Reader(folder).of_runs(runs, labels)


@dataclass(frozen=True)
class _Run:
    folder: RunFolder
    header: Header

    @cached_property
    def history(self) -> History:
        try:
            return self.folder.history()
        except InputError:
            raise
        except (OSError, KeyError, ValueError) as error:
            kind = type(error).__name__
            raise InputError(
                f"{self.folder.path} says it is finished but cannot be read ({kind}: {error}); "
                "remove that folder and run the comparison again"
            ) from None


@dataclass
class _Reader:
    """Arranges runs as entries, and collects a sentence for each run that has to be left out."""

    folder: Path  # as errors name it
    needs_figures: bool = True
    left_out: list[str] = field(default_factory=list)
    lost: dict[str, Entry] = field(default_factory=dict)  # by label: entries that broke down, without figures

    def findings(self, folders: Sequence[RunFolder]) -> Findings:
        labels = {folder.label for folder in folders}
        finished = self._finished(folders)
        return self.of_runs(finished, labels)

    def of_one_run(self, folder: RunFolder, header: Header) -> Findings:
        """Of a run as far as it is."""
        label = header.label or folder.label
        if not header.finished:
            rounds = len(folder.history().records)
            self._leave_out(label, f"not finished, after {rounds} of {header.rounds} rounds")
        by_seed = {header.seed: _Run(folder, header)}
        return self.of_runs({label: by_seed}, [label])

    def of_runs(self, runs: Mapping[str, Runs], labels: Collection[str]) -> Findings:
        """The findings of these runs; `labels`: of all runs that have begun."""
        baseline = baseline_of(labels)
        if baseline not in runs:
            raise self._no_baseline(list(runs))
        header = next(iter(runs[baseline].values())).header
        entries = {}
        for label, by_seed in runs.items():
            entry = self._entry(label, by_seed, header)
            if entry is not None:
                entries[label] = entry
        if baseline in self.lost:
            raise self._lost_baseline(baseline, is_alone=len(labels) == 1)
        if baseline not in entries:
            raise InputError(
                f"{baseline} in {self.folder} has no figures of its clients; compare on clients with test data "
                "and without private=True, then report"
            )
        first = entries.pop(baseline)
        findings = self._arranged(entries, first, header)
        lost = sorted(self.lost.values(), key=_place)
        return replace(
            findings,
            made=_made(runs),
            left_out=tuple(self.left_out),
            lost=tuple(lost),
        )

    def _finished(self, folders: Sequence[RunFolder]) -> dict[str, Runs]:
        begun: dict[str, dict[int, _Run]] = {}
        for folder in folders:
            header = folder.header()
            if header is not None and folder.seed is not None:
                by_seed = begun.setdefault(folder.label, {})
                by_seed[folder.seed] = _Run(folder, header)
        finished: dict[str, Runs] = {}
        for label, by_seed in begun.items():
            runs = {}
            unfinished = []
            for seed in sorted(by_seed):
                run = by_seed[seed]
                if run.header.finished:
                    runs[seed] = run
                else:
                    unfinished.append(seed)
            if unfinished:
                self._leave_out(label, f"{seeds_named(unfinished)} left out, not finished")
            if runs:
                finished[label] = runs
        return finished

    def _leave_out(self, label: str, reason: str) -> None:
        self.left_out.append(f"{label}: {reason}")

    def _no_baseline(self, labels: Sequence[str]) -> InputError:
        content = "no finished run"
        if labels:
            listed = ", ".join(labels)
            content = f"finished runs of {listed} but none of fedavg"
        remedy = _WHICH_FOLDER
        if self.left_out:
            reasons = "; ".join(self.left_out)
            content += f" ({reasons})"
            quoted = shlex.quote(str(self.folder))
            remedy = f"rerun the command that began them to finish; `evenfed watch {quoted}` shows them until then"
        return InputError(f"{self.folder} holds {content}; every figure is compared with FedAvg's, so {remedy}")

    def _entry(self, label: str, runs: Runs, baseline: Header) -> Entry | None:
        """The histories of one label; None if they cannot be compared with FedAvg's."""
        first_seed = next(iter(runs))
        first = runs[first_seed].header
        mismatch = _mismatch(first, baseline)
        if mismatch is not None:
            self._leave_out(label, f"left out, run on {mismatch} than fedavg")
            return None
        config = without(first.config, *_SEEDS)
        histories: dict[int, History] = {}
        for seed, run in runs.items():
            own_config = without(run.header.config, *_SEEDS)
            if own_config == config:
                histories[seed] = run.history
            else:
                self._leave_out(label, f"seed {seed} left out, made with another configuration than seed {first_seed}")
        entry = Entry(label, first.config, histories)
        if any(history.lost for history in entry.histories):
            self._lose(entry)
            return None
        have_figures = all(map(_has_figures, histories.values()))
        if self.needs_figures and not have_figures:
            self._leave_out(label, "left out, its clients have no figures on test data")
            return None
        return entry

    def _lose(self, entry: Entry) -> None:
        """Leave out an entry that broke down, and say how every seed did: the other seeds alone would flatter it."""
        self.lost[entry.label] = entry
        for seed, run in entry.runs.items():
            reason = run.lost
            if reason is None and run.breakdown is not None:
                reason = f"broke down, {run.breakdown}"
            if reason is not None:
                self._leave_out(entry.label, f"seed {seed} {reason}")

    def _lost_baseline(self, label: str, is_alone: bool) -> InputError:
        reasons = "; ".join(self.left_out)
        consequence = f"every figure is compared with that of {label}"
        if is_alone:
            consequence = "there are no figures"
        return InputError(f"{self.folder}: {reasons}; {consequence}: train it with a smaller lr in another folder")

    def _arranged(self, entries: dict[str, Entry], baseline: Entry, header: Header) -> Findings:
        """Entries and controls, in order, with the seeds they share with FedAvg."""
        other_batches = entries.pop(PAIRED_FLOOR_LABEL, None)
        other_seeds = entries.pop(FLOOR_LABEL, None)
        others = []
        for entry in entries.values():
            shared = self._with_shared_seeds(entry, baseline)
            if shared is not None:
                others.append(shared)
        others.sort(key=_place)
        controls = []
        repeated: list[tuple[Entry, ...]] = [(baseline,)]
        if other_batches is not None:
            shared = self._with_shared_seeds(other_batches, baseline)
            if shared is not None:
                controls.append(replace(shared, repeats=baseline.label))
        if other_seeds is not None:
            repetition = self._with_as_many_seeds(other_seeds, baseline)
            controls.append(repetition)
            repeated = [(baseline, repetition)]
        configs = {entry.label: entry.config for entry in (baseline, *others)}
        twins = repetitions(configs, baseline.precision)
        competing = [baseline]
        averaged = unaveraged(configs)  # other models of the same training: no repetition of their own
        for entry in others:
            if entry.label in twins:
                twin = twins[entry.label]
                controls.append(replace(entry, repeats=twin))
                continue
            competing.append(entry)
            if entry.method == BASELINE and entry.label not in averaged:  # at another learning rate
                repeated.append((entry,))
        return Findings(
            folder=self.folder,
            entries=tuple(competing),
            controls=tuple(controls),
            repeated=tuple(repeated),
            header=header,
        )

    def _with_shared_seeds(self, entry: Entry, baseline: Entry) -> Entry | None:
        """The entry with the seeds that FedAvg has too."""
        if entry.runs.keys() == baseline.runs.keys():
            return entry
        shared = entry.with_seeds_of(baseline)
        if not shared.runs:
            self._leave_out(entry.label, "left out, no seed in common with fedavg")
            return None
        seeds = seeds_named(shared.runs)
        self._leave_out(entry.label, f"{seeds} alone, those in common with fedavg")
        return shared

    def _with_as_many_seeds(self, floor: Entry, baseline: Entry) -> Entry:
        """FedAvg with other seeds, as many as FedAvg has."""
        own = len(floor.runs)
        fedavgs = len(baseline.runs)
        if own != fedavgs:
            self._leave_out(FLOOR_LABEL, f"{own} seeds beside fedavg's {fedavgs}")
        first_runs = list(floor.runs.items())[:fedavgs]
        return replace(
            floor,
            runs=dict(first_runs),
            repeats=baseline.label,
        )


def baseline_of(labels: Collection[str]) -> str:
    """What entries are compared with: FedAvg; what is alone is compared with nothing."""
    if len(labels) == 1:
        return next(iter(labels))
    return BASELINE


def _mismatch(header: Header, baseline: Header) -> str | None:
    if not are_same_clients(header.clients, baseline.clients):
        return "other clients"
    if header.data != baseline.data:
        return "other data"
    if header.rounds != baseline.rounds:
        return "another number of rounds"
    return None


def _has_figures(history: History) -> bool:
    figures = history.last_figures
    if figures is None or not history.late:
        return False
    return not np.isnan(figures).all()


def _made(runs: Mapping[str, Runs]) -> tuple[RunProvenance, ...]:
    """When and from which sources all the runs were made, in order of time."""
    made: set[RunProvenance] = set()
    for by_seed in runs.values():
        for run in by_seed.values():
            made.update(run.header.made)
    return tuple(sorted(made))


def _place(entry: Entry) -> tuple[int, tuple[str | float, ...]]:
    """Methods of the paper first, in its order."""
    label = by_size(entry.label)
    if entry.method in PAPER_ORDER:
        return PAPER_ORDER.index(entry.method), label
    return len(PAPER_ORDER), label
