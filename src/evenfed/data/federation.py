"""From a data set to clients: which rows each holds, gathered once."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..client import Client, Pool
from ..core.errors import InputError, check_whole, unknown
from . import partition
from .dataset import Dataset
from .partition import Split

NAMES = (
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "cinic10",
    "shakespeare",
    "shakespeare_chars",
    "stackexchange",
    "stackoverflow",
    "folder",
)
PARTITIONS = ("dirichlet", "shards", "iid", "natural")
SMALL = ("keep", "drop", "redraw")
JUDGES = ("test", "validation")


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how they are split over clients."""

    name: str = "digits"
    path: str | None = None  # of one's own folder, for name = "folder"
    partition: Literal["dirichlet", "shards", "iid", "natural"] = "dirichlet"
    clients: int = 30  # natural: how many owners are drawn; 0 takes all
    concentration: float = 0.1  # of the Dirichlet label shift; small: few classes a client, unequal sizes
    shards_per_client: int = 2
    train_fraction: float = 0.5  # of each client's examples of each class
    validation_fraction: float = 0.0  # of each client's training examples, for choosing hyper-parameters
    judge: Literal["test", "validation"] = "test"  # on what accuracy is measured; validation: test data stay unseen
    examples: int | None = None  # use only so many of the data set's rows, drawn with the seed
    min_examples: int = 1  # natural: owners with fewer rows are not drawn
    small: Literal["keep", "drop", "redraw"] = "keep"  # clients below min_train or min_test
    min_train: int = 1
    min_test: int = 1
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        for name, allowed in (("name", NAMES), ("partition", PARTITIONS), ("small", SMALL), ("judge", JUDGES)):
            if getattr(self, name) not in allowed:
                what = "data set" if name == "name" else f"data.{name}"
                raise unknown(what, str(getattr(self, name)), allowed)
        if (self.name == "folder") != (self.path is not None):
            raise InputError(f"data.name='{self.name}' with path={self.path!r}: a path goes with name = 'folder' alone")
        least = {"clients": 0 if self.partition == "natural" else 1, "shards_per_client": 1, "min_examples": 1}
        for name, low in (*least.items(), ("min_train", 0), ("min_test", 0), ("seed", 0)):
            check_whole(f"data.{name}", getattr(self, name), low)
        if self.examples is not None:
            check_whole("data.examples", self.examples, 1)
        if self.seed >= 2**32:
            raise InputError(f"data.seed={self.seed}: give a whole number below 2**32")
        if not _real(self.concentration) or not self.concentration > 0:
            raise InputError(f"data.concentration={self.concentration!r}: it must be a number above 0")
        if not _real(self.train_fraction) or not 0 < self.train_fraction < 1:
            raise InputError(f"data.train_fraction={self.train_fraction!r}: it must lie between 0 and 1, both excluded")
        if not _real(self.validation_fraction) or not 0 <= self.validation_fraction < 1:
            raise InputError(
                f"data.validation_fraction={self.validation_fraction!r}: it must be at least 0 and below 1"
            )
        if self.judge == "validation" and not self.validation_fraction:
            raise InputError(
                "data.judge='validation' with validation_fraction=0: there is nothing to judge on; set "
                "data.validation_fraction, e.g. 0.2"
            )


@dataclass(frozen=True)
class Federation:
    """The clients of one data set, ready to train."""

    name: str
    names: list[str]
    classes: int
    train: Pool
    validation: Pool | None
    judged: Pool  # what accuracy is measured on; with judge = "validation" the validation examples
    class_counts: NDArray[np.int64] | None  # [n, classes] of all rows; None for sequences
    padding: int | None
    seed: int  # the split's, after re-drawing
    notes: tuple[str, ...]

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        return self.train.sizes.numpy()

    @property
    def judged_sizes(self) -> NDArray[np.int64]:
        return self.judged.sizes.numpy()

    def describe(self) -> dict[str, Any]:
        """Who holds how much, from which split, as JSON: saved with every run."""
        counts = None if self.class_counts is None else self.class_counts.tolist()
        sizes = {"train": self.train_sizes.tolist(), "test": self.judged_sizes.tolist()}
        return {"names": self.names, **sizes, "classes": counts, "split_seed": self.seed, "notes": list(self.notes)}

    def clients(self) -> list[Client]:
        """The same as clients for `evenfed.train`; views, no copies."""
        return [self.client(i) for i in range(len(self.names))]

    def client(self, position: int) -> Client:
        """One of them."""
        return Client(self.train.of(position), self.judged.of(position), self.names[position])


def digits() -> Dataset:
    """scikit-learn's bundled handwritten digits: 1,797 images of 8x8 in [0, 1], 10 classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset("digits", (bunch.images / 16).astype(np.float32)[:, None], bunch.target.astype(np.int64), 10)


def dataset(settings: DataSettings) -> Dataset:
    """The data set by name: bundled, from a folder of one's own, or from the cache."""
    if settings.name == "digits":
        return digits()
    if settings.name == "folder":
        from .folder import read_folder

        return read_folder(Path(str(settings.path)))
    from .store import read

    return read(settings.name)


