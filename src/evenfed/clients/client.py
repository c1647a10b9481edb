"""`evenfed.Client`, the checks of its data, and `Pool`: all clients' examples as the engines take them."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import trees
from ..core.choices import known_keywords
from ..core.errors import InputError
from ..core.printable import printable
from ..trees import Inputs
from . import data_checks, examples
from .tables import CLASS_NUMBERS, Heading, NoTargetError, Target

Examples = Any  # a pair (inputs, targets), or another form that `examples.pair` knows
SMALL_INTEGERS = (torch.int8, torch.int16, torch.int32)  # these become int64; uint8 may be an image


@dataclass(frozen=True, repr=False)
class Client:
    """One client: `train` and `test` are (inputs, targets), tensors or arrays with one row per example.

    A model of several inputs takes them as a dict (its keyword arguments) or a tuple of tensors or arrays.
    In place of a pair: a torch Dataset or DataLoader, a Hugging Face dataset, a DataFrame, a folder with x.npy and
    y.npy, or a function without arguments that loads one of these when the client is drawn.
    `target`: the column of a table to predict, unless it is called label, labels, target or y; or a list of columns
    with numbers. `size`, `test_size`: how many examples a function loads. `groups`: a label per test example, such as
    an age group, for `Result.groups`.
    """

    train: Examples
    test: Examples | None = None
    name: str | None = None
    target: Target = None
    size: int | None = None
    test_size: int | None = None
    groups: Any = None

    def __post_init__(self) -> None:
        self._check_size("size", self.size, self.train)
        self._check_size("test_size", self.test_size, self.test)
        if self.groups is not None and self.test is not None:
            self._check_groups()

    def _check_size(self, option: str, size: int | None, part: Examples) -> None:
        """Refuse a size that differs from the data's own; only functions need one."""
        if size is None or examples.is_loader(part) or examples.count(part) == size:
            return
        kind = "no data" if part is None else type(part).__name__
        name = self.name or "without a name"
        raise InputError(
            f"client {name}: {option}={size} with {kind}: it says how many examples a function loads; leave it out"
        )

    def _check_groups(self) -> None:
        count = examples.count(self.test) if self.test_size is None else self.test_size
        name = self.name or "without a name"
        try:
            shape = list(np.shape(self.groups))
        except ValueError:
            raise InputError(
                f"client {name}: groups of unequal lengths; give one label for each test example"
            ) from None
        if count is not None and shape != [count]:
            raise InputError(
                f"client {name}: groups {shape} for {count} test examples; give one label for each test example"
            )
        data_checks.check_alignment([*examples.tables(self.test), self.groups], f"client {name}: test and groups")
        missing = data_checks.missing(self.groups)
        if missing:
            raise InputError(f"client {name}: groups has {missing} missing values; give them a name such as 'unknown'")

    def column_of(self, part: Examples) -> Target:
        """The column to predict in `train` or `test`; None for a pair whose counterpart is a table."""
        counterpart = self.test if part is self.train else self.train
        if examples.is_pair(part) and counterpart is not None and not examples.is_pair(counterpart):
            return None
        return self.target

    def with_test_only(self) -> "Client":
        """A client that has only the test examples, as its `train`."""
        return dataclasses.replace(self, train=self.test, size=self.test_size, test=None, test_size=None)

    def __repr__(self) -> str:
        train = _amount(self.train, self.size)
        test = "none" if self.test is None else _amount(self.test, self.test_size)
        return f"<Client {printable(str(self.name or 'without a name'))}: train {train}, test {test}>"


# An unknown keyword, such as tests=, is refused with the right name.
Client.__init__ = known_keywords()(Client.__init__)  # type: ignore[method-assign]


def _amount(data: Examples, size: int | None) -> str:
    """The number of examples in words, without reading them."""
    if examples.is_path(data):
        return "in a folder"
    count = examples.count(data) if size is None else size
    return "when drawn" if count is None else str(count)


