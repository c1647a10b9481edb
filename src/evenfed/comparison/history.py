"""What the rounds of a run add up to, and what runs of several algorithms and seeds say beside each other."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.server import Record
from ..fairness import OSCILLATES_BELOW, Fairness, Suppression, moved, oscillation

METRICS = tuple(f.name for f in dataclasses.fields(Fairness))
_WITHOUT_BOUND = 1000.0  # times the first round's mean loss, or 1
FLOOR_ROW = "fedavg, other seeds"
LASTING = "lasting10"  # the worst 10 % of the clients' averages over the last rounds, not of each round's accuracies


@dataclass(frozen=True)
class History:
    """The records of one run, with what can be read off them."""

    records: Sequence[Record]
    shares: NDArray[np.float64]  # [n]
    last_rounds: int

    @property
    def evaluated(self) -> list[Record]:
        return [r for r in self.records if r.accuracy is not None]

    @property
    def late(self) -> list[Record]:
        """Evaluations in the last rounds: the typical state of a run that still moves."""
        first = len(self.records) - self.last_rounds
        return [r for r in self.evaluated if r.index >= first]

    @property
    def accuracy(self) -> NDArray[np.float64] | None:
        """[n] at the last evaluation."""
        return self.evaluated[-1].accuracy if self.evaluated else None

    @property
    def late_accuracy(self) -> NDArray[np.float64] | None:
        """[n] each client's mean over the last rounds."""
        found = [r.accuracy for r in self.late if r.accuracy is not None]
        return np.mean(found, axis=0) if found else None

    @property
    def fairness(self) -> Fairness | None:
        return None if self.accuracy is None else Fairness.of(self.accuracy)

    @property
    def late_fairness(self) -> Fairness | None:
        """Each metric's mean over the last rounds."""
        if not self.late:
            return None
        return Fairness.average([Fairness.of(r.accuracy) for r in self.late if r.accuracy is not None])

    @property
    def lasting(self) -> float | None:
        """The worst 10 % of `late_accuracy`: above `late_fairness.worst10` as far as clients take turns being last."""
        return None if self.late_accuracy is None else Fairness.of(self.late_accuracy).worst10

    @property
    def oscillation(self) -> float:
        return oscillation(np.array([r.losses for r in self.records]), self.shares)

    @property
    def moved(self) -> float:
        weights, losses = (np.array([getattr(r, k) for r in self.records]) for k in ("weights", "losses"))
        return moved(weights, losses, self.shares)

    @property
    def negative_rounds(self) -> int:
        return sum(r.negative_weights > 0 for r in self.records)

    @property
    def skipped_rounds(self) -> int:
        return sum(r.skipped for r in self.records)

    @property
    def breakdown(self) -> str | None:
        """In words, where nothing usable came back from some round to the end, or losses grew without bound."""
        idle = list(itertools.takewhile(lambda r: r.skipped, reversed(self.records)))
        if idle:
            return f"no finite loss and update from round {len(self.records) - len(idle) + 1} on"
        measured = [r.losses[~np.isnan(r.losses)] for r in self.records]
        means = [float(losses.mean()) for losses in measured if len(losses)]
        if means and means[-1] > _WITHOUT_BOUND * max(means[0], 1.0):
            return f"the mean loss grew from {means[0]:.3g} to {means[-1]:.3g}"
        return None

    def advice(self, algorithm: str) -> str | None:
        """What to try where the run broke down, or its weights chase last round's losses."""
        tries = "smooth=0.25, a smaller fairness strength, server_lr below 1, or a smaller lr"
        if self.breakdown is not None:
            return f"{algorithm} broke down: {self.breakdown}. Try {tries}"
        found = self.oscillation
        if not found < OSCILLATES_BELOW:
            return None
        return (
            f"{algorithm} oscillates: the lag-1 correlation of the clients' losses is {found:.2f} (below "
            f"{OSCILLATES_BELOW}), so the clients worst served in one round are over-served in the next. Try "
            f"{tries}"
        )


@dataclass(frozen=True)
class Row:
    """One entry of a comparison: every figure at the last round and averaged over the last rounds."""

    label: str
    seeds: int
    last: Mapping[str, tuple[float, float]]  # figure -> (mean over seeds, spread over seeds)
    late: Mapping[str, tuple[float, float]]
    negative_rounds: float
    oscillation: float
    moved: float  # share of the weight that stands elsewhere than with FedAvg
    skipped_rounds: float
    seconds: float

    def describe(self) -> dict[str, Any]:
        def plain(figures: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
            return {k: {"mean": _json(m), "spread": _json(s)} for k, (m, s) in figures.items()}

        names = ("negative_rounds", "oscillation", "moved", "skipped_rounds", "seconds")
        rest = {k: _json(getattr(self, k)) for k in names}
        return {"label": self.label, "seeds": self.seeds, "last": plain(self.last), "late": plain(self.late), **rest}


def row(label: str, runs: Sequence[History], baseline: Sequence[History] | None) -> Row:
    """The runs of one entry over seeds; `baseline` are FedAvg's runs with the same seeds."""

    def figures(late: bool) -> dict[str, tuple[float, float]]:
        found: dict[str, list[float]] = {}
        for k, run in enumerate(runs):
            fair = run.late_fairness if late else run.fairness
            if fair is None:
                continue
            for name, value in dataclasses.asdict(fair).items():
                found.setdefault(name, []).append(value)
            if late and run.lasting is not None:
                found.setdefault(LASTING, []).append(run.lasting)
            if baseline:
                ours, base = (h.late_accuracy if late else h.accuracy for h in (run, baseline[k]))
                if ours is not None and base is not None:
                    for name, value in dataclasses.asdict(Suppression.of(ours, base)).items():
                        found.setdefault(name, []).append(value)
        return {name: _over_seeds(values) for name, values in found.items()}

    return Row(
        label,
        len(runs),
        figures(late=False),
        figures(late=True),
        negative_rounds=float(np.mean([r.negative_rounds for r in runs])),
        oscillation=_over_seeds([r.oscillation for r in runs])[0],
        moved=_over_seeds([r.moved for r in runs])[0],
        skipped_rounds=float(np.mean([r.skipped_rounds for r in runs])),
        seconds=float(np.sum([record.seconds for r in runs for record in r.records])),
    )


def _over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (seeds in the denominator, as the paper's tables) of the known values."""
    known = [v for v in values if v is not None and not np.isnan(v)]
    return (float(np.mean(known)), float(np.std(known))) if known else (float("nan"), float("nan"))


def _json(value: float) -> float | None:
    return None if np.isnan(value) else value
