"""Which data, and how they are split across clients: the table [data] of an experiment."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..core.errors import InputError, check_choice, check_whole
from ..core.scalars import is_number, unwrap_fields
from .catalogue import SOURCES

NAMES = (*SOURCES, "folder")
PARTITIONS = ("dirichlet", "shards", "iid", "natural")
SMALL = ("keep", "drop", "redraw")
JUDGES = ("test", "validation")
UNSAID: Any = None  # not given: the default depends on the data set
CLIENTS = 30  # the default, except for your own folder: all


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how they are split across clients."""

    name: str = "digits"
    path: str | None = None  # of your own folder, for name = "folder"
    partition: Literal["dirichlet", "shards", "iid", "natural"] = UNSAID  # natural for "folder", else dirichlet
    clients: int = UNSAID  # all of a folder, else 30; natural: how many owners are drawn, 0 takes all
    concentration: float = 0.1  # of the Dirichlet label shift; small: few classes per client, unequal sizes
    shards_per_client: int = 2
    train_fraction: float = 0.5  # of each client's examples of each class, unless it brings its own test data
    validation_fraction: float = 0.0  # of each client's training examples, for choosing hyper-parameters
    judge: Literal["test", "validation"] = "test"  # what accuracy is measured on; validation: test data stay unseen
    examples: int | None = None  # use only this many of the data set's rows, drawn with the seed
    min_examples: int = 1  # natural: owners with fewer rows are not drawn
    small: Literal["keep", "drop", "redraw"] = "keep"  # clients below min_train or min_test
    min_train: int = 1
    min_test: int = 1
    unseen: int = 0  # that many clients, drawn with the seed, never train and are judged apart
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        unwrap_fields(self)
        check_choice("data set", self.name, NAMES)
        self._complete()
        check_choice("data.partition", self.partition, PARTITIONS)
        check_choice("data.small", self.small, SMALL)
        check_choice("data.judge", self.judge, JUDGES)
        if self.name == "folder" and self.path is None:
            raise InputError("data.name='folder' needs a path: set data.path (with `data show`: --path DIR)")
        if self.name != "folder" and self.path is not None:
            raise InputError(f"data.name='{self.name}' with path={self.path!r}: a path goes with name = 'folder' alone")
        is_natural = self.partition == "natural"
        if not is_natural and self.clients == 0:
            raise InputError(
                f"data.clients=0 with partition='{self.partition}': 0 stands for all owners, which 'natural' alone "
                f"has; give the number of clients to split the data into, e.g. data.clients={CLIENTS}"
            )
        check_whole("data.clients", self.clients, 0 if is_natural else 1)
        check_whole("data.shards_per_client", self.shards_per_client, 1)
        check_whole("data.min_examples", self.min_examples, 1)
        check_whole("data.min_train", self.min_train, 0)
        check_whole("data.min_test", self.min_test, 0)
        check_whole("data.unseen", self.unseen, 0)
        check_whole("data.seed", self.seed, 0)
        if self.examples is not None:
            check_whole("data.examples", self.examples, 1)
        if self.seed >= 2**32:
            raise InputError(f"data.seed={self.seed}: give a whole number below 2**32")
        concentration = self.concentration
        if not is_number(concentration) or not concentration > 0:
            raise InputError(f"data.concentration={concentration!r}: it must be a number above 0")
        train = self.train_fraction
        if not is_number(train) or not 0 < train < 1:
            raise InputError(f"data.train_fraction={train!r}: give a number above 0 and below 1")
        validation = self.validation_fraction
        if not is_number(validation) or not 0 <= validation < 1:
            raise InputError(f"data.validation_fraction={validation!r}: it must be at least 0 and below 1")
        if self.judge == "validation" and not self.validation_fraction:
            raise InputError(
                "data.judge='validation' with validation_fraction=0: there is nothing to judge on; set "
                "data.validation_fraction, e.g. 0.2"
            )

    def _complete(self) -> None:
        """Fill in the defaults: each file of your own folder is one client."""
        is_own_folder = self.name == "folder"
        partition = "natural" if is_own_folder else "dirichlet"
        if self.partition is UNSAID:
            object.__setattr__(self, "partition", partition)
        is_whole_folder = is_own_folder and self.partition == "natural"
        if self.clients is UNSAID:
            object.__setattr__(self, "clients", 0 if is_whole_folder else CLIENTS)

    def describe(self) -> dict[str, Any]:
        """As JSON. `unseen` only where it is used: folders of earlier versions do not have it."""
        options = asdict(self)
        if not self.unseen:
            del options["unseen"]
        return options

    def changed(self, changes: Mapping[str, Any]) -> "DataSettings":
        """With some values changed. Split options do not carry over between your own folder and a named data set."""
        name = changes.get("name", self.name)
        is_own_folder = name == "folder"
        was_own_folder = self.name == "folder"
        if is_own_folder == was_own_folder:
            return replace(self, **changes)
        fresh = {"partition": UNSAID, "clients": UNSAID, "path": None}
        return replace(self, **{**fresh, **changes})
