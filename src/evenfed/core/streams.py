"""Randomness without memory: every draw is a function of (seed, round, client), and of the local step if it has one.

Client 7's batches therefore depend neither on who else was drawn, nor on the engine, nor on what ran before a restart.
Permutations are the sort order of hashed keys, which lets one call serve a whole stack of clients. What is drawn within
a local step (augmentation, dropout) is hashed on the device from the step's key: `HashedNumbers`.
"""

import math
from dataclasses import dataclass
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
PANEL = 107

# SplitMix64's constants, as signed numbers
_WHOLE = 1 << 64
_STEP = 0x9E3779B97F4A7C15 - _WHOLE
_FIRST = 0xBF58476D1CE4E5B9 - _WHOLE
_SECOND = 0x94D049BB133111EB - _WHOLE
_LOW_BITS = np.uint64((1 << 33) - 1)
_LAST = np.uint64(_WHOLE - 1)  # the key that sorts last
_PIECE = 1 << 14  # clients hashed at a time: what a processor's cache holds


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


def generator(
    seed: int,
    index: int,
    purpose: int,
) -> np.random.Generator:
    """An ordinary NumPy generator for what needs more than a permutation (DRFA's draw by lambda)."""
    key = hashed(seed, index, purpose)
    return np.random.default_rng(int(key))


def step_keys(
    seeds: ArrayLike,
    index: int,
    clients: ArrayLike,
    steps: ArrayLike,
) -> Indices:
    """The key of a client's local step (0, 1, ...) in round `index`, for `HashedNumbers`; one per broadcast element.

    >>> step_keys(0, 0, np.array([3, 4]), 0).shape
    (2,)
    """
    return hashed(seeds, index, LOCAL_STEP, clients, steps).view(np.int64)


class HashedNumbers:
    """Random numbers on a device, hashed from a step's key: the same for a client alone, under vmap and in a graph.

    `key` is one whole number (int64), or one per slot. Each call draws new numbers; different purposes never share
    any. The first examples of a longer batch get the numbers that a shorter one would.

    >>> draw = HashedNumbers(torch.tensor(7), AUGMENTATION)
    >>> bool((draw.uniform(2, 3) == HashedNumbers(torch.tensor(7), AUGMENTATION).uniform(4, 3)[:2]).all())
    True
    """

    def __init__(
        self,
        key: Tensor,
        purpose: int,
    ) -> None:
        purposes = torch.full_like(key, purpose)
        self.key = mixed(key, purposes)
        self.calls = 0

    def uniform(self, *shape: int) -> Tensor:
        """[*slots, *shape] numbers in [0, 1), in float32: multiples of 2**-24."""
        bits = self._bits(shape)
        return bits.to(torch.float32) * 2.0**-24

    def integers(self, high: int, *shape: int) -> Tensor:
        """[*slots, *shape] whole numbers in 0 .. high-1; `high` is at most 2**24."""
        return (self._bits(shape) * high) >> 24

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        number = torch.full_like(self.key, self.calls)
        call = mixed(self.key, number)
        self.calls += 1
        places = math.prod(shape)
        place = torch.arange(places, device=self.key.device)
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
    return _with_smallest_hashes(hashed(seed, index, SAMPLING), among, count)


def panel(among: Indices, count: int) -> Indices:
    """The same in every round of every run: `count` of the clients `among` that are evaluated, in ascending order."""
    return _with_smallest_hashes(hashed(PANEL), among, count)


def _with_smallest_hashes(prefix: NDArray[np.uint64], among: Indices, count: int) -> Indices:
    """Those whose hash, `prefix` with one more key, is among the `count` smallest: of equal ones the first.

    Piece by piece, so that a million clients take no more memory than a few. This is the one thing that a round does
    for every client, so it is `mixed` without new arrays, and without its last fold for those that cannot be chosen.
    """
    among = among.astype(np.int64, copy=False)
    chosen = among[:0]
    smallest: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
    states = np.empty(_PIECE, dtype=np.uint64)
    shifted = np.empty(_PIECE, dtype=np.uint64)
    with np.errstate(over="ignore"):
        first = prefix + np.uint64(_STEP + _WHOLE)
        for start in range(0, len(among), _PIECE):
            piece = among[start : start + _PIECE]
            state = states[: len(piece)]
            np.add(piece.view(np.uint64), first, out=state)
            _fold_in_place(state, shifted, 30)
            state *= np.uint64(_FIRST + _WHOLE)
            _fold_in_place(state, shifted, 27)
            state *= np.uint64(_SECOND + _WHOLE)
            if len(chosen) == count:
                highest = smallest[-1] | _LOW_BITS  # the last fold changes low bits alone
                likely = np.flatnonzero(state <= highest)
                piece = piece[likely]
                state = state[likely]
            hashes = state ^ (state >> np.uint64(31))
            chosen = np.concatenate([chosen, piece])
            smallest = np.concatenate([smallest, hashes])
            order = np.argsort(smallest, kind="stable")[:count]
            chosen = chosen[order]
            smallest = smallest[order]
    return np.sort(chosen)


