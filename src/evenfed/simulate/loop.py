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
from ..core.round import Fold, Turn, open_round
from ..core.server import Record, Server, Update
from ..settings import Precision, Settings
from .engines.choose import Parallel
from .engines.memory import fitting
from .engines.reference import Reference
from .problem import Engine, Problem, Question, Task


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


def engine_for(problem: Problem, runs: Sequence[Run]) -> Engine:
    """The engine that the runs ask for; the parallel one is sized for as many clients as train at once."""
    settings = runs[0].settings
    if settings.engine == "flower":
        raise InputError(
            "engine='flower' is for `evenfed compare` and evenfed.flower.FairStrategy; here give parallel or reference"
        )
    if settings.engine == "reference":
        return Reference(problem)
    eligible = int((problem.train.sizes > 0).sum())
    clients_at_once = sum(run.settings.drawn(eligible) for run in runs)
    return Parallel(problem, clients_at_once, settings.precision)


def start(run: Run, problem: Problem, drawn: Callable[[int], Tensor] | None = None) -> State:
    """Before round 0; `drawn(seed)` [D] replaces the problem's own initial model."""
    settings = run.settings
    sizes = problem.train.sizes
    settings.drawn(int((sizes > 0).sum()))  # refuses more participants than there are
    local_steps = streams.local_steps(sizes.numpy(), problem.batch_size, problem.local_epochs)
    server = Server.start(
        run.algorithm,
        problem.theta if drawn is None else drawn(settings.seed),
        sizes.tolist(),
        lr=settings.lr,
        seed=settings.seed,
        server_lr=settings.server_lr,
        local_steps=local_steps.tolist(),
        smooth=settings.smooth,
        optimizer=settings.optimizer_factory(),
        buffers=problem.buffers,
    )
    server = dataclasses.replace(server, layout=problem.layout)
    return State(server, firsts=_first_models(settings, len(sizes), drawn))


def _first_models(settings: Settings, clients: int, drawn: Callable[[int], Tensor] | None) -> Tensor | None:
    """[n, D] a model for each client, each drawn with its own seed."""
    if settings.start == "common":
        return None
    if drawn is None:
        raise InputError("start='own' draws a model for every client; give `compare` a function that makes the model")
    keys = streams.hashed(settings.seed, streams.INITIAL_MODEL, np.arange(clients))
    seeds = keys >> np.uint64(33)
    return torch.stack([drawn(int(seed)) for seed in seeds])


def rounds(
    runs: Sequence[Run], states: Sequence[State], problem: Problem, engine: Engine
) -> Iterator[tuple[list[State], list[Record]]]:
    """All remaining rounds of runs that stand at the same one, one at a time."""
    settings = runs[0].settings
    current = list(states)
    for index in range(current[0].server.index, settings.rounds):
        finished = index + 1
        is_last = finished == settings.rounds
        is_due = settings.evaluate_every > 0 and finished % settings.evaluate_every == 0
        current, records = advance(runs, current, problem, engine, evaluate=is_last or is_due)
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
    runs: Sequence[Run], states: Sequence[State], problem: Problem, engine: Engine, evaluate: bool
) -> tuple[list[State], list[Record]]:
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
    runs: Sequence[Run], states: Sequence[State], problem: Problem, engine: Engine, evaluate: bool
) -> tuple[list[State], list[Record]]:
    began = time.perf_counter()
    turns = _open(runs, states, engine)
    personal = []
    for state, turn in zip(states, turns, strict=True):
        personal.append(_personal_models(state, turn))
    folds = _train(runs, states, turns, personal, engine)
    new_states = []
    records = []
    for fold, turn, own_models in zip(folds, turns, personal, strict=True):
        server, record = fold.close(partial(_losses_at, engine, turn.server))
        new_states.append(State(server, own_models))
        records.append(record)
    scores = score(new_states, problem, engine) if evaluate else [{} for _ in runs]
    seconds = (time.perf_counter() - began) / len(runs)
    for k, scored in enumerate(scores):
        records[k] = dataclasses.replace(
            records[k], seconds=seconds, accuracy=scored.get("accuracy"), unpadded=scored.get("unpadded")
        )
    return new_states, records


