"""Training that diverges ends: rounds after it would repeat the same, and their figures would mislead."""

from ..core.open_round import NOT_FINITE, NOTHING
from ..core.server import Record
from .state import State

DIVERGED = "diverged"  # how the reason begins
_FEW = 3  # clients: what as many of them say is no accident


def divergence(state: State, record: Record) -> str | None:
    """Why a simulated run is not to go on after this round; None if it may.

    Either the step would have left a model that is not finite (with a guard such a round is left out, and the next one
    may be better), or no client that was drawn reported a finite loss and update.
    """
    number = record.index + 1
    if record.reason == NOT_FINITE and state.server.guard is None:
        return f"{DIVERGED} in round {number}: {NOT_FINITE}"
    enough = min(_FEW, len(state.server.everyone.eligible))
    if record.reason == NOTHING and len(record.dropped) >= enough:
        return f"{DIVERGED} in round {number}: {NOTHING}"
    return None
