"""A run, its state before round 0 and between two rounds, and whether training has diverged."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.open_round import NOT_FINITE, NOTHING
from ..core.server import OptimizerStates, Record, Server
from ..core.vector import Layout
from ..settings import Settings
from .local_norms import LocalNorms
from .problem import DrawnModels, EvalRequest

DIVERGED = "diverged"  # how the reason begins
_FEW = 3  # clients: what as many of them report is no accident


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
    """The state of a run between two rounds: everything a checkpoint stores."""

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

    def loss_request(self, ids: Tensor) -> EvalRequest:
        """The models whose losses set the weights of the next round."""
        model = self.server.weighed
        models = model.theta if self.firsts is None else self.firsts
        return EvalRequest(models, ids, model.buffers, self.norms)

    def score_request(self, ids: Tensor) -> EvalRequest:
        """The models that clients are evaluated on after a round."""
        return EvalRequest(self.serving(), ids, self.server.deployed.buffers, self.norms)

    def current_request(self, ids: Tensor) -> EvalRequest | None:
        """The model that clients train on, where another one is deployed."""
        server = self.server
        if server.average is None:
            return None
        return EvalRequest(self._own_or(server.theta), ids, server.buffers, self.norms)


def divergence(state: State, record: Record) -> str | None:
    """Why a simulated run ends after this round; None if it continues.

    Either the step would make the model non-finite (with a guard the round is skipped instead, and the next one may
    succeed), or no drawn client reported a finite loss and update.
    """
    number = record.index + 1
    if record.reason == NOT_FINITE and state.server.guard is None:
        return f"{DIVERGED} in round {number}: {NOT_FINITE}"
    enough = min(_FEW, state.server.clients_with_data)
    if record.reason == NOTHING and len(record.dropped) >= enough:
        return f"{DIVERGED} in round {number}: {NOTHING}"
    return None


def new_server(
    algorithm: Algorithm,
    settings: Settings,
    theta: Tensor,
    sizes: Tensor,
    layout: Layout,
    buffers: dict[str, Tensor],
) -> Server:
    """The server before round 0, over clients with `sizes` [n] training examples."""
    settings.drawn(eligible_count(sizes))  # refuses more participants than there are
    guard = settings.guarding()
    counted_sizes = sizes if guard is None else guard.bounded_sizes(sizes)
    local_steps = settings.batching.local_steps(counted_sizes.numpy())
    server = Server.start(
        algorithm,
        theta,
        sizes,
        lr=settings.lr,
        seed=settings.seed,
        server_lr=settings.server_lr,
        local_steps=torch.from_numpy(local_steps),
        smooth=settings.smooth,
        average=settings.average,
        weigh_at=settings.weigh_at,
        lr_schedule=settings.lr_factor,
        optimizer=settings.optimizer_factory(),
        buffers=buffers,
        guard=guard,
    )
    return dataclasses.replace(server, layout=layout)


def first_models(
    settings: Settings,
    clients: int,
    drawn: DrawnModels | None,
) -> Tensor | None:
    """[n, D] a model for each client, each drawn with its own seed."""
    if settings.start == "common":
        return None
    if drawn is None:
        raise InputError("start='own' draws a model for every client; give `compare` a function that makes the model")
    ids = np.arange(clients)
    keys = streams.hashed(settings.seed, streams.INITIAL_MODEL, ids)
    seeds = keys >> np.uint64(33)
    models = [drawn(seed) for seed in seeds.tolist()]
    return torch.stack(models)


def eligible_count(sizes: Tensor) -> int:
    """How many clients have data."""
    with_data = sizes > 0
    return int(with_data.sum())
