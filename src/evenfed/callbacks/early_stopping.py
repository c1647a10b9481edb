"""End a run once the clients it should serve no longer gain."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError, check_choice, check_whole
from ..core.scalars import is_number, unwrapped
from ..fairness import FIGURES
from ..simulate.local_norms import LocalNorms
from .progress import Callback, Progress


class EarlyStopping(Callback):
    """Ends a run whose `metric` has not improved for `patience` rounds.

    `metric`: mean, std, worst, worst10, worst20 or best10, of what the clients are judged by after a round.
    `patience`: rounds, not evaluations: with `evaluate_every=5`, patience=20 waits for four evaluations.
    `min_delta`: a smaller gain does not count.
    `restore_best`: the result's model is that of the best round, and `model_round` says which.

    The best model is part of the run's checkpoints, so a run that resumes stops at the same round. A run that has
    stopped stays so if it is given more rounds.
    """

    def __init__(
        self,
        metric: str = "worst10",
        patience: int = 20,
        restore_best: bool = True,
        min_delta: float = 0.0,
    ) -> None:
        check_choice("metric of EarlyStopping", metric, FIGURES)
        patience = check_whole("patience", patience, 1)
        min_delta = unwrapped(min_delta)
        if not isinstance(restore_best, bool):
            raise InputError(f"restore_best={restore_best!r}: give true or false")
        if not is_number(min_delta) or not 0 <= min_delta < math.inf:
            raise InputError(f"min_delta={min_delta!r}: give a finite number of at least 0")
        self.metric = metric
        self.patience = patience
        self.restore_best = restore_best
        self.min_delta = float(min_delta)

    def describe(self) -> dict[str, Any]:
        """Its options: they decide how a run ends, so a run's configuration records them."""
        return dict(vars(self))

    def start(self, runs: Sequence[Progress]) -> None:
        for run in runs:
            problem = run.problem
            if problem.judged is None:
                raise InputError(
                    f"EarlyStopping('{self.metric}') needs clients with test data; give them, or leave it out"
                )
            if run.settings.evaluate_every == 0:
                raise InputError("EarlyStopping needs evaluations; give evaluate_every=1, not 0")

    def round(self, progress: Progress) -> None:
        value = self._value(progress)
        if value is None or _is_extra(progress):
            return
        if self._is_better(progress, value):
            progress.keep(self._notes(progress, value))
            return
        notes = progress.notes
        best = notes.get(self._name("value"))
        if best is None:
            return
        best_round = int(notes[self._name("round")])
        waited = progress.round - best_round
        if waited >= self.patience:
            shown = self._upwards(progress, float(best))
            verb = "rise above"
            if self._upwards(progress, 1.0) < 0:
                verb = "fall below"
            progress.stop(f"{self.metric} did not {verb} {shown:.4f}, of round {best_round}, for {waited} rounds")

    def end(self, progress: Progress) -> None:
        notes = progress.notes
        if not self.restore_best or self._name("round") not in notes:
            return
        best_round = int(notes[self._name("round")])
        value = self._value(progress)
        is_extra_best = value is not None and _is_extra(progress) and self._is_better(progress, value)
        if best_round == progress.round or is_extra_best:
            return
        buffers = {}
        for name in progress.server.buffers:
            buffers[name] = notes[self._name(f"buffers.{name}")]
        tables = {}
        if progress.state.norms is not None:
            for name in progress.state.norms.stored():
                tables[name] = notes[self._name(f"norms.{name}")]
        progress.restore(
            best_round,
            notes[self._name("theta")],
            buffers,
            notes.get(self._name("personal")),
            LocalNorms.restored(tables),
        )

    def _value(self, progress: Progress) -> float | None:
        """The metric after this round, as a number of which more is better; None if it was not evaluated."""
        fairness = progress.fairness
        if fairness is None:
            return None
        return self._upwards(progress, getattr(fairness, self.metric))

    def _is_better(self, progress: Progress, value: float) -> bool:
        """Than the best so far; NaN is not."""
        best = progress.notes.get(self._name("value"))
        if math.isnan(value):
            return False
        return best is None or value > float(best) + self.min_delta

    def _notes(self, progress: Progress, value: float) -> dict[str, Tensor]:
        notes = {
            "value": torch.tensor(value, dtype=torch.float64),
            "round": torch.tensor(progress.round),
        }
        if self.restore_best:
            state = progress.state
            deployed = state.server.deployed
            notes["theta"] = deployed.theta
            for name, buffer in deployed.buffers.items():
                notes[f"buffers.{name}"] = buffer
            if state.personal is not None:
                notes["personal"] = state.serving()
            if state.norms is not None:
                for name, table in state.norms.stored().items():
                    notes[f"norms.{name}"] = table
        return {self._name(name): note for name, note in notes.items()}

    def _name(self, of: str) -> str:
        return f"early_stopping.{self.metric}.{of}"

    def _upwards(self, progress: Progress, value: float) -> float:
        """As a number of which more is better, and back."""
        return progress.problem.metric.direction(self.metric) * value


def _is_extra(progress: Progress) -> bool:
    """Whether a round is evaluated only because it is the last: a longer run must not know of it."""
    return progress.round % progress.settings.evaluate_every > 0
