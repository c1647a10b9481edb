"""Sums of updates whose weights are not known yet, for rounds in which losses come with the updates.

weight_i = sum_k c_k * term_ik: the terms of a client (`Algorithm.terms`) are known when its update arrives, the
coefficients c only when all losses are. So sum_i term_ik * update_i is kept for each k, the updates are freed, and the
sums are combined at the end.
"""

import math

import torch
from torch import Tensor

from .clipping import lengths_of
from .errors import InputError
from .fold import Fold
from .round import open_round, smoothed_losses
from .server import Server, Update

_CLOSE = 1e-9  # of the largest weight: how far a combination may be off


def can_run(server: Server) -> bool:
    """Whether this server's next round needs no update for itself.

    The guard bounds losses by all of the round. Buffers are averaged over those with a weight.
    """
    if server.guard is not None or server.buffers:
        return False
    nobody = torch.zeros(0, dtype=torch.int64)
    nothing = torch.zeros(0, dtype=torch.float64)
    terms = server.algorithm.terms(nobody, nothing, nothing, server.memory)
    return terms is not None


def combination(rows: Tensor, weights: Tensor) -> Tensor:
    """[k] such that weights [m] = combination @ rows [k, m]."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    lengths = lengths.clamp(min=1e-300)
    scaled = rows / lengths[:, None]
    column = weights[:, None]
    solved = torch.linalg.lstsq(scaled.T, column, driver="gelsd")
    solution: Tensor = solved.solution[:, 0]
    fitted = solution @ scaled
    error = (fitted - weights).abs()
    allowed = _CLOSE * weights.abs().max()
    is_close = error <= allowed
    if not bool(is_close.all()):
        raise InputError("the algorithm's method `terms` does not give its weights; leave it out, or mend it")
    return solution / lengths


class RunningSums:
    """The updates of one round: k sums, k being how many terms a weight has."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.drawn = torch.zeros(0, dtype=torch.int64)
        self.losses: dict[int, float] = {}
        self.norms: dict[int, float] = {}
        self.sums: Tensor | None = None  # [k, D]
        self.shift = -math.inf  # largest exponent so far: the sums are to be multiplied by e to this

    def add(self, update: Update, loss: float) -> None:
        """Add one client's update, and let it go."""
        client = int(update.ids)
        ids = torch.tensor([client])
        delta = self._flat(update)
        accumulator = torch.promote_types(delta.dtype, torch.float32)
        delta = delta.to(accumulator)
        measured = torch.tensor([loss], dtype=torch.float64)
        counted = smoothed_losses(self.server, ids, measured)
        rows = self._rows(ids, counted)
        if self.sums is None:
            terms = len(rows)
            self.sums = torch.zeros(terms, len(delta), dtype=accumulator)
        factors = rows[:, 0].tolist()
        for total, factor in zip(self.sums, factors, strict=True):
            total.add_(delta, alpha=factor)
        length = lengths_of(delta[None])
        self.losses[client] = loss
        self.norms[client] = float(length)

    def _flat(self, update: Update) -> Tensor:
        delta = update.delta
        if isinstance(delta, Tensor) and delta.ndim == 1:
            return delta
        return self.server.layout.flatten(delta)

    def _rows(self, ids: Tensor, losses: Tensor) -> Tensor:
        """[k, m] the terms of these clients, divided by e to the shift, which grows if it must."""
        server = self.server
        sizes = server.sizes[ids].double()
        terms = server.algorithm.terms(ids, losses, sizes, server.memory)
        assert terms is not None
        exponents = terms.exponents
        if exponents is None:
            return terms.rows
        largest = float(exponents.max())
        if largest > self.shift:
            if self.sums is not None:
                self.sums *= math.exp(self.shift - largest)
            self.shift = largest
        factors = (exponents - self.shift).exp()
        return terms.rows * factors

    def folded(self, server: Server) -> Fold:
        """The round, opened with the losses that came and folded from the sums."""
        clients = self.drawn.tolist()
        losses = [self.losses.get(client, math.nan) for client in clients]
        opened = open_round(server, losses, self.drawn)
        fold = Fold(opened)
        if self.sums is None:
            return fold
        plan = opened.plan
        round = opened.round
        weights = torch.zeros(len(server.sizes), dtype=torch.float64)
        weights[plan.ids] = plan.weights
        rows = self._rows(round.ids, round.losses)
        factors = combination(rows, weights[round.ids])
        total = factors.to(self.sums) @ self.sums
        lengths = [self.norms[client] for client in plan.ids.tolist()]
        norms = torch.tensor(lengths, dtype=torch.float64)
        fold.take_sum(total, norms)
        return fold
