"""Clients whose data do not fit in memory: they are read when used, and dropped when others need the space."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import trees
from ..core.errors import InputError, check_whole
from ..losses import check_binary_targets
from ..trees import Inputs
from . import examples, pooling
from .client import Client, Pool, Pools, row_starts, tensors
from .population import Clients
from .tables import Heading, Target

HELD_MB = "EVENFED_HELD_MB"  # environment variable: megabytes of loaded clients kept for reuse
DEFAULT_MB = 512
TRIED = 8  # examples on which the model is tried

Loaded = tuple[Inputs, Tensor]


def pools(
    clients: Sequence[Client],
    dtype: torch.dtype,
    heading: Heading | None = None,
) -> Pools:
    """Training and test data of all clients: in memory, or read client by client if any client requires it.

    All tables must have the columns of the first one, or of the one that `heading` has seen.
    """
    heading = heading or Heading()
    reason = _why_lazy(clients)
    train: Pool | None
    test: Pool | None
    if reason is not None:
        cache = LoadedClients(_cache_bytes(), heading)
        train = LazyPool.of_clients(clients, "train", dtype, cache, reason)
        test = LazyPool.of_clients(clients, "test", dtype, cache, reason)
    elif isinstance(clients, Clients):
        train, test = clients.pools(dtype, heading)
    else:
        train, test = pooling.joined(clients, dtype, heading)
    if train is None or len(train) == 0:
        raise InputError(f"all {len(clients)} clients are without training data; give at least one that has some")
    return train, test


def why_visited(pool: Pool | None) -> str | None:
    """Why clients of this pool must be trained one by one; None if they need not be."""
    if isinstance(pool, LazyPool):
        return pool.reason
    return None


def expect_classes(pool: Pool, classes: int) -> None:
    """Declare that targets are below `classes`; clients that are read later are checked."""
    if isinstance(pool, LazyPool):
        pool.cache.classes = classes
        pool.check_in_memory()


def expect_binary(pool: Pool) -> None:
    """Declare that targets are between 0 and 1; clients that are read later are checked."""
    if isinstance(pool, LazyPool):
        pool.cache.is_binary = True
        pool.check_in_memory()


class LoadedClients:
    """A cache of loaded clients, limited in bytes: the least recently used is dropped first."""

    def __init__(self, limit: int, heading: Heading) -> None:
        self.limit = limit
        self.heading = heading  # the columns that tables must have
        self.classes: int | None = None  # of the targets, if they are classes
        self.is_binary = False  # whether targets are 0 and 1, or between them
        self.size = 0
        self.loaded: OrderedDict[LazyExamples, Loaded] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, part: "LazyExamples", read: Callable[[], Loaded]) -> Loaded:
        """The examples from the cache, or from `read`."""
        with self.lock:
            if part in self.loaded:
                self.loaded.move_to_end(part)
                return self.loaded[part]
        fresh = read()
        with self.lock:
            if part not in self.loaded:
                self.loaded[part] = fresh
                self.size += _nbytes(fresh)
            while self.size > self.limit:
                dropped, tensors = self.loaded.popitem(last=False)
                self.size -= _nbytes(tensors)
                dropped.release()
        return fresh


@dataclass(frozen=True, eq=False)
class LazyExamples:
    """One client's training or test examples, as the user gave them."""

    data: Any
    where: str
    target: Target
    size: int
    is_lazy: bool

    def read(self, dtype: torch.dtype, heading: Heading) -> Loaded:
        """Load them as tensors."""
        inputs, targets = tensors(self.data, self.where, dtype, self.target, heading)
        if len(targets) != self.size:
            raise InputError(
                f"{self.where}: the function loaded {len(targets)} examples, not {self.size}; give "
                "evenfed.Client the number it loads, as size= (training) or test_size="
            )
        return inputs, targets

    def release(self) -> None:
        """Free the memory of a mapped file's pages."""
        for array in examples.arrays(self.data):
            examples.release(array)


