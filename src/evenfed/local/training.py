"""What one client does in one round."""

import dataclasses
from dataclasses import dataclass, field

from ..augment import Augmentation
from ..core.streams import Batching
from .optimizer import SGD, Optimizer


@dataclass(frozen=True)
class LocalTraining:
    """Plain data, the same for every client of a task and for every engine.

    At each step the gradient of the local loss, with the pull of `prox` in it, is clipped, and then given to the
    optimiser, which adds its weight decay.
    """

    lr: float  # of this round
    batching: Batching = field(default_factory=Batching)
    prox: float = 0.0  # pull towards the incoming model
    optimizer: Optimizer = field(default_factory=SGD)
    clip: float | None = None  # the longest gradient of a client's step
    augment: Augmentation | None = None

    @property
    def form(self) -> "LocalTraining":
        """The same without the numbers that may differ from slot to slot: equal forms share their steps."""
        return dataclasses.replace(self, lr=1.0, prox=0.0)

    @property
    def is_plain(self) -> bool:
        """Whether a step is lr times the gradient."""
        return self.clip is None and isinstance(self.optimizer, SGD) and self.optimizer.is_plain