@dataclass(frozen=True)
class Pool:
    """The examples of all clients, client after client: one tensor of targets, and one for each input."""

    inputs: Inputs  # [N, ...] each
    targets: Tensor  # [N, ...]
    starts: Tensor  # [n] first row of each client
    sizes: Tensor  # [n] rows of each client

    @property
    def with_rows(self) -> list[int]:
        """The clients that have examples."""
        clients: list[int] = self.sizes.nonzero().flatten().tolist()
        return clients

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the clients `ids`, client after client."""
        sizes = self.sizes[ids]
        offsets = self.starts[ids] - row_starts(sizes)
        total = int(sizes.sum())
        return torch.arange(total) + offsets.repeat_interleave(sizes)

    def __len__(self) -> int:
        return len(self.targets)

    def of(self, client: int) -> tuple[Inputs, Tensor]:
        """(inputs, targets) of one client, as views."""
        start = int(self.starts[client])
        size = int(self.sizes[client])
        rows = slice(start, start + size)
        return self.at(rows)

    def at(self, rows: trees.Index) -> tuple[Inputs, Tensor]:
        """(inputs, targets) of these rows; rows [c, b] give [c, b, ...]."""
        return trees.rows(self.inputs, rows), self.targets[rows]

    def to(self, device: torch.device) -> "Pool":
        """On `device`, in plain memory order: other orders (channels last) cannot be stacked."""

        def moved(tensor: Tensor) -> Tensor:
            flat = tensor.to(device).contiguous().view(-1)
            return flat.view(tensor.shape)

        with explain_out_of_memory(self.inputs):
            inputs = trees.mapped(moved, self.inputs)
            targets = self.targets.to(device)
        return Pool(inputs, targets, self.starts, self.sizes)


Pools = tuple[Pool, Pool | None]  # of training and of test examples


def row_starts(sizes: Tensor) -> Tensor:
    """The first row of each client, if the clients' rows lie one after another.

    >>> row_starts(torch.tensor([2, 3, 4]))
    tensor([0, 2, 5])
    """
    return sizes.cumsum(0) - sizes


def owners(sizes: Tensor) -> Tensor:
    """[N] the client that each row belongs to, if the clients' rows lie one after another."""
    return torch.arange(len(sizes)).repeat_interleave(sizes)


@contextmanager
def explain_out_of_memory(data: Inputs) -> Iterator[None]:
    """If the device's memory runs out while `data` are copied, the error says what to do."""
    try:
        yield
    except torch.OutOfMemoryError:
        gigabytes = trees.nbytes(data) / 1e9
        raise InputError(
            f"the device's memory does not hold the data ({gigabytes:.2g} GB, images twice); use device='cpu', "
            "a free GPU, or fewer examples"
        ) from None


def like_training(test: Pool, train: Pool) -> Pool | None:
    """The test examples, None if there are none; their inputs must match the training examples'."""
    if len(test) == 0:
        return None
    tested = trees.names(test.inputs)
    trained = trees.names(train.inputs)
    if len(train) and tested != trained:
        raise InputError(
            f"test examples have inputs{', inputs'.join(tested)}, training examples inputs{', inputs'.join(trained)}; "
            "give both the same"
        )
    return test


def single_client_pools(client: Client, position: int, dtype: torch.dtype) -> Pools:
    """The pools that one site sees: its own client at `position`, and no rows of the clients before it.

    >>> train, test = single_client_pools(Client(train=(torch.ones(3, 2), torch.zeros(3).long())), 4, torch.float32)
    >>> train.sizes.tolist(), train.of(4)[0].shape, test
    ([0, 0, 0, 0, 3], torch.Size([3, 2]), None)
    """
    heading = Heading()
    train = _pool_at(position, client, "train", dtype, heading)
    if client.test is None:
        return train, None
    test = _pool_at(position, client, "test", dtype, heading)
    return train, like_training(test, train)


