"""What one client does in one round."""

import dataclasses
from dataclasses import dataclass, field

from ..core.streams import Batching


@dataclass(frozen=True)
class LocalTraining:
    """Plain data, the same for every client of a task and for every engine."""

    lr: float  # of this round
    batching: Batching = field(default_factory=Batching)
    prox: float = 0.0  # pull towards the incoming model

    @property
    def form(self) -> "LocalTraining":
        """The same without the numbers that may differ from slot to slot: equal forms share their steps."""
        return dataclasses.replace(self, lr=1.0, prox=0.0)
