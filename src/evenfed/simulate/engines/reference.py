"""The reference engine: one client after another, obvious to read; the oracle of the fast one."""

from collections.abc import Sequence

import torch

from ...clients.client import Pool
from ...losses import Functions
from ..problem import Engine, EvalRequest, EvalResult, Problem, Task, Updates
from .worker import Worker


class Reference(Engine):
    """Accepts any torch module; buffers (BatchNorm's statistics) are averaged by share."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.worker = Worker(problem)

    @property
    def how(self) -> str:
        return "reference: one client after another"

    def scores(
        self,
        questions: Sequence[EvalRequest],
        pool: Pool,
        of: Functions,
        classes: int | None = None,
    ) -> list[EvalResult]:
        return [self._measure(question, pool, of, classes) for question in questions]

    def train(self, tasks: Sequence[Task]) -> Updates:
        for which, task in enumerate(tasks):
            for position in range(len(task.ids)):
                yield which, self.worker.train(task, position)

    def shrink(self) -> bool:
        return False

    def _measure(
        self,
        question: EvalRequest,
        pool: Pool,
        of: Functions,
        classes: int | None = None,
    ) -> EvalResult:
        by_class = None
        if classes is not None:
            by_class = torch.zeros(classes, dtype=torch.float64, device=pool.targets.device)
        means = []
        for client in question.ids.tolist():
            self.worker.load(question.model_of(client), question.buffers_of(client))
            means.append(self.worker.means(of, pool, client, by_class))
        table = torch.tensor(means, dtype=torch.float64)
        return EvalResult(table.T, None if by_class is None else by_class.cpu())
