"""The rounds of one or many runs, whatever the engine: open, train, fold, close, evaluate."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..augment import Augmentation
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.fold import Fold, Turn
from ..core.round import open_round
from ..core.server import Moments, Record, Server, Update
from ..settings import Settings
from . import evaluation, kept
from .beginning import eligible_count, first_models, new_server
from .engines.arithmetic import arithmetic
from .engines.augmenting import check_augmentation
from .engines.choose import Parallel
from .engines.memory import fitting
from .engines.reference import Reference
from .engines.trials import check_training
from .evaluation import Scores
from .norms import OwnNorms
from .problem import DrawnModels, Engine, Problem, Question, Task


@dataclass(frozen=True)
class Run:
    """One training run: an algorithm under a label, with the options it runs with."""

    label: str
    algorithm: Algorithm
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.settings.seed}"


@dataclass(frozen=True)
class State:
    """Where a run stands between two rounds: all that a checkpoint must hold."""

    server: Server
    personal: Tensor | None = None  # [n, D] each client's own model (Ditto)
    firsts: Tensor | None = None  # [n, D] where clients start in round 0, if not at the server's model
    notes: Mapping[str, Tensor] = field(default_factory=dict)  # what callbacks keep with the run
    owns: Tensor | None = None  # [n] who has trained a model of its own
    moments: Moments | None = None  # [n, ...] the state of clients' optimisers, if they keep it
    norms: OwnNorms | None = None  # clients' own BatchNorm layers, if they keep them

    def serving(self) -> Tensor:
        """The models that serve the clients: [D] the global one, or [n, D] each client's own where it has one."""
        server = self.server
        if self.personal is None or self.owns is None:
            return server.theta
        return torch.where(self.owns[:, None], self.personal, server.theta)


Advanced = tuple[list[State], list[Record]]  # the new states, and the round's records


def engine_for(problem: Problem, runs: Sequence[Run]) -> Engine:
    """The engine that the runs ask for; the parallel one is sized for as many clients as train at once."""
    settings = runs[0].settings
    problem = problem.under(settings.batch_norm)
    if settings.engine == "flower":
        raise InputError(
            "engine='flower' is for `evenfed compare` and evenfed.flower.FairStrategy; here give parallel or reference"
        )
    batchings = [run.settings.batching for run in runs]
    check_training(problem, batchings)
    evaluation.check(problem)
    augments = _augmentations(runs)
    for augment in augments:
        check_augmentation(problem, augment)
    if settings.engine == "reference":
        return Reference(problem)
    eligible = eligible_count(problem.train.sizes)
    clients_at_once = sum(run.settings.drawn(eligible) for run in runs)
    return Parallel(problem, clients_at_once, settings.precision, batchings, augments)


def _augmentations(runs: Sequence[Run]) -> list[Augmentation]:
    """Each once."""
    augments: dict[Augmentation, None] = {}
    for run in runs:
        augment = run.settings.local(0).augment
        if augment is not None:
            augments[augment] = None
    return list(augments)


def start(
    run: Run,
    problem: Problem,
    drawn: DrawnModels | None = None,
) -> State:
    """Before round 0; `drawn(seed)` [D] replaces the problem's own initial model."""
    settings = run.settings
    initial = problem.theta
    if drawn is not None:
        initial = drawn(settings.seed)
    sizes = problem.train.sizes
    server = new_server(
        run.algorithm,
        settings,
        initial,
        sizes,
        layout=problem.layout,
        buffers=problem.buffers,
    )
    firsts = first_models(settings, len(sizes), drawn)
    moments = kept.before(settings, server)
    norms = OwnNorms.before(settings, run.algorithm, problem, server)
    return State(server, firsts=firsts, moments=moments, norms=norms)


def rounds(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
) -> Iterator[Advanced]:
    """All remaining rounds of runs that stand at the same one, one at a time."""
    settings = runs[0].settings
    current = list(states)
    every = settings.evaluate_every
    first = current[0].server.index
    for finished in range(first + 1, settings.rounds + 1):
        is_last = finished == settings.rounds
        is_due = every > 0 and finished % every == 0
        current, records = advance(runs, current, problem, engine, is_last or is_due)
        yield current, records


