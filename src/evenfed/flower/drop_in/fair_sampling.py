"""How `Fair` samples its clients: more than it needs, until enough have answered, without those that rest."""

from collections.abc import Iterable, Iterator, Set
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from ...core.errors import InputError, check_whole
from ...core.scalars import is_number, unwrapped
from ..fleet_options import SYNONYMS, FleetOptions, Resting, RoundClosing
from ..messaging import ClosingRule, Responsiveness, replies
from ..sites import Admission
from ..wire import Fields


class FairSampling:
    """The fleet options of a strategy that draws nodes as FedAvg does."""

    def __init__(self, fleet_options: FleetOptions, admission: Admission) -> None:
        self.fleet_options = fleet_options
        self.admission = admission
        self.resting = Resting(fleet_options.rests_after)
        self.responsiveness = Responsiveness()
        self.closing = RoundClosing(1.0, 0, 0)
        self.enough: ClosingRule | None = None  # of the messages that are sent next

    def ask(
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float,
    ) -> Iterator[Message]:
        """The replies as they arrive, until there are enough of them, or the time is over."""
        return replies(grid, messages, timeout, enough=self.enough, responsiveness=self.responsiveness)

    def draw(
        self,
        online: int,
        fraction: float,
        least: int,
    ) -> int:
        """How many to draw where FedAvg would draw the fraction, or the least."""
        needed = max(int(online * fraction), least)
        self.closing = self.fleet_options.closing(needed, max(online, needed))
        return self.closing.drawn

    def awake(
        self,
        grid: Grid,
        index: int,
        least: int,
    ) -> Grid:
        """The grid without nodes that may not join, and without those that rest or were silent in this round."""
        left_alone = {*self.resting.at(index), *self.responsiveness.silent}
        return cast(Grid, AdmittedGrid(grid, self.admission, left_alone, least))

    def end_round(self, index: int) -> None:
        self.resting.end_round(index, self.responsiveness)


class AdmittedGrid:
    """A grid without nodes that may not join. Some of the others are left alone, as long as `least` remain."""

    def __init__(
        self,
        grid: Grid,
        admission: Admission,
        left_alone: Set[int],
        least: int,
    ) -> None:
        self.grid = grid
        self.admission = admission
        self.left_alone = left_alone
        self.least = least

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def get_node_ids(self) -> list[int]:
        online = self.admission.admitted(self.grid, self.grid.get_node_ids())
        awake = [node for node in online if node not in self.left_alone]
        return awake if len(awake) >= self.least else online


DEFAULTS = {"fraction_train": 1.0, "fraction_evaluate": 1.0, "min_available_nodes": 2}
LEAST = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")


def in_fedavgs_words(
    options: Fields,
    fraction_train: float,
    fraction_evaluate: float,
    min_available_nodes: int,
) -> Fields:
    """FedAvg's arguments, also if they are given under evenfed's names; both may be given if they are equal."""
    arguments: Fields = {
        "fraction_train": fraction_train,
        "fraction_evaluate": fraction_evaluate,
        "min_available_nodes": min_available_nodes,
    }
    for theirs, ours in SYNONYMS.items():
        if ours not in options:
            continue
        value = unwrapped(options.pop(ours))
        if arguments[theirs] not in (DEFAULTS[theirs], value):
            raise InputError(f"{theirs}={arguments[theirs]!r} and {ours}={value!r} mean the same; give one of them")
        if theirs.startswith("fraction") and not isinstance(value, float):
            raise InputError(f"{ours}={value!r}: Fair draws as FedAvg does; give a fraction in [0, 1]")
        arguments[theirs] = value
    for name in ("fraction_train", "fraction_evaluate"):
        share = unwrapped(arguments[name])
        if not is_number(share) or not 0 <= share <= 1:
            raise InputError(f"{name}={arguments[name]!r}: give a fraction in [0, 1]")
    return arguments


def check_least(strategy: FedAvg, admission: Admission) -> None:
    """Refuse numbers of nodes that are none, and to wait for more nodes than a list of sites lets in."""
    for name in LEAST:
        check_whole(name, getattr(strategy, name), 0)
    if admission.listed is None:
        return
    sites = len(admission.listed)
    for name in LEAST:
        number = getattr(strategy, name)
        if number > sites:
            raise InputError(f"{name}={number}, but {admission.listed.path} lists {sites} sites; give {sites} or less")
