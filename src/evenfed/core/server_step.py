"""The server's step, the average of its models after it, and the average of buffers such as BatchNorm's statistics."""

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from .average import Average, ModelState
from .errors import InputError, first_line
from .maths import are_finite
from .server import Server


def moved(server: Server, step: Tensor) -> Server:
    """theta - server_lr * step, or one step of the server's optimiser with `step` as the gradient."""
    incoming = server.theta
    step = step.to(incoming)
    if server.optimizer is None:
        theta = incoming - server.server_lr * step
        return dataclasses.replace(server, theta=theta)
    layout = server.layout
    theta = incoming.clone()
    tensors = layout.views(theta)
    gradients = layout.views(step)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = gradient
    optimizer = server.optimizer(tensors)
    if not hasattr(optimizer, "step"):
        made = type(optimizer).__name__
        raise InputError(f"server_optimizer made a value of type {made}; it must make an optimiser of torch")
    if server.optimizer_state is not None:
        state = copy.deepcopy(server.optimizer_state)  # the optimiser changes it in place
        optimizer.load_state_dict(state)
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        made = type(optimizer).__name__
        raise InputError(
            f"server_optimizer: {made} cannot take a step ({first_line(error)}); give an optimiser that steps on a "
            "dense gradient without a closure, such as adam"
        ) from error
    return dataclasses.replace(
        server,
        theta=theta,
        optimizer_state=optimizer.state_dict(),
    )


def with_average(server: Server, before: Average | None, skipped: bool) -> Server:
    """The server after a round, with its model in the average that stood `before` it; not if the round was skipped."""
    average = before
    if before is not None and not skipped:
        average = before.including(server.current)
    return dataclasses.replace(server, average=average)


def is_finite(server: Server) -> bool:
    """Whether the model is."""
    return are_finite([server.theta, *server.buffers.values()])


def with_model(server: Server, model: ModelState, average_before: Average | None) -> Server:
    """The server with another current model, such as its own with noise; the last round's average is taken anew."""
    theta = model.theta.to(server.theta)
    server = dataclasses.replace(server, theta=theta, buffers=dict(model.buffers))
    if average_before is None:
        return server
    return with_average(server, average_before, skipped=False)


class BufferSums:
    """Their sums, weighted by the clients' sizes: fairness weights may be negative and are no average."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, buffers: Mapping[str, Tensor], sizes: Tensor, finite: Tensor) -> None:
        """The buffers [c, ...] of clients of these sizes [c]; those that are not `finite` [c] count as zero."""
        sizes = sizes.double()
        for name, rows in buffers.items():
            if not rows.is_floating_point():
                self.sums[name] = rows[0]  # counters are copied, never averaged
                continue
            axes = rows.ndim - 1
            trailing = [1] * axes
            usable = finite.to(rows.device)
            usable = usable.view(-1, *trailing)
            clean = torch.where(usable, rows, 0)
            weights = sizes.to(rows)
            total = torch.tensordot(weights, clean, dims=1)
            if name in self.sums:
                total = total + self.sums[name]
            self.sums[name] = total

    def averaged(self, sizes: Tensor) -> dict[str, Tensor]:
        """Over clients of these sizes."""
        size = float(sizes.sum())
        averaged = dict(self.sums)
        for name, total in averaged.items():
            if total.is_floating_point():
                averaged[name] = total / size
        return averaged