def advance(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
    evaluate: bool,
) -> Advanced:
    """One round of every run; runs share the engine's stacks but nothing else.

    A round that runs out of device memory has changed no state: it starts again with fewer clients at once.
    """
    with arithmetic(runs[0].settings.precision):
        while True:
            result = fitting(lambda: _advance(runs, states, problem, engine, evaluate))
            if result is not None:
                return result
            if not engine.shrink():
                clients = len(problem.train.sizes)
                raise InputError(
                    f"the device's memory does not hold a round of {len(runs)} runs over {clients} clients "
                    f"({len(problem.theta)} parameters each); compare fewer at once (--algorithms, --seeds; reuse the "
                    "folder to resume), or use a smaller model or batch_size"
                )


@dataclass(frozen=True)
class _Part:
    """One run's part in a round."""

    run: Run
    state: State  # before the round
    turn: Turn
    fold: Fold
    personal: Tensor | None  # [n, D] clients' own models, which the round writes to
    owns: Tensor | None  # [n] who has trained one, likewise
    moments: Moments | None  # [n, ...] the state of clients' optimisers, likewise
    norms: OwnNorms | None  # clients' own BatchNorm layers, likewise

    def task(self) -> Task:
        """What the round asks of the run's clients."""
        plan = self.turn.plan
        server = self.turn.server
        settings = self.run.settings
        algorithm = self.run.algorithm
        local_loss = None
        if type(algorithm).local_loss is not Algorithm.local_loss:
            local_loss = algorithm.local_loss
        starts = None
        if self.state.firsts is not None:
            starts = self.state.firsts[plan.ids]
        return Task(
            index=server.index,
            seed=settings.seed,
            theta=server.theta,
            ids=plan.ids,
            local=settings.local(server.index),
            starts=starts,
            snapshot_steps=plan.snapshot_steps,
            buffers=server.buffers,
            local_loss=local_loss,
            moments=kept.of(self.moments, plan.ids),
        )

    def tasks(self) -> Iterator[tuple[Task, Callable[[Update], None]]]:
        """The task and who takes its updates; one for each client where these have layers of their own."""
        task = self.task()
        if self.norms is None:
            yield task, self.take
            return
        for own in self.norms.tasks(task, self.moments):
            yield own, partial(self.take_own, self.norms, own)

    def take_own(self, norms: OwnNorms, task: Task, update: Update) -> None:
        """The same of a client that keeps its BatchNorm layers."""
        self.take(norms.take(task, update))

    def take(self, update: Update) -> None:
        """A client's update goes into the fold, the state of its optimiser into the table."""
        self.fold.add(update)
        if self.moments is not None:
            kept.store(self.moments, update)

    def store_personal(self, task: Task, update: Update) -> None:
        """A client's own model after training; a result that is not finite is discarded."""
        ids = update.ids
        assert self.personal is not None
        assert self.owns is not None
        assert isinstance(ids, Tensor)
        delta = update.delta
        assert isinstance(delta, Tensor)
        trained = task.theta.repeat(len(ids), 1)
        if update.columns is None:
            trained -= delta
        else:
            trained[:, update.columns] -= delta
        finite = trained.isfinite()
        usable = finite.all(dim=1, keepdim=True)
        before = self.personal[ids]
        self.personal[ids] = torch.where(usable, trained, before)
        self.owns[ids] |= usable[:, 0]


def _advance(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
    evaluate: bool,
) -> Advanced:
    began = time.perf_counter()
    parts = _open(runs, states, engine)
    _train(parts, engine)
    new_states = []
    records = []
    for part in parts:
        losses_at = partial(_losses_at, engine, part.turn.server, part.state.norms)
        server, record = part.fold.close(losses_at)
        if part.norms is not None:
            server = part.norms.averaged(server)
        new_state = State(server, part.personal, owns=part.owns, moments=part.moments, norms=part.norms)
        new_states.append(new_state)
        records.append(record)
    scores: list[Scores] = [{} for _ in runs]
    if evaluate:
        scores = score(new_states, problem, engine)
    elapsed = time.perf_counter() - began
    seconds = elapsed / len(runs)
    for k, scored in enumerate(scores):
        timed = dataclasses.replace(records[k], seconds=seconds)
        records[k] = _with_scores(timed, scored)
    return new_states, records


