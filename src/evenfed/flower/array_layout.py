"""A model's arrays: which travel, which are parameters, where those lie in a vector, and which replies fit."""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from ..core.average import ModelState
from ..core.errors import InputError
from ..core.vector import Layout
from ..core.words import first_of
from . import reply_fields

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")  # as torch names them; not trained
HEADER = 4096  # bytes that an array's encoding may add to its numbers
_SHOWN = 3  # names in an error


@dataclass(frozen=True)
class ArrayLayout:
    """The arrays that travel, in order: parameters form the vector, buffers are kept separately."""

    tensors: Mapping[str, Tensor]  # without data (device meta): shapes and types by name
    layout: Layout  # of the parameters
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, parameters: Iterable[str], buffers: Iterable[str]) -> "ArrayLayout":
        """From the initial model and the names that the clients' model trains and keeps as buffers."""
        names = tuple(parameters)
        missing = [name for name in names if name not in arrays]
        if missing:
            listed = first_of(missing, _SHOWN)
            raise InputError(
                f"the initial model lacks {listed}, which the clients' model trains; "
                "start from the state_dict of the same model"
            )
        trained = {}
        for name in names:
            trained[name] = _without_data(name, arrays[name])
        kept = {}
        for name in buffers:
            if name in arrays:
                kept[name] = _without_data(name, arrays[name])
        return cls({**trained, **kept}, Layout.of(trained), tuple(kept))

    @classmethod
    def by_pattern(cls, arrays: ArrayRecord, patterns: Iterable[str] = BUFFERS) -> "ArrayLayout":
        """Of all arrays, in their order. Whole numbers and names that match a pattern are buffers."""
        patterns = tuple(patterns)
        tensors = {}
        parameters = {}
        buffers = []
        for name, array in arrays.items():
            tensor = _without_data(name, array)
            tensors[name] = tensor
            if tensor.is_floating_point() and not matches(name, patterns):
                parameters[name] = tensor
            else:
                buffers.append(name)
        return cls(tensors, Layout.of(parameters), tuple(buffers))

    @classmethod
    def of_model(cls, layout: Layout, model: ModelState) -> "ArrayLayout":
        """Of a model that is known as a vector and buffers."""
        parameters = layout.unflatten(model.theta.to("meta"))
        assert isinstance(parameters, dict)
        buffers = {name: buffer.to("meta") for name, buffer in model.buffers.items()}
        return cls({**parameters, **buffers}, layout, tuple(buffers))

    def read(self, arrays: ArrayRecord) -> ModelState:
        """The model in these arrays. Other names, shapes or types, and numbers that are not finite, are refused."""
        self._check_names(arrays)
        tensors = {}
        for name, wanted in self.tensors.items():
            _check_description(name, arrays[name], wanted)
            tensor = reply_fields.tensor(name, arrays[name])
            is_finite = bool(tensor.isfinite().all())
            if not is_finite:
                raise InputError(f"NaN or infinity in {name}")
            tensors[name] = tensor
        buffers = {}
        for name in self.buffers:
            buffers[name] = tensors.pop(name)
        theta = self.layout.flatten(tensors)
        return ModelState(theta, buffers)

    def arrays(self, model: ModelState) -> ArrayRecord:
        """As Flower holds it: the names in order, each of its own type."""
        parameters = self.layout.unflatten(model.theta.detach().cpu())
        assert isinstance(parameters, dict)
        tensors = {}
        for name, wanted in self.tensors.items():
            values = parameters.get(name)
            if values is None:
                values = model.buffers[name].detach().cpu()
            tensors[name] = values.to(wanted.dtype)
        return ArrayRecord(tensors)

    def _check_names(self, arrays: ArrayRecord) -> None:
        unexpected = sorted(set(arrays) - set(self.tensors))
        missing = sorted(set(self.tensors) - set(arrays))
        differences = []
        if unexpected:
            differences.append("unexpected: " + first_of(unexpected, _SHOWN))
        if missing:
            differences.append("missing: " + first_of(missing, _SHOWN))
        if differences:
            listed = "; ".join(differences)
            raise InputError(f"its model's arrays differ from those sent; {listed}")


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _without_data(name: str, array: Array) -> Tensor:
    """A tensor of the shape and type that the array states."""
    try:
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    except TypeError:
        raise InputError(f"{name} is {array.dtype}, which torch does not have") from None
    return torch.empty(tuple(array.shape), dtype=dtype, device="meta")


def _check_description(name: str, array: Array, wanted: Tensor) -> None:
    """Refuse another type or shape than was sent, and more bytes than those need, before the bytes are read."""
    dtype = str(wanted.dtype).removeprefix("torch.")
    if array.dtype != dtype:
        raise InputError(f"{name} is {array.dtype}, not {dtype}")
    shape = list(array.shape)
    shape_sent = list(wanted.shape)
    if shape != shape_sent:
        raise InputError(f"{name} has shape {shape}, not {shape_sent}")
    numbers = wanted.numel() * wanted.element_size()
    held = len(array.data)
    if held > numbers + HEADER:
        raise InputError(f"{name} holds {held} bytes, more than its shape needs")