def _fold_in_place(state: NDArray[np.uint64], shifted: NDArray[np.uint64], bits: int) -> None:
    """`_folded` of unsigned numbers; `shifted` is room to work in."""
    room = shifted[: len(state)]
    np.right_shift(state, np.uint64(bits), out=room)
    np.bitwise_xor(state, room, out=state)


@dataclass(frozen=True)
class Batching:
    """How a client's examples become the batches of its local steps.

    Every pass is a fresh permutation of the client's own examples 0 .. size-1, cut into batches of `size`, the last of
    which may be short. `drop_last` leaves that one out, unless it is the only one.
    """

    size: int | None = None  # None: the whole client in one batch
    epochs: int = 1  # passes over the client's examples
    steps: int | None = None  # local steps instead: pass after pass, as far as they go
    drop_last: bool = False

    def per_pass(self, sizes: Indices) -> Indices:
        """Batches in one pass of clients with so many examples; none without data."""
        at_least = np.minimum(sizes, 1)
        if self.size is None:
            return at_least
        if self.drop_last:
            return np.maximum(sizes // self.size, at_least)
        return -(-sizes // self.size)  # rounded up

    def local_steps(self, sizes: Indices) -> Indices:
        """Local steps of clients of these sizes; none for a client without data.

        >>> Batching(64).local_steps(np.array([0, 5, 64, 65])).tolist()
        [0, 1, 1, 2]
        """
        per_pass = self.per_pass(sizes)
        if self.steps is not None:
            return np.where(per_pass > 0, self.steps, 0)
        return per_pass * self.epochs

    def passes(self, sizes: Indices) -> Indices:
        """How often clients of these sizes begin a pass."""
        per_pass = np.maximum(self.per_pass(sizes), 1)
        passes: Indices = -(-self.local_steps(sizes) // per_pass)  # rounded up
        return passes

    def width(self, sizes: Indices) -> int:
        """Examples in the longest batch of all."""
        longest = int(sizes.max())
        return min(self.size or longest, longest)

    def shortest(self, sizes: Indices) -> Indices:
        """Examples in each client's shortest batch."""
        width = self.width(sizes)
        last = (sizes - 1) % width + 1
        per_pass = self.per_pass(sizes)
        is_cut_off = self.local_steps(sizes) < per_pass
        if self.drop_last:
            is_cut_off |= sizes >= width
        whole = np.minimum(sizes, width)
        return np.where(is_cut_off, whole, last)


def batches(
    seeds: ArrayLike,
    index: int,
    clients: Indices,
    sizes: Indices,
    batching: Batching,
) -> Indices:
    """Which examples each client sees at each local step: [c, steps, batch], -1 where there is none.

    A client with fewer steps than the longest has only -1 after its last.

    >>> batches(0, 0, np.array([4]), np.array([3]), Batching(2)).shape
    (1, 2, 2)
    """
    count = len(clients)
    steps = batching.local_steps(sizes)
    per_pass = batching.per_pass(sizes)
    width = batching.width(sizes)
    most_steps = int(steps.max())
    table = np.full((count, most_steps, width), -1)
    # one row per client and pass
    passes = batching.passes(sizes)
    client = np.repeat(np.arange(count), passes)
    first_row = passes.cumsum() - passes  # of each client
    epoch = np.arange(len(client)) - np.repeat(first_row, passes)
    seed = np.broadcast_to(seeds, count)
    for rows in _of_similar_length(sizes[client]):
        own = client[rows, None]
        size = sizes[own]
        own_epoch = epoch[rows, None]
        own_per_pass = per_pass[own]
        whole = int(own_per_pass.max())  # batches in the longest pass
        room = whole * width
        largest = int(size.max())
        example = np.arange(max(room, largest))
        keys = hashed(
            seed[own],
            index,
            clients[own],
            own_epoch,
            example,
        )
        beyond = example >= size
        keys[beyond] = _LAST
        order = np.argsort(keys, axis=-1, kind="stable")
        order[beyond] = -1
        cut = order[:, :room].reshape(-1, whole, width)
        batch = np.arange(whole)
        step = own_epoch * own_per_pass + batch
        is_in_pass = batch < own_per_pass
        is_taken = is_in_pass & (step < steps[own])
        row, batch = np.nonzero(is_taken)
        places = (own[row, 0], step[row, batch])
        table[places] = cut[row, batch]
    return table


def _of_similar_length(lengths: Indices) -> list[Indices]:
    """Positions, in groups of lengths within a factor of two where one group would be mostly padding."""
    count = len(lengths)
    if count == 0:
        return []
    padded = count * int(lengths.max())
    filled = int(lengths.sum())
    if padded < max(4 * filled, 1 << 16):
        return [np.arange(count)]
    _, magnitudes = np.frexp(lengths)
    groups = []
    for magnitude in np.unique(magnitudes):
        group = np.flatnonzero(magnitudes == magnitude)
        groups.append(group)
    return groups
