"""One round's work in slots: the clients of all tasks through a fixed number of them, refilled as they fall free."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.server import Update
from ..problem import Task, Updates
from .schedule import Event, Integers, Schedule, examples
from .step import Step

Scheduled = tuple[Schedule, Tensor, Tensor]  # with its `first` and `count` on the device
Index = Tensor | int  # a single one as a number, which costs no transfer


class Shift:
    """A job is one client of one task. Nothing waits for the host until the last one has ended."""

    def __init__(self, step: Step, tasks: Sequence[Task], schedule: Callable[[bytes, int], Scheduled]) -> None:
        problem = step.network.problem
        pool = problem.train
        pool_sizes = pool.sizes.numpy()
        self.step = step
        self.tasks = tasks
        # Run after run, so that few runs' updates are held at once; each run's largest client first.
        ids = [task.ids.numpy() for task in tasks]
        queues = [np.argsort(-pool_sizes[clients], kind="stable") for clients in ids]
        self.owner = np.repeat(np.arange(len(tasks)), [len(queue) for queue in queues])  # [jobs] their task
        self.position = np.concatenate(queues)  # [jobs] among the task's clients
        clients = np.concatenate([own[queue] for own, queue in zip(ids, queues, strict=True)])
        sizes = pool_sizes[clients]
        self.schedule, first, count = schedule(sizes.tobytes(), step.count)
        table = examples(
            seeds=np.array([task.seed for task in tasks])[self.owner],
            index=tasks[0].index,
            clients=clients,
            sizes=sizes,
            epochs=problem.local_epochs,
            starts=pool.starts.numpy()[clients],
            device=problem.device,
        )
        column = torch.arange(step.width, device=problem.device)
        last = (count - 1).clamp(min=0)[..., None]  # a short batch is filled up with its own last example
        entry = first[..., None] + column.minimum(last)
        self.rows = table[entry.clamp(max=len(table) - 1)]  # [steps, slots, width]
        self.mask = (column < count[..., None]).to(step.mask.dtype)
        self.incoming = [task.theta[step.live.columns] for task in tasks]
        self.deltas: dict[int, Tensor] = {}
        self.snapshots: dict[int, Tensor] = {}
        self.unfinished = np.bincount(self.owner, minlength=len(tasks))
        self.snapshot_events = self._snapshot_events()

    def updates(self) -> Updates:
        """Each task's updates together, when its last client has ended."""
        schedule = self.schedule
        for t in range(len(schedule)):
            if t in schedule.begin:
                self._begin(schedule.begin[t])
            self.step(self.rows[t], self.mask[t])
            for event in self.snapshot_events.get(t, ()):
                self._note(event, self.snapshots)
            if t in schedule.end:
                yield from self._end(schedule.end[t])

    def _begin(self, event: Event) -> None:
        """New clients take over free slots."""
        step = self.step
        for which, slots, positions in self._by_task(event):
            task = self.tasks[which]
            incoming = self.incoming[which]
            if task.starts is None:
                step.put(slots, incoming)
            else:
                step.put(slots, task.starts[positions][..., step.live.columns])
            step.lr[slots] = task.lr
            if step.pulled:
                step.anchor[slots] = incoming
                step.prox[slots] = task.prox
            if task.local_loss is not None:
                step.kind[slots] = 1 + step.local_losses.index(task.local_loss)
            elif step.local_losses:
                step.kind[slots] = 0

    def _end(self, event: Event) -> Updates:
        """Clients whose last step is done; a task's update once all its clients are."""
        self._note(event, self.deltas)
        for which in self.owner[event.jobs].tolist():
            self.unfinished[which] -= 1
            if self.unfinished[which] == 0:
                yield which, self._update(which)

    def _update(self, which: int) -> Update:
        task = self.tasks[which]
        columns = self.step.live.columns
        deltas = self.deltas.pop(which)
        snapshots = self.snapshots.pop(which, None)
        if task.starts is None:
            return Update(task.ids, deltas, snapshots, columns=columns)
        whole = task.theta - task.starts  # parameters that do not learn stay as far away as they were
        if snapshots is not None:
            snapshots = whole.index_copy(1, columns, snapshots)
        return Update(task.ids, whole.index_copy(1, columns, deltas), snapshots)

    def _note(self, event: Event, into: dict[int, Tensor]) -> None:
        """How far these clients have moved, in their task's rows."""
        for which, slots, positions in self._by_task(event):
            incoming = self.incoming[which]
            if which not in into:
                into[which] = incoming.new_zeros(len(self.tasks[which].ids), len(incoming))
            into[which][positions] = incoming - self.step.get(slots)

    def _by_task(self, event: Event) -> Iterator[tuple[int, Index, Index]]:
        """(task, slots, positions among the task's clients) of an event."""
        owners = self.owner[event.jobs]
        for which in np.unique(owners).tolist():
            own = owners == which
            slots = event.slots[own]
            positions = self.position[event.jobs[own]]
            if len(slots) == 1:
                yield which, int(slots[0]), int(positions[0])
            else:
                yield which, self._on_device(slots), self._on_device(positions)

    def _on_device(self, numbers: Integers) -> Tensor:
        return torch.from_numpy(numbers).to(self.step.mask.device, non_blocking=True)

    def _snapshot_events(self) -> dict[int, list[Event]]:
        """Whose snapshots are due after which step."""
        due: dict[int, list[Event]] = {}
        for t, event in self.schedule.begin.items():
            for slot, job in zip(event.slots, event.jobs, strict=True):
                snapshot_steps = self.tasks[self.owner[job]].snapshot_steps
                if snapshot_steps is None:
                    continue
                steps = snapshot_steps.numpy()[self.position[job]]
                single = Event(np.array([slot]), np.array([job]))
                due.setdefault(t + int(steps) - 1, []).append(single)
        return due
