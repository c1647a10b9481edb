"""What a callback is, and what it sees of a run."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.server import Record, Server
from ..fairness import Fairness
from ..metrics import Metric
from ..settings import Settings
from ..simulate.local_norms import LocalNorms
from ..simulate.problem import loaded
from ..simulate.state import Run, State


class RunInfo(Protocol):
    """What a callback may know of the clients and the model, whoever trains: a simulator's problem, or a server."""

    @property
    def client_names(self) -> Sequence[str]: ...

    @property
    def metric(self) -> Metric: ...  # what clients are judged by

    @property
    def model(self) -> nn.Module: ...  # of the model's kind

    @property
    def judged(self) -> object | None: ...  # None: no client has test data


class Progress:
    """A run as a callback sees it: before the first round, after a round, or at the end."""

    def __init__(
        self,
        run: Run,
        problem: RunInfo,
        state: State,
        record: Record | None = None,
        folder: Path | None = None,
    ) -> None:
        self.run = run
        self.problem = problem
        self.state = state  # after the last round
        self.folder = folder  # of this run on disk, if it has one
        self.stopped: str | None = None  # why the run was asked to end early
        self.restored: State | None = None  # an earlier round's, whose model is the run's result
        self._record = record

    @property
    def label(self) -> str:
        return self.run.label

    @property
    def seed(self) -> int:
        return self.run.settings.seed

    @property
    def algorithm(self) -> Algorithm:
        return self.run.algorithm

    @property
    def settings(self) -> Settings:
        return self.run.settings

    @property
    def client_names(self) -> Sequence[str]:
        return self.problem.client_names

    @property
    def round(self) -> int:
        """How many rounds are done: 1 after the first."""
        return self.state.server.index

    @property
    def record(self) -> Record:
        """The round just done: losses, weights and accuracies of all clients."""
        if self._record is None:
            raise InputError("no round was run yet; read `record` in the callback's `round` or `end`")
        return self._record

    @property
    def server(self) -> Server:
        return self.state.server

    @property
    def fairness(self) -> Fairness | None:
        """mean, std, worst, worst10, worst20, best10 after this round; None where it was not evaluated."""
        return self._fairness(self._record)

    @property
    def current_fairness(self) -> Fairness | None:
        """`fairness` of the model that clients train on; None if that one is deployed: without `average`."""
        return self._fairness(None if self._record is None else self._record.of_current)

    def _fairness(self, record: Record | None) -> Fairness | None:
        metric = self.problem.metric
        figures = None if record is None else metric.of(record)
        return None if figures is None else metric.fairness(figures)

    @cached_property
    def model(self) -> nn.Module:
        """A copy of the global model as it would be deployed now, in evaluation mode; made when first asked for."""
        return loaded(self.problem.model, self.server.layout, self.server.deployed)

    def stop(self, reason: str = "stopped by a callback") -> None:
        """End this run after this round, for good; other runs continue."""
        self.stopped = reason

    @property
    def notes(self) -> dict[str, Tensor]:
        """Tensors that callbacks keep with the run: in its checkpoints, so they survive a restart."""
        return dict(self.state.notes)

    def keep(self, notes: dict[str, Tensor]) -> None:
        """Add to the notes, or replace those of the same name."""
        changed = {**self.state.notes, **notes}
        self.state = dataclasses.replace(self.state, notes=changed)

    def restore(
        self,
        round: int,
        theta: Tensor,
        buffers: dict[str, Tensor],
        personal: Tensor | None = None,
        norms: LocalNorms | None = None,
    ) -> None:
        """At the end of a run: the model of an earlier round is the run's result, with the clients' own of then."""
        server = dataclasses.replace(self.server, index=round, theta=theta, buffers=buffers, average=None)
        owns = None
        if personal is not None:
            owns = torch.ones(len(personal), dtype=torch.bool)
        self.restored = State(server, personal, owns=owns, norms=norms)


class Callback:
    """Base class of callbacks. Override any of these four methods; no other is called."""

    def start(self, runs: Sequence[Progress]) -> None:
        """Before the first round of runs that advance together. A resumed run has `round` above 0."""

    def round(self, progress: Progress) -> None:
        """After every round of every run."""

    def end(self, progress: Progress) -> None:
        """After a run's last round, whether it was stopped or not."""

    def close(self) -> None:
        """When training is over, also after an error or an interruption."""


class _Function(Callback):
    """A bare callable, called after every round."""

    def __init__(self, function: Callable[[Progress], Any]) -> None:
        self.function = function

    def round(self, progress: Progress) -> None:
        self.function(progress)


def after_round(callbacks: Sequence[Callback], progress: Progress) -> list[Exception]:
    """Call them all and return the errors they raised. StopIteration is no error: it ends the run."""
    errors: list[Exception] = []
    for callback in callbacks:
        try:
            callback.round(progress)
        except StopIteration as stop:
            progress.stop(str(stop) or "StopIteration from a callback")
        except Exception as error:
            errors.append(error)
    return errors


_HOOKS = ("start", "round", "end", "close")
OneCallback = Callback | Callable[[Progress], Any]
Callbacks = OneCallback | Iterable[OneCallback]


def callback_list(callbacks: Callbacks) -> list[Callback]:
    """From one bare callable, one callback, or several of either."""
    if callable(callbacks) or _own_hooks(callbacks) or isinstance(callbacks, str):
        callbacks = [callbacks]  # type: ignore[list-item]
    if not isinstance(callbacks, Iterable):
        raise _unusable(callbacks)
    return [_callback(callback) for callback in callbacks]


def _callback(callback: Any) -> Callback:
    if isinstance(callback, type):
        raise InputError(f"callbacks: {callback.__name__} is a class; give an instance, {callback.__name__}(...)")
    if isinstance(callback, Callback):
        return callback
    hooks = _own_hooks(callback)
    if hooks and not isinstance(callback, str):
        adapted = Callback()
        vars(adapted).update(hooks)
        return adapted
    if callable(callback):
        return _Function(callback)
    raise _unusable(callback)


def _own_hooks(callback: Any) -> dict[str, Any]:
    """The hooks that it has, by name."""
    hooks = {name: getattr(callback, name, None) for name in _HOOKS}
    return {name: hook for name, hook in hooks.items() if callable(hook)}


def _unusable(callback: Any) -> InputError:
    kind = type(callback).__name__
    return InputError(
        f"callbacks={callback!r} is a {kind}; give a function of a Progress, an evenfed.callbacks.Callback, or a list"
    )
