"""From a data set to clients: choose each client's rows and copy them into pools."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..clients.client import Client, Pool, row_starts
from ..core.errors import InputError
from ..core.words import counted, first_of
from . import partition, store
from .dataset import Dataset
from .folder import read_folder
from .options import DataSettings
from .partition import Parts, Rows, Split, UndrawnError

MOST_DRAWS = 1000  # of small = "redraw"
PIECE = 16 << 20  # bytes gathered at a time
NAMES_SHOWN = 8
UNSEEN_STREAM = 1  # of the seed's random numbers


@dataclass(frozen=True)
class Federation:
    """The clients of one data set, ready to train."""

    name: str
    names: list[str]
    classes: int
    train: Pool
    validation: Pool | None
    judged: Pool  # what accuracy is measured on: the test examples; with judge = "validation" those of `validation`
    class_counts: Rows | None  # [n, classes] of all rows; None for sequences and numbers to predict
    padding: int | None
    seed: int  # the one the split was drawn with, after re-drawing
    notes: tuple[str, ...]
    judged_on: str = "test"  # or "validation"
    unseen: Pool | None = None  # the judged examples of clients that never train
    unseen_names: tuple[str, ...] = ()

    @property
    def train_sizes(self) -> Rows:
        return self.train.sizes.numpy()

    @property
    def judged_sizes(self) -> Rows:
        return self.judged.sizes.numpy()

    @property
    def holds_sequences(self) -> bool:
        """Whether every position of an example has a symbol to predict."""
        targets = self.train.targets
        return targets.ndim > 1 and not targets.is_floating_point()

    def summary(self) -> str:
        """One line: how many clients, who they are, and how many examples they have."""
        shown = first_of(self.names, NAMES_SHOWN)
        train = int(self.train_sizes.sum())
        judged = int(self.judged_sizes.sum())
        clients = counted(len(self.names), "client")
        return f"{clients}: {shown}; {train:,} training examples, {judged:,} {self.judged_on}"

    def clients(self) -> list[Client]:
        """Clients for `evenfed.train`; their examples are views, not copies."""
        positions = range(len(self.names))
        return list(map(self.client, positions))

    def client(self, position: int) -> Client:
        """One client, with the judged examples as its test data."""
        train = self.train.of(position)
        judged = self.judged.of(position)
        return Client(train, judged, self.names[position])


def dataset(settings: DataSettings) -> Dataset:
    """The data set by name: bundled, from your own folder, or from the cache."""
    if settings.name == "folder":
        path = Path(str(settings.path)).expanduser()
        return read_folder(path)
    return store.read(settings.name)


def federate(settings: DataSettings) -> Federation:
    """The federation these settings describe; the same settings give the same clients everywhere.

    >>> federation = federate(DataSettings(clients=20))
    >>> len(federation.names), federation.classes, int(federation.train_sizes.sum() + federation.judged_sizes.sum())
    (20, 10, 1797)
    """
    data = _thinned(dataset(settings), settings)
    everyone = _draw(data, settings)
    draw, held_out = _without_unseen(everyone, settings)
    splits = draw.splits
    notes = [*data.notes, *draw.notes]
    train = _pool(data, [split.train for split in splits])
    validation = None
    if settings.validation_fraction:
        validation = _pool(data, [split.validation for split in splits])
    if settings.judge == "validation" and validation is not None:
        judged = validation
        notes.append("judged on the validation examples")
    else:
        judged = _pool(data, [split.test for split in splits])
    unseen = None
    if held_out.names:
        unseen = _pool(data, [_judged_rows(split, settings) for split in held_out.splits])
        some = first_of(held_out.names, NAMES_SHOWN)
        notes.append(f"{len(held_out.names)} of {len(everyone.names)} clients never train and are judged apart: {some}")
    return Federation(
        name=data.name,
        names=draw.names,
        classes=data.classes,
        train=train,
        validation=validation,
        judged=judged,
        class_counts=_class_counts(data, splits),
        padding=data.padding,
        seed=draw.seed,
        notes=tuple(notes),
        judged_on=settings.judge,
        unseen=unseen,
        unseen_names=tuple(held_out.names),
    )


def _judged_rows(split: Split, settings: DataSettings) -> Rows:
    return split.validation if settings.judge == "validation" else split.test


def _class_counts(data: Dataset, splits: Sequence[Split]) -> Rows | None:
    """[n, classes] over all of each client's rows; sequences and numbers to predict have no class."""
    targets = data.labels
    if targets is None:
        return None
    counts = []
    for split in splits:
        rows = np.concatenate([split.train, split.validation, split.test])
        labels = targets[rows]
        of_client = np.bincount(labels, minlength=data.classes)
        counts.append(of_client)
    return np.stack(counts)


