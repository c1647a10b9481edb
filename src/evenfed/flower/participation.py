"""Who takes part: known sites, all of which are waited for; or a fleet, drawn from the clients that are online."""

import dataclasses
import time
from dataclasses import dataclass
from logging import WARNING

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor

from ..comparison.storage.client_table import MOST_INLINE
from ..core import streams
from ..core.errors import InputError
from ..core.server import Server
from ..settings import Settings
from .connection import Connection
from .fleet_options import FleetOptions, Resting, RoundClosing
from .logs import log
from .roster import Roster
from .wire import Values


@dataclass(frozen=True)
class DrawnClients:
    """Who is asked to take part in a round, and when its trips close."""

    ids: Tensor
    closing: RoundClosing


class Participation:
    """Draws the clients of each round, and remembers who rests."""

    def __init__(
        self,
        fleet_options: FleetOptions,
        settings: Settings,
        roster: Roster,
        wait: float,
        timeout: float,
        least: int = 1,
    ) -> None:
        self.fleet_options = fleet_options
        self.settings = settings
        self.roster = roster
        self.wait = wait
        self.timeout = timeout
        self.least = least  # sites without which a round is of no use
        self._announced = 0  # clients
        self.resting = Resting(fleet_options.rests_after)
        roster.lazily = fleet_options.is_fleet

    def begin(self, grid: Grid, known: Values | None) -> None:
        """Meet the clients: all sites, or those of a fleet that the first round draws."""
        if not self.fleet_options.is_fleet:
            self.roster.wait_for_clients(grid, self.wait, known, self.resting.back_in)
            return
        online = self._await_online(grid)
        least = self.fleet_options.min_available or 1
        if len(online) < least:
            raise InputError(
                f"{len(online)} clients online within {self.wait:g} s, and min_available={least}; start more "
                f"SuperNodes, or give a smaller min_available or a longer `wait`{self.roster.failures('; left out: ')}"
            )
        self._drawn_online(grid, self.settings.seed, 0)
        self.roster.freeze()
        self.roster.recall(known)

    def next_round(self, grid: Grid, index: int) -> None:
        if not self.fleet_options.is_fleet:
            self._await_sites(grid, index)
            return
        online = self._await_online(grid)
        if len(online) < (self.fleet_options.min_available or 1):
            log(WARNING, "round %s: %s clients are online; the round continues with them", index + 1, len(online))

    def draw(self, grid: Grid, server: Server) -> DrawnClients:
        """Who takes part in the server's next round; of a fleet, those that were not met yet are met now."""
        if self.fleet_options.is_fleet:
            return self._drawn_online(grid, server.seed, server.index)
        eligible = server.clients_with_data
        needed = max(self.settings.drawn(eligible), self.fleet_options.min_train_nodes)
        if needed > eligible:
            raise InputError(f"min_train_nodes={needed}, but only {eligible} clients have training data")
        closing = self.fleet_options.closing(needed, eligible)
        return DrawnClients(server.draw(closing.drawn), closing)

    def judge(self, grid: Grid, server: Server) -> list[int]:
        """Who is scored: of sites the same in every round; of a fleet those online, drawn as the next round's are."""
        if self.fleet_options.never_scored:
            return []
        options = self.fleet_options
        least = options.min_evaluate_nodes
        share = self.settings.evaluate_participation
        if options.is_fleet:
            self.roster.refresh_connected(grid)
            nodes = self._online(server.index)
            wanted = max(_part(share, len(nodes)), least)
            chosen = _sampled(nodes, server.seed, server.index, wanted)
            count = len(chosen)
            closing = RoundClosing(options.quorum, count, count)
            self._ask_identity(grid, chosen, closing)
            positions = self._positions(chosen)
            has_test = self.roster.column("test")
            return [client for client in positions if has_test[client]]
        tested = self.roster.tested()
        if share == 1.0 or not tested:
            return tested
        count = max(self.settings.evaluated(len(tested)), least)
        panel: list[int] = streams.panel(np.array(tested, dtype=np.int64), count).tolist()
        return panel

    def sized(self, server: Server) -> Server:
        """The server over all clients met so far."""
        if not self.fleet_options.is_fleet or not self.roster.has_grown:
            return server
        self.roster.has_grown = False
        claimed = self.roster.sizes(None)
        grown = server.with_sizes(claimed)
        steps = self.settings.batching.local_steps(grown.sizes.numpy())
        return dataclasses.replace(grown, local_steps=torch.as_tensor(steps, dtype=torch.int64))

    def newly_met(self, is_last: bool) -> Values | None:
        """All clients, if some were met since this was last asked; of very many after the last round only."""
        known = len(self.roster.facts)
        clients = self.roster.clients or 0
        if not self.fleet_options.is_fleet or known == self._announced:
            return None
        if clients > MOST_INLINE and not is_last:
            return None
        self._announced = known
        return self.roster.describe()

    def connection(
        self,
        grid: Grid,
        index: int,
        ordered: bool,
    ) -> Connection:
        """To the clients that are connected and do not rest in this round. Nobody rests who cannot be spared."""
        resting = self.resting.at(index)
        awake = [node for node in self.roster.nodes.values() if node not in resting]
        if len(awake) < self.least:
            resting = {}
        nodes = {}
        absent = {}
        for client, node in self.roster.nodes.items():
            if node in resting:
                absent[client] = f"it did not answer in time and rests until round {resting[node] + 1}"
            else:
                nodes[client] = node
        return Connection(grid, self.roster, self.timeout, ordered, nodes, absent)

    def end_round(self, index: int) -> None:
        self.resting.end_round(index, self.roster.responsiveness)

    def _await_sites(self, grid: Grid, index: int) -> None:
        """Wait for sites that are gone if too few are left: they may be on their way back."""
        deadline = time.monotonic() + self.wait
        has_warned = False
        while True:
            resting = self.resting.at(index)
            self.roster.refresh(grid, self.timeout, self.fleet_options.quorum, resting)
            connected = len(self.roster.nodes)
            if connected >= self.least or time.monotonic() >= deadline:
                return
            if not has_warned:
                text = "round %s: %s sites are connected, %s are needed; waiting up to %s s for others"
                log(WARNING, text, index + 1, connected, self.least, f"{self.wait:g}")
                has_warned = True
            time.sleep(0.2)

    def _await_online(self, grid: Grid) -> set[int]:
        deadline = time.monotonic() + self.wait
        least = self.fleet_options.min_available or 1
        while True:
            self.roster.refresh_connected(grid)
            online = self.roster.present - self.roster.left_out.keys()
            if len(online) >= least or time.monotonic() >= deadline:
                return online
            time.sleep(0.2)

    def _online(self, index: int) -> list[int]:
        """Nodes that can be drawn: online, awake, and not known to be of no use."""
        roster = self.roster
        resting = self.resting.at(index)
        nodes = []
        for node in sorted(roster.present):
            if node not in resting and not roster.is_of_no_use(node):
                nodes.append(node)
        return nodes

    def _drawn_online(
        self,
        grid: Grid,
        seed: int,
        index: int,
    ) -> DrawnClients:
        nodes = self._online(index)
        count = len(nodes)
        wanted = _part(self.settings.participation, count)
        needed = min(count, max(wanted, self.fleet_options.min_train_nodes))
        closing = self.fleet_options.closing(needed, count)
        chosen = _sampled(nodes, seed, index, closing.drawn)
        self._ask_identity(grid, chosen, closing)
        ids = torch.tensor(self._positions(chosen), dtype=torch.int64)
        return DrawnClients(ids, closing)

    def _ask_identity(
        self,
        grid: Grid,
        nodes: list[int],
        closing: RoundClosing,
    ) -> None:
        roster = self.roster
        new = [node for node in nodes if node not in roster.identities]
        if not new:
            return
        enough = closing.introductions(len(new))

        def has_enough() -> bool:
            if enough is None:
                return False
            usable = len(roster.identities.keys() & new)
            answered = len(roster.answered() & set(new))
            return answered >= enough.answered or usable >= enough.usable

        roster.ask_identity(grid, new, self.timeout, has_enough)

    def _positions(self, nodes: list[int]) -> list[int]:
        """The clients on these nodes, of those that hold their place."""
        places = {node: position for position, node in self.roster.nodes.items()}
        return sorted(places[node] for node in nodes if node in places)


def _part(share: float | int, count: int) -> int:
    """So many of those online: a fraction of them, or a number."""
    if isinstance(share, float):
        return max(1, round(share * count))
    return share


def _sampled(
    nodes: list[int],
    seed: int,
    index: int,
    count: int,
) -> list[int]:
    """By a hash of the node's own id: a draw is the same as long as the same nodes are online."""
    keys = streams.hashed(seed, index, streams.SAMPLING, np.array(nodes, dtype=np.uint64))
    order = np.argsort(keys, kind="stable")
    return [nodes[k] for k in order[:count].tolist()]
