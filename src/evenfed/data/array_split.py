"""How `evenfed.federate` splits rows across clients, and how it treats small clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import InputError, check_choice, check_whole, first_line
from ..core.scalars import is_number, unwrap_fields
from . import partition as partitions
from .options import PARTITIONS, SMALL
from .partition import Parts, Rows, UndrawnError

OPTIONS_OF = {
    "dirichlet": ("clients", "concentration"),
    "shards": ("clients", "shards_per_client"),
    "iid": ("clients",),
    "natural": (),
}  # of each partition; all have the other options
MOST_DRAWS = 1000  # of small = "redraw"


@dataclass(frozen=True)
class Share:
    """One client's rows."""

    name: str
    rows: Rows


@dataclass(frozen=True)
class ArraySplit:
    """How examples are split across clients."""

    partition: str
    clients: int
    concentration: float
    shards_per_client: int
    test: float
    small: str
    min_train: int
    min_test: int
    seed: int

    def __post_init__(self) -> None:
        unwrap_fields(self)
        check_whole("clients", self.clients, 1)
        check_whole("shards_per_client", self.shards_per_client, 1)
        check_whole("seed", self.seed, 0)
        check_choice("small", self.small, SMALL)
        check_whole("min_train", self.min_train, 0)
        check_whole("min_test", self.min_test, 0)
        if not is_number(self.concentration) or not self.concentration > 0:
            raise InputError(f"concentration={self.concentration!r}: it must be a number above 0")
        if not is_number(self.test) or not 0 <= self.test < 1:
            raise InputError(f"test={self.test!r}: it must be at least 0 and below 1, e.g. 0.2")
        if self.small == "redraw" and self.partition == "natural":
            raise InputError("small='redraw' with partition='natural': owners are not drawn; use small='drop'")

    def is_small(self, rows: int) -> bool:
        """Whether a client with so many rows has too few to train or to test on."""
        tests = partitions.test_count(rows, self.test)
        return rows - tests < self.min_train or tests < self.min_test

    def caution(self, sizes: Sequence[int]) -> str | None:
        small = sum(map(self.is_small, sizes))
        if not small:
            return None
        empty = sizes.count(0)
        untested = small - empty
        total = len(sizes)
        if self.min_train > 1 or self.min_test > 1:
            minima = f"{self.min_train} training or {self.min_test} test examples"
            finding = f"{small} of {total} clients have fewer than {minima}"
        elif not empty:
            finding = f"{untested} of {total} clients got no test example (not scored)"
        elif not untested:
            finding = f"{empty} of {total} clients got no examples (not trained, not scored)"
        else:
            finding = f"{empty} of {total} clients got no examples and {untested} more no test example (not scored)"
        cure = "small='drop' leaves them out"
        if self.partition != "natural" and 2 * small < total:
            cure += ", small='redraw' draws again until there are none"
        if self.partition != "natural":
            cure += "; or ask for fewer clients"
        if self.partition == "dirichlet":
            cure += " or a larger concentration"
        return f"{finding}; {cure}"


def refuse_ignored(partition: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if value is None or option in OPTIONS_OF[partition]:
            continue
        users = []
        for name in PARTITIONS:
            if option in OPTIONS_OF[name]:
                users.append(f"'{name}'")
        reason = f"{option} goes with {' or '.join(users)}"
        if partition == "natural" and option == "clients":
            reason = "natural clients are as many as there are owners"
        raise InputError(f"partition='{partition}' with {option}={value!r}: {reason}; leave it out")


def least_tests(given: int | None, test: Any) -> int:
    """The test examples that a client needs: one, unless none are kept."""
    if given is None:
        return 0 if test == 0 else 1
    if given and test == 0:
        raise InputError(
            f"min_test={given} with test=0: no client has test examples; raise test, or leave min_test out"
        )
    return given


def drawn_shares(count: int, labels: Rows | None, split: ArraySplit, owners: Any) -> tuple[list[Share], int]:
    """The clients' rows and the seed they are drawn with; small clients are kept, dropped or drawn again."""
    draws = MOST_DRAWS if split.small == "redraw" else 1
    for attempt in range(draws):
        seed = split.seed + attempt
        is_natural = split.partition == "natural"
        try:
            shares = _natural(count, owners) if is_natural else _artificial(count, labels, split, seed)
        except UndrawnError:
            if split.small != "redraw":
                raise
            continue
        large = []
        for share in shares:
            examples = len(share.rows)
            if not split.is_small(examples):
                large.append(share)
        if split.small == "keep" or len(large) == len(shares):
            return shares, seed
        if split.small == "drop" and large:
            return large, seed
    drawn = f"none of {MOST_DRAWS} draws gives every client" if split.small == "redraw" else "no client has"
    raise InputError(
        f"small='{split.small}': {drawn} {split.min_train} training and {split.min_test} test examples; ask for fewer "
        "clients, a larger concentration, or lower minima"
    )


def _natural(count: int, owners: Any) -> list[Share]:
    if owners.shape != (count,):
        raise InputError(f"owners has the shape {tuple(owners.shape)} for {count} examples; give one for each")
    try:
        values, members = np.unique(owners, return_inverse=True)
    except TypeError as error:
        raise InputError(f"owners cannot be compared ({first_line(error)}); give one number or name each") from None
    parts, ids = partitions.natural(members, clients=0, least=1, seed=0)
    names = [str(values[k]) for k in ids]
    return list(map(Share, names, parts))


def _artificial(count: int, labels: Rows | None, split: ArraySplit, seed: int) -> list[Share]:
    clients = split.clients
    if clients > count:
        raise InputError(f"clients={clients} of {count} examples; give at most one client per example")
    parts: Parts
    if split.partition == "iid":
        parts = partitions.iid(count, clients, seed)
    elif labels is None:
        raise InputError(
            f"partition='{split.partition}' splits by class, and these targets are no classes (one whole number per "
            "example); use 'iid', or give owners= for 'natural'"
        )
    elif split.partition == "shards":
        parts = partitions.shards(labels, clients, split.shards_per_client, seed)
    else:
        parts = partitions.dirichlet(labels, clients, split.concentration, seed)
    return [Share(f"client-{position}", rows) for position, rows in enumerate(parts)]
