"""The loss of the model as received, from a client of one's own: a Flower mod, and a client app around another."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset

from ...clients.client import Client, single_client_pools
from ...core.errors import InputError
from ...losses import LossFunction
from ...settings import Settings
from ...simulate.engines.worker import Worker
from ...simulate.problem import Problem
from .. import reply_fields, wire
from ..array_layout import BUFFERS, matches
from .foreign_clients import ASKED, LOSS, PARTITION, SIZE

ModelFunction = nn.Module | Callable[[], nn.Module]


def loss_before(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A Flower mod: the client's own training loss of the model as received, in one line of the client app.

    The train function runs twice: first with every step of torch's optimisers held back, so that the loss it averages
    is that of the received model; then as usual, with the random numbers it would have had. Costs a second pass
    through the training data per local epoch; `extend` needs one forward pass. Where nobody asks, nothing changes.

    >>> app = ClientApp(mods=[loss_before])
    """
    name = _asked(message)
    if name is None or not message.metadata.message_type.startswith("train"):
        return call_next(message, context)
    with _held_back(), _same_random_numbers():
        rehearsal = call_next(copy.deepcopy(message), copy.deepcopy(context))
    if rehearsal.has_error():
        return rehearsal
    _check_not_moved(message, rehearsal)
    values = reply_fields.metrics(rehearsal)
    loss = reply_fields.number(values, name)
    if loss is None:
        listed = ", ".join(values)
        raise InputError(f"loss_before: the train reply holds no '{name}' (it has {listed}); give Fair its loss_from")
    reply = call_next(message, context)
    return _with_loss(reply, context, loss)


@contextmanager
def _held_back() -> Iterator[None]:
    """Torch's optimisers find no gradients, so that nothing moves."""

    def without_gradients(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        optimizer.zero_grad(set_to_none=True)

    hook = register_optimizer_step_pre_hook(without_gradients)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """What follows draws the random numbers that it would have drawn without this."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _check_not_moved(message: Message, rehearsal: Message) -> None:
    """Refuse a training loop whose steps are not those of torch's optimisers."""
    received = next(iter(message.content.array_records.values()))
    returned = reply_fields.model(rehearsal)
    for name, array in returned.items():
        if name not in received or matches(name, BUFFERS):
            continue
        if not np.array_equal(array.numpy(), received[name].numpy()):
            raise InputError(
                "loss_before: the model moved although the steps of torch's optimisers were held back; measure the "
                "loss in your client and give Fair(measured_before=True), or use evenfed.flower.extend"
            )


def extend(
    app: ClientApp,
    *,
    model: ModelFunction,
    data: Callable[[Context], Any],
    loss: LossFunction | str | None = None,
    device: str = "auto",
) -> ClientApp:
    """The same client app, which also tells the loss of the model as received, over all its training data.

    `model()` makes the module. `data(context)` gives this site's training data: an `evenfed.Client`, a DataLoader or
    dataset, arrays (inputs, targets), or a pair of loaders for training and testing. `loss`: as `evenfed.train` takes.

    >>> app = extend(ClientApp(), model=lambda: nn.Linear(4, 3), data=lambda context: load(context))
    """

    def measured(message: Message, context: Context) -> tuple[float, int]:
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        arrays = next(iter(message.content.array_records.values()))
        module.load_state_dict(arrays.to_torch_state_dict())
        dtype = next(module.parameters()).dtype
        train, _ = single_client_pools(_client(data(context)), 0, dtype)
        problem = Problem.on(
            model=module,
            train=train,
            judged=None,
            client_names=["this client"],
            settings=Settings(device=device),
            loss=loss,
        )
        worker = Worker(problem)
        worker.load(problem.theta, problem.buffers)
        return worker.mean(problem.loss, problem.train, 0), len(problem.train)

    return _Extended(app, measured)


class _Extended(ClientApp):
    """Passes messages on, and measures where that is asked for: the model's loss, on how many training examples."""

    def __init__(self, app: ClientApp, measured: Callable[[Message, Context], tuple[float, int]]) -> None:
        super().__init__()
        self.app = app
        self.measured = measured

    def __call__(self, message: Message, context: Context) -> Message:
        if _asked(message) is None:
            return self.app(message, context)
        with _same_random_numbers():
            loss, size = self.measured(message, context)
        is_question = message.metadata.message_type == wire.LOSS
        reply = wire.reply(message, {}) if is_question else self.app(message, context)
        return _with_loss(reply, context, loss, size)


def _client(data: Any) -> Client:
    """Training data in any of the forms that `extend` takes."""
    if isinstance(data, Client):
        return data
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    if is_pair and all(isinstance(part, DataLoader | Dataset) for part in data):
        return Client(train=data[0])
    return Client(train=data)


def _asked(message: Message) -> str | None:
    """The name of the client's own loss, in a message that asks for the loss of its model."""
    for config in message.content.config_records.values():
        name = config.get(ASKED)
        if isinstance(name, str):
            return name
    return None


def _with_loss(
    reply: Message,
    context: Context,
    loss: float,
    size: int | None = None,
) -> Message:
    if reply.has_error():
        return reply
    values = reply_fields.metrics(reply)
    values[LOSS] = loss
    partition = context.node_config.get("partition-id", -1)
    values[PARTITION] = partition if isinstance(partition, int) else -1
    if size is not None:
        values[SIZE] = size
    return reply
