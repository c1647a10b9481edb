"""A comparison's folder as a report sees it: finished runs by entry and seed, and what had to be left out."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.server import Record
from .folder import RunFolder, repetitions, unpacked, without
from .history import History, Row, row
from .plan import FLOOR_LABEL

BASELINE = "fedavg"
PAPER_ORDER = ("fedavg", "qffl", "afl", "gifair", "term", "propfair", "delta_fl", "vred", "semi_vred")
_SHOW = "give a folder that `evenfed compare` or `evenfed pack` has written, such as runs/demo"


@dataclass(frozen=True)
class Entry:
    """The finished runs of one row of the comparison."""

    label: str
    config: Mapping[str, Any]  # of its first seed; the others differ in the seed alone
    runs: Mapping[int, History]  # by seed
    repeats: str | None = None  # the entry this one is but for the seeds or the precision: a control, no competitor

    @property
    def method(self) -> str:
        return str(self.config["algorithm"])

    @property
    def precision(self) -> str:
        """Of the arithmetic."""
        return str(self.config["train"]["precision"])

    def accuracy(self, seed: int, late: bool) -> NDArray[np.float64]:
        """[evaluations, clients] of one run: all those of the last rounds, or the last one alone."""
        run = self.runs[seed]
        chosen = run.late if late else run.evaluated[-1:]
        return np.array([r.accuracy for r in chosen])

    @property
    def broken(self) -> list[str]:
        """A sentence on every run that broke down: its figures are those of the model it was left with."""
        return [
            f"{self.label}, seed {seed}: broke down, {run.breakdown}"
            for seed, run in self.runs.items()
            if run.breakdown is not None
        ]

    def blanked(self, clients: NDArray[np.bool_]) -> "Entry":
        """The same with the accuracy of these clients unknown."""

        def blank(accuracy: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
            return None if accuracy is None else np.where(clients, np.nan, accuracy)

        return self._with(lambda r: replace(r, accuracy=blank(r.accuracy), unpadded=blank(r.unpadded)))

    @property
    def unpadded(self) -> "Entry":
        """The same with accuracy counted without padding positions."""
        return self._with(lambda r: replace(r, accuracy=r.unpadded))

    def _with(self, change: Callable[[Record], Record]) -> "Entry":
        """The same with every round's record changed."""
        runs = {seed: replace(run, records=[change(r) for r in run.records]) for seed, run in self.runs.items()}
        return replace(self, runs=runs)


@dataclass(frozen=True, order=True)
class Made:
    """When and from which source a run was made."""

    started: str
    version: str
    commit: str | None

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> list["Made"]:
        """One for each time that it was begun or resumed, of those whose rounds are kept."""
        times = (*header.get("earlier", ()), header)
        return [cls(each["started"], each["versions"]["evenfed"], each["commit"]) for each in times]


