"""The rounds of one or many runs, whatever the engine: open, train, fold, close, evaluate."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import streams
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.fold import Fold, Turn
from ..core.round import open_round
from ..core.server import Record, Server, Update
from ..settings import Precision, Settings
from .engines.choose import Parallel
from .engines.memory import fitting
from .engines.reference import Reference
from .problem import Engine, Problem, Question, Task

Drawn = Callable[[int], Tensor]  # the initial model [D] of a seed
Scores = dict[str, NDArray[np.float64]]


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


Advanced = tuple[list[State], list[Record]]  # the new states, and the round's records


def engine_for(problem: Problem, runs: Sequence[Run]) -> Engine:
    """The engine that the runs ask for; the parallel one is sized for as many clients as train at once."""
    settings = runs[0].settings
    if settings.engine == "flower":
        raise InputError(
            "engine='flower' is for `evenfed compare` and evenfed.flower.FairStrategy; here give parallel or reference"
        )
    if settings.engine == "reference":
        return Reference(problem)
    eligible = _with_data(problem.train.sizes)
    clients_at_once = 0
    for run in runs:
        clients_at_once += run.settings.drawn(eligible)
    return Parallel(problem, clients_at_once, settings.precision)


def _with_data(sizes: Tensor) -> int:
    """How many clients have training data."""
    with_data = sizes > 0
    return int(with_data.sum())


def start(
    run: Run,
    problem: Problem,
    drawn: Drawn | None = None,
) -> State:
    """Before round 0; `drawn(seed)` [D] replaces the problem's own initial model."""
    settings = run.settings
    sizes = problem.train.sizes
    seed = settings.seed
    eligible = _with_data(sizes)
    settings.drawn(eligible)  # refuses more participants than there are
    local_steps = streams.local_steps(
        sizes.numpy(),
        problem.batch_size,
        problem.local_epochs,
    )
    theta = problem.theta if drawn is None else drawn(seed)
    server = Server.start(
        run.algorithm,
        theta,
        sizes.tolist(),
        lr=settings.lr,
        seed=seed,
        server_lr=settings.server_lr,
        local_steps=local_steps.tolist(),
        smooth=settings.smooth,
        optimizer=settings.optimizer_factory(),
        buffers=problem.buffers,
    )
    server = dataclasses.replace(server, layout=problem.layout)
    firsts = _first_models(settings, len(sizes), drawn)
    return State(server, firsts=firsts)


def _first_models(
    settings: Settings,
    clients: int,
    drawn: Drawn | None,
) -> Tensor | None:
    """[n, D] a model for each client, each drawn with its own seed."""
    if settings.start == "common":
        return None
    if drawn is None:
        raise InputError("start='own' draws a model for every client; give `compare` a function that makes the model")
    ids = np.arange(clients)
    keys = streams.hashed(settings.seed, streams.INITIAL_MODEL, ids)
    seeds = keys >> np.uint64(33)
    models = [drawn(seed) for seed in seeds.tolist()]
    return torch.stack(models)


def rounds(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
) -> Iterator[Advanced]:
    """All remaining rounds of runs that stand at the same one, one at a time."""
    settings = runs[0].settings
    total = settings.rounds
    every = settings.evaluate_every
    current = list(states)
    next_index = current[0].server.index
    for index in range(next_index, total):
        finished = index + 1
        evaluate = finished == total
        if every > 0 and finished % every == 0:
            evaluate = True
        current, records = advance(runs, current, problem, engine, evaluate)
        yield current, records


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Whether a GPU may round float32 products to tf32; torch's default allows it for convolutions."""
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn
    products_before = products.allow_tf32
    convolutions_before = convolutions.allow_tf32
    products.allow_tf32 = precision == "tf32"
    convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = products_before
        convolutions.allow_tf32 = convolutions_before


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


def _advance(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
    evaluate: bool,
) -> Advanced:
    began = time.perf_counter()
    turns = _open(runs, states, engine)
    personal = []
    for state, turn in zip(states, turns, strict=True):
        own_models = _personal_models(state, turn)
        personal.append(own_models)
    folds = _train(runs, states, turns, personal, engine)
    new_states = []
    records = []
    for fold, turn, own_models in zip(folds, turns, personal, strict=True):
        losses_at = partial(_losses_at, engine, turn.server)
        server, record = fold.close(losses_at)
        new_state = State(server, own_models)
        new_states.append(new_state)
        records.append(record)
    scores: list[Scores] = [{} for _ in runs]
    if evaluate:
        scores = score(new_states, problem, engine)
    elapsed = time.perf_counter() - began
    seconds = elapsed / len(runs)
    for k, scored in enumerate(scores):
        records[k] = dataclasses.replace(
            records[k],
            seconds=seconds,
            accuracy=scored.get("accuracy"),
            unpadded=scored.get("unpadded"),
        )
    return new_states, records


