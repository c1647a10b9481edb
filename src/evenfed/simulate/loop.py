"""The rounds of one or many runs, whatever the engine: open, train, fold, close, evaluate."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import streams
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.round import Fold, Turn, open_round
from ..core.server import Record, Server
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
    firsts: Tensor | None = None  # [n, D] where clients stand before round 0, if not at the server's model


def engine_for(problem: Problem, runs: Sequence[Run]) -> Engine:
    """The engine the runs ask for; the fast one is arranged for as many clients as train at once."""
    if runs[0].settings.engine == "flower":
        raise InputError(
            "engine='flower' is for `evenfed compare` and evenfed.flower.FairStrategy; here give parallel or reference"
        )
    if runs[0].settings.engine == "reference":
        return Reference(problem)
    eligible = int((problem.train.sizes > 0).sum())
    jobs = sum(run.settings.drawn(eligible) for run in runs)
    return Parallel(problem, jobs, precision=runs[0].settings.precision)


def start(run: Run, problem: Problem, drawn: Callable[[int], Tensor] | None = None) -> State:
    """Before round 0; `drawn(seed)` [D] replaces the problem's own initial model."""
    settings, sizes = run.settings, problem.train.sizes
    settings.drawn(int((sizes > 0).sum()))  # refuses more participants than there are
    initial = problem.theta if drawn is None else drawn(settings.seed)
    server = Server.start(
        run.algorithm,
        initial,
        sizes.tolist(),
        lr=settings.lr,
        seed=settings.seed,
        server_lr=settings.server_lr,
        local_steps=streams.local_steps(sizes.numpy(), problem.batch_size, problem.local_epochs).tolist(),
        smooth=settings.smooth,
        optimizer=settings.optimizer_factory(),
        buffers=problem.buffers,
    )
    return State(dataclasses.replace(server, layout=problem.layout), firsts=_firsts(settings, len(sizes), drawn))


def _firsts(settings: Settings, clients: int, drawn: Callable[[int], Tensor] | None) -> Tensor | None:
    """[n, D] a model for each client, drawn with seeds of their own."""
    if settings.start == "common":
        return None
    if drawn is None:
        raise InputError("start='own' draws a model for every client; give `compare` a function that makes the model")
    seeds = streams.hashed(settings.seed, streams.INITIAL_MODEL, np.arange(clients)) >> np.uint64(33)
    return torch.stack([drawn(int(seed)) for seed in seeds])


def rounds(
    runs: Sequence[Run], states: Sequence[State], problem: Problem, engine: Engine
) -> Iterator[tuple[list[State], list[Record]]]:
    """All remaining rounds of runs that stand at the same one, one at a time."""
    settings, now = runs[0].settings, list(states)
    for index in range(now[0].server.index, settings.rounds):
        last = index + 1 == settings.rounds
        due = settings.evaluate_every > 0 and (index + 1) % settings.evaluate_every == 0
        now, records = advance(runs, now, problem, engine, evaluate=last or due)
        yield now, records


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Whether a GPU's float32 products may be rounded to tf32; torch's default allows it for convolutions."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def advance(
    runs: Sequence[Run], states: Sequence[State], problem: Problem, engine: Engine, evaluate: bool
) -> tuple[list[State], list[Record]]:
    """One round of every run; runs share the engine's stacks but nothing else.

    A round that the device's memory does not hold is begun again with fewer clients at once: it changes no state.
    """
    with arithmetic(runs[0].settings.precision):
        while (found := fitting(lambda: _advance(runs, states, problem, engine, evaluate))) is None:
            if not engine.shrink():
                clients, size = len(problem.train.sizes), len(problem.theta)
                raise InputError(
                    f"the device's memory does not hold a round of {len(runs)} runs over {clients} clients ({size} "
                    "parameters each); compare fewer at once (--algorithms, --seeds; the same folder goes on), or use "
                    "a smaller model or batch_size"
                )
    return found


