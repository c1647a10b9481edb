"""Clients visited one by one by all cores: for models that stacking would slow down, or that cannot be stacked."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import torch
from torch import Tensor

from ... import trees
from ...clients.client import Pool
from ...core.server import OptimizerStates, Update
from ...losses import Functions, values
from ..problem import EvalRequest, EvalResult, Problem, Task, Updates
from ..totals import add_by_class, client_means
from .reference import Reference
from .worker import Worker

ROWS_AT_ONCE = {"cpu": 64, "cuda": 4096}  # more than fits a CPU's cache is slower


class Visiting(Reference):
    """One worker per core, each with its own model; updates come back in a repeatable order.

    Models whose examples see each other or whose buffers change need `as_reference`: clients train in the reference
    engine's order, in which counters are copied, and no batch that is measured holds examples of two clients.
    """

    def __init__(
        self,
        problem: Problem,
        workers: int,
        as_reference: bool = False,
    ) -> None:
        self.problem = problem
        self.as_reference = as_reference
        self.workers = [_LeanWorker(problem, alone=workers == 1) for _ in range(workers)]
        self.worker = self.workers[0]
        self.threads = ThreadPoolExecutor(workers)  # reused: a new thread starts with cold memory

    @property
    def how(self) -> str:
        count = len(self.workers)
        return "clients visited by 1 worker" if count == 1 else f"clients visited by {count} workers"

    def train(self, tasks: Sequence[Task]) -> Updates:
        """Run after run; few updates wait at a time, and always in the same order."""
        if len(self.workers) == 1:
            for which, position in self._jobs(tasks):
                update = self.worker.train(tasks[which], position)
                yield which, update
            return
        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            idle.put(worker)

        def visit(task: Task, position: int) -> Update:
            worker = idle.get()
            try:
                return worker.train(task, position)
            finally:
                idle.put(worker)

        most_waiting = 2 * len(self.workers)
        waiting: deque[tuple[int, Future[Update]]] = deque()
        with _one_torch_thread_each():
            for which, position in self._jobs(tasks):
                visited = self.threads.submit(visit, tasks[which], position)
                waiting.append((which, visited))
                if len(waiting) > most_waiting:
                    first, visited = waiting.popleft()
                    yield first, visited.result()
            while waiting:
                which, visited = waiting.popleft()
                yield which, visited.result()

    def _jobs(self, tasks: Sequence[Task]) -> Iterator[tuple[int, int]]:
        """(task, position of the client in it), largest client first so that no worker ends long after the others."""
        for which, task in enumerate(tasks):
            positions = torch.arange(len(task.ids))
            if not self.as_reference:
                sizes = self.problem.train.sizes[task.ids]
                positions = sizes.argsort(descending=True, stable=True)
            for position in positions.tolist():
                yield which, position

    def _measure(
        self,
        question: EvalRequest,
        pool: Pool,
        of: Functions,
        classes: int | None = None,
    ) -> EvalResult:
        """One model for all clients takes their rows in batches of one size."""
        if self.as_reference or question.models.ndim == 2:
            return super()._measure(question, pool, of, classes)
        model = self.worker.model
        self.worker.load(question.models, question.buffers)
        model.eval()

        def values_of(rows: Tensor) -> Tensor:
            with torch.no_grad():
                inputs, targets = pool.at(rows)
                return values(of, trees.outputs(model, inputs), targets)

        device = self.problem.device
        rows = pool.rows(question.ids).to(device)
        batches = rows.split(ROWS_AT_ONCE[device.type])
        if len(self.workers) == 1:
            parts = [values_of(batch) for batch in batches]
        else:
            with _one_torch_thread_each():
                parts = list(self.threads.map(values_of, batches))
        table = torch.cat(parts)
        means = client_means(table, pool.sizes[question.ids]).T
        if classes is None:
            return EvalResult(means)
        by_class = torch.zeros(classes, dtype=torch.float64, device=device)
        add_by_class(by_class, table[:, -1], pool.targets[rows])
        return EvalResult(means, by_class.cpu())


class _LeanWorker(Worker):
    """The same local steps; those of plain SGD take one pass over the parameters instead of three."""

    def _descend(self, loss: Tensor, task: Task, moments: OptimizerStates) -> None:
        if not task.local.is_plain:
            super()._descend(loss, task, moments)
            return
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        anchors = task.theta.split(self.problem.layout.sizes)
        local = task.local
        with torch.no_grad():
            for parameter, gradient, anchor in zip(self.parameters, gradients, anchors, strict=True):
                if local.prox:  # towards the incoming model before the gradient moves the parameter
                    target = anchor.view_as(parameter)
                    parameter.lerp_(target, local.lr * local.prox)
                if gradient is not None:
                    parameter.add_(gradient, alpha=-local.lr)


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _one_torch_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
