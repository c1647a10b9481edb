"""Which modules of a model train: those that the user put into evaluation mode stay there."""

from torch import nn

from ..settings import BatchNorm

BatchNormLayer = nn.modules.batchnorm._BatchNorm


def evaluated_modules(model: nn.Module, batch_norm: BatchNorm) -> frozenset[str]:
    """The names of modules that stay in evaluation mode while the model trains.

    A model that is in evaluation mode as a whole (as pretrained ones are handed out) trains as a whole.
    """
    names = set()
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
