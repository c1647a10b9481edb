"""Clients visited one by one by all cores: for models whose stacked form is slower than their own kernels."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import torch
from torch import Tensor

from ..client import Pool
from ..core.server import Update
from .problem import LossFunction, Orders, Problem, Question, per_example
from .worker import Worker


class Visiting:
    """One worker a core, each with a model of its own; updates come back in the order of the orders."""

    def __init__(self, problem: Problem, workers: int) -> None:
        self.problem = problem
        self.workers = [Worker(problem, alone=workers == 1) for _ in range(workers)]

    def train(self, orders: Sequence[Orders]) -> Iterator[tuple[int, Update]]:
        jobs = [(w, p) for w, order in enumerate(orders) for p in range(len(order.ids))]
        largest_first = sorted(range(len(jobs)), key=lambda j: -int(self._size(orders, jobs[j])))
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def visit(job: tuple[int, int]) -> Update:
            worker = free.get()
            try:
                return worker.train(orders[job[0]], job[1])
            finally:
                free.put(worker)

        if len(self.workers) == 1 or len(jobs) == 1:
            yield from ((job[0], visit(job)) for job in jobs)
            return
        with _one_torch_thread_each(), ThreadPoolExecutor(len(self.workers)) as threads:
            pending = {j: threads.submit(visit, jobs[j]) for j in largest_first}
            try:
                for j, job in enumerate(jobs):
                    yield job[0], pending.pop(j).result()
            finally:
                for future in pending.values():
                    future.cancel()

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        return [self._measure(q, self.problem.train, self.problem.loss) for q in questions]

    def scores(self, questions: Sequence[Question]) -> list[Tensor]:
        assert self.problem.test is not None and self.problem.score is not None
        return [self._measure(q, self.problem.test, self.problem.score) for q in questions]

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
        """All clients' rows in large batches through one model, then the mean over each client's own."""
        worker.model.eval()
        rows = pool.rows(ids).to(pool.inputs.device)
        with torch.no_grad():
            values = torch.cat(
                [per_example(of(worker.model(pool.inputs[r]), pool.targets[r])).double() for r in rows.split(512)]
            )
        owner = torch.repeat_interleave(torch.arange(len(ids)), pool.sizes[ids]).to(values.device)
        totals = torch.zeros(len(ids), dtype=torch.float64, device=values.device).index_add_(0, owner, values)
        return (totals / pool.sizes[ids].to(totals)).cpu()

    def _size(self, orders: Sequence[Orders], job: tuple[int, int]) -> int:
        return int(self.problem.train.sizes[orders[job[0]].ids[job[1]]])


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
