"""What a run holds before round 0: its server, and the clients' first models."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.server import Server
from ..core.vector import Layout
from ..settings import Settings
from .problem import DrawnModels


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
