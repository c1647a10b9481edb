"""The clients of all tasks as one table. A job is one client of one task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...clients.client import Pool
from ...local.training import LocalTraining
from ..problem import Task

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class ClientJobs(np.recarray[Any, Any]):
    """Each column has one entry per job."""

    task: Integers  # the task's position
    position: Integers  # among the task's clients
    client: Integers
    examples: Integers  # how many the client has
    first_row: Integers  # where they begin in the pool
    seed: Integers
    snapshot_step: Integers  # after so many steps, 0 for never
    lr: Floats
    prox: Floats

    @classmethod
    def of(cls, tasks: Sequence[Task], pool: Pool) -> "ClientJobs":
        """Task after task, clients in the task's order."""
        tables = []
        for which, task in enumerate(tasks):
            ids = task.ids.numpy()
            jobs = np.recarray(len(ids), dtype=_COLUMNS)
            jobs.task = which
            jobs.position = np.arange(len(ids))
            jobs.client = ids
            jobs.examples = pool.sizes.numpy()[ids]
            jobs.first_row = pool.starts.numpy()[ids]
            jobs.seed = task.seed
            jobs.snapshot_step = 0
            if task.snapshot_steps is not None:
                jobs.snapshot_step = task.snapshot_steps.numpy()
            jobs.lr = task.local.lr
            jobs.prox = task.local.prox
            tables.append(jobs)
        return np.concatenate(tables).view(cls)

    def subset(self, chosen: Integers | NDArray[np.bool_] | slice) -> "ClientJobs":
        """Some of the jobs, in the order chosen."""
        return self[chosen].view(ClientJobs)


_WHOLE = ("task", "position", "client", "examples", "first_row", "seed", "snapshot_step")
_COLUMNS = np.dtype([*((name, np.int64) for name in _WHOLE), ("lr", np.float64), ("prox", np.float64)])


def of_equal_form(tasks: Sequence[Task]) -> list[list[int]]:
    """The positions of tasks with clients, by the form of their local training, which their steps share."""
    groups: dict[LocalTraining, list[int]] = {}
    for which, task in enumerate(tasks):
        if len(task.ids):
            groups.setdefault(task.local.form, []).append(which)
    return list(groups.values())
