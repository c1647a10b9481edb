"""The rounds of one or many runs, whatever the engine: open, train, fold, close, evaluate."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.fold import Fold
from ..core.open_round import OpenRound
from ..core.round import open_round
from ..core.server import Record, Server, Update
from ..core.server_step import with_average
from . import evaluation, optimizer_states, shared_training
from .engines.augmenting import check_augmentation
from .engines.memory import none_if_out_of_memory
from .engines.parallel import Parallel
from .engines.precision import arithmetic
from .engines.reference import Reference
from .engines.stackability import check_training
from .evaluation import Scores
from .faults import naming_clients
from .local_norms import LocalNorms
from .module_modes import evaluated_modules
from .problem import DrawnModels, Engine, EvalRequest, Problem, Task
from .state import Run, State, eligible_count, first_models, new_server

Advanced = tuple[list[State], list[Record]]  # the new states, and the round's records


def engine_for(problem: Problem, runs: Sequence[Run]) -> Engine:
    """The engine that the runs ask for; the parallel one is sized for as many clients as train at once.

    `runs` may be more than this process trains: whoever trains some of them does so as if it trained all.
    """
    settings = runs[0].settings
    problem = dataclasses.replace(problem, evaluated=evaluated_modules(problem.model, settings.batch_norm))
    if settings.engine == "flower":
        raise InputError(
            "engine='flower' is for `evenfed compare` and evenfed.flower.FairStrategy; here give parallel or reference"
        )
    batchings = [run.settings.batching for run in runs]
    check_training(problem, batchings)
    evaluation.check(problem)
    evaluation.panel(problem, settings)  # refuses more clients than there are
    every_augment = dict.fromkeys(run.settings.local(0).augment for run in runs)
    augments = [augment for augment in every_augment if augment is not None]
    for augment in augments:
        check_augmentation(problem, augment)
    if settings.engine == "reference":
        return Reference(problem)
    eligible = eligible_count(problem.train.sizes)
    clients_at_once = sum(run.settings.drawn(eligible) for run in runs)
    return Parallel(problem, clients_at_once, settings.precision, batchings, augments)


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
    optimizer_states.check_room(settings, server)
    firsts = first_models(settings, len(sizes), drawn)
    moments = optimizer_states.initial(settings, server)
    norms = LocalNorms.before(settings, run.algorithm, problem, server)
    return State(server, firsts=firsts, moments=moments, norms=norms)


def rounds(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
) -> Iterator[Advanced]:
    """All remaining rounds, one at a time, of runs that have finished equally many."""
    settings = runs[0].settings
    current = list(states)
    every = settings.evaluate_every
    first = current[0].server.index
    leaders = shared_training.leaders(runs, states)
    panel = evaluation.panel(problem, settings)
    for finished in range(first + 1, settings.rounds + 1):
        is_last = finished == settings.rounds
        is_due = every > 0 and finished % every == 0
        evaluated = panel if is_last or is_due else None
        current, records = advance(runs, current, problem, engine, evaluated, leaders)
        yield current, records


def advance(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
    panel: Tensor | None,
    leaders: Sequence[int] | None = None,
) -> Advanced:
    """One round of every run; runs share the engine's stacks but nothing else.

    `panel`: the clients that are evaluated after it; None: nobody.
    `leaders`: for each run, the one that trains for it too; None: each trains for itself.

    A round that runs out of device memory has changed no state: it starts again with fewer clients at once.
    """
    if leaders is None:
        leaders = range(len(runs))
    with arithmetic(runs[0].settings.precision), naming_clients(problem):
        while True:
            result = none_if_out_of_memory(lambda: _advance(runs, states, problem, engine, panel, leaders))
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
    before: State
    after: State  # whose tables the round writes to; its server is still the one before
    fold: Fold

    def task(self) -> Task:
        """What the round asks of the run's clients."""
        plan = self.fold.plan
        server = self.fold.opened.server
        settings = self.run.settings
        algorithm = self.run.algorithm
        local_loss = None
        if type(algorithm).local_loss is not Algorithm.local_loss:
            local_loss = algorithm.local_loss
        starts = None
        if self.before.firsts is not None:
            starts = self.before.firsts[plan.ids]
        return Task(
            index=server.index,
            seed=settings.local_seed,
            theta=server.theta,
            ids=plan.ids,
            local=settings.local(server.index),
            starts=starts,
            snapshot_steps=plan.snapshot_steps,
            buffers=server.buffers,
            local_loss=local_loss,
            moments=optimizer_states.select(self.after.moments, plan.ids),
        )

    def tasks(self) -> Iterator[tuple[Task, Callable[[Update], None]]]:
        """The task and who takes its updates; one for each client where these have layers of their own."""
        task = self.task()
        norms = self.after.norms
        if norms is None:
            yield task, self.take
            return
        for own in norms.tasks(task, self.after.moments):
            yield own, partial(self.take_own, norms, own)

    def take_own(self, norms: LocalNorms, task: Task, update: Update) -> None:
        """The same of a client that keeps its BatchNorm layers."""
        self.take(norms.take(task, update))

    def take(self, update: Update) -> None:
        """A client's update goes into the fold, the state of its optimiser into the table."""
        self.fold.add(update)
        if self.after.moments is not None:
            optimizer_states.write(self.after.moments, update)

    def store_personal(self, task: Task, update: Update) -> None:
        """A client's own model after training; a result that is not finite is discarded."""
        ids = update.ids
        personal = self.after.personal
        owns = self.after.owns
        assert personal is not None and owns is not None
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
        personal[ids] = torch.where(usable, trained, personal[ids])
        owns[ids] |= usable[:, 0]