def _pool_at(position: int, client: Client, what: str, dtype: torch.dtype, heading: Heading) -> Pool:
    part = client.train if what == "train" else client.test
    where = f"client {client.name or position}, {what}"
    inputs, targets = tensors(part, where, dtype, client.column_of(part), heading)
    sizes = torch.zeros(position + 1, dtype=torch.int64)
    sizes[position] = len(targets)
    return Pool(inputs, targets, torch.zeros_like(sizes), sizes)


def tensors(
    part: Examples,
    where: str,
    dtype: torch.dtype,
    target: Target = None,
    heading: Heading | None = None,
) -> tuple[Inputs, Tensor]:
    """One client's examples as tensors, whatever their form; a function is called for them.

    The columns of a table are compared with those of the tables that `heading` has seen.
    """
    if examples.is_loader(part):
        part = examples.loaded(part, where)
    heading = heading or Heading()
    try:
        table = examples.read(part, where, target)
    except NoTargetError:
        heading.refuse_without_target(where)
        raise
    heading.check(table, where)
    inputs = _inputs(table.inputs, f"{where} inputs", dtype)
    targets = _targets(table.targets, f"{where} targets", dtype)
    answers = len(targets)
    for name, tensor in zip(trees.names(inputs), trees.leaves(inputs), strict=True):
        count = len(tensor)
        if count == answers:
            continue
        advice = "give one target for each input"
        if isinstance(table.inputs, list):
            advice += ", and several inputs of one model as a tuple or a dict"
        raise InputError(f"{where}: {count} inputs{name} but {answers} targets; {advice}")
    return inputs, targets


def _inputs(values: Any, where: str, dtype: torch.dtype) -> Inputs:
    """Inputs as tensors: a dict or tuple keeps its structure, everything else becomes one tensor."""
    if isinstance(values, Mapping):
        by_name = {}
        for name in values:
            if not isinstance(name, str):
                raise InputError(f"{where}: the key {name!r}; name each input as the model's forward() does")
        for name in sorted(values):  # in one order, whatever the client's
            value = values[name]
            by_name[name] = _tensor(value, f"{where}[{name!r}]", dtype)
        if not by_name:
            raise InputError(f"{where}: an empty dict; give at least one tensor")
        return by_name
    is_tuple = isinstance(values, tuple) and len(values) > 0
    if is_tuple and all(isinstance(value, Tensor | np.ndarray) for value in values):
        tensors = []
        for place, value in enumerate(values):
            tensors.append(_tensor(value, f"{where}[{place}]", dtype))
        return tuple(tensors)
    return _tensor(values, where, dtype)


def _targets(values: Any, where: str, dtype: torch.dtype) -> Tensor:
    """Whole numbers and truth values as int64 classes; other numbers as floats."""
    if data_checks.is_text(values):
        raise InputError(f"{where} are text; {CLASS_NUMBERS}, e.g. [{{'no': 0, 'yes': 1}}[label] for label in y]")
    targets = _tensor(values, where, dtype)
    if targets.is_floating_point() or targets.is_complex():
        return targets
    return targets.long()


def _tensor(values: Any, where: str, dtype: torch.dtype) -> Tensor:
    data_checks.refuse_sparse(values, where)
    try:
        tensor = examples.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: cannot become a tensor ({error}); give a tensor or an array of numbers") from None
    examples.check_rows(tensor, where)
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
        _check_finite(tensor, where)
    elif tensor.dtype in SMALL_INTEGERS:
        tensor = tensor.long()
    return tensor.detach()


def _check_finite(tensor: Tensor, where: str) -> None:
    finite = tensor.isfinite()
    if bool(finite.all()):
        return
    rows = finite.reshape(len(tensor), -1)
    spoilt = ~rows.all(1)
    example = int(spoilt.nonzero()[0])
    raise InputError(f"{where}: NaN or infinity in example {example}; clean or drop it")