@dataclass(frozen=True)
class Findings:
    """What a folder holds: FedAvg, the entries with seeds in common with it, and the noise floor.

    The floor are repetitions: FedAvg with other seeds, and entries that differ from another in precision alone.
    """

    folder: Path
    entries: tuple[Entry, ...]  # FedAvg first, then as in the paper's tables, then by name
    controls: tuple[Entry, ...]  # FedAvg with other seeds first: its k-th is compared with FedAvg's k-th
    repeated: tuple[tuple[Entry, ...], ...]  # FedAvg's entries in groups whose runs differ in the seed alone
    header: Mapping[str, Any]  # of FedAvg's first run
    made: tuple[Made, ...]  # all the runs' in the order of time
    left_out: tuple[str, ...]
    min_test: int = 0  # clients judged on fewer examples are left out

    @property
    def test_sizes(self) -> list[int]:
        """How many examples each client is judged on, of those that are not left out."""
        return [int(size) for size in self.header["clients"]["test"] if size >= self.min_test]

    @property
    def baseline(self) -> Entry:
        return self.entries[0]

    @property
    def floor(self) -> Entry | None:
        """FedAvg with other seeds."""
        return next((e for e in self.controls if e.label == FLOOR_LABEL), None)

    @property
    def seeds(self) -> list[int]:
        return list(self.baseline.runs)

    @property
    def judge(self) -> str:
        """What the accuracies are measured on: "test" or "validation"."""
        return str(self.header["config"]["data"].get("judge", "test"))

    @property
    def broken(self) -> list[str]:
        """A sentence on every run that broke down."""
        return [told for entry in self.everyone for told in entry.broken]

    @property
    def rounds(self) -> int:
        return int(self.header["config"]["train"]["rounds"])

    @property
    def last_rounds(self) -> int:
        return min(int(self.header["config"]["train"]["last_rounds"]), self.rounds)

    @property
    def everyone(self) -> list[Entry]:
        return [*self.entries, *self.controls]

    def named(self, label: str) -> Entry:
        return next(e for e in self.everyone if e.label == label)

    @cached_property
    def rows(self) -> dict[str, Row]:
        """The figures of every entry, the noise floor's among them, by label."""
        return {e.label: row(e.label, list(e.runs.values()), self.beside(e)) for e in self.everyone}

    @property
    def unpadded(self) -> "Findings | None":
        """The same with accuracy counted without padding positions; None where the data has none."""
        if self.baseline.runs[self.seeds[0]].evaluated[-1].unpadded is None:
            return None
        return self._with(lambda entry: entry.unpadded)

    def with_min_test(self, examples: int) -> "Findings":
        """The same without clients that are judged on fewer examples."""
        sizes = np.array(self.header["clients"]["test"])
        few = (sizes > 0) & (sizes < examples)
        if not few.any():
            return self
        if few.sum() == (sizes > 0).sum():
            raise InputError(
                f"{self.folder}: no client is judged on {examples} examples or more, the most are {sizes.max()}; ask "
                "for fewer"
            )
        told = f"{few.sum()} of {(sizes > 0).sum()} clients left out: judged on fewer than {examples} examples"
        kept = self._with(lambda entry: entry.blanked(few))
        return replace(kept, left_out=(*self.left_out, told), min_test=examples)

    def _with(self, change: Callable[[Entry], Entry]) -> "Findings":
        """The same with every entry changed, wherever it stands."""
        entries, controls = (tuple(map(change, part)) for part in (self.entries, self.controls))
        return replace(
            self, entries=entries, controls=controls, repeated=tuple(tuple(map(change, g)) for g in self.repeated)
        )

    def only(self, labels: Collection[str]) -> "Findings":
        """The same with fewer entries."""
        entries, controls = (tuple(e for e in part if e.label in labels) for part in (self.entries, self.controls))
        return replace(self, entries=entries, controls=controls)

    def beside(self, entry: Entry) -> list[History]:
        """FedAvg's runs that belong to the entry's, one for each."""
        if entry.label == FLOOR_LABEL:
            return list(self.baseline.runs.values())[: len(entry.runs)]
        return [self.baseline.runs[seed] for seed in entry.runs]


