"""How well models serve clients: losses and scores on test data, from one pass over it, and in a round's record."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import scores as built_in
from ..clients.client import Pool
from ..core import streams
from ..core.errors import InputError, first_line
from ..core.server import Record, Server
from ..core.sparse import per_client
from ..losses import Functions, aligned
from ..metrics import ACCURACY, Metric, names_error
from ..settings import Settings
from .engines.precision import arithmetic
from .engines.worker import Worker
from .faults import naming_clients
from .problem import Engine, EvalRequest, Problem
from .state import Run, State
from .totals import class_totals

_TRIED = 64  # examples on which a metric is tried
_TOLERANCE = 1e-6  # of shares, which floats may exceed
Scores = dict[str, NDArray[np.float64]]  # [n], or [classes], by the record's field, as a record keeps it


def panel(problem: Problem, settings: Settings) -> Tensor:
    """Who is evaluated: everyone, or the same few clients in every round of every run, so that figures are paired."""
    clients = len(problem.train.sizes)
    if problem.judged is None or settings.evaluate_participation == 1.0:
        return torch.arange(clients)
    with_examples = torch.nonzero(problem.judged.sizes).flatten().numpy()
    count = settings.evaluated(len(with_examples))
    return torch.from_numpy(streams.panel(with_examples, count))


def score_states(
    states: Sequence[State],
    problem: Problem,
    engine: Engine,
    ids: Tensor,
) -> list[Scores]:
    """Of every run, on the clients `ids`, of the model that serves each of them."""
    judged = [state.score_request(ids) for state in states]
    current = [state.current_request(ids) for state in states]
    questions: dict[int, EvalRequest] = {}  # by the identity of its models, which several runs may have in common
    for question in (*judged, *current):
        if question is not None:
            questions.setdefault(id(question.models), question)
    answers = score(list(questions.values()), problem, engine)
    by_models = dict(zip(questions, answers, strict=True))
    scores = []
    for state, deployed, trained in zip(states, judged, current, strict=True):
        scored = dict(by_models[id(deployed.models)])
        if trained is not None:
            scored.update(of_current(by_models[id(trained.models)]))
        scored.update(held_out(state.server, problem, engine))
        scores.append(scored)
    return scores


def with_scores(record: Record, scored: Scores) -> Record:
    """The record with what was measured after its round."""
    fields: dict[str, Any] = dict(scored)
    for name in ("global_accuracy", "global_loss"):  # of one test set
        if name in scored:
            fields[name] = float(scored[name][0])
    return record.but(**fields)


def evaluated(
    record: Record,
    run: Run,
    state: State,
    problem: Problem,
    engine: Engine,
) -> Record:
    """The record of a run's last round with its scores, which an earlier round need not have."""
    measured = (record.test_losses, record.unseen_losses, record.global_loss)
    if any(losses is not None for losses in measured):
        return record
    with arithmetic(run.settings.precision), naming_clients(problem):
        (scored,) = score_states([state], problem, engine, panel(problem, run.settings))
    return with_scores(record, scored)


def score(questions: Sequence[EvalRequest], problem: Problem, engine: Engine) -> list[Scores]:
    """Of each question's models on its clients' test data; nothing without test data.

    Test losses, accuracies where there is a score, recalls where that counts right answers about classes, and for
    sequences with padding also the accuracy over the positions that are not padding.
    """
    judged = problem.judged
    if judged is None:
        return [{} for _ in questions]
    classes = problem.judged_classes
    answers = engine.scores(questions, judged, _functions(problem), classes)
    scores = []
    for question, answer in zip(questions, answers, strict=True):
        ids = question.ids
        scored = _by_field(problem, answer.means, ids)
        if problem.whole_client is not None:
            scored["accuracy"] = _of_whole_clients(problem.whole_client, question, problem, judged)
        for field, values in scored.items():
            scored[field] = per_client(len(judged.sizes), ids, values, rest=np.nan)
        if classes is not None and answer.by_class is not None:
            recalls = answer.by_class / class_totals(judged, classes, ids)
            scored["recalls"] = recalls.numpy()
        scores.append(scored)
    return scores


