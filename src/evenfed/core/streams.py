"""Randomness without memory: every draw is a function of (seed, round, client), and of the local step if it has one.

Client 7's batches therefore depend neither on who else was drawn, nor on the engine, nor on what ran before a restart.
Permutations are the sort order of hashed keys, which lets one call serve a whole stack of clients. What is drawn within
a local step (augmentation, dropout) is hashed on the device from the step's key: `Draw`.
"""

import math
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Integers = TypeVar("Integers", Indices, Tensor)

# purposes that must not share a stream
SAMPLING = 101
PLANNING = 102
INITIAL_MODEL = 103
LOCAL_STEP = 104
AUGMENTATION = 105
DROPOUT = 106

# SplitMix64's constants, as signed numbers
_WHOLE = 1 << 64
_STEP = 0x9E3779B97F4A7C15 - _WHOLE
_FIRST = 0xBF58476D1CE4E5B9 - _WHOLE
_SECOND = 0x94D049BB133111EB - _WHOLE
_LAST = np.uint64(_WHOLE - 1)  # the key that sorts last


def hashed(*keys: ArrayLike) -> NDArray[np.uint64]:
    """One 64-bit hash per broadcast element of `keys`.

    >>> bool(hashed(0, 1) == hashed(0, 1)), bool(hashed(0, 1) == hashed(1, 0))
    (True, False)
    """
    state: Indices = np.zeros((), dtype=np.int64)
    with np.errstate(over="ignore"):
        for key in keys:
            integers = np.asarray(key)
            integers = integers.astype(np.int64)
            state = mixed(state, integers)
    return np.asarray(state).view(np.uint64)


def mixed(state: Integers, key: Integers) -> Integers:
    """One more key folded into a hash: SplitMix64's finaliser, in signed numbers that wrap around."""
    state = state + key + _STEP
    state = _folded(state, 30) * _FIRST
    state = _folded(state, 27) * _SECOND
    return _folded(state, 31)


def _folded(state: Integers, bits: int) -> Integers:
    """`state` xor itself shifted to the right by `bits`, filled with zeros."""
    low_bits = (1 << (64 - bits)) - 1
    shifted = state >> bits
    shifted = shifted & low_bits
    return state ^ shifted


def generator(seed: int, index: int, purpose: int) -> np.random.Generator:
    """An ordinary NumPy generator for what needs more than a permutation (DRFA's draw by lambda)."""
    key = hashed(seed, index, purpose)
    return np.random.default_rng(int(key))


def step_keys(seeds: ArrayLike, index: int, clients: ArrayLike, steps: ArrayLike) -> Indices:
    """The key of a client's local step (0, 1, ...) in round `index`, for `Draw`; one per broadcast element.

    >>> step_keys(0, 0, np.array([3, 4]), 0).shape
    (2,)
    """
    return hashed(seeds, index, LOCAL_STEP, clients, steps).view(np.int64)


class Draw:
    """Random numbers on a device, hashed from a step's key: the same for a client alone, under vmap and in a graph.

    `key` is one whole number (int64), or one per slot. Each call draws new numbers; different purposes never share
    any. The first examples of a longer batch get the numbers that a shorter one would.

    >>> draw = Draw(torch.tensor(7), AUGMENTATION)
    >>> bool((draw.uniform(2, 3) == Draw(torch.tensor(7), AUGMENTATION).uniform(4, 3)[:2]).all())
    True
    """

    def __init__(self, key: Tensor, purpose: int) -> None:
        self.key = mixed(key, torch.full_like(key, purpose))
        self.calls = 0

    def uniform(self, *shape: int) -> Tensor:
        """[*slots, *shape] numbers in [0, 1), in float32: multiples of 2**-24."""
        return self._bits(shape).to(torch.float32) * 2.0**-24

    def integers(self, high: int, *shape: int) -> Tensor:
        """[*slots, *shape] whole numbers in 0 .. high-1; `high` is at most 2**24."""
        return (self._bits(shape) * high) >> 24

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        """24 random bits for each place."""
        call = mixed(self.key, torch.full_like(self.key, self.calls))
        self.calls += 1
        place = torch.arange(math.prod(shape), device=self.key.device)
        state = mixed(call[..., None], place)
        bits = (state >> 40) & (2**24 - 1)
        return bits.unflatten(-1, shape) if shape else bits.squeeze(-1)


def sample(
    seed: int,
    index: int,
    among: Indices,
    count: int,
) -> Indices:
    """`count` of the clients `among`, uniformly without replacement, in ascending order."""
    keys = hashed(seed, index, SAMPLING, among)
    order = np.argsort(keys, kind="stable")
    chosen = among[order[:count]]
    return np.sort(chosen)


def batches(
    seeds: ArrayLike,
    index: int,
    clients: Indices,
    sizes: Indices,
    batch_size: int | None,
    epochs: int,
) -> Indices:
    """Which examples each client sees at each local step: [c, steps, batch], -1 where there is none.

    Every epoch is a fresh permutation of the client's own examples 0 .. size-1, cut into batches, the
    last of which may be short. A client with fewer steps than the longest has only -1 after its last.

    >>> batches(0, 0, np.array([4]), np.array([3]), 2, 1).shape
    (1, 2, 2)
    """
    largest = int(sizes.max())
    width = min(batch_size or largest, largest)
    per_epoch = local_steps(sizes, batch_size, 1)
    longest = int(per_epoch.max())

    # [c, epochs, longest * width]: each epoch's order, padded to whole batches
    seed = np.reshape(seeds, (-1, 1, 1))
    client = clients[:, None, None]
    size = sizes[:, None, None]
    epoch = np.arange(epochs)
    epoch = epoch[:, None]
    example = np.arange(longest * width)
    keys = hashed(seed, index, client, epoch, example)
    beyond = example >= size
    keys = np.where(beyond, _LAST, keys)
    order = np.argsort(keys, axis=-1, kind="stable")
    order = np.where(beyond, -1, order)
    count = len(clients)
    by_epoch = order.reshape(count, epochs, longest, width)
    if epochs == 1:
        return by_epoch[:, 0]

    # a client's epochs follow each other without the steps that only pad the longest
    step = np.arange(longest * epochs)
    epoch, batch = np.divmod(step, per_epoch[:, None])
    done = epoch >= epochs
    epoch = np.where(done, 0, epoch)
    row = np.arange(count)
    row = row[:, None]
    table = by_epoch[row, epoch, batch]
    table[done] = -1
    return table


def local_steps(sizes: Indices, batch_size: int | None, epochs: int) -> Indices:
    """Local steps of clients of these sizes; none for a client without data.

    >>> local_steps(np.array([0, 5, 64, 65]), 64, 1).tolist()
    [0, 1, 1, 2]
    """
    if batch_size is None:
        return np.where(sizes > 0, epochs, 0)
    per_epoch = -(-sizes // batch_size)  # rounded up
    return per_epoch * epochs