def _advance(
    runs: Sequence[Run], states: Sequence[State], problem: Problem, engine: Engine, evaluate: bool
) -> tuple[list[State], list[Record]]:
    began = time.perf_counter()
    turns = _open(runs, states, engine)
    personal = [_personal_models(s, t) for s, t in zip(states, turns, strict=True)]
    folds = _train(runs, turns, personal, [s.firsts for s in states], engine)

    def losses_at(server: Server) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda theta, ids: engine.losses([Question(theta, ids, server.buffers)])[0]

    closed = [fold.close(losses_at(turn.server)) for fold, turn in zip(folds, turns, strict=True)]
    after = [State(server, own) for (server, _), own in zip(closed, personal, strict=True)]
    scores = score(after, problem, engine) if evaluate else [{} for _ in runs]
    seconds = (time.perf_counter() - began) / len(runs)
    records = [
        dataclasses.replace(record, seconds=seconds, accuracy=found.get("accuracy"), unpadded=found.get("unpadded"))
        for (_, record), found in zip(closed, scores, strict=True)
    ]
    return after, records


def score(states: Sequence[State], problem: Problem, engine: Engine) -> list[dict[str, NDArray[np.float64]]]:
    """Test accuracy [n] of every run, of each client's own model where it has one; nothing without test data.

    For sequences with padding also the accuracy over the positions that are not padding.
    """
    if problem.judged is None or problem.score is None:
        return [{} for _ in states]
    everyone = torch.arange(len(problem.judged.sizes))
    models = [s.server.theta if s.personal is None else s.personal for s in states]
    questions = [Question(m, everyone, s.server.buffers) for m, s in zip(models, states, strict=True)]
    found = [{"accuracy": a.numpy()} for a in engine.scores(questions, problem.score)]
    if problem.padding is not None:
        real = problem.real_positions()
        for each, right in zip(found, engine.scores(questions, problem.unpadded_score), strict=True):
            each["unpadded"] = (right / real).numpy()
    return found


def _open(runs: Sequence[Run], states: Sequence[State], engine: Engine) -> list[Turn]:
    drawn = []
    for run, state in zip(runs, states, strict=True):
        eligible = int((state.server.sizes > 0).sum())
        drawn.append(state.server.draw(run.settings.drawn(eligible)))
    models = [s.server.theta if s.firsts is None else s.firsts for s in states]
    questions = [Question(model, ids, s.server.buffers) for model, s, ids in zip(models, states, drawn, strict=True)]
    measured = engine.losses(questions)
    return [open_round(s.server, f, ids) for s, f, ids in zip(states, measured, drawn, strict=True)]


def _personal_models(state: State, turn: Turn) -> Tensor | None:
    """A table that this round may write to; personal models start at the initial global one."""
    if turn.plan.personal is None and state.personal is None:
        return None
    if state.personal is None:
        return state.server.theta.repeat(len(state.server.sizes), 1)
    return state.personal.clone()


def _train(
    runs: Sequence[Run],
    turns: Sequence[Turn],
    personal: Sequence[Tensor | None],
    firsts: Sequence[Tensor | None],
    engine: Engine,
) -> list[Fold]:
    folds = [Fold(turn) for turn in turns]
    orders, owners = [], []
    for k, (run, turn, own, first) in enumerate(zip(runs, turns, personal, firsts, strict=True)):
        plan, server, settings = turn.plan, turn.server, run.settings
        changed = type(run.algorithm).local_loss is not Algorithm.local_loss
        order = Task(
            index=server.index,
            seed=settings.seed,
            theta=server.theta,
            ids=plan.ids,
            lr=settings.lr,
            prox=settings.prox,
            starts=None if first is None else first[plan.ids],
            snapshot_steps=plan.snapshot_steps,
            buffers=server.buffers,
            local_loss=run.algorithm.local_loss if changed else None,
        )
        orders.append(order)
        owners.append((k, False))
        if own is not None and plan.personal is not None:
            tied = dataclasses.replace(order, prox=plan.personal, starts=own[plan.ids], snapshot_steps=None)
            orders.append(tied)
            owners.append((k, True))
    for which, update in engine.train(orders):
        k, is_personal = owners[which]
        own = personal[k]
        if is_personal and own is not None:
            assert isinstance(update.delta, Tensor) and isinstance(update.ids, Tensor)
            trained = orders[which].theta.repeat(len(update.ids), 1)
            trained[:, slice(None) if update.columns is None else update.columns] -= update.delta
            finite = trained.isfinite().all(dim=1, keepdim=True)
            own[update.ids] = torch.where(finite, trained, own[update.ids])  # what is not finite is not kept
        else:
            folds[k].add(update)
    return folds
