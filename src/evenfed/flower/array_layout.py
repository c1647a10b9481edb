"""A model that is known by its arrays alone: which are parameters, and where they lie in a vector."""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord
from torch import Tensor

from ..core.average import ModelState
from ..core.errors import InputError
from ..core.vector import Layout
from . import reply_fields

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")  # as torch names them; not trained
HEADER = 4096  # bytes that an array's encoding may add to its numbers


@dataclass(frozen=True)
class ArrayLayout:
    """The arrays of a model in the order given: parameters form the vector, buffers stay beside it."""

    tensors: Mapping[str, Tensor]  # empty ones, by name: shapes and types
    layout: Layout  # of the parameters
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, buffers: Iterable[str] = BUFFERS) -> "ArrayLayout":
        """Whole numbers, and what matches one of the patterns `buffers`, are no parameters."""
        patterns = tuple(buffers)
        tensors = {}
        parameters = {}
        others = []
        for name, array in arrays.items():
            tensor = reply_fields.tensor(name, array)
            tensors[name] = tensor.to("meta")
            is_real = tensor.is_floating_point()
            is_parameter = is_real and not matches(name, patterns)
            if is_parameter:
                parameters[name] = tensor
            else:
                others.append(name)
        layout = Layout.of(parameters)
        return cls(tensors, layout, tuple(others))

    def read(self, arrays: ArrayRecord) -> ModelState:
        """The model in these arrays. Other names, shapes or types, and numbers that are not finite, are refused."""
        unexpected = sorted(set(arrays) ^ set(self.tensors))
        if unexpected:
            listed = ", ".join(unexpected[:3])
            raise InputError(f"the model has other arrays than was sent ({listed})")
        tensors = {}
        for name, wanted in self.tensors.items():
            array = arrays[name]
            numbers = wanted.numel() * wanted.element_size()
            most = numbers + HEADER
            held = len(array.data)
            if held > most:
                raise InputError(f"{name} holds {held} bytes, more than the {most} of what was sent")
            tensor = reply_fields.tensor(name, array)
            tensors[name] = _fitting(name, tensor, wanted)
        buffers = {}
        for name in self.buffers:
            buffers[name] = tensors.pop(name)
        theta = self.layout.flatten(tensors)
        return ModelState(theta, buffers)

    def arrays(self, model: ModelState) -> ArrayRecord:
        """As Flower holds it: names in the order given, each of its own type."""
        theta = model.theta.detach().cpu()
        parameters = self.layout.unflatten(theta)
        assert isinstance(parameters, dict)
        everything = {**parameters, **model.buffers}
        tensors = {}
        for name, wanted in self.tensors.items():
            values = everything[name]
            tensors[name] = values.to(wanted.dtype)
        return ArrayRecord(tensors)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether any of the patterns is the name's."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _fitting(name: str, tensor: Tensor, wanted: Tensor) -> Tensor:
    if tensor.shape != wanted.shape:
        shape = list(tensor.shape)
        shape_sent = list(wanted.shape)
        raise InputError(f"{name} has shape {shape}, not {shape_sent}")
    is_real = tensor.is_floating_point()
    should_be_real = wanted.is_floating_point()
    if tensor.dtype.is_complex or is_real != should_be_real:
        raise InputError(f"{name} is of type {tensor.dtype}, not {wanted.dtype}")
    is_finite = bool(tensor.isfinite().all())
    if not is_finite:
        raise InputError(f"NaN or infinity in {name}")
    return tensor.to(wanted.dtype)
