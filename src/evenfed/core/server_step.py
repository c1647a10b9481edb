"""The server's step, and the average of its models after it."""

import copy
import dataclasses

import torch
from torch import Tensor

from .average import Average, ModelState
from .errors import InputError, first_line
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
    tensors = [server.theta, *server.buffers.values()]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def with_model(server: Server, model: ModelState, average_before: Average | None) -> Server:
    """The server with another current model, such as its own with noise; the last round's average is taken anew."""
    theta = model.theta.to(server.theta)
    server = dataclasses.replace(server, theta=theta, buffers=dict(model.buffers))
    if average_before is None:
        return server
    return with_average(server, average_before, skipped=False)