def _thinned(data: Dataset, settings: DataSettings) -> Dataset:
    """At most `examples` of the rows, drawn uniformly. Natural clients are drawn first and thinned later."""
    total = len(data.targets)
    wanted = settings.examples
    if settings.partition == "natural":
        return data
    if wanted is None or wanted >= total:
        return data
    rng = np.random.default_rng(settings.seed)
    drawn = rng.choice(total, wanted, replace=False)
    rows = np.sort(drawn)
    note = f"{wanted} of {total} examples are used"
    owners = None
    if data.owners is not None:
        owners = data.owners[rows]
    return replace(
        data,
        inputs=_gather(data.inputs, rows),
        targets=data.targets[rows],
        owners=owners,
        is_test=None,
        notes=(*data.notes, note),
    )


@dataclass(frozen=True)
class _Draw:
    """Each client's rows, as drawn with one seed."""

    names: list[str]
    splits: list[Split]
    seed: int
    notes: tuple[str, ...] = ()

    def only(self, positions: Sequence[int]) -> "_Draw":
        names = [self.names[k] for k in positions]
        splits = [self.splits[k] for k in positions]
        return replace(self, names=names, splits=splits)

    def noted(self, note: str) -> "_Draw":
        return replace(self, notes=(*self.notes, note))


def _draw(data: Dataset, settings: DataSettings) -> _Draw:
    """Draw the clients; small ones are kept, dropped or drawn again."""
    draws = MOST_DRAWS if settings.small == "redraw" else 1
    for attempt in range(draws):
        seed = settings.seed + attempt
        try:
            draw = _partition(data, settings, seed)
        except UndrawnError:
            if settings.small != "redraw":
                raise
            continue
        total = len(draw.splits)
        large = []
        for position, split in enumerate(draw.splits):
            enough_to_train = len(split.train) >= settings.min_train
            enough_to_test = len(split.test) >= settings.min_test
            if enough_to_train and enough_to_test:
                large.append(position)
        few = total - len(large)
        if not few and attempt:
            return draw.noted(f"drawn with seed {seed} after {attempt} tries")
        if not few:
            return draw
        if settings.small == "keep":
            return draw.noted(_small_clients(few, total, settings, "kept"))
        if settings.small == "drop" and large:
            remaining = draw.only(large)
            return remaining.noted(_small_clients(few, total, settings, "dropped"))
    raise InputError(
        f"data.small='{settings.small}': no client or no draw has {settings.min_train} training and "
        f"{settings.min_test} test examples everywhere; ask for fewer clients, a larger concentration, or lower minima"
    )


def _small_clients(few: int, total: int, settings: DataSettings, what: str) -> str:
    train = _less_than(settings.min_train)
    test = _less_than(settings.min_test)
    verb = "has" if few == 1 else "have"
    return f"{few} of {total} clients {verb} {train} training or {test} test examples; {what}"


def _less_than(examples: int) -> str:
    """In words.

    >>> _less_than(1), _less_than(10)
    ('no', 'fewer than 10')
    """
    return "no" if examples <= 1 else f"fewer than {examples}"


def _without_unseen(draw: _Draw, settings: DataSettings) -> tuple[_Draw, _Draw]:
    """The clients that train and those that never do; the latter are drawn among clients with judged examples."""
    if not settings.unseen:
        return draw, draw.only([])
    total = len(draw.splits)
    judged = []
    for k, split in enumerate(draw.splits):
        rows = _judged_rows(split, settings)
        if len(rows) > 0:
            judged.append(k)
    most = min(len(judged), total - 1)
    if settings.unseen > most:
        raise InputError(
            f"data.unseen={settings.unseen}: of {total} clients {len(judged)} have {settings.judge} examples, and one "
            f"must be left to train; ask for at most {most}"
        )
    rng = np.random.default_rng([settings.seed, UNSEEN_STREAM])
    drawn = rng.choice(judged, settings.unseen, replace=False)
    unseen = sorted(drawn.tolist())
    seen = [k for k in range(total) if k not in unseen]
    return draw.only(seen), draw.only(unseen)


