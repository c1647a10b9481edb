"""Which client trains in which slot when, and which examples it sees: all of a round, before its first step."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core import streams


@dataclass(frozen=True)
class Event:
    """Jobs that begin before a step, or end after it, with their slots."""

    slots: NDArray[np.int64]
    jobs: NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """Slots are refilled as they fall free, in the order of the jobs: put the largest first."""

    first: NDArray[np.int64]  # [steps, slots] where the slot's batch begins in the table of examples
    count: NDArray[np.int64]  # [steps, slots] its length, 0 for an idle slot
    begin: dict[int, Event]
    end: dict[int, Event]

    @classmethod
    def of(cls, sizes: NDArray[np.int64], slots: int, batch_size: int, epochs: int) -> "Schedule":
        """`sizes` [jobs]; the table holds `epochs` permutations of each job's examples, job after job.

        >>> Schedule.of(np.array([5, 3]), 1, 4, 1).count.ravel().tolist()
        [4, 1, 3]
        """
        offsets = np.concatenate([[0], np.cumsum(sizes * epochs)])
        batches = -(-sizes // batch_size)
        free = [(0, slot) for slot in range(slots)]
        placed = []
        for steps in batches * epochs:
            at, slot = heapq.heappop(free)
            placed.append((at, slot, at + int(steps)))
            heapq.heappush(free, (at + int(steps), slot))
        length = max((end for _, _, end in placed), default=0)
        first, count = np.zeros((2, length, slots), dtype=np.int64)
        for job, (at, slot, end) in enumerate(placed):
            epoch, batch = np.divmod(np.arange(end - at), max(1, batches[job]))
            first[at:end, slot] = offsets[job] + epoch * sizes[job] + batch * batch_size
            count[at:end, slot] = np.minimum(batch_size, sizes[job] - batch * batch_size)
        return cls(first, count, _events(placed, 0), _events(placed, 2))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def useful(self) -> float:
        """The share of slots that are not idle."""
        return float((self.count > 0).mean()) if len(self) else 1.0


def _events(placed: list[tuple[int, int, int]], when: int) -> dict[int, Event]:
    """Begins by the step before which they happen; ends by the step after which."""
    at: dict[int, list[tuple[int, int]]] = {}
    for job, place in enumerate(placed):
        at.setdefault(place[when] - (when == 2), []).append((place[1], job))
    return {step: Event(*np.array(found).T) for step, found in at.items()}


def examples(
    seeds: NDArray[np.int64],
    index: int,
    clients: NDArray[np.int64],
    sizes: NDArray[np.int64],
    epochs: int,
    starts: NDArray[np.int64],
    device: torch.device,
) -> Tensor:
    """The table: for each job and epoch `starts` plus a permutation of 0 .. size-1, as `core.streams.batches` draws.

    Made on the device: a sort of hashed keys within segments.
    """
    lengths = np.repeat(sizes, epochs)
    total = int(lengths.sum())
    columns = np.stack(
        [
            np.repeat(seeds, epochs),
            np.repeat(clients, epochs),
            np.tile(np.arange(epochs), len(sizes)),
            np.repeat(starts, epochs),
            np.cumsum(lengths) - lengths,
            lengths,
        ]
    )
    seed, client, epoch, row, begin, length = torch.from_numpy(columns).to(device, non_blocking=True)
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=device), length, output_size=total)
    example = torch.arange(total, device=device) - begin[segment]
    keys = torch.zeros_like(example)
    for key in (seed[segment], torch.full_like(example, index), client[segment], epoch[segment], example):
        keys = streams.mixed(keys, key)
    by_key = torch.argsort(keys ^ _SIGN, stable=True)  # unsigned order
    table: Tensor = (row[segment] + example)[by_key[torch.argsort(segment[by_key], stable=True)]]
    return table


_SIGN = -(1 << 63)