def _losses_at(
    engine: Engine,
    server: Server,
    theta: Tensor,
    ids: Tensor,
) -> Tensor:
    """[len(ids)] the clients' losses at another model, with the server's buffers."""
    question = Question(theta, ids, server.buffers)
    (losses,) = engine.losses([question])
    return losses


def score(states: Sequence[State], problem: Problem, engine: Engine) -> list[Scores]:
    """Test accuracy [n] of every run, of each client's own model where it has one; nothing without test data.

    For sequences with padding also the accuracy over the positions that are not padding.
    """
    scores: list[Scores] = [{} for _ in states]
    judged = problem.judged
    if judged is None or problem.score is None:
        return scores
    clients = len(judged.sizes)
    everyone = torch.arange(clients)
    questions = []
    for state in states:
        server = state.server
        models = server.theta if state.personal is None else state.personal
        question = Question(models, everyone, server.buffers)
        questions.append(question)
    accuracies = engine.scores(questions, problem.score)
    for scored, accuracy in zip(scores, accuracies, strict=True):
        scored["accuracy"] = accuracy.numpy()
    if problem.padding is not None:
        real = problem.real_positions()
        unpadded = engine.scores(questions, problem.unpadded_score)
        for scored, correct in zip(scores, unpadded, strict=True):
            accuracy = correct / real
            scored["unpadded"] = accuracy.numpy()
    return scores


def _open(runs: Sequence[Run], states: Sequence[State], engine: Engine) -> list[Turn]:
    """Draw participants, measure their losses, plan."""
    questions = []
    for run, state in zip(runs, states, strict=True):
        server = state.server
        eligible = _with_data(server.sizes)
        count = run.settings.drawn(eligible)
        participants = server.draw(count)
        models = server.theta if state.firsts is None else state.firsts
        question = Question(models, participants, server.buffers)
        questions.append(question)
    turns = []
    measured = engine.losses(questions)
    for state, question, losses in zip(states, questions, measured, strict=True):
        turn = open_round(state.server, losses, question.ids)
        turns.append(turn)
    return turns


def _personal_models(state: State, turn: Turn) -> Tensor | None:
    """A table that this round may write to; personal models start at the initial global one."""
    if state.personal is not None:
        return state.personal.clone()
    if turn.plan.personal is None:
        return None
    server = state.server
    clients = len(server.sizes)
    return server.theta.repeat(clients, 1)


def _train(
    runs: Sequence[Run],
    states: Sequence[State],
    turns: Sequence[Turn],
    personal: Sequence[Tensor | None],
    engine: Engine,
) -> list[Fold]:
    """Train all runs' clients: updates go into the folds, personal models into their table."""
    folds = [Fold(turn) for turn in turns]
    tasks: list[Task] = []
    task_folds: list[Fold] = []  # the fold of each task's run
    tables: list[Tensor | None] = []  # the personal models that a task trains, if it trains those
    for run, state, fold, own_models in zip(runs, states, folds, personal, strict=True):
        plan = fold.plan
        task = _task(run, state, fold.turn)
        tasks.append(task)
        task_folds.append(fold)
        tables.append(None)
        if own_models is not None and plan.personal is not None:
            tied = dataclasses.replace(
                task,
                prox=plan.personal,
                starts=own_models[plan.ids],
                snapshot_steps=None,
            )
            tasks.append(tied)
            task_folds.append(fold)
            tables.append(own_models)
    for which, update in engine.train(tasks):
        table = tables[which]
        if table is None:
            task_folds[which].add(update)
        else:
            _store_personal(table, tasks[which], update)
    return folds


def _task(run: Run, state: State, turn: Turn) -> Task:
    """What this round asks of the run's clients."""
    plan = turn.plan
    server = turn.server
    settings = run.settings
    algorithm = run.algorithm
    own_loss = type(algorithm).local_loss
    has_local_loss = own_loss is not Algorithm.local_loss
    starts = None
    if state.firsts is not None:
        starts = state.firsts[plan.ids]
    return Task(
        index=server.index,
        seed=settings.seed,
        theta=server.theta,
        ids=plan.ids,
        lr=settings.lr,
        prox=settings.prox,
        starts=starts,
        snapshot_steps=plan.snapshot_steps,
        buffers=server.buffers,
        local_loss=algorithm.local_loss if has_local_loss else None,
    )


def _store_personal(own_models: Tensor, task: Task, update: Update) -> None:
    """A client's own model after training; a result that is not finite is discarded."""
    ids = update.ids
    delta = update.delta
    columns = update.columns
    assert isinstance(ids, Tensor)
    assert isinstance(delta, Tensor)
    trained = task.theta.repeat(len(ids), 1)
    if columns is None:
        trained -= delta
    else:
        trained[:, columns] -= delta
    finite = trained.isfinite()
    usable = finite.all(dim=1, keepdim=True)
    before = own_models[ids]
    own_models[ids] = torch.where(usable, trained, before)
