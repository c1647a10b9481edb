"""Which client trains in which slot when, and which examples it sees: all of a round, before its first step."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core import streams
from ...core.streams import Batching
from .jobs import Integers


@dataclass(frozen=True)
class SlotEvent:
    """Jobs that begin before a step, or end after it, with their slots."""

    slots: Integers
    jobs: Integers


@dataclass(frozen=True)
class Schedule:
    """Slots are refilled as they fall free, in the order of the jobs: put the largest first."""

    first: Integers  # [steps, slots] where the slot's batch begins in the table of examples
    count: Integers  # [steps, slots] its length, 0 for an idle slot
    job: Integers  # [steps, slots] whose batch it is; any job's for an idle slot
    local_step: Integers  # [steps, slots] which of the job's steps this is: 0, 1, ...
    begin: dict[int, SlotEvent]  # by the step before which jobs begin
    end: dict[int, SlotEvent]  # by the step after which jobs end

    @classmethod
    def of(
        cls,
        sizes: Integers,
        slots: int,
        batching: Batching,
    ) -> "Schedule":
        """`sizes` [jobs]; the table holds a permutation of each job's examples for each pass, job after job.

        >>> Schedule.of(np.array([5, 3]), 1, Batching(4)).count.ravel().tolist()
        [4, 1, 3]
        """
        per_pass = batching.per_pass(sizes)
        passes = batching.passes(sizes)
        width = batching.width(sizes)
        local_steps = batching.local_steps(sizes)
        slot_of, begins = _places(local_steps, slots)
        ends = begins + local_steps
        steps = int(ends.max(initial=0))
        first = np.zeros((steps, slots), dtype=np.int64)
        count = np.zeros_like(first)
        jobs = np.zeros_like(first)
        local_step = np.zeros_like(first)
        offset = 0
        for job, size in enumerate(sizes):
            step = np.arange(local_steps[job])
            epoch = step // max(1, per_pass[job])
            batch = step - epoch * per_pass[job]
            skipped = batch * width
            cells = (slice(begins[job], ends[job]), slot_of[job])
            first[cells] = offset + epoch * size + skipped
            count[cells] = np.minimum(width, size - skipped)
            jobs[cells] = job
            local_step[cells] = step
            offset += size * passes[job]
        return cls(first, count, jobs, local_step, _events(begins, slot_of), _events(ends - 1, slot_of))

    def __len__(self) -> int:
        return len(self.first)


def _places(steps: Integers, slots: int) -> tuple[Integers, Integers]:
    """The slot and the first step of each job of so many `steps`: the slot that falls free first."""
    free = [(0, slot) for slot in range(slots)]
    slot_of = np.zeros_like(steps)
    begins = np.zeros_like(steps)
    for job, job_steps in enumerate(steps.tolist()):
        begin, slot = heapq.heappop(free)
        slot_of[job] = slot
        begins[job] = begin
        heapq.heappush(free, (begin + job_steps, slot))
    return slot_of, begins


def _events(steps: Integers, slots: Integers) -> dict[int, SlotEvent]:
    events = {}
    for step in np.unique(steps).tolist():
        jobs = np.flatnonzero(steps == step)
        events[step] = SlotEvent(slots[jobs], jobs)
    return events


def examples(
    seeds: Integers,
    index: int,
    clients: Integers,
    sizes: Integers,
    passes: Integers,
    starts: Integers,
    device: torch.device,
) -> Tensor:
    """The table: for each job and pass `starts` plus a permutation of 0 .. size-1, as `core.streams.batches` draws.

    Made on the device: a sort of hashed keys within segments. A segment is one pass of one job.
    """
    job = np.repeat(np.arange(len(passes)), passes)  # of each segment
    first_segment = passes.cumsum() - passes
    lengths = sizes[job]
    total = int(lengths.sum())
    per_segment = [
        seeds[job],
        clients[job],
        np.arange(len(job)) - first_segment[job],
        starts[job],
        np.cumsum(lengths) - lengths,
        lengths,
    ]
    host_table = torch.from_numpy(np.stack(per_segment))
    columns = host_table.to(device, non_blocking=True)  # one transfer
    seed, client, epoch, start, begin, length = columns
    segments = torch.arange(len(lengths), device=device)
    segment = torch.repeat_interleave(segments, length, output_size=total)
    place = torch.arange(total, device=device)
    example = place - begin[segment]
    key = torch.zeros_like(example)
    for part in (seed[segment], torch.full_like(example, index), client[segment], epoch[segment], example):
        key = streams.mixed(key, part)
    by_key = torch.argsort(key ^ _SIGN, stable=True)  # unsigned order
    by_segment = torch.argsort(segment[by_key], stable=True)
    order = by_key[by_segment]
    rows: Tensor = start[segment] + example
    return rows[order]


_SIGN = -(1 << 63)
