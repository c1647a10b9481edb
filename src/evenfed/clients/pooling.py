"""The examples of many clients, joined into one tensor of targets and one tensor per input."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .. import trees
from ..core.errors import InputError
from ..trees import Inputs
from .client import Client, Examples, Pool, Pools, like_training, row_starts, tensors
from .data_checks import comes_from
from .population import Clients, NumberedNames
from .tables import Heading

ClientsLike = Sequence[Any] | Mapping[str, Any]  # clients, or their training data, which `client_list` knows


def joined(clients: Sequence[Client], dtype: torch.dtype, heading: Heading) -> Pools:
    """Training data, and test data if any client has some; floating inputs become `dtype`.

    All tables must have the columns of the first one, or of the one that `heading` has seen.
    """
    trains = [client.train for client in clients]
    train = _pool(trains, clients, "train", dtype, heading)
    tests = [client.test for client in clients]
    empty = train.at(slice(0))
    test = _pool(tests, clients, "test", dtype, heading, empty)
    return train, like_training(test, train)


def only_pool(
    clients: Sequence[Client],
    what: str,
    dtype: torch.dtype,
    heading: Heading | None = None,
) -> Pool:
    """All `train` examples of clients that are held out of training, in one pool."""
    parts = [client.train for client in clients]
    pool = _pool(parts, clients, what, dtype, heading or Heading())
    if len(pool) == 0:
        raise InputError(f"{what}: no examples; give some, or leave it out")
    return pool


def client_list(clients: object, argument: str = "clients") -> Sequence[Client]:
    """At least one client, from a sequence or from a dict by name. `argument`: as which they are given.

    In place of a client: its training data, as a pair, a dataset, a DataLoader or a table.

    >>> pair = torch.ones(3, 2), torch.zeros(3).long()
    >>> client_list([pair]), client_list({"north": pair})
    ([<Client without a name: train 3, test none>], [<Client north: train 3, test none>])
    """
    if isinstance(clients, Clients):
        return clients
    if isinstance(clients, Client):
        raise InputError(f"{argument} is a single evenfed.Client; give a list: {argument}=[client]")
    length: int | str = "unknown"
    if hasattr(clients, "__len__"):
        length = len(clients)
    if not isinstance(clients, Sequence | Mapping) or length == 0:
        kind = type(clients).__name__
        raise InputError(f"{argument}={kind} of length {length}: give a sequence of at least one evenfed.Client")
    if isinstance(clients, Mapping):
        return [_named_client(name, given, f"{argument}[{name!r}]") for name, given in clients.items()]
    return [_as_client(given, f"{argument}[{place}]") for place, given in enumerate(clients)]


def _named_client(name: Any, given: Any, where: str) -> Client:
    client = _as_client(given, where)
    if client.name not in (None, name):
        raise InputError(f"{where} is called '{client.name}'; give it one name")
    return replace(client, name=str(name))


def _as_client(given: Any, where: str) -> Client:
    """A client itself, or one with this training data."""
    if isinstance(given, Client):
        return given
    if _is_dataset(given):
        return Client(given)
    kind = type(given).__name__
    is_pair = isinstance(given, tuple) and len(given) == 2
    if is_pair and not any(isinstance(part, tuple) or _is_dataset(part) for part in given):
        return Client(given)
    cure = "give evenfed.Client(train=(inputs, targets))"
    if is_pair:
        kind = f"pair ({', '.join(type(part).__name__ for part in given)})"
        cure = "give evenfed.Client(train=..., test=...)"
    raise InputError(f"{where} is a {kind}; {cure}")


def _is_dataset(given: Any) -> bool:
    """Whether this holds inputs and targets: a dataset, a loader or a table."""
    is_frame = comes_from("pandas", given) and hasattr(given, "columns")
    return is_frame or isinstance(given, Dataset | DataLoader) or comes_from("datasets", given)


def refuse_shared(clients: Sequence[Client], held_out: Sequence[Client]) -> None:
    """Refuse held-out clients that also train: the same client, name or data."""
    names_of_trained: set[str] = set()
    trained = {id(clients)}
    if isinstance(clients, Clients):
        names_of_trained.update(clients.given_names or ())
    else:
        for client in clients:
            trained.update((id(client), id(client.train)))
            if client.name is not None:
                names_of_trained.add(client.name)
    for position, client in enumerate(held_out):
        judged = client.train if client.test is None else client.test
        is_trained = not trained.isdisjoint((id(held_out), id(client), id(judged)))
        if client.name in names_of_trained:
            raise InputError(
                f"unseen: a training client is called '{client.name}' too; held-out clients must not train: take "
                "it out of clients=, or give it another name"
            )
        if is_trained:
            name = client.name or position
            raise InputError(
                f"unseen: the data of client {name} are trained on; held-out clients must not train: take it out of "
                "clients="
            )


def names(clients: Sequence[Client]) -> Sequence[str]:
    """The clients' names, or their positions; a repeated name is refused."""
    if isinstance(clients, Clients):
        named = clients.names
    elif any(client.name for client in clients):
        named = []
        for position, client in enumerate(clients):
            named.append(client.name or str(position))
    else:
        named = NumberedNames(len(clients))
    if not isinstance(named, NumberedNames):
        _refuse_repeated(named)
    return named


