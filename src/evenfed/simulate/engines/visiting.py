"""Clients visited one by one by all cores: for models whose stacked form is slower than their own kernels."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import torch
from torch import Tensor

from ...client import Pool
from ...core.server import Update
from ..problem import LossFunction, Problem, Question, Task, per_example
from .worker import Worker


class Visiting:
    """One worker a core, each with a model of its own; updates come back in the order of the orders."""

    def __init__(self, problem: Problem, workers: int) -> None:
        self.problem = problem
        self.rows_at_once = 64 if problem.device.type == "cpu" else 4096  # more than fits a CPU's cache is slower
        self.workers = [_LeanWorker(problem, alone=workers == 1) for _ in range(workers)]
        self.threads = ThreadPoolExecutor(workers)  # kept: a new thread starts with cold memory

    @property
    def how(self) -> str:
        return f"clients visited by {len(self.workers)} worker{'s' * (len(self.workers) > 1)}"

    def train(self, orders: Sequence[Task]) -> Iterator[tuple[int, Update]]:
        """Run after run, the largest client first; few updates wait at a time, and always in the same order."""
        sizes = self.problem.train.sizes
        jobs = [
            (which, int(position))
            for which, order in enumerate(orders)
            for position in sizes[order.ids].argsort(descending=True, stable=True)
        ]
        if len(self.workers) == 1:
            yield from ((which, self.workers[0].train(orders[which], position)) for which, position in jobs)
            return
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def visit(which: int, position: int) -> tuple[int, Update]:
            worker = free.get()
            try:
                return which, worker.train(orders[which], position)
            finally:
                free.put(worker)

        waiting: deque[Future[tuple[int, Update]]] = deque()
        with _one_torch_thread_each():
            for job in jobs:
                waiting.append(self.threads.submit(visit, *job))
                if len(waiting) > 2 * len(self.workers):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        return [self._measure(q, self.problem.train, self.problem.loss) for q in questions]

    def shrink(self) -> bool:
        return False

    def scores(self, questions: Sequence[Question], of: LossFunction) -> list[Tensor]:
        assert self.problem.judged is not None
        return [self._measure(q, self.problem.judged, of) for q in questions]

    def _measure(self, question: Question, pool: Pool, of: LossFunction) -> Tensor:
        worker = self.workers[0]
        if question.models.ndim == 1:
            worker.load(question.models, question.buffers)
            return self._together(worker, question.ids, pool, of)
        values = []
        for client in question.ids.tolist():
            worker.load(question.models[client], question.buffers)
            values.append(worker.mean(of, pool, client))
        return torch.tensor(values, dtype=torch.float64)

    def _together(self, worker: Worker, ids: Tensor, pool: Pool, of: LossFunction) -> Tensor:
        """All clients' rows in batches through one model, then the mean over each client's own."""
        worker.model.eval()

        def values(rows: Tensor) -> Tensor:
            with torch.no_grad():
                return per_example(of(worker.model(pool.inputs[rows]), pool.targets[rows])).double()

        found = torch.cat(self._spread(values, pool.rows(ids).to(pool.inputs.device).split(self.rows_at_once)))
        owner = torch.repeat_interleave(torch.arange(len(ids)), pool.sizes[ids]).to(found.device)
        totals = torch.zeros(len(ids), dtype=torch.float64, device=found.device).index_add_(0, owner, found)
        return (totals / pool.sizes[ids].to(totals)).cpu()

    def _spread(self, function: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
        """`function` of every part, in order, by as many threads as there are workers."""
        if len(self.workers) == 1:
            return [function(part) for part in parts]
        with _one_torch_thread_each():
            return list(self.threads.map(function, parts))


class _LeanWorker(Worker):
    """The same local steps, each with one pass over the parameters instead of three."""

    def _descend(self, loss: Tensor, orders: Task) -> None:
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        anchors = orders.theta.split(self.problem.layout.sizes)
        with torch.no_grad():
            for parameter, gradient, anchor in zip(self.parameters, gradients, anchors, strict=True):
                if orders.prox:  # towards the incoming model before the gradient moves the parameter
                    parameter.lerp_(anchor.view_as(parameter), orders.lr * orders.prox)
                if gradient is not None:
                    parameter.add_(gradient, alpha=-orders.lr)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _one_torch_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