def _advance(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
    panel: Tensor | None,
    leaders: Sequence[int],
) -> Advanced:
    began = time.perf_counter()
    trained = _trained(runs, states, engine, sorted(set(leaders)))
    new_states = []
    records = []
    for k, leader in enumerate(leaders):
        new_state, record = trained[leader]
        if leader != k:
            new_state = shared_training.following(new_state, states[k], record.skipped)
        new_states.append(new_state)
        records.append(record)
    scores: list[Scores] = [{} for _ in runs]
    if panel is not None:
        scores = evaluation.score_states(new_states, problem, engine, panel)
    elapsed = time.perf_counter() - began
    seconds = elapsed / len(runs)
    for k, scored in enumerate(scores):
        timed = records[k].but(seconds=seconds)
        records[k] = evaluation.with_scores(timed, scored)
    return new_states, records


def _trained(
    runs: Sequence[Run],
    states: Sequence[State],
    engine: Engine,
    leading: Sequence[int],
) -> dict[int, tuple[State, Record]]:
    """The leading runs after the round, by their position."""
    leaders = [runs[k] for k in leading]
    before = [states[k] for k in leading]
    parts = _open(leaders, before, engine)
    _train(parts, engine)
    trained = {}
    for k, part in zip(leading, parts, strict=True):
        losses_at = partial(_losses_at, engine, part.fold.opened.server, part.before.norms)
        server, record = part.fold.close(losses_at)
        norms = part.after.norms
        if norms is not None:
            server = norms.averaged(server)
            server = with_average(server, part.before.server.average, record.skipped)
        trained[k] = dataclasses.replace(part.after, server=server), record
    return trained


def _losses_at(
    engine: Engine,
    server: Server,
    norms: LocalNorms | None,
    theta: Tensor,
    ids: Tensor,
) -> Tensor:
    """[len(ids)] the clients' losses at another model, with the server's buffers."""
    question = EvalRequest(theta, ids, server.buffers, norms)
    (losses,) = engine.losses([question])
    return losses


def _open(runs: Sequence[Run], states: Sequence[State], engine: Engine) -> list[_Part]:
    """Draw participants, measure their losses, plan."""
    questions = []
    for run, state in zip(runs, states, strict=True):
        server = state.server
        count = run.settings.drawn(server.clients_with_data)
        participants = server.draw(count)
        questions.append(state.loss_request(participants))
    parts = []
    for k, losses in enumerate(engine.losses(questions)):
        state = states[k]
        opened = open_round(state.server, losses, questions[k].ids)
        part = _Part(runs[k], state, _with_own_tables(state, opened), Fold(opened))
        parts.append(part)
    return parts


def _with_own_tables(state: State, opened: OpenRound) -> State:
    """The state with tables that this round may write to; personal models start at the initial global one."""
    personal = None
    owns = None
    if state.personal is not None and state.owns is not None:
        personal = state.personal.clone()
        owns = state.owns.clone()
    elif opened.plan.personal is not None:
        theta = state.server.theta
        clients = len(state.server.sizes)
        personal = theta.repeat(clients, 1)
        owns = torch.zeros(clients, dtype=torch.bool, device=theta.device)
    moments = optimizer_states.copy(state.moments)
    norms = None if state.norms is None else state.norms.copied()
    return State(state.server, personal, owns=owns, moments=moments, norms=norms)


def _train(parts: Sequence[_Part], engine: Engine) -> None:
    """Train all runs' clients: updates go into the folds, personal models into their tables."""
    tasks = []
    receivers: list[Callable[[Update], None]] = []  # of each task's updates
    for part in parts:
        plan = part.fold.plan
        personal = part.after.personal
        for task, receiver in part.tasks():
            tasks.append(task)
            receivers.append(receiver)
        if personal is not None and plan.personal is not None:
            local = dataclasses.replace(task.local, prox=plan.personal)
            tied = dataclasses.replace(
                task,
                local=local,
                starts=personal[plan.ids],
                snapshot_steps=None,
                moments=None,  # its optimiser is always fresh: the model it is tied to has moved
            )
            receiver = partial(part.store_personal, tied)
            tasks.append(tied)
            receivers.append(receiver)
    for which, update in engine.train(tasks):
        receivers[which](update)