def _refuse_repeated(named: Sequence[str]) -> None:
    position: dict[str, int] = {}
    for i, name in enumerate(named):
        first = position.setdefault(name, i)
        if first != i:
            raise InputError(
                f"clients {first} and {i} are both called '{name}'; give each a name of its own (a client without one "
                "is called by its position)"
            )


def _pool(
    parts: Sequence[Examples],
    clients: Sequence[Client],
    what: str,
    dtype: torch.dtype,
    heading: Heading,
    empty: Examples = None,
) -> Pool:
    """The clients' parts, one after another; `empty` replaces a part that is None."""
    if empty is not None:
        parts = [empty if part is None else part for part in parts]
    names_columns = any(client.target is not None for client in clients)
    pool = None if names_columns else _pool_at_once(parts, what, dtype)
    if pool is None:
        return _pool_one_by_one(parts, clients, what, dtype, heading)
    return pool


def _pool_at_once(parts: Sequence[Examples], what: str, dtype: torch.dtype) -> Pool | None:
    """The pool of pairs of tensors or arrays that all have one form, checked together, which is fast.

    None for other parts, and if one of them is wrong.
    """
    sizes: list[int] = []
    inputs: list[Any] = []
    targets: list[Any] = []
    form = None  # of the first part
    for part in parts:
        if type(part) is not tuple or len(part) != 2:
            return None
        x, y = part
        own_form = (_form(x), _form(y))
        if form is None:
            form = own_form
        if own_form != form or None in own_form or len(x) != len(y):
            return None
        sizes.append(len(y))
        inputs.append(x)
        targets.append(y)
    if not inputs:
        return None
    try:
        together = tensors((_joined(inputs), _joined(targets)), what, dtype)
    except InputError:
        return None
    counts = torch.tensor(sizes)
    return Pool(*together, starts=row_starts(counts), sizes=counts)


def _form(values: Any) -> tuple[Any, ...] | None:
    """What tensors or arrays must have in common to be joined; None for anything else."""
    kind = type(values)
    if kind is np.ndarray and values.ndim:
        return kind, values.dtype, values.shape[1:]
    if kind is not Tensor or values.is_nested:
        return None
    if values.layout is not torch.strided or not values.ndim:
        return None
    return kind, values.dtype, values.shape[1:], values.device


def _joined(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], Tensor):
        return np.concatenate(parts)
    with torch.no_grad():
        return torch.cat(list(parts))


def _pool_one_by_one(
    parts: Sequence[Examples],
    clients: Sequence[Client],
    what: str,
    dtype: torch.dtype,
    heading: Heading,
) -> Pool:
    """The pool of parts of any form, checked one by one: an error names the client."""
    sizes: list[int] = []
    inputs: list[Inputs] = []
    targets: list[Tensor] = []
    first = ""  # the first client with examples: the others must be like it
    first_shapes = ""
    for name, client, part in zip(names(clients), clients, parts, strict=True):
        where = f"client {name}, {what}"
        x, y = tensors(part, where, dtype, client.column_of(part), heading)
        size = len(y)
        sizes.append(size)
        if size == 0:
            continue
        shapes = f"{trees.shapes(x)} -> {trees.example_shape(y)}"
        if not inputs:
            first = name
            first_shapes = shapes
        elif shapes != first_shapes:
            raise InputError(
                f"{where}: examples are {shapes}, but client {first} has {first_shapes}; "
                "give all clients the same shapes and types (pad sequences to one length)"
            )
        inputs.append(x)
        targets.append(y)
    if not inputs:
        inputs.append(x)
        targets.append(y)
    counts = torch.tensor(sizes)
    return Pool(
        inputs=trees.concatenated(inputs),
        targets=torch.cat(targets),
        starts=row_starts(counts),
        sizes=counts,
    )
