"""Randomness without memory: every draw is a function of (seed, round, client), so that client 7's
batches depend neither on who else was drawn, nor on the engine, nor on what ran before a restart.

Permutations are the sort order of hashed keys, which lets one call serve a whole stack of clients.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Integers = TypeVar("Integers", NDArray[np.int64], Tensor)

SAMPLING, PLANNING, INITIAL_MODEL = 101, 102, 103  # purposes that must not share a stream


def hashed(*keys: ArrayLike) -> NDArray[np.uint64]:
    """One 64-bit hash per broadcast element of `keys`.

    >>> bool(hashed(0, 1) == hashed(0, 1)), bool(hashed(0, 1) == hashed(1, 0))
    (True, False)
    """
    state: NDArray[np.int64] = np.zeros((), dtype=np.int64)
    with np.errstate(over="ignore"):
        for key in keys:
            state = mixed(state, np.asarray(key).astype(np.int64))
    return np.asarray(state).view(np.uint64)


def mixed(state: Integers, key: Integers) -> Integers:
    """One more key folded into a hash: SplitMix64's finaliser, in signed numbers that wrap around."""
    state = state + key + (0x9E3779B97F4A7C15 - _WHOLE)
    state = (state ^ _shifted(state, 30)) * (0xBF58476D1CE4E5B9 - _WHOLE)
    state = (state ^ _shifted(state, 27)) * (0x94D049BB133111EB - _WHOLE)
    return state ^ _shifted(state, 31)


_WHOLE = 1 << 64


def _shifted(state: Integers, bits: int) -> Integers:
    """To the right, filled with zeros."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def generator(seed: int, index: int, purpose: int) -> np.random.Generator:
    """An ordinary NumPy generator for what needs more than a permutation (DRFA's draw by lambda)."""
    return np.random.default_rng(int(hashed(seed, index, purpose)))


def sample(seed: int, index: int, among: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` of the clients `among`, uniformly without replacement, in ascending order."""
    keys = hashed(seed, index, SAMPLING, among)
    return np.sort(among[np.argsort(keys, kind="stable")[:count]])


def batches(
    seeds: ArrayLike,
    index: int,
    clients: NDArray[np.int64],
    sizes: NDArray[np.int64],
    batch_size: int | None,
    epochs: int,
) -> NDArray[np.int64]:
    """Which examples each client sees at each local step: [c, steps, batch], -1 where there is none.

    Every epoch is a fresh permutation of the client's own examples 0 .. size-1, cut into batches, the
    last of which may be short. A client with fewer steps than the longest has only -1 after its last.

    >>> batches(0, 0, np.array([4]), np.array([3]), 2, 1).shape
    (1, 2, 2)
    """
    width = int(min(batch_size or sizes.max(), sizes.max()))
    per_epoch = local_steps(sizes, batch_size, 1)
    longest = int(per_epoch.max()) * width
    example = np.arange(longest)
    keys = hashed(
        np.reshape(seeds, (-1, 1, 1)), index, clients[:, None, None], np.arange(epochs)[None, :, None], example
    )
    beyond = example >= sizes[:, None, None]
    order = np.argsort(np.where(beyond, np.uint64(2**64 - 1), keys), axis=-1, kind="stable")
    order[np.broadcast_to(beyond, order.shape)] = -1
    tables = order.reshape(len(clients), epochs, -1, width)
    if epochs == 1:
        return tables[:, 0]
    step = np.arange(int(per_epoch.max()) * epochs)
    epoch, batch = np.divmod(step[None, :], per_epoch[:, None])
    table = tables[np.arange(len(clients))[:, None], np.minimum(epoch, epochs - 1), batch]
    table[epoch >= epochs] = -1
    return table


def local_steps(sizes: NDArray[np.int64], batch_size: int | None, epochs: int) -> NDArray[np.int64]:
    """Local steps of clients of these sizes; none for a client without data.

    >>> local_steps(np.array([0, 5, 64, 65]), 64, 1).tolist()
    [0, 1, 1, 2]
    """
    whole = np.where(sizes > 0, 1, 0) if batch_size is None else -(-sizes // batch_size)
    return whole * epochs
