"""The reference engine: one client after another, obvious to read; the oracle of the fast one."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...client import Pool
from ...core.server import Update
from ..problem import LossFunction, Problem, Question, Task
from .worker import Worker


class Reference:
    """Accepts any torch module; buffers (BatchNorm's statistics) are averaged by share."""

    how = "reference: one client after another"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.worker = Worker(problem)

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        return [self._measure(q, self.problem.train, self.problem.loss) for q in questions]

    def shrink(self) -> bool:
        return False

    def scores(self, questions: Sequence[Question], of: LossFunction) -> list[Tensor]:
        assert self.problem.judged is not None
        return [self._measure(q, self.problem.judged, of) for q in questions]

    def train(self, orders: Sequence[Task]) -> Iterator[tuple[int, Update]]:
        for which, order in enumerate(orders):
            for position in range(len(order.ids)):
                yield which, self.worker.train(order, position)

    def _measure(self, question: Question, pool: Pool, of: LossFunction) -> Tensor:
        values = []
        for client in question.ids.tolist():
            self.worker.load(
                question.models if question.models.ndim == 1 else question.models[client], question.buffers
            )
            values.append(self.worker.mean(of, pool, client))
        return torch.tensor(values, dtype=torch.float64)
