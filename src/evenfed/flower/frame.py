"""A model that is known by its arrays alone: which are parameters, and where they lie in a vector."""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from ..core.average import Model
from ..core.errors import InputError
from ..core.vector import Layout
from . import fields

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")  # as torch names them; not trained
HEADER = 4096  # bytes that an array's encoding may add to its numbers


@dataclass(frozen=True)
class Frame:
    """The arrays of a model in the order given: parameters form the vector, buffers stay beside it."""

    tensors: Mapping[str, Tensor]  # empty ones, by name: shapes and types
    layout: Layout  # of the parameters
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, buffers: Iterable[str] = BUFFERS) -> "Frame":
        """Whole numbers, and what matches one of the patterns `buffers`, are no parameters."""
        patterns = tuple(buffers)
        tensors = {}
        parameters = {}
        others = []
        for name, array in arrays.items():
            tensor = fields.tensor(name, array)
            tensors[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            is_buffer = any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
            if tensor.is_floating_point() and not is_buffer:
                parameters[name] = tensor
            else:
                others.append(name)
        return cls(tensors, Layout.of(parameters), tuple(others))

    def read(self, arrays: ArrayRecord) -> Model:
        """The model in these arrays. Other names, shapes or types, and numbers that are not finite, are refused."""
        unexpected = sorted(set(arrays) ^ set(self.tensors))
        if unexpected:
            listed = ", ".join(unexpected[:3])
            raise InputError(f"the model has other arrays than was sent ({listed})")
        tensors = {}
        for name, wanted in self.tensors.items():
            most = wanted.numel() * wanted.element_size() + HEADER
            if len(arrays[name].data) > most:
                raise InputError(f"{name} holds {len(arrays[name].data)} bytes, more than the {most} of what was sent")
            tensors[name] = _fitting(name, fields.tensor(name, arrays[name]), wanted)
        held = {name: tensors.pop(name) for name in self.buffers}
        return Model(self.layout.flatten(tensors), held)

    def arrays(self, model: Model) -> ArrayRecord:
        """As Flower holds it: names in the order given, each of its own type."""
        parameters = self.layout.unflatten(model.theta.detach().cpu())
        assert isinstance(parameters, dict)
        tensors = {}
        for name, wanted in self.tensors.items():
            values = parameters[name] if name in parameters else model.buffers[name]
            tensors[name] = values.to(wanted.dtype)
        return ArrayRecord(tensors)


def _fitting(name: str, tensor: Tensor, wanted: Tensor) -> Tensor:
    shape = list(tensor.shape)
    if tensor.shape != wanted.shape:
        raise InputError(f"{name} has shape {shape}, not {list(wanted.shape)}")
    if tensor.dtype.is_complex or tensor.is_floating_point() != wanted.is_floating_point():
        raise InputError(f"{name} is of type {tensor.dtype}, not {wanted.dtype}")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise InputError(f"NaN or infinity in {name}")
    return tensor.to(wanted.dtype)