def _with_scores(record: Record, scored: Scores) -> Record:
    return dataclasses.replace(
        record,
        accuracy=scored.get("accuracy"),
        test_losses=scored.get("test_losses"),
        unpadded=scored.get("unpadded"),
        unseen=scored.get("unseen"),
        unseen_losses=scored.get("unseen_losses"),
        global_accuracy=_only(scored.get("global_accuracy")),
        global_loss=_only(scored.get("global_loss")),
    )


def _only(values: NDArray[np.float64] | None) -> float | None:
    return None if values is None else float(values[0])


def evaluated(
    record: Record,
    run: Run,
    state: State,
    problem: Problem,
    engine: Engine,
) -> Record:
    """The record of a run's last round with its scores, which an earlier round need not have."""
    is_evaluated = record.test_losses is not None or record.unseen_losses is not None or record.global_loss is not None
    if is_evaluated:
        return record
    with arithmetic(run.settings.precision):
        (scored,) = score([state], problem, engine)
    return _with_scores(record, scored)


def _losses_at(
    engine: Engine,
    server: Server,
    norms: OwnNorms | None,
    theta: Tensor,
    ids: Tensor,
) -> Tensor:
    """[len(ids)] the clients' losses at another model, with the server's buffers."""
    question = Question(theta, ids, server.buffers, norms)
    (losses,) = engine.losses([question])
    return losses


def score(states: Sequence[State], problem: Problem, engine: Engine) -> list[Scores]:
    """Of every run, on all clients, of the model that serves each of them."""
    everyone = torch.arange(len(problem.train.sizes))
    questions = []
    for state in states:
        server = state.server
        question = Question(state.serving(), everyone, server.buffers, state.norms)
        questions.append(question)
    scores = evaluation.score(questions, problem, engine)
    for scored, state in zip(scores, states, strict=True):
        scored.update(evaluation.held_out(state.server, problem, engine))
    return scores


def _open(runs: Sequence[Run], states: Sequence[State], engine: Engine) -> list[_Part]:
    """Draw participants, measure their losses, plan."""
    questions = []
    for run, state in zip(runs, states, strict=True):
        server = state.server
        eligible = eligible_count(server.sizes)
        count = run.settings.drawn(eligible)
        participants = server.draw(count)
        models = server.theta if state.firsts is None else state.firsts
        question = Question(models, participants, server.buffers, state.norms)
        questions.append(question)
    parts = []
    for k, losses in enumerate(engine.losses(questions)):
        state = states[k]
        turn = open_round(state.server, losses, questions[k].ids)
        personal, owns = _personal_models(state, turn)
        moments = kept.copied(state.moments)
        norms = None if state.norms is None else state.norms.copied()
        part = _Part(runs[k], state, turn, Fold(turn), personal, owns, moments, norms)
        parts.append(part)
    return parts


def _personal_models(state: State, turn: Turn) -> tuple[Tensor | None, Tensor | None]:
    """Tables that this round may write to: personal models, which start at the initial global one, and who has one."""
    if state.personal is not None and state.owns is not None:
        return state.personal.clone(), state.owns.clone()
    if turn.plan.personal is None:
        return None, None
    server = state.server
    clients = len(server.sizes)
    owns = torch.zeros(clients, dtype=torch.bool, device=server.theta.device)
    return server.theta.repeat(clients, 1), owns


def _train(parts: Sequence[_Part], engine: Engine) -> None:
    """Train all runs' clients: updates go into the folds, personal models into their tables."""
    tasks = []
    receivers: list[Callable[[Update], None]] = []  # of each task's updates
    for part in parts:
        plan = part.turn.plan
        for task, receiver in part.tasks():
            tasks.append(task)
            receivers.append(receiver)
        if part.personal is not None and plan.personal is not None:
            local = dataclasses.replace(task.local, prox=plan.personal)
            tied = dataclasses.replace(
                task,
                local=local,
                starts=part.personal[plan.ids],
                snapshot_steps=None,
                moments=None,  # its optimiser is always fresh: the model it is tied to has moved
            )
            receiver = partial(part.store_personal, tied)
            tasks.append(tied)
            receivers.append(receiver)
    for which, update in engine.train(tasks):
        receivers[which](update)
