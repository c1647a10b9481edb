"""Which parts of a model train, and what a pass over a few examples shows of it.

Modules that the user put into evaluation mode stay there.
"""

import copy
import inspect
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from .. import trees
from ..losses import LossFunction
from ..settings import BatchNorm
from .layers.recurrent import wherever_weights_lie

BatchNormLayer = nn.modules.batchnorm._BatchNorm


def evaluated_modules(model: nn.Module, batch_norm: BatchNorm) -> frozenset[str]:
    """The names of modules that stay in evaluation mode while the model trains.

    A model that is in evaluation mode as a whole (as pretrained ones are handed out) trains as a whole.
    """
    names: set[str] = set()
    for name, module in model.named_modules():
        set_apart = model.training and not module.training
        is_frozen_norm = batch_norm == "frozen" and isinstance(module, BatchNormLayer)
        if set_apart or is_frozen_norm:
            names.add(name)
    return frozenset(names)


def put_in_training(model: nn.Module, evaluated: frozenset[str]) -> nn.Module:
    """`model.train()`, but for the modules of these names."""
    model.train()
    if evaluated:
        for name, module in model.named_modules():
            if name in evaluated:
                module.training = False
    return model


def kept_in_evaluation(model: nn.Module) -> list[str]:
    """The names of modules that act as in evaluation while the model trains, such as frozen dropout.

    They are read from a copy that was put into training mode: what the model does there counts, not the mode it is
    given in. A module whose code does not read `self.training` acts the same in both modes and is left out.
    """
    shared: dict[int, Tensor] = {id(parameter): parameter for parameter in model.parameters()}
    for buffer in model.buffers():
        shared[id(buffer)] = buffer
    probe = copy.deepcopy(model, shared)
    put_in_training(probe, evaluated_modules(model, "shared"))
    names = []
    for name, module in probe.named_modules():
        if not module.training and _reads_its_mode(module):
            names.append(name)
    return sorted(names)


def _reads_its_mode(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0
    for parent in type(module).__mro__:
        if parent is nn.Module:
            return False
        for name, member in vars(parent).items():
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            if name not in ("train", "eval") and code is not None and "training" in code.co_names:
                return True
    return False


def private_copy(model: nn.Module) -> nn.Module:
    """A copy with trained parameters and buffers of its own. Frozen parameters are shared: no engine writes to them."""
    shared = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            shared[id(parameter)] = parameter
    return copy.deepcopy(model, shared)


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the model's buffers, by name."""
    buffers = {}
    for name, buffer in model.named_buffers():
        buffers[name] = buffer.detach().clone()
    return buffers


def draws_when_evaluated(model: nn.Module, inputs: trees.Inputs) -> bool:
    """Whether a pass in evaluation mode moves the state of torch's random numbers."""
    probe = copy.deepcopy(model).eval()
    device = trees.device(inputs)
    with torch.no_grad(), own_random_numbers(device), wherever_weights_lie():
        before = _random_state(device)
        trees.call(probe, inputs)
        return not torch.equal(before, _random_state(device))


def parameters_without_gradient(
    model: nn.Module,
    loss: LossFunction,
    inputs: trees.Inputs,
    targets: Tensor,
) -> frozenset[str]:
    """The names of trained parameters that the loss does not depend on."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.enable_grad(), own_random_numbers(targets.device), wherever_weights_lie():
        total = loss(trees.outputs(model, inputs), targets).sum()
        gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    names: set[str] = set()
    for name, gradient in zip(trained, gradients, strict=True):
        if gradient is None:
            names.add(name)
    return frozenset(names)


def own_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """Torch's generators are afterwards as they were."""
    devices = [device] if device.type == "cuda" else []
    return torch.random.fork_rng(devices=devices)


def _random_state(device: torch.device) -> Tensor:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)