def _partition(data: Dataset, settings: DataSettings, seed: int) -> _Draw:
    labels = data.labels
    if settings.partition == "natural":
        parts, names = _natural_parts(data, settings, seed)
    else:
        parts = _artificial_parts(data, labels, settings, seed)
        positions = range(settings.clients)
        names = [f"{data.name}-{k}" for k in positions]
    shuffle = None if settings.partition == "dirichlet" else seed  # the authors keep the data set's order
    splits = []
    bring_tests = 0
    for rows in parts:
        own_test = _own_test(data, rows, settings)
        train_fraction = settings.train_fraction
        if len(own_test):
            bring_tests += 1
            train_fraction = 1.0
            rows = np.setdiff1d(rows, own_test)
        split = partition.split(
            rows,
            labels,
            train_fraction=train_fraction,
            validation_fraction=settings.validation_fraction,
            shuffle=shuffle,
        )
        if len(own_test):
            split = replace(split, test=own_test)
        splits.append(split)
    if not any(len(split.train) for split in splits):
        raise InputError(
            "no client has a training example; raise data.examples or data.train_fraction, or ask for fewer clients"
        )
    draw = _Draw(names, splits, seed)
    if data.is_test is not None:
        draw = draw.noted(_about_tests(bring_tests, len(parts), settings))
    return draw


def _own_test(data: Dataset, rows: Rows, settings: DataSettings) -> Rows:
    """The rows that a natural client supplied as test data; other partitions pool all rows."""
    if data.is_test is None or settings.partition != "natural":
        return rows[:0]
    is_test = data.is_test[rows]
    return np.sort(rows[is_test])


def _about_tests(bring_tests: int, clients: int, settings: DataSettings) -> str:
    if settings.partition != "natural":
        return f"the files' own test data are pooled with the rest, because partition = {settings.partition}"
    if bring_tests == clients:
        return "every client is tested on its own test data"
    rest = clients - bring_tests
    share = 1 - settings.train_fraction
    return (
        f"{bring_tests} of {clients} clients are tested on their own test data; of the other {rest}, {share:.0%} of "
        "the examples are set aside for testing"
    )


def _natural_parts(
    data: Dataset,
    settings: DataSettings,
    seed: int,
) -> tuple[Parts, list[str]]:
    if data.owners is None:
        raise InputError(f"data set '{data.name}' has no natural clients; use partition = dirichlet, shards or iid")
    least = settings.min_examples
    parts, owners = partition.natural(
        data.owners,
        clients=settings.clients,
        least=least,
        seed=seed,
    )
    if not parts:
        raise InputError(f"no owner of '{data.name}' has {least} examples; lower data.min_examples")
    total = sum(map(len, parts))
    wanted = settings.examples or total
    share = min(wanted / total, 1.0)
    thinned = []
    for rows in parts:
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(rows)
        count = int(np.ceil(share * len(rows)))
        thinned.append(shuffled[:count])
    names = list(map(str, owners))
    if data.owner_names:
        names = [data.owner_names[k] for k in owners]
    return thinned, names


def _artificial_parts(
    data: Dataset,
    labels: Rows | None,
    settings: DataSettings,
    seed: int,
) -> Parts:
    clients = settings.clients
    total = len(data.targets)
    if settings.partition != "iid" and labels is None:
        raise InputError(
            f"partition = {settings.partition} needs classes; '{data.name}' holds sequences or numbers to predict: use "
            "natural or iid"
        )
    if clients > total:
        raise InputError(f"data.clients={clients} of {total:,} examples; give at most one client per example")
    if labels is None or settings.partition == "iid":
        return partition.iid(total, clients, seed)
    if settings.partition == "shards":
        return partition.shards(labels, clients, settings.shards_per_client, seed)
    return partition.dirichlet(labels, clients, settings.concentration, seed)


def _pool(data: Dataset, parts: Parts) -> Pool:
    """The parts' rows, client after client. This is the only copy of the data."""
    rows = np.concatenate(parts)
    inputs = torch.from_numpy(_gather(data.inputs, rows))
    targets = torch.from_numpy(_gather(data.targets, rows))
    sizes = torch.tensor(list(map(len, parts)))
    return Pool(inputs, targets, row_starts(sizes), sizes)


def _gather(array: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """array[rows], read piece by piece in the file's order; pages are released after they are read."""
    row_shape = array.shape[1:]
    shape = (len(rows), *row_shape)
    gathered = np.empty(shape, dtype=array.dtype)
    pieces = max(1, gathered.nbytes // PIECE)
    in_file_order = np.argsort(rows, kind="stable")
    mapped: Any = getattr(array, "_mmap", None)
    releases_pages = mapped is not None and hasattr(mmap, "MADV_DONTNEED")
    for piece in np.array_split(in_file_order, pieces):
        gathered[piece] = array[rows[piece]]
        if releases_pages:
            mapped.madvise(mmap.MADV_DONTNEED)
    return gathered