def held_out(server: Server, problem: Problem, engine: Engine) -> Scores:
    """Of the deployed model on clients that never train, and on a test set of its own; nothing where there are none."""
    scored: Scores = {}
    for pool, loss_field, score_field in (
        (problem.unseen, "unseen_losses", "unseen"),
        (problem.test, "global_loss", "global_accuracy"),
    ):
        if pool is None:
            continue
        everyone = torch.arange(len(pool.sizes))
        question = EvalRequest(server.deployed.theta, everyone, server.deployed.buffers)
        functions = _functions(problem)[:2]
        (answer,) = engine.scores([question], pool, functions)
        scored[loss_field] = answer.means[0].numpy()
        if problem.score is not None:
            scored[score_field] = _finite(answer.means[1])
        elif problem.whole_client is not None:
            scored[score_field] = _of_whole_clients(problem.whole_client, question, problem, pool)
    return scored


def score_of_client(worker: Worker, client: int) -> dict[str, float]:
    """The same of the worker's loaded model on one client's data, where that is all there is."""
    problem = worker.problem
    judged = problem.judged
    if judged is None:
        return {}
    of_client = worker.means(_functions(problem), judged, client)
    column = torch.tensor(of_client, dtype=torch.float64)
    ids = torch.tensor([client])
    scored = {}
    for name, values in _by_field(problem, column[:, None], ids).items():
        scored[name] = float(values[0])
    if problem.whole_client is not None:
        scored["accuracy"] = value_of(problem.whole_client, worker, judged, client)
    return scored


