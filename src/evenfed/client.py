"""A client's data as the user gives it, checked, and all clients' data as the engines want it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core.errors import InputError

Examples = tuple[Any, Any]


@dataclass(frozen=True)
class Client:
    """One client: `train` and `test` are (inputs, targets), tensors or arrays with one row an example."""

    train: Examples
    test: Examples | None = None
    name: str | None = None


@dataclass(frozen=True)
class Pool:
    """The examples of all clients in one pair of tensors, client after client."""

    inputs: Tensor  # [N, ...]
    targets: Tensor  # [N, ...]
    starts: Tensor  # [n] first row of each client
    sizes: Tensor  # [n] rows of each client

    @property
    def owners(self) -> Tensor:
        """[N] the client each row belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the clients `ids`, client after client."""
        return torch.cat([torch.arange(s, s + k) for s, k in zip(*self._bounds(ids), strict=True)])

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of one client, as views."""
        start, size = int(self.starts[client]), int(self.sizes[client])
        return self.inputs[start : start + size], self.targets[start : start + size]

    def to(self, device: torch.device) -> "Pool":
        """On `device`, in plain memory order: other orders (channels last) cannot be stacked."""
        with holding(self.inputs):
            inputs = self.inputs.to(device).contiguous().view(-1).view(self.inputs.shape)
            return Pool(inputs, self.targets.to(device), self.starts, self.sizes)

    def _bounds(self, ids: Tensor) -> tuple[list[int], list[int]]:
        return self.starts[ids].tolist(), self.sizes[ids].tolist()


@contextmanager
def holding(data: Tensor) -> Iterator[None]:
    """Says what to do where a device's memory does not hold a copy of these."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise InputError(
            f"the device's memory does not hold the data ({data.nbytes / 1e9:.2g} GB, images twice); use device='cpu', "
            "a free GPU, or fewer examples"
        ) from None


def pools(clients: Sequence[Client], dtype: torch.dtype) -> tuple[Pool, Pool | None]:
    """Training data, and test data if any client has some; floating inputs become `dtype`."""
    if not isinstance(clients, Sequence) or len(clients) == 0:
        raise InputError(
            f"clients={type(clients).__name__} of length {len(clients) if hasattr(clients, '__len__') else 'unknown'}: "
            "give a sequence of at least one evenfed.Client"
        )
    for i, client in enumerate(clients):
        if not isinstance(client, Client):
            raise InputError(f"clients[{i}] is a {type(client).__name__}; give evenfed.Client(train=(inputs, targets))")
    train = _pool([c.train for c in clients], clients, "train", dtype)
    if int(train.sizes.sum()) == 0:
        raise InputError(f"all {len(clients)} clients are without training data; give at least one that has some")
    tests = [c.test for c in clients]
    if all(t is None for t in tests):
        return train, None
    empty = (train.inputs[:0], train.targets[:0])
    test = _pool([empty if t is None else t for t in tests], clients, "test", dtype)
    return train, test if int(test.sizes.sum()) else None


def alone(client: Client, position: int, dtype: torch.dtype) -> tuple[Pool, Pool | None]:
    """The pools of a federation of which only the client at `position` is to be seen: what one site knows.

    >>> train, test = alone(Client(train=(torch.ones(3, 2), torch.zeros(3).long())), 4, torch.float32)
    >>> train.sizes.tolist(), train.of(4)[0].shape, test
    ([0, 0, 0, 0, 3], torch.Size([3, 2]), None)
    """

    def placed(examples: Examples, what: str) -> Pool:
        inputs, targets = _examples(examples, f"client {client.name or position}, {what}", dtype)
        sizes = torch.zeros(position + 1, dtype=torch.int64)
        sizes[position] = len(inputs)
        return Pool(inputs, targets, torch.zeros_like(sizes), sizes)

    train = placed(client.train, "train")
    test = None if client.test is None else placed(client.test, "test")
    return train, test if test is not None and len(test.inputs) else None


def names(clients: Sequence[Client]) -> list[str]:
    """The clients' names, or their positions."""
    return [c.name or str(i) for i, c in enumerate(clients)]


def _pool(parts: Sequence[Examples], clients: Sequence[Client], what: str, dtype: torch.dtype) -> Pool:
    pairs = [_examples(part, f"client {clients[i].name or i}, {what}", dtype) for i, part in enumerate(parts)]
    sizes = torch.tensor([len(x) for x, _ in pairs])
    full = [(i, pair) for i, pair in enumerate(pairs) if len(pair[0])]
    if full:
        first, (x0, y0) = full[0]
        for i, (x, y) in full:
            if (x.shape[1:], y.shape[1:], x.dtype, y.dtype) != (x0.shape[1:], y0.shape[1:], x0.dtype, y0.dtype):
                raise InputError(
                    f"client {clients[i].name or i}, {what}: examples are {_shape(x)} -> {_shape(y)}, but client "
                    f"{clients[first].name or first} has {_shape(x0)} -> {_shape(y0)}; give all clients the same "
                    "shapes and types (pad sequences to one length)"
                )
        pairs = [pair for _, pair in full]
    inputs, targets = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    return Pool(inputs, targets, sizes.cumsum(0) - sizes, sizes)


def _examples(part: Examples, where: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if not isinstance(part, Sequence) or len(part) != 2:
        raise InputError(f"{where}: give a pair (inputs, targets), not a {type(part).__name__}")
    inputs, targets = (_tensor(p, f"{where} {n}", dtype) for p, n in zip(part, ("inputs", "targets"), strict=True))
    if len(inputs) != len(targets):
        raise InputError(f"{where}: {len(inputs)} inputs but {len(targets)} targets; give one target for each input")
    return inputs, targets


def _tensor(values: Any, where: str, dtype: torch.dtype) -> Tensor:
    try:
        tensor = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: cannot become a tensor ({error}); give a tensor or an array of numbers") from None
    if tensor.ndim == 0:
        raise InputError(f"{where}: a single number; give one row an example")
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
        if not bool(tensor.isfinite().all()):
            bad = int((~tensor.reshape(len(tensor), -1).isfinite().all(1)).nonzero()[0])
            raise InputError(f"{where}: NaN or infinity in example {bad}; clean or drop it")
    elif tensor.dtype in (torch.int8, torch.int16, torch.int32):
        tensor = tensor.long()
    return tensor.detach()


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}"