@dataclass(frozen=True, kw_only=True)
class LazyPool(Pool):
    """Examples that are read client by client.

    `inputs` and `targets` hold a few examples of one client, enough to try a model on; `of` reads a client's own.
    """

    parts: Sequence[LazyExamples]
    dtype: torch.dtype
    cache: LoadedClients
    reason: str

    @classmethod
    def of_clients(
        cls,
        clients: Sequence[Client],
        what: str,
        dtype: torch.dtype,
        cache: LoadedClients,
        reason: str,
    ) -> "LazyPool | None":
        """The training or test examples of all clients; None if there are none."""
        parts = []
        names = pooling.names(clients)
        for name, client in zip(names, clients, strict=True):
            parts.append(_lazy_examples(client, f"client {name}, {what}", what, dtype, cache.heading))
        sizes = torch.tensor([part.size for part in parts])
        with_examples = sizes.nonzero().flatten().tolist()
        if not with_examples:
            return None
        first = parts[with_examples[0]]
        inputs, targets = first.read(dtype, cache.heading)
        few = slice(TRIED)
        pool = cls(
            inputs=trees.rows(inputs, few),
            targets=targets[few],
            starts=row_starts(sizes),
            sizes=sizes,
            parts=tuple(parts),
            dtype=dtype,
            cache=cache,
            reason=reason,
        )
        pool.check_in_memory()
        return pool

    def check_in_memory(self) -> None:
        """Check the clients whose examples are already in memory."""
        for position, part in enumerate(self.parts):
            if not part.is_lazy:
                self.of(position)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def of(self, client: int) -> Loaded:
        """(inputs, targets) of one client, read if they are not in memory."""
        if int(self.sizes[client]) == 0:
            return trees.rows(self.inputs, slice(0)), self.targets[:0]
        part = self.parts[client]

        def read() -> Loaded:
            inputs, targets = part.read(self.dtype, self.cache.heading)
            self._check_alike(part, inputs, targets)
            device = self.targets.device
            moved = trees.mapped(lambda tensor: tensor.to(device), inputs)
            return moved, targets.to(device)

        if not part.is_lazy:
            return read()
        return self.cache.get(part, read)

    def to(self, device: torch.device) -> "LazyPool":
        """The few examples on `device`; clients are moved there when they are read."""
        inputs = trees.mapped(lambda tensor: tensor.to(device), self.inputs)
        return replace(self, inputs=inputs, targets=self.targets.to(device))

    def _check_alike(self, part: LazyExamples, inputs: Inputs, targets: Tensor) -> None:
        shapes = f"{trees.shapes(inputs)} -> {trees.example_shape(targets)}"
        expected = f"{trees.shapes(self.inputs)} -> {trees.example_shape(self.targets)}"
        if shapes != expected:
            raise InputError(
                f"{part.where}: examples are {shapes}, but those of the first client are {expected}; give all clients "
                "the same shapes and types (pad sequences to one length)"
            )
        if self.cache.is_binary:
            check_binary_targets(targets, part.where)
        classes = self.cache.classes
        if classes is None:
            return
        lowest = int(targets.min())
        highest = int(targets.max())
        if lowest < 0 or highest >= classes:
            raise InputError(
                f"{part.where}: targets go from {lowest} to {highest}, but the model scores {classes} classes; keep "
                f"them in 0 .. {classes - 1}"
            )


def _lazy_examples(
    client: Client,
    where: str,
    what: str,
    dtype: torch.dtype,
    heading: Heading,
) -> LazyExamples:
    data = client.train if what == "train" else client.test
    size = client.size if what == "train" else client.test_size
    if data is None:
        return LazyExamples(None, where, None, 0, is_lazy=False)
    if examples.is_loader(data):
        name = "size" if what == "train" else "test_size"
        if size is None:
            raise InputError(
                f"{where}: a function that loads examples, without their number; give evenfed.Client(..., {name}=N)"
            )
        size = check_whole(f"{where}: {name}", size, 0)
        return LazyExamples(data, where, client.column_of(data), size, is_lazy=True)
    if _is_mapped(data):
        _, mapped_targets = examples.pair(data, where)
        return LazyExamples(data, where, None, len(mapped_targets), is_lazy=True)
    inputs, targets = tensors(data, where, dtype, client.column_of(data), heading)
    return LazyExamples((inputs, targets), where, None, len(targets), is_lazy=False)


def _why_lazy(clients: Sequence[Client]) -> str | None:
    if isinstance(clients, Clients) and not clients.is_mapped:
        return None
    for position, client in enumerate(clients):
        for part in (client.train, client.test):
            if part is None or _is_pair_of_tensors(part):  # most clients of a large federation
                continue
            name = client.name or position
            if examples.is_loader(part):
                return f"the data of client {name} are loaded when it is drawn"
            if _is_mapped(part):
                return f"the data of client {name} are mapped from disk and read row by row"
    return None


def _is_pair_of_tensors(part: Any) -> bool:
    if type(part) is not tuple or len(part) != 2:
        return False
    inputs, targets = part
    return type(inputs) is Tensor and type(targets) is Tensor


def _is_mapped(part: Any) -> bool:
    """Whether examples lie in files that are mapped into memory."""
    if examples.is_path(part):
        return True
    return any(map(examples.is_mapped, examples.arrays(part)))


def _nbytes(loaded: Loaded) -> int:
    inputs, targets = loaded
    return trees.nbytes(inputs) + targets.nbytes


def _cache_bytes() -> int:
    text = os.environ.get(HELD_MB, str(DEFAULT_MB))
    try:
        megabytes = float(text)
    except ValueError:
        raise InputError(f"{HELD_MB}={text!r}: give a number of megabytes, e.g. {DEFAULT_MB}") from None
    return int(megabytes * 1e6)
