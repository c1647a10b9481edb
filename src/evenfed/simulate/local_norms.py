"""BatchNorm layers that stay with their clients (FedBN): each trains, measures and judges with its own.

The server's model holds their average, by share, for clients that have not trained yet.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm
from ..core.errors import InputError
from ..core.maths import are_finite
from ..core.server import OptimizerStates, Server, Update
from ..settings import Settings
from . import optimizer_states
from .module_modes import BatchNormLayer
from .problem import Problem, Task


@dataclass(frozen=True)
class LocalNorms:
    """Parameters and statistics of all clients' BatchNorm layers; a row counts once its client has trained."""

    columns: Tensor  # [p] the parameters' places in the model's vector
    parameters: Tensor  # [n, p]
    buffers: dict[str, Tensor]  # [n, ...] by name
    trained: Tensor  # [n]

    @classmethod
    def before(
        cls,
        settings: Settings,
        algorithm: Algorithm,
        problem: Problem,
        server: Server,
    ) -> "LocalNorms | None":
        """Before round 0; None where clients share these layers."""
        if settings.batch_norm == "shared":
            return None
        prefixes = tuple(f"{name}." for name in _layers(problem))
        if not prefixes:
            warnings.warn(
                f"batch_norm='{settings.batch_norm}' has no effect: the model has no BatchNorm that trains",
                stacklevel=2,
            )
        if settings.batch_norm != "local" or not prefixes:
            return None
        if type(algorithm).personal is not Algorithm.personal:
            raise InputError(
                f"batch_norm='local' with {algorithm.name}, which trains a whole model for each client; "
                "use batch_norm='shared' or 'frozen', or another algorithm"
            )
        theta = server.theta
        clients = len(server.sizes)
        columns = []
        places = server.layout.unflatten(torch.arange(len(theta)))
        assert isinstance(places, dict)
        for name, index in places.items():
            if name.startswith(prefixes):
                columns.append(index.flatten())
        none = torch.zeros(0, dtype=torch.int64)
        own_columns = torch.cat([none, *columns]).to(theta.device)
        parameters = theta[own_columns].repeat(clients, 1)
        buffers = {}
        for name, buffer in server.buffers.items():
            if name.startswith(prefixes):
                buffers[name] = torch.stack([buffer] * clients)
        trained = torch.zeros(clients, dtype=torch.bool)
        return cls(own_columns, parameters, buffers, trained)

    def stored(self) -> dict[str, Tensor]:
        """As a checkpoint holds it."""
        tensors = {"columns": self.columns, "parameters": self.parameters, "trained": self.trained}
        for name, rows in self.buffers.items():
            tensors[f"buffers.{name}"] = rows
        return tensors

    @classmethod
    def restored(cls, tensors: dict[str, Tensor]) -> "LocalNorms | None":
        """What `stored` gave; None of nothing."""
        if not tensors:
            return None
        buffers = {}
        for name, rows in tensors.items():
            prefix, _, buffer = name.partition(".")
            if prefix == "buffers":
                buffers[buffer] = rows
        return cls(tensors["columns"], tensors["parameters"], buffers, tensors["trained"].cpu())

    def copied(self) -> "LocalNorms":
        """Tables that a round may write to."""
        buffers = {name: rows.clone() for name, rows in self.buffers.items()}
        return LocalNorms(self.columns, self.parameters.clone(), buffers, self.trained.clone())

    def model(self, theta: Tensor, client: int) -> Tensor:
        """[D] the model with the client's own layers."""
        if not self.trained[client]:
            return theta
        return theta.index_copy(0, self.columns, self.parameters[client])

    def statistics(self, buffers: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
        """The model's buffers with the client's own."""
        own = dict(buffers)
        if self.trained[client]:
            for name, rows in self.buffers.items():
                own[name] = rows[client]
        return own

    def tasks(self, task: Task, moments: OptimizerStates | None) -> list[Task]:
        """One for each client."""
        tasks = []
        for position, client in enumerate(task.ids.tolist()):
            one = slice(position, position + 1)
            ids = task.ids[one]
            starts = None
            if task.starts is not None:
                starts = task.starts[one]
            snapshot_steps = None
            if task.snapshot_steps is not None:
                snapshot_steps = task.snapshot_steps[one]
            own = dataclasses.replace(
                task,
                theta=self.model(task.theta, client),
                ids=ids,
                starts=starts,
                snapshot_steps=snapshot_steps,
                buffers=self.statistics(task.buffers or {}, client),
                moments=optimizer_states.select(moments, ids),
            )
            tasks.append(own)
        return tasks

    def take(self, task: Task, update: Update) -> Update:
        """Keeps the client's own layers, unless they are not finite; the update without them."""
        client = int(task.ids[0])
        delta = update.delta
        assert isinstance(delta, Tensor) and update.columns is None
        trained = (task.theta - delta[0])[self.columns]
        left = update.buffers or {}
        if are_finite([trained, *(left[name] for name in self.buffers)]):
            self.parameters[client] = trained
            for name, rows in self.buffers.items():
                rows[client] = left[name][0]
            self.trained[client] = True
        snapshot = update.snapshot
        if isinstance(snapshot, Tensor):
            snapshot = snapshot.index_fill(1, self.columns, 0)
        shared = {}
        for name, rows in left.items():
            if name not in self.buffers:
                shared[name] = rows
        return dataclasses.replace(
            update,
            delta=delta.index_fill(1, self.columns, 0),
            snapshot=snapshot,
            buffers=shared,
        )

    def averaged(self, server: Server) -> Server:
        """The server with the average of the layers that have trained; counters are those of the busiest client."""
        if not self.trained.any():
            return server
        shares = server.shares_of(self.trained).to(self.parameters.device)

        def average(rows: Tensor) -> Tensor:
            chosen = rows[self.trained.to(rows.device)]
            if not rows.is_floating_point():
                return chosen.amax(0)
            weighted = shares.to(rows.dtype) @ chosen.flatten(1)
            return weighted.view(rows.shape[1:])

        parameters = average(self.parameters)
        theta = server.theta.index_copy(0, self.columns, parameters)
        buffers = dict(server.buffers)
        for name, rows in self.buffers.items():
            buffers[name] = average(rows)
        return dataclasses.replace(server, theta=theta, buffers=buffers)


def _layers(problem: Problem) -> list[str]:
    names = []
    for name, module in problem.model.named_modules():
        is_set_apart = problem.model.training and not module.training
        if isinstance(module, BatchNormLayer) and not is_set_apart:
            names.append(name)
    return names
