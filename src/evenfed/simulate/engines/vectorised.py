"""What the engines that compute many models at once share: a model that stacks, and questions answered in groups."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...client import Pool
from ...losses import Functions
from ..layers import attention, compiling, recurrent
from ..layers.rewriting import Rewritten
from ..problem import Problem, Question, private_copy


class Vectorised(ABC):
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

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        """The training losses each question asks for."""
        of = (self.problem.loss,)
        return [answer[0] for answer in self.scores(questions, self.problem.train, of)]

    def scores(self, questions: Sequence[Question], pool: Pool, of: Functions) -> list[Tensor]:
        """Questions about the same clients are answered together: their models stacked, the data shared."""
        self.model.eval()
        answers: dict[int, Tensor] = {}
        groups: dict[tuple[int, ...], list[int]] = {}
        with torch.no_grad(), self.rewritten():
            for k, question in enumerate(questions):
                if question.models.ndim == 2:
                    answers[k] = self._own_models(question, pool, of)
                else:
                    clients = tuple(question.ids.tolist())
                    groups.setdefault(clients, []).append(k)
            for members in groups.values():
                thetas = torch.stack([questions[k].models for k in members])
                ids = questions[members[0]].ids
                means = self._shared_data(thetas, ids, pool, of)
                answers.update(zip(members, means, strict=True))
        return [answers[k] for k in range(len(questions))]

    @abstractmethod
    def _shared_data(self, thetas: Tensor, ids: Tensor, pool: Pool, of: Functions) -> Tensor:
        """[runs, len(of), len(ids)]: every run's model on the same rows."""

    @abstractmethod
    def _own_models(self, question: Question, pool: Pool, of: Functions) -> Tensor:
        """[len(of), len(ids)]: each client's own model on its own rows."""
