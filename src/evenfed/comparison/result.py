"""What `train` and `compare` give back: a finished run, and the runs of a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.algorithm import Algorithm
from ..core.server import Record, Server
from ..fairness import Fairness, Suppression
from ..settings import Settings
from ..simulate.problem import loaded
from .header import Header
from .history import FLOOR_ROW, History, Row, row


@dataclass(frozen=True)
class Result:
    """A finished run."""

    label: str
    algorithm: Algorithm
    settings: Settings
    model: nn.Module  # the trained global model
    records: list[Record]  # one per round
    client_names: list[str]
    shares: NDArray[np.float64]  # [n] each client's share of all training examples
    engine: str  # how clients were visited, and why
    server: Server
    personal: Tensor | None  # [n, D] clients' own models (Ditto); the global one for those never drawn
    stopped: str | None = None  # why a callback ended the run early
    model_round: int | None = None  # the round that `model` is from, if a callback put back an earlier one
    header: Header | None = None  # what was run on what, as a run's folder holds it
    folder: Path | None = None  # of this run on disk, if it is kept there

    @property
    def history(self) -> History:
        """What the records add up to."""
        return History(self.records, self.shares, self.settings.last_rounds, self.model_round)

    @property
    def accuracy(self) -> NDArray[np.float64] | None:
        """[n] test accuracy at the end, NaN for a client without test data; None if no client has any."""
        return self.history.accuracy

    @property
    def fairness(self) -> Fairness | None:
        """mean, std, worst, worst10, worst20, best10 of `accuracy`."""
        return self.history.fairness

    @property
    def late_fairness(self) -> Fairness | None:
        """The same metrics, averaged over the last rounds (`last_rounds`)."""
        return self.history.late_fairness

    @property
    def oscillation(self) -> float:
        """Lag-1 correlation over rounds of the clients' losses about their mean; below -0.85 it over-corrects."""
        return self.history.oscillation

    @property
    def moved(self) -> float:
        """Share of the weight placed differently from FedAvg, from 0 to 1, averaged over rounds."""
        return self.history.moved

    def client_model(self, client: int) -> nn.Module:
        """The model that serves this client: its own if the algorithm trains one."""
        if self.personal is None:
            return self.model
        return loaded(self.model, self.server, self.personal[client])


@dataclass(frozen=True)
class Comparison:
    """Several algorithms and seeds, trained on the same clients from the same initial models."""

    results: dict[str, list[Result]]  # label -> one result per seed
    floor: list[Result]  # FedAvg again with other seeds: what chance alone does
    folder: Path | None = None  # of all runs on disk, if they are kept there

    @property
    def rows(self) -> list[Row]:
        """One row per entry: its metrics, and what it does to the clients that FedAvg serves worst and best."""
        baseline = None
        if "fedavg" in self.results:
            baseline = _histories(self.results["fedavg"])
        rows = []
        for label, results in self.results.items():
            rows.append(row(label, _histories(results), baseline))
        return rows

    @property
    def noise_floor(self) -> Row | None:
        """The row of FedAvg with other seeds, compared with FedAvg."""
        if not self.floor:
            return None
        baseline = _histories(self.results["fedavg"])
        return row(FLOOR_ROW, _histories(self.floor), baseline)

    def suppression(self, label: str) -> list[Suppression]:
        """The paper's Table 2 for one entry at the last round, one per seed."""
        per_seed = []
        fedavgs = self.results["fedavg"]
        for result, fedavg in zip(self.results[label], fedavgs, strict=True):
            if result.accuracy is not None and fedavg.accuracy is not None:
                per_seed.append(Suppression.of(result.accuracy, fedavg.accuracy))
        return per_seed


def _histories(results: Sequence[Result]) -> list[History]:
    return [result.history for result in results]
