"""The guard of a private run: the server sees sums alone, so it compares each with those of the rounds before.

It cannot tell who lied, so it clips no single client. A sum far above the usual skips the round; a step that is too
long, but less so, is shortened. Sizes are public, so they are bounded as in a plain run.
"""

import dataclasses
import math

import torch
from torch import Tensor

from ...core.open_round import NOT_FINITE
from ...core.server import Server
from ...core.server_step import is_finite, moved
from ...core.sums import number_of_means

_ROUNDS = 8  # that are remembered
_LEAST = 3  # rounds below which nothing is called usual
USUAL = "usual"  # in the server's memory: [rounds, means + 1] the means, and the length of the step per learning rate


class UnusualError(Exception):
    """A sum far above the usual: some client lied, or training has become unstable."""


def with_usual(server: Server) -> Server:
    """The server of a guarded private run remembers what the sums of the last rounds came to."""
    if server.guard is None:
        return server
    columns = number_of_means(server.algorithm) + 1
    nothing = torch.full((_ROUNDS, columns), torch.nan, dtype=torch.float64)
    return dataclasses.replace(server, memory={**server.memory, USUAL: nothing})


def check_mean(server: Server, position: int, mean: float) -> None:
    """Refuse a mean that is not finite, or far above those of the last rounds."""
    guard = server.guard
    if guard is None:
        return
    if not math.isfinite(mean):
        raise UnusualError("a mean over the clients is not finite")
    usual = _usual(server.memory[USUAL][:, position])
    if usual is not None and abs(mean) > guard.refuse * usual:
        raise UnusualError(
            f"mean {position + 1} over the clients is {mean:.3g}, in the last rounds about {usual:.3g}; masked sums do "
            "not tell who reported what"
        )


def stepped(server: Server, step: Tensor, means: list[float]) -> Server:
    """The server after the step: shortened if it is long, refused if it is far too long or not finite."""
    guard = server.guard
    if guard is None:
        return moved(server, step)
    table = server.memory[USUAL]
    lr = server.round_lr or 1.0
    length = float(torch.linalg.vector_norm(step, dtype=torch.float64)) / lr
    usual = _usual(table[:, -1])
    if usual is not None and length > guard.refuse * usual:
        raise UnusualError(
            f"the step is {length / usual:.3g} times as long as in the last rounds; masked sums do not tell whose "
            "update is"
        )
    if usual is not None and length > guard.update * usual:
        factor = guard.update * usual / length
        step = step * factor
    newest = torch.tensor([[*means, length]], dtype=torch.float64)
    remembered = torch.cat([table[1:], newest])
    memory = {**server.memory, USUAL: remembered}
    server = dataclasses.replace(server, memory=memory)
    following = moved(server, step)
    if not is_finite(following):
        raise UnusualError(NOT_FINITE)
    return following


def _usual(column: Tensor) -> float | None:
    """The median of what is known."""
    known = column[~column.isnan()].abs()
    if len(known) < _LEAST:
        return None
    return float(known.quantile(0.5))
