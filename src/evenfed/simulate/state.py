"""A run, and where it stands between two rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.algorithm import Algorithm
from ..core.server import OptimizerStates, Server
from ..settings import Settings
from .local_norms import LocalNorms
from .problem import EvalRequest


@dataclass(frozen=True)
class Run:
    """One training run: an algorithm under a label, with the options it runs with."""

    label: str
    algorithm: Algorithm
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.settings.seed}"


@dataclass(frozen=True)
class State:
    """Where a run stands between two rounds: all that a checkpoint must hold."""

    server: Server
    personal: Tensor | None = None  # [n, D] each client's own model (Ditto)
    firsts: Tensor | None = None  # [n, D] where clients start in round 0, if not at the server's model
    notes: Mapping[str, Tensor] = field(default_factory=dict)  # what callbacks keep with the run
    owns: Tensor | None = None  # [n] who has trained a model of its own
    moments: OptimizerStates | None = None  # [n, ...] the state of clients' optimisers, if they keep it
    norms: LocalNorms | None = None  # clients' own BatchNorm layers, if they keep them

    def serving(self) -> Tensor:
        """The models that serve the clients: [D] the deployed one, or [n, D] each client's own where it has one."""
        return self._own_or(self.server.deployed.theta)

    def _own_or(self, theta: Tensor) -> Tensor:
        if self.personal is None or self.owns is None:
            return theta
        return torch.where(self.owns[:, None], self.personal, theta)

    def weighed(self, ids: Tensor) -> EvalRequest:
        """At which losses are measured before a round."""
        model = self.server.weighed
        models = model.theta if self.firsts is None else self.firsts
        return EvalRequest(models, ids, model.buffers, self.norms)

    def judged(self, ids: Tensor) -> EvalRequest:
        """By which clients are judged after a round."""
        return EvalRequest(self.serving(), ids, self.server.deployed.buffers, self.norms)

    def current(self, ids: Tensor) -> EvalRequest | None:
        """The model that clients train on, where another one is deployed."""
        server = self.server
        if server.average is None:
            return None
        return EvalRequest(self._own_or(server.theta), ids, server.buffers, self.norms)
