"""A Flower server app that reads its options from the app's configuration."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from ..core.errors import unknown
from ..settings import Settings, extended
from ..simulate.problem import initial_model
from .client import ModelFunction
from .strategy import FairStrategy

PREFIX = "evenfed."
OWN = ("algorithm", "out", "label", "clients", "wait", "timeout", "ordered", "private", "trips", "tell_errors")


def server_app(model: ModelFunction, **defaults: Any) -> ServerApp:
    """A Flower server app that trains `model()` with the strategy the run's configuration asks for.

    `[tool.flwr.app.config.evenfed]` of the app's pyproject.toml, or the option
    `flwr run . --run-config "evenfed.lr=0.1"`, may hold every option of `FairStrategy` and `evenfed.Settings`;
    `defaults` fill in.

    >>> import torch
    >>> app = server_app(lambda: torch.nn.Linear(4, 3), algorithm="semi_vred", rounds=5, lr=0.1)
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FairStrategy(**options(context.run_config, defaults))
        start = initial_model(model, strategy.settings.seed)
        strategy.start(grid, initial_arrays(start))

    return app


def options(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options under `evenfed.`, after the defaults; an unknown one names the nearest, an empty one is left out.

    >>> options({"evenfed.lr": 0.1, "evenfed.out": "", "mine": 3}, {"rounds": 5})
    {'rounds': 5, 'lr': 0.1}
    >>> options({"evenfed.optimizer.name": "sgd", "evenfed.optimizer.momentum": 0.9}, {})
    {'optimizer': {'name': 'sgd', 'momentum': 0.9}}
    """
    settings = [field.name for field in fields(Settings)]
    settings.remove("engine")  # it is Flower
    settings.remove("device")  # the clients choose their own
    allowed = [*OWN, *settings]
    chosen = dict(defaults)
    for key, value in config.items():
        if key.startswith(PREFIX) and value != "":
            name, _, option = key.removeprefix(PREFIX).partition(".")
            chosen[name] = extended(chosen.get(name), option, value) if option else value
    for name in chosen:
        if name not in allowed:
            raise unknown("evenfed option", name, allowed)
    return chosen


def initial_arrays(model: nn.Module) -> ArrayRecord:
    """What travels of a model: trained parameters and buffers."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors[name] = parameter.detach()
    for name, buffer in model.named_buffers():
        tensors[name] = buffer.detach()
    return ArrayRecord(tensors)
