"""The one driver of rounds: `train`, `compare`, `evenfed compare` and `evenfed tune` all train through it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.server import Record
from ..simulate.loop import Run, State, engine_for, rounds
from ..simulate.problem import Problem


@dataclass
class Training:
    """A run under way."""

    run: Run
    state: State  # after the last round
    records: list[Record] = field(default_factory=list)  # of the rounds so far, unless a sink has taken them
    engine: str = ""  # how clients are visited, and why

    @property
    def rounds_done(self) -> int:
        return self.state.server.index


Group = Sequence[Training]  # runs that advance together


class Sink:
    """Is told how a group of runs advances. This one does nothing: records stay with their `Training`."""

    def begin(self, group: Group) -> None:
        """Before the first round of this group."""

    def after_round(self, group: Group) -> bool:
        """After every round; True ends the training of this group."""
        return False

    def end(self, group: Group) -> None:
        """After the last round, if the training was not ended before."""


def drive(trainings: Sequence[Training], problem: Problem, sink: Sink) -> None:
    """Train all runs to their last round. Those at the same round and of the same precision go together."""
    groups: dict[tuple[int, str], list[Training]] = {}
    for training in sorted(trainings, key=lambda training: -training.rounds_done):
        precision = training.run.settings.precision
        group = groups.setdefault((training.rounds_done, precision), [])
        group.append(training)
    for group in groups.values():
        _drive_group(group, problem, sink)


def _drive_group(group: Group, problem: Problem, sink: Sink) -> None:
    """A function of its own so that one group's engine is gone before the next group's is made."""
    runs = [training.run for training in group]
    states = [training.state for training in group]
    engine = engine_for(problem, runs)
    for training in group:
        training.engine = engine.how
    sink.begin(group)
    for new_states, records in rounds(runs, states, problem, engine):
        for training, state, record in zip(group, new_states, records, strict=True):
            training.state = state
            training.records.append(record)
            training.engine = engine.how  # changes where less fits into memory than was thought
        if sink.after_round(group):
            return
    sink.end(group)
