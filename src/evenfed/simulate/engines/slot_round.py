"""One round's work in slots: the clients of all tasks through a fixed number of them, refilled as they fall free."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core import streams
from ...core.server import OptimizerStates, Update
from ...core.streams import Batching
from .. import optimizer_states
from ..problem import Task, Updates
from .jobs import ClientJobs, Integers
from .schedule import Schedule, SlotEvent, examples
from .step import SlotStep

Scheduled = tuple[Schedule, Tensor, Tensor]  # with its `first` and `count` on the device
MakeSchedule = Callable[[bytes, int, Batching], Scheduled]  # from sizes, slots and batching
Index = Tensor | int


class SlotRound:
    """A job is one client of one task; all tasks' local training has the same form.

    Nothing waits for the host until the last job has ended.
    """

    def __init__(
        self,
        step: SlotStep,
        tasks: Sequence[Task],
        schedule: MakeSchedule,
    ) -> None:
        problem = step.network.problem
        device = problem.device
        self.step = step
        self.tasks = tasks
        batching = tasks[0].local.batching
        jobs = ClientJobs.of(tasks, problem.train)
        # Run after run, so that few runs' updates are held at once; each run's largest client first.
        order = np.lexsort([-jobs.examples, jobs.task])
        self.jobs = jobs.subset(order)
        sizes = self.jobs.examples.tobytes()
        self.schedule, first, count = schedule(sizes, step.count, batching)
        table = examples(
            seeds=self.jobs.seed,
            index=tasks[0].index,
            clients=self.jobs.client,
            sizes=self.jobs.examples,
            passes=batching.passes(self.jobs.examples),
            starts=self.jobs.first_row,
            device=device,
        )
        column = torch.arange(step.width, device=device)
        first = first[..., None]
        count = count[..., None]
        last = (count - 1).clamp(min=0)  # a short batch is filled up with its own last example
        entry = first + column.minimum(last)
        entry = entry.clamp(max=len(table) - 1)
        self.rows = table[entry]  # [steps, slots, width]
        self.mask = (column < count).to(step.mask)
        keys = streams.step_keys(
            seeds=self.jobs.seed[self.schedule.job],
            index=tasks[0].index,
            clients=self.jobs.client[self.schedule.job],
            steps=self.schedule.local_step,
        )
        self.keys = torch.from_numpy(keys).to(device, non_blocking=True)  # [steps, slots]
        columns = step.live.columns
        self.incoming = [task.theta[columns] for task in tasks]
        self.deltas: dict[int, Tensor] = {}
        self.snapshots: dict[int, Tensor] = {}
        self.moments = [optimizer_states.copy(task.moments) for task in tasks]
        self.unfinished = np.bincount(self.jobs.task, minlength=len(tasks))
        self.snapshot_events = self._snapshot_events()

    def updates(self) -> Updates:
        """Each task's updates together, when its last client has ended."""
        schedule = self.schedule
        for t in range(len(schedule)):
            if t in schedule.begin:
                self._begin(schedule.begin[t])
            rows = self.rows[t]
            self.step(rows, self.mask[t], self.keys[t])
            for event in self.snapshot_events.get(t, ()):
                self._note(event, self.snapshots)
            if t in schedule.end:
                yield from self._end(schedule.end[t])

    def _begin(self, event: SlotEvent) -> None:
        """New clients take over free slots."""
        step = self.step
        for which, slots, positions in self._by_task(event):
            task = self.tasks[which]
            incoming = self.incoming[which]
            start = incoming
            if task.starts is not None:
                own_starts = task.starts[positions]
                start = own_starts[..., step.live.columns]
            step.put(slots, start)
            if task.moments is not None:
                values = task.moments.values[positions]
                taken = task.moments.taken[positions]
                step.put_moments(slots, OptimizerStates(values, taken))
            step.lr[slots] = task.local.lr
            if step.pulled:
                step.anchor[slots] = incoming
                step.prox[slots] = task.local.prox
            if step.local_losses:
                step.kind[slots] = step.kind_of(task.local_loss)

    def _end(self, event: SlotEvent) -> Updates:
        """Clients whose last step is done; a task's update once all its clients are."""
        self._note(event, self.deltas)
        for which, slots, positions in self._by_task(event):
            left = self.moments[which]
            if left is not None:
                moments = self.step.get_moments(slots)
                left.values[positions] = moments.values
                left.taken[positions] = moments.taken
        for which in self.jobs.task[event.jobs].tolist():
            self.unfinished[which] -= 1
            if self.unfinished[which] == 0:
                yield which, self._update(which)

    def _update(self, which: int) -> Update:
        task = self.tasks[which]
        columns = self.step.live.columns
        deltas = self.deltas.pop(which)
        snapshots = self.snapshots.pop(which, None)
        moments = self.moments[which]
        if task.starts is None:
            return Update(task.ids, deltas, snapshots, moments=moments, columns=columns)
        whole = task.theta - task.starts  # parameters that do not learn stay as far away as they were
        deltas = whole.index_copy(1, columns, deltas)
        if snapshots is not None:
            snapshots = whole.index_copy(1, columns, snapshots)
        return Update(task.ids, deltas, snapshots, moments=moments)

    def _note(
        self,
        event: SlotEvent,
        into: dict[int, Tensor],
    ) -> None:
        """How far these clients have moved, in their task's rows."""
        for which, slots, positions in self._by_task(event):
            incoming = self.incoming[which]
            if which not in into:
                clients = len(self.tasks[which].ids)
                into[which] = incoming.new_zeros(clients, len(incoming))
            moved = incoming - self.step.get(slots)
            into[which][positions] = moved

    def _by_task(self, event: SlotEvent) -> Iterator[tuple[int, Index, Index]]:
        """(task, slots, positions among the task's clients) of an event."""
        jobs = self.jobs.subset(event.jobs)
        for which in np.unique(jobs.task).tolist():
            own = jobs.task == which
            slots = self._on_device(event.slots[own])
            positions = self._on_device(jobs.position[own])
            yield which, slots, positions

    def _on_device(self, numbers: Integers) -> Index:
        """A single one stays a number, which costs no transfer."""
        if len(numbers) == 1:
            return int(numbers[0])
        device = self.step.mask.device
        return torch.from_numpy(numbers).to(device, non_blocking=True)

    def _snapshot_events(self) -> dict[int, list[SlotEvent]]:
        due: dict[int, list[SlotEvent]] = {}
        for begin, event in self.schedule.begin.items():
            for slot, job in zip(event.slots, event.jobs, strict=True):
                steps = int(self.jobs.snapshot_step[job])
                if steps > 0:
                    single = SlotEvent(np.array([slot]), np.array([job]))
                    events = due.setdefault(begin + steps - 1, [])
                    events.append(single)
        return due