def of_current(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of the current model under the names that a record of a run with an average has for them."""
    renamed = {}
    for name, field in (("accuracy", "current"), ("test_losses", "current_losses")):
        if name in scores:
            renamed[field] = scores[name]
    return renamed


def check(problem: Problem) -> None:
    """Refuse a score or a metric of whole clients that has no value for any of them, before anything is trained."""
    metric = problem.whole_client
    pool = problem.judged
    if pool is None:
        return
    if metric is None:
        _check_score(problem, pool)
        return
    worker = Worker(problem)
    reason = "it is no finite number"
    for client in pool.with_rows:
        try:
            value = _call(metric, worker, pool, client)
        except Exception as error:
            message = first_line(error)
            reason = f"{type(error).__name__}: {message}"
            continue
        if not np.isnan(value):
            _refuse_broadcasting(metric, worker, pool, client)
            return
    outputs, targets = _outputs(worker, pool, pool.with_rows[0])
    raise InputError(
        f"the metric '{metric.name}' has no value for any client ({reason}); it gets the arrays of one client, here "
        f"outputs {list(outputs.shape)} and targets {list(targets.shape)} ({targets.dtype}), and must return one number"
    )


def _check_score(problem: Problem, pool: Pool) -> None:
    """Refuse a score of the user's that is not finite for anyone; for some, it means that they have no figure."""
    score = problem.score
    if score is None or getattr(score, "__module__", "") == built_in.__name__:
        return
    worker = Worker(problem)
    for client in pool.with_rows:
        (value,) = worker.means((score,), pool, client)
        if np.isfinite(value):
            _refuse_other_than_shares(problem, worker, pool, client)
            return
    raise InputError(
        "score gave NaN or infinity for every client; it must return finite numbers, one per example. A client with a "
        "NaN among them has no figure and does not count"
    )


def _refuse_other_than_shares(
    problem: Problem,
    worker: Worker,
    pool: Pool,
    client: int,
) -> None:
    """Refuse a bare function as a score if it is an error, or gives an example less than 0 or more than 1."""
    score = problem.score
    if score is None or problem.metric != ACCURACY:
        return

    def is_no_share(outputs: Tensor, targets: Tensor) -> Tensor:
        values = score(outputs, targets)
        return (values < -_TOLERANCE) | (values > 1 + _TOLERANCE)

    (beyond,) = worker.means((is_no_share,), pool, client)
    name = getattr(score, "__name__", type(score).__name__)
    if beyond:
        finding = f"score '{name}' gives some examples less than 0 or more than 1"
    elif names_error(name):
        finding = f"score '{name}' is an error by its name (rename it if it is none)"
    else:
        return
    raise InputError(
        f"{finding}, and a bare function counts as an accuracy: a share of right answers, of which more is better; "
        "wrap it: score=evenfed.Metric(function, higher_is_better=False) if less is better, else "
        "score=evenfed.Metric(function)"
    )


def check_alone(problem: Problem) -> None:
    """The same of one client by itself, which may have no value: a ValueError or NaN is none."""
    metric = problem.whole_client
    pool = problem.judged
    if pool is None:
        return
    worker = Worker(problem)
    for client in pool.with_rows:
        if metric is None:
            _refuse_other_than_shares(problem, worker, pool, client)
            continue
        try:
            value_of(metric, worker, pool, client)
        except Exception as error:
            message = first_line(error)
            raise InputError(f"the metric '{metric.name}' fails ({type(error).__name__}: {message})") from None
        _refuse_broadcasting(metric, worker, pool, client)


def _refuse_broadcasting(
    metric: Metric,
    worker: Worker,
    pool: Pool,
    client: int,
) -> None:
    """Refuse a metric that compares every output [n, 1] with every target [n]: NumPy broadcasts them to [n, n].

    Such a metric does not notice outputs in another order. Tried on made-up outputs that go with the targets; those of
    an untrained model may all be alike.
    """
    outputs, _ = _outputs(worker, pool, client)
    if pool.targets.is_complex():
        return
    count = min(len(pool.targets), _TRIED)
    spread = torch.linspace(0, len(pool.targets) - 1, count).long()
    targets = pool.targets[spread.to(pool.targets.device)].cpu()
    made_up = targets.double() - targets.double().mean()
    if made_up[0].numel() != outputs[0].size:
        return
    as_model = made_up.reshape(count, *outputs.shape[1:]).to(torch.from_numpy(outputs).dtype)
    as_targets = aligned(as_model, targets)
    if as_targets is as_model:
        return
    try:
        value = _quiet_value(metric, as_model.numpy(), targets.numpy())
        expected = _quiet_value(metric, as_targets.numpy(), targets.numpy())
        in_another_order = _quiet_value(metric, as_model.roll(1, 0).numpy(), targets.numpy())
    except Exception:  # the metric takes outputs of one of the two shapes only
        return
    is_blind_to_order = np.isclose(value, in_another_order, equal_nan=True)
    if is_blind_to_order and not np.isclose(value, expected, equal_nan=True):
        raise InputError(
            f"the metric '{metric.name}' gives {value:.3g} for outputs {list(as_model.shape)} and {expected:.3g} for "
            f"the same numbers as {list(as_targets.shape)}, with targets {list(targets.shape)}: NumPy compares every "
            "output with every target; give both one shape in the metric, e.g. outputs.reshape(targets.shape)"
        )


def value_of(
    metric: Metric,
    worker: Worker,
    pool: Pool,
    client: int,
) -> float:
    """The metric of one client at the loaded model; NaN if it has none."""
    if int(pool.sizes[client]) == 0:
        return float("nan")
    try:
        return _call(metric, worker, pool, client)
    except ValueError:
        return float("nan")


def _functions(problem: Problem) -> Functions:
    """What is measured of each example, in the order that `_by_field` reads."""
    functions = [problem.loss]
    if problem.score is not None:
        functions.append(problem.score)
        if problem.padding is not None:
            functions.append(problem.unpadded_score)
    return tuple(functions)


def _by_field(problem: Problem, means: Tensor, ids: Tensor) -> Scores:
    """[len(functions), len(ids)] by the record's field."""
    scored = {"test_losses": means[0].numpy()}
    if problem.score is not None:
        scored["accuracy"] = _finite(means[1])
        if problem.padding is not None:
            unpadded = means[2] / problem.real_positions()[ids]
            scored["unpadded"] = unpadded.numpy()
    return scored


def _finite(figures: Tensor) -> NDArray[np.float64]:
    """NaN in place of infinity: such a client has no figure."""
    return torch.where(figures.isfinite(), figures, torch.nan).numpy()


def _of_whole_clients(
    metric: Metric,
    question: EvalRequest,
    problem: Problem,
    pool: Pool,
) -> NDArray[np.float64]:
    worker = Worker(problem)
    figures = []
    for client in question.ids.tolist():
        worker.load(question.model_of(client), question.buffers_of(client))
        figures.append(value_of(metric, worker, pool, client))
    return np.array(figures, dtype=np.float64)


def _call(
    metric: Metric,
    worker: Worker,
    pool: Pool,
    client: int,
) -> float:
    outputs, targets = _outputs(worker, pool, client)
    return _quiet_value(metric, outputs, targets)


def _quiet_value(metric: Metric, outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    assert metric.function is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, about clients with one class
        value = float(metric.function(outputs, targets))
    return value if np.isfinite(value) else float("nan")


def _outputs(worker: Worker, pool: Pool, client: int) -> tuple[NDArray[Any], NDArray[Any]]:
    outputs = worker.outputs(pool, client)
    _, targets = pool.of(client)
    return outputs.cpu().numpy(), targets.cpu().numpy()