def _losses_at(engine: Engine, server: Server, theta: Tensor, ids: Tensor) -> Tensor:
    """[len(ids)] the clients' losses at another model, with the server's buffers."""
    (losses,) = engine.losses([Question(theta, ids, server.buffers)])
    return losses


def score(states: Sequence[State], problem: Problem, engine: Engine) -> list[dict[str, NDArray[np.float64]]]:
    """Test accuracy [n] of every run, of each client's own model where it has one; nothing without test data.

    For sequences with padding also the accuracy over the positions that are not padding.
    """
    if problem.judged is None or problem.score is None:
        return [{} for _ in states]
    everyone = torch.arange(len(problem.judged.sizes))
    questions = []
    for state in states:
        models = state.server.theta if state.personal is None else state.personal
        questions.append(Question(models, everyone, state.server.buffers))
    accuracies = engine.scores(questions, problem.score)
    scores = [{"accuracy": accuracy.numpy()} for accuracy in accuracies]
    if problem.padding is not None:
        real = problem.real_positions()
        for scored, correct in zip(scores, engine.scores(questions, problem.unpadded_score), strict=True):
            scored["unpadded"] = (correct / real).numpy()
    return scores


def _open(runs: Sequence[Run], states: Sequence[State], engine: Engine) -> list[Turn]:
    """Draw participants, measure their losses, plan."""
    questions = []
    for run, state in zip(runs, states, strict=True):
        server = state.server
        eligible = int((server.sizes > 0).sum())
        participants = server.draw(run.settings.drawn(eligible))
        models = server.theta if state.firsts is None else state.firsts
        questions.append(Question(models, participants, server.buffers))
    turns = []
    for state, question, losses in zip(states, questions, engine.losses(questions), strict=True):
        turns.append(open_round(state.server, losses, question.ids))
    return turns


def _personal_models(state: State, turn: Turn) -> Tensor | None:
    """A table that this round may write to; personal models start at the initial global one."""
    if state.personal is not None:
        return state.personal.clone()
    if turn.plan.personal is None:
        return None
    return state.server.theta.repeat(len(state.server.sizes), 1)


def _train(
    runs: Sequence[Run],
    states: Sequence[State],
    turns: Sequence[Turn],
    personal: Sequence[Tensor | None],
    engine: Engine,
) -> list[Fold]:
    """Train all runs' clients: updates go into the folds, personal models into their table."""
    tasks = []
    owners: list[
        tuple[int, Tensor | None]
    ] = []  # of each task: its run's position, and the table of personal models if it trains those
    for k, (run, state, turn, own_models) in enumerate(zip(runs, states, turns, personal, strict=True)):
        plan = turn.plan
        task = _task(run, state, turn)
        tasks.append(task)
        owners.append((k, None))
        if own_models is not None and plan.personal is not None:
            tied = dataclasses.replace(task, prox=plan.personal, starts=own_models[plan.ids], snapshot_steps=None)
            tasks.append(tied)
            owners.append((k, own_models))
    folds = [Fold(turn) for turn in turns]
    for which, update in engine.train(tasks):
        k, own_models = owners[which]
        if own_models is None:
            folds[k].add(update)
        else:
            _store_personal(own_models, tasks[which], update)
    return folds


def _task(run: Run, state: State, turn: Turn) -> Task:
    """What this round asks of the run's clients."""
    plan = turn.plan
    server = turn.server
    has_local_loss = type(run.algorithm).local_loss is not Algorithm.local_loss
    return Task(
        index=server.index,
        seed=run.settings.seed,
        theta=server.theta,
        ids=plan.ids,
        lr=run.settings.lr,
        prox=run.settings.prox,
        starts=None if state.firsts is None else state.firsts[plan.ids],
        snapshot_steps=plan.snapshot_steps,
        buffers=server.buffers,
        local_loss=run.algorithm.local_loss if has_local_loss else None,
    )


def _store_personal(own_models: Tensor, task: Task, update: Update) -> None:
    """A client's own model after training; a result that is not finite is discarded."""
    assert isinstance(update.delta, Tensor) and isinstance(update.ids, Tensor)
    trained = task.theta.repeat(len(update.ids), 1)
    columns = slice(None) if update.columns is None else update.columns
    trained[:, columns] -= update.delta
    finite = trained.isfinite().all(dim=1, keepdim=True)
    own_models[update.ids] = torch.where(finite, trained, own_models[update.ids])
