"""The scores of runs after a round, in their records."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import streams
from ..core.server import Record
from ..settings import Settings
from . import evaluation
from .engines.precision import arithmetic
from .evaluation import Scores
from .faults import naming_clients
from .problem import Engine, EvalRequest, Problem
from .state import Run, State


def panel(problem: Problem, settings: Settings) -> Tensor:
    """Who is evaluated: everyone, or the same few clients in every round of every run, so that figures are paired."""
    clients = len(problem.train.sizes)
    if problem.judged is None or settings.evaluate_participation == 1.0:
        return torch.arange(clients)
    with_examples = torch.nonzero(problem.judged.sizes).flatten().numpy()
    count = settings.evaluated(len(with_examples))
    return torch.from_numpy(streams.panel(with_examples, count))


def score(states: Sequence[State], problem: Problem, engine: Engine, ids: Tensor) -> list[Scores]:
    """Of every run, on the clients `ids`, of the model that serves each of them."""
    judged = []
    current = []
    for state in states:
        judged.append(state.score_request(ids))
        current.append(state.current_request(ids))
    answers = _answers([*judged, *current], problem, engine)
    scores = []
    for k, state in enumerate(states):
        scored = dict(answers[k])
        scored.update(evaluation.of_current(answers[len(states) + k]))
        scored.update(evaluation.held_out(state.server, problem, engine))
        scores.append(scored)
    return scores


def _answers(questions: Sequence[EvalRequest | None], problem: Problem, engine: Engine) -> list[Scores]:
    """One for each question, none for no question; a model that several runs have in common is measured once."""
    asked: dict[int, EvalRequest] = {}  # by the identity of its models
    for question in questions:
        if question is not None:
            asked.setdefault(id(question.models), question)
    scores = evaluation.score(list(asked.values()), problem, engine)
    by_models = dict(zip(asked, scores, strict=True))
    answers: list[Scores] = []
    for question in questions:
        answer: Scores = {}
        if question is not None:
            answer = by_models[id(question.models)]
        answers.append(answer)
    return answers


def with_scores(record: Record, scored: Scores) -> Record:
    """The record with what was measured after its round."""
    return record.but(
        accuracy=scored.get("accuracy"),
        test_losses=scored.get("test_losses"),
        recalls=scored.get("recalls"),
        current=scored.get("current"),
        current_losses=scored.get("current_losses"),
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
    measured = (record.test_losses, record.unseen_losses, record.global_loss)
    if any(losses is not None for losses in measured):
        return record
    with arithmetic(run.settings.precision), naming_clients(problem):
        (scored,) = score([state], problem, engine, panel(problem, run.settings))
    return with_scores(record, scored)
