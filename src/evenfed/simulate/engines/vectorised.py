"""What the engines that compute many models at once share: a model that stacks, and questions answered in groups."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...clients.client import Pool
from ...losses import Functions
from ..layers import attention, compiling, recurrent
from ..layers.rewriting import Rewritten
from ..module_modes import private_copy
from ..problem import Engine, EvalRequest, EvalResult, Problem


def fetched(means: Tensor, by_class: Tensor, classes: int | None) -> list[EvalResult]:
    """Of each run: means [runs, functions, clients] and totals [runs, classes], fetched from the device at once."""
    table = torch.cat([means.flatten(1), by_class], dim=1).cpu()
    of_runs = []
    for row, shape in zip(table, means, strict=True):
        lengths = [shape.numel(), by_class.shape[1]]
        own_means, own_totals = row.split(lengths)
        totals = None if classes is None else own_totals
        answer = EvalResult(own_means.view_as(shape), totals)
        of_runs.append(answer)
    return of_runs


class Vectorised(Engine):
    """Trains and measures up to `slots` clients at a time."""

    def __init__(self, problem: Problem, slots: int) -> None:
        self.problem = problem
        self.slots = slots
        self.model = private_copy(problem.model)
        recurrent.make_stackable(self.model)
        compiling.make_stackable(self.model)
        self.rewritten = partial(Rewritten, {**recurrent.RULES, **attention.RULES})

    def shrink(self) -> bool:
        """Halve the slots; False if there is only one left."""
        before = self.slots
        self.slots = max(1, before // 2)
        return self.slots < before

    def scores(
        self,
        questions: Sequence[EvalRequest],
        pool: Pool,
        of: Functions,
        classes: int | None = None,
    ) -> list[EvalResult]:
        """Questions about the same clients are answered together: their models stacked, the data shared."""
        self.model.eval()
        answers: dict[int, EvalResult] = {}
        groups: dict[bytes, list[int]] = {}
        with torch.no_grad(), self.rewritten():
            for k, question in enumerate(questions):
                if question.models.ndim == 2:
                    answers[k] = self._own_models(question, pool, of, classes)
                else:
                    clients = question.ids.numpy().tobytes()
                    groups.setdefault(clients, []).append(k)
            for members in groups.values():
                thetas = torch.stack([questions[k].models for k in members])
                ids = questions[members[0]].ids
                of_runs = self._shared_data(thetas, ids, pool, of, classes)
                answers.update(zip(members, of_runs, strict=True))
        return [answers[k] for k in range(len(questions))]

    @abstractmethod
    def _shared_data(
        self,
        thetas: Tensor,
        ids: Tensor,
        pool: Pool,
        of: Functions,
        classes: int | None,
    ) -> list[EvalResult]:
        """Of every run's model on the same rows."""

    @abstractmethod
    def _own_models(
        self,
        question: EvalRequest,
        pool: Pool,
        of: Functions,
        classes: int | None,
    ) -> EvalResult:
        """Of each client's own model on its own rows."""
