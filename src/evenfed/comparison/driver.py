"""The one driver of rounds: `train`, `compare`, `evenfed compare` and `evenfed tune` all train through it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ..callbacks import Callback, Progress
from ..callbacks.progress import after_round
from ..core.server import Record
from ..simulate.evaluation import evaluated
from ..simulate.initial_models import InitialModels
from ..simulate.loop import engine_for, rounds, start
from ..simulate.problem import Engine, Problem
from ..simulate.state import Run, State, divergence

EngineKey = tuple[str, str, int]  # precision, treatment of BatchNorm, and which problem


def engine_key(run: Run, problem: Problem) -> EngineKey:
    """Runs that have it in common can share an engine."""
    settings = run.settings
    return settings.precision, settings.batch_norm, id(problem)


@dataclass(eq=False)
class Training:
    """A run under way."""

    run: Run
    state: State  # after the last round
    problem: Problem  # with the frozen parameters of the run's seed
    records: list[Record] = field(default_factory=list)  # of the rounds so far, unless a sink has taken them
    last: Record | None = None  # of the last round, also where a sink has taken the records
    engine: str = ""  # how clients are visited, and why
    folder: Path | None = None  # where the run is kept on disk
    stopped: str | None = None  # why it ended before its last round: a callback, or training that diverged
    restored: State | None = None  # an earlier round's, whose model a callback made the run's result

    @classmethod
    def start(cls, run: Run, problem: Problem, drawn: InitialModels | None) -> "Training":
        """Before round 0, from the problem's own model or from the one `drawn` by the run's seed."""
        if drawn is not None:
            problem = drawn.problem(run.settings.seed)
        return cls(run, start(run, problem, drawn), problem)

    @property
    def engine_key(self) -> EngineKey:
        return engine_key(self.run, self.problem)

    @property
    def rounds_done(self) -> int:
        return self.state.server.index

    @property
    def result(self) -> State:
        """The state whose model is the run's result."""
        return self.restored or self.state

    @property
    def model_round(self) -> int | None:
        """The round that the result's model is from, if not the last one."""
        return None if self.restored is None else self.restored.server.index


Group = Sequence[Training]  # runs that advance together
Listener = Callable[[Sequence[Run], Sequence[Record], str], None]  # the runs, a record of each, the engine in words


class Sink:
    """Called as a group of runs advances. This one does nothing: records stay with their `Training`."""

    def begin(self, group: Group) -> None:
        """Before the first round of this group."""

    def after_round(self, group: Group) -> None:
        """After every round."""

    def end(self, ended: Group, others: Group) -> None:
        """After the last round of these runs; a run that a callback stopped ends before the `others` of its group."""

    def failed(self, group: Group) -> None:
        """A callback raised an error, which ends the training: save what there is."""


@dataclass(eq=False)
class ListenerSink(Sink):
    """Calls a listener after every round."""

    listen: Listener

    def after_round(self, group: Group) -> None:
        runs = [training.run for training in group]
        records = [training.records[-1] for training in group]
        self.listen(runs, records, group[0].engine)


SizedFor = Mapping[EngineKey, Sequence[Run]]


def drive(
    trainings: Sequence[Training],
    sink: Sink,
    callbacks: Sequence[Callback] = (),
    sized_for: SizedFor = MappingProxyType({}),
) -> None:
    """Train all runs to their last round. Those at the same round that compute alike go together.

    `sized_for`: the runs that an engine is chosen and sized for, if not for those it trains.
    """
    groups: dict[tuple[int, EngineKey], list[Training]] = {}
    for training in sorted(trainings, key=lambda training: -training.rounds_done):
        key = (training.rounds_done, training.engine_key)
        groups.setdefault(key, []).append(training)
    with closed(callbacks):
        for (_, engine_key), group in groups.items():
            runs = [training.run for training in group]
            _drive_group(group, sized_for.get(engine_key, runs), sink, callbacks)


@contextmanager
def closed(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Close the callbacks when the block ends, also after an error."""
    try:
        yield
    finally:
        for callback in callbacks:
            callback.close()


def _drive_group(group: Group, sized_for: Sequence[Run], sink: Sink, callbacks: Sequence[Callback]) -> None:
    """A function of its own so that one group's engine is gone before the next group's is made."""
    problem = group[0].problem
    engine = engine_for(problem, sized_for)
    for training in group:
        training.engine = engine.how
    watched = CallbackSink(problem, engine, sink, callbacks)
    sink.begin(group)
    watched.start(group)
    active = group
    ended = _stopped(group)  # before a kill, which came before they were marked as finished
    while active:
        if not ended:
            ended = _advance(active, problem, engine, watched)
        active = [training for training in active if training not in ended]
        watched.end(ended, active)
        ended = []


def _stopped(group: Group) -> Group:
    return [training for training in group if training.stopped is not None]


def _advance(group: Group, problem: Problem, engine: Engine, watched: "CallbackSink") -> Group:
    """Rounds of the group until some of its runs end: those."""
    runs = [training.run for training in group]
    states = [training.state for training in group]
    for new_states, records in rounds(runs, states, problem, engine):
        for training, state, record in zip(group, new_states, records, strict=True):
            training.state = dataclasses.replace(state, notes=training.state.notes)
            training.records.append(record)
            training.last = record
            training.engine = engine.how  # changes where less fits into memory than was thought
            training.stopped = divergence(state, record)
        watched.after_round(group)
        stopped = _stopped(group)
        if stopped:
            return stopped
    return group


@dataclass(frozen=True)
class CallbackSink:
    """Calls the callbacks before the sink, so that what they keep is part of the round's checkpoint."""

    problem: Problem
    engine: Engine | None  # None: nothing can be evaluated here
    sink: Sink
    callbacks: Sequence[Callback]

    def start(self, group: Group) -> None:
        runs = [self._progress(training) for training in group]
        with self._saved(group):
            for callback in self.callbacks:
                callback.start(runs)
        for training, progress in zip(group, runs, strict=True):
            training.state = progress.state

    def after_round(self, group: Group) -> None:
        """Call all callbacks before an error of one is raised: no tracker misses a round."""
        errors: list[Exception] = []
        with self._saved(group):
            for training in group:
                errors += self._tell(training)
            if errors:
                raise errors[0]
        self.sink.after_round(group)

    def end(self, ended: Group, others: Group = ()) -> None:
        with self._saved([*ended, *others]):
            for training in ended:
                progress = self._progress(training)
                for callback in self.callbacks:
                    callback.end(progress)
                training.state = progress.state
                training.restored = progress.restored
        self.sink.end(ended, others)

    def _tell(self, training: Training) -> list[Exception]:
        """One run's round; the errors of callbacks. StopIteration is none: it ends that run."""
        progress = self._progress(training)
        progress.stopped = training.stopped
        errors = after_round(self.callbacks, progress)
        training.state = progress.state
        training.stopped = progress.stopped
        if training.stopped is not None and self.engine is not None:
            self._evaluate(training, self.engine)
        return errors

    def _evaluate(self, training: Training, engine: Engine) -> None:
        """The round turned out to be the run's last one, which is always evaluated."""
        record = evaluated(
            training.records[-1],
            training.run,
            training.state,
            self.problem,
            engine,
        )
        training.records[-1] = record
        training.last = record

    def _progress(self, training: Training) -> Progress:
        return Progress(
            training.run,
            training.problem,
            training.state,
            training.last,
            training.folder,
        )

    @contextmanager
    def _saved(self, group: Group) -> Iterator[None]:
        """Nothing that was computed is lost by a callback's error."""
        try:
            yield
        except BaseException:
            self.sink.failed(group)
            raise