def federate(settings: DataSettings) -> Federation:
    """The federation these settings describe; the same settings give the same clients everywhere.

    >>> found = federate(DataSettings(clients=20))
    >>> len(found.names), found.classes, int(found.train_sizes.sum() + found.judged_sizes.sum())
    (20, 10, 1797)
    """
    data = _some(dataset(settings), settings)
    splits, names, seed, notes = _drawn(data, settings)
    counts = None
    if data.targets.ndim == 1:
        held = [np.concatenate([s.train, s.validation, s.test]) for s in splits]
        counts = np.stack([np.bincount(data.targets[rows], minlength=data.classes) for rows in held])
    validation = _pool(data, [s.validation for s in splits]) if settings.validation_fraction else None
    judged = validation if settings.judge == "validation" else None
    notes += ["judged on the validation examples"] if judged else []
    return Federation(
        data.name,
        names,
        data.classes,
        _pool(data, [s.train for s in splits]),
        validation,
        judged or _pool(data, [s.test for s in splits]),
        counts,
        data.padding,
        seed,
        (*data.notes, *notes),
    )


def _some(data: Dataset, settings: DataSettings) -> Dataset:
    """Only `examples` of the rows, drawn uniformly; natural clients are drawn first and then thinned out."""
    if settings.examples is None or settings.examples >= len(data.targets) or settings.partition == "natural":
        return data
    rows = np.sort(np.random.default_rng(settings.seed).choice(len(data.targets), settings.examples, replace=False))
    owners = None if data.owners is None else data.owners[rows]
    note = f"{settings.examples} of {len(data.targets)} examples are used"
    return Dataset(
        data.name,
        _gathered(data.inputs, rows),
        data.targets[rows],
        data.classes,
        owners,
        data.owner_names,
        data.padding,
        (*data.notes, note),
    )


def _drawn(data: Dataset, settings: DataSettings) -> tuple[list[Split], list[str], int, list[str]]:
    """Splits and names, after clients that are too small were kept, dropped or drawn again."""
    for attempt in range(1000 if settings.small == "redraw" else 1):
        seed = settings.seed + attempt
        splits, names = _partitioned(data, settings, seed)
        fine = [len(s.train) >= settings.min_train and len(s.test) >= settings.min_test for s in splits]
        few = fine.count(False)
        if settings.small == "keep" or not few:
            told = [f"{few} of {len(splits)} clients are small and kept"] if few else []
            return splits, names, seed, [f"drawn with seed {seed} after {attempt} tries"] if attempt else told
        if settings.small == "drop":
            kept = [k for k, ok in enumerate(fine) if ok]
            if not kept:
                break
            least = f"fewer than {settings.min_train} train or {settings.min_test} test examples"
            told = [f"{few} of {len(splits)} clients dropped: {least}"]
            return [splits[k] for k in kept], [names[k] for k in kept], seed, told
    raise InputError(
        f"data.small='{settings.small}': no client or no draw has {settings.min_train} training and "
        f"{settings.min_test} test examples everywhere; ask for fewer clients, a larger concentration, or lower minima"
    )


def _partitioned(data: Dataset, settings: DataSettings, seed: int) -> tuple[list[Split], list[str]]:
    labels = data.targets if data.targets.ndim == 1 else None
    fractions = (settings.train_fraction, settings.validation_fraction)
    if settings.partition == "natural":
        if data.owners is None:
            raise InputError(f"data set '{data.name}' has no natural clients; use partition = dirichlet, shards or iid")
        parts, owners = partition.natural(data.owners, settings.clients, settings.min_examples, seed)
        names = [data.owner_names[k] if data.owner_names else str(k) for k in owners]
        if not parts:
            raise InputError(f"no owner of '{data.name}' has {settings.min_examples} examples; lower data.min_examples")
        kept = min((settings.examples or np.inf) / sum(map(len, parts)), 1.0)
        parts = [np.random.default_rng(seed).permutation(rows)[: int(np.ceil(kept * len(rows)))] for rows in parts]
        return [partition.split(rows, labels, *fractions, shuffle=seed) for rows in parts], names
    if settings.partition == "iid":
        parts = partition.iid(len(data.targets), settings.clients, seed)
        splits = [partition.split(np.sort(rows), labels, *fractions, shuffle=seed) for rows in parts]
    elif labels is None:
        raise InputError(
            f"partition = {settings.partition} needs classes; '{data.name}' holds sequences: use natural or iid"
        )
    elif settings.partition == "shards":
        parts = partition.shards(labels, settings.clients, settings.shards_per_client, seed)
        splits = [partition.split(rows, labels, *fractions, shuffle=seed) for rows in parts]
    else:
        parts = partition.dirichlet(labels, settings.clients, settings.concentration, seed)
        splits = [partition.split(rows, labels, *fractions) for rows in parts]
    return splits, [f"{data.name}-{k}" for k in range(len(parts))]


def _pool(data: Dataset, parts: Sequence[NDArray[np.int64]]) -> Pool:
    """The parts' rows, client after client: the only copy made of the data."""
    sizes = torch.tensor([len(rows) for rows in parts])
    rows = np.concatenate([*parts])
    inputs, targets = (torch.from_numpy(_gathered(a, rows)) for a in (data.inputs, data.targets))
    return Pool(inputs, targets, sizes.cumsum(0) - sizes, sizes)


def _gathered(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """array[rows] in the order of the file, a piece at a time: pages that were read are let go."""
    found = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
    pieces = max(1, found.nbytes // (16 << 20))
    for part in np.array_split(np.argsort(rows, kind="stable"), pieces):
        found[part] = array[rows[part]]
        mapped = getattr(array, "_mmap", None)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
    return found


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