def read(folder: Path) -> Findings:
    """The findings of a comparison, from its folders and headers alone, or from its packed file."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; {_SHOW}")
    with unpacked(folder) as place:
        return _read(folder, place)


def _read(folder: Path, place: Path) -> Findings:
    """What lies in `place`, which is called `folder`."""
    left_out: list[str] = []
    found = {path.name: _runs(path, left_out) for path in sorted(place.iterdir()) if path.is_dir()}
    found = {label: runs for label, runs in found.items() if runs}
    if BASELINE not in found:
        held = f"finished runs of {', '.join(found)} but none of fedavg" if found else "no finished run"
        unfinished = f" ({'; '.join(left_out)})" if left_out else ""
        raise InputError(f"{folder} holds {held}{unfinished}; every figure is set beside FedAvg's, so {_SHOW}")
    header = next(iter(found[BASELINE].values())).header() or {}
    entries = {label: _entry(label, runs, header, left_out) for label, runs in found.items()}
    baseline = entries.pop(BASELINE)
    if baseline is None:
        raise InputError(
            f"fedavg in {folder} has no test accuracy of its clients; compare on clients with test data and without "
            "private=True, then report"
        )
    floor = entries.pop(FLOOR_LABEL, None)
    common = [_in_common(e, baseline, left_out) for e in entries.values() if e is not None]
    kept = sorted((e for e in common if e is not None), key=_place)
    again = repetitions({e.label: e.config for e in (baseline, *kept)}, baseline.precision)
    told = [replace(e, repeats=again.get(e.label)) for e in kept]
    floors = [_cut(floor, baseline, left_out)] if floor else []
    rates = [(e,) for e in told if e.repeats is None and e.method == BASELINE]
    return Findings(
        folder,
        (baseline, *(e for e in told if e.repeats is None)),
        (*floors, *(e for e in told if e.repeats is not None)),
        ((baseline, *floors), *rates),
        header,
        tuple(
            sorted({made for runs in found.values() for run in runs.values() for made in Made.of(run.header() or {})})
        ),
        tuple(left_out),
    )


def _runs(path: Path, left_out: list[str]) -> dict[int, RunFolder]:
    """The finished runs of one label, by seed."""
    seeds = {p.name.removeprefix("seed-"): RunFolder(p) for p in path.glob("seed-*")}
    known = {int(seed): run for seed, run in seeds.items() if seed.isdigit() and run.header() is not None}
    unfinished = [seed for seed in sorted(known) if not known[seed].finished]
    if unfinished:
        left_out.append(f"{path.name}: {seeds_named(unfinished)} left out, not finished")
    return {seed: known[seed] for seed in sorted(known) if seed not in unfinished}


def _entry(label: str, runs: Mapping[int, RunFolder], baseline: Mapping[str, Any], left_out: list[str]) -> Entry | None:
    """The histories of one label; None where they say nothing beside FedAvg's."""
    headers = {seed: run.header() or {} for seed, run in runs.items()}
    config = next(iter(headers.values()))["config"]
    for seed in [
        seed for seed, header in headers.items() if without(header["config"], "seed") != without(config, "seed")
    ]:
        left_out.append(f"{label}: seed {seed} left out, made with another configuration than seed {min(headers)}")
        runs = {other: run for other, run in runs.items() if other != seed}
    for part, ours, theirs in (
        ("other clients", headers[min(headers)]["clients"], baseline["clients"]),
        ("other data", config["data"], baseline["config"]["data"]),
        ("another number of rounds", config["train"]["rounds"], baseline["config"]["train"]["rounds"]),
    ):
        if ours != theirs:
            left_out.append(f"{label}: left out, run on {part} than fedavg")
            return None
    histories = {seed: _history(run) for seed, run in runs.items()}
    if any(h.accuracy is None or not h.late or np.isnan(h.accuracy).all() for h in histories.values()):
        left_out.append(f"{label}: left out, it has no test accuracy")
        return None
    return Entry(label, config, histories)


def _history(run: RunFolder) -> History:
    try:
        return run.history()
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{run.path} says it is finished but cannot be read ({type(error).__name__}: {error}); "
            "remove that folder and run the comparison again"
        ) from None


def _in_common(entry: Entry, baseline: Entry, left_out: list[str]) -> Entry | None:
    """The entry with the seeds FedAvg has too; what that leaves out is told."""
    shared = {seed: run for seed, run in entry.runs.items() if seed in baseline.runs}
    if not shared:
        left_out.append(f"{entry.label}: left out, no seed in common with fedavg")
        return None
    if set(shared) != set(entry.runs) or set(shared) != set(baseline.runs):
        left_out.append(f"{entry.label}: {seeds_named(sorted(shared))} alone, those in common with fedavg")
    return Entry(entry.label, entry.config, shared)


def _cut(floor: Entry, baseline: Entry, left_out: list[str]) -> Entry:
    """FedAvg with other seeds, as many as FedAvg has."""
    if len(floor.runs) != len(baseline.runs):
        left_out.append(f"{FLOOR_LABEL}: {len(floor.runs)} seeds beside fedavg's {len(baseline.runs)}")
    runs = dict(list(floor.runs.items())[: len(baseline.runs)])
    return Entry(floor.label, floor.config, runs, repeats=baseline.label)


def _place(entry: Entry) -> tuple[int, str]:
    at = PAPER_ORDER.index(entry.method) if entry.method in PAPER_ORDER else len(PAPER_ORDER)
    return (at, entry.label)


def seeds_named(seeds: Collection[int]) -> str:
    """As a reader sees them.

    >>> seeds_named([2]), seeds_named([0, 1])
    ('seed 2', 'seeds 0, 1')
    """
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
