"""The guard's part in a fold: updates that are too long are shortened or left out as they arrive.

The usual length is known from earlier rounds, so each update is checked, folded and freed as soon as it arrives. In the
first round it is not known yet: updates wait, in memory or (if large) in a file, until enough have arrived.

An update grows with the number of local steps, about as their square root at first and less later. So lengths are
compared per square root of the steps, and per learning rate, which may change from round to round.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from .guard import ENOUGH, Clip, Guard, ReportedNumbers, clips
from .server import Server, Update
from .spooled import SpooledUpdates

Buffers = Mapping[str, Tensor]  # by name


class ArrivedUpdates(NamedTuple):
    """Updates of some clients, still on their device."""

    ids: Tensor  # [c]
    positions: Tensor  # [c] in the plan
    delta: Tensor  # [c, D] zero where it is not usable
    usable: Tensor  # [c] finite, and not left out
    norms: Tensor | None  # [c] of the delta
    drifts: Tensor | None  # [c] how far the buffers have moved
    update: Update


class Clipping:
    """Judges the updates of one round."""

    def __init__(
        self,
        server: Server,
        guard: Guard,
        heard: ReportedNumbers,
    ) -> None:
        self.guard = guard
        self.heard = heard
        self.index = server.index
        self.reference = server.buffers
        self.learning_rate = server.round_lr or 1.0
        self.local_steps = server.local_steps
        self.usual_norm = heard.usual_norm()
        self.usual_drift = heard.usual_drift()
        self.waiting: list[ArrivedUpdates] = []  # without their large parts
        self._held = SpooledUpdates()

    def admit(self, arrived: ArrivedUpdates) -> Iterable[ArrivedUpdates]:
        """Those that can be judged now."""
        if self.usual_norm is not None:
            return [arrived]
        clients = len(arrived.ids)
        for each in self.waiting:
            clients += len(each.ids)
        if clients >= ENOUGH:
            return self.rest(arrived)
        self._hold(arrived)
        return []

    def _hold(self, arrived: ArrivedUpdates) -> None:
        """Keep an update for later; what was reported itself is not needed again, and large parts may go to a file."""
        update = arrived.update
        buffers = None
        if update.buffers is not None:
            buffers = dict(update.buffers)
        large = {
            "delta": arrived.delta,
            "snapshot": update.snapshot,
            "buffers": buffers,
        }
        self._held.put(len(self.waiting), large)
        nothing = arrived.delta[:, :0].clone()
        light = Update(update.ids, nothing, columns=update.columns)
        self.waiting.append(arrived._replace(delta=nothing, update=light))

    def _let_go(self, waiting: Iterable[ArrivedUpdates]) -> Iterator[ArrivedUpdates]:
        for key, arrived in enumerate(waiting):
            large = self._held.take(key)
            update = replace(arrived.update, snapshot=large["snapshot"], buffers=large["buffers"])
            yield arrived._replace(delta=large["delta"], update=update)

    def rest(self, last: ArrivedUpdates | None = None) -> Iterator[ArrivedUpdates]:
        """All that wait, and the last: what is usual is what they themselves report."""
        waiting = self.waiting
        self.waiting = []
        heard = self.heard
        lasts = [] if last is None else [last]
        for each in (*waiting, *lasts):
            usable = each.usable.cpu()
            norms = _on_host(each.norms, each.ids)
            drifts = _on_host(each.drifts, each.ids)
            heard = self.heard_of(
                heard,
                each.ids[usable],
                norms=norms[usable],
                drifts=drifts[usable],
            )
        self.usual_norm = heard.usual_norm()
        self.usual_drift = heard.usual_drift()
        return chain(self._let_go(waiting), lasts)

    def heard_of(
        self,
        heard: ReportedNumbers,
        ids: Tensor,
        norms: Tensor,
        drifts: Tensor,
    ) -> ReportedNumbers:
        """With the lengths that these clients report."""
        scale = self._scale(ids)
        return heard.with_norms(
            ids,
            norms=norms / scale,
            drifts=drifts / scale,
            index=self.index,
        )

    def _scale(self, ids: Tensor) -> Tensor:
        """[c] what the lengths of these clients' updates are compared per."""
        steps = self.local_steps[ids].clamp(min=1)
        root = steps.double().sqrt()
        return self.learning_rate * root

    def judged(self, arrived: ArrivedUpdates) -> ArrivedUpdates:
        """With each update at most as long as allowed, and zero where it is left out."""
        if self.usual_norm is None or arrived.norms is None:
            return arrived
        relative = self._relative(arrived.norms, arrived.ids, self.usual_norm)
        within = relative <= self.guard.refuse
        usable = arrived.usable & within
        factor = shortening(relative, self.guard.update)
        factor = torch.where(usable, factor, 0)
        delta = arrived.delta
        factor = factor.to(delta)
        shortened = delta * factor[:, None]
        return arrived._replace(delta=shortened, usable=usable)

    def snapshot(self, arrived: ArrivedUpdates, snapshot: Tensor) -> Tensor:
        """[c, D] the same of what the clients had after some of their steps."""
        usable = arrived.usable[:, None]
        snapshot = torch.where(usable, snapshot, 0)
        if self.usual_norm is None:
            return snapshot
        lengths = lengths_of(snapshot)
        relative = self._relative(lengths, arrived.ids, self.usual_norm)
        factor = shortening(relative, self.guard.update)
        factor = factor.to(snapshot)
        return snapshot * factor[:, None]

    def _relative(
        self,
        lengths: Tensor,
        ids: Tensor,
        usual: float,
    ) -> Tensor:
        """[c] in multiples of what is usual for clients with as many steps."""
        expected = usual * self._scale(ids)
        return lengths / expected.to(lengths)

    def buffers(self, arrived: ArrivedUpdates) -> Buffers | None:
        """The buffers, brought nearer to the server's where they are too far; the server's if they are not finite."""
        reported = arrived.update.buffers
        drifts = arrived.drifts
        if reported is None or drifts is None:
            return reported
        usable = drifts.isfinite()
        factor = usable.double()
        if self.usual_drift is not None:
            relative = self._relative(drifts, arrived.ids, self.usual_drift)
            factor = shortening(relative, self.guard.update)
            factor = torch.where(usable, factor, 0)
        clipped = {}
        for name, rows in reported.items():
            clipped[name] = rows
            if self._is_compared(name, rows):
                clipped[name] = self._nearer(name, rows, factor)
        return clipped

    def _is_compared(self, name: str, rows: Tensor) -> bool:
        return rows.is_floating_point() and name in self.reference

    def _nearer(
        self,
        name: str,
        rows: Tensor,
        factor: Tensor,
    ) -> Tensor:
        """Buffers [c, ...] at this fraction [c] of their distance from the server's."""
        reference = self.reference[name].to(rows)
        trailing = [1] * (rows.ndim - 1)
        fraction = factor.to(rows)
        fraction = fraction.view(-1, *trailing)
        change = rows - reference
        change = torch.where(fraction > 0, change, 0)
        nearer = reference + fraction * change
        return torch.where(fraction == 1, rows, nearer)

    def drifts(self, update: Update) -> Tensor | None:
        """[c] how far each client's buffers are from the server's."""
        squares = []
        buffers = update.buffers or {}
        for name, rows in buffers.items():
            if not self._is_compared(name, rows):
                continue
            reference = self.reference[name].to(rows)
            change = rows - reference
            flat = change.flatten(1)
            lengths = lengths_of(flat)
            squares.append(lengths.square())
        if not squares:
            return None
        stacked = torch.stack(squares)
        return stacked.sum(0).sqrt()

    def clips(
        self,
        ids: Tensor,
        norms: Tensor,
        drifts: Tensor,
    ) -> list[Clip]:
        """Whose update was shortened or left out, and whose buffers were brought nearer."""
        clipped: list[Clip] = []
        if self.usual_norm is not None:
            relative = self._relative(norms, ids, self.usual_norm)
            clipped += self._clips("update", ids, norms, relative)
        if self.usual_drift is not None:
            relative = self._relative(drifts, ids, self.usual_drift)
            clipped += self._clips("buffers", ids, drifts, relative)
        return clipped

    def _clips(
        self,
        what: str,
        ids: Tensor,
        lengths: Tensor,
        relative: Tensor,
    ) -> tuple[Clip, ...]:
        is_too_long = relative > self.guard.update
        reported = lengths[is_too_long]
        relative = relative[is_too_long]
        counted = reported * self.guard.update / relative
        if what == "update":
            counted[relative > self.guard.refuse] = 0.0
        return clips(what, ids[is_too_long], reported, counted)


def lengths_of(rows: Tensor) -> Tensor:
    """[c] in float64."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return lengths


def shortening(relative: Tensor, most: float) -> Tensor:
    """[c] what brings each length to the most: 1 where it is shorter."""
    factor = most / relative.clamp(min=1e-300)
    return factor.clamp(max=1)


def _on_host(lengths: Tensor | None, ids: Tensor) -> Tensor:
    if lengths is None:
        return torch.full((len(ids),), torch.nan, dtype=torch.float64)
    return lengths.cpu()
