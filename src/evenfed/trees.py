"""A model's inputs: one tensor, or a dict or tuple of tensors, each with one row per example.

A dict becomes keyword arguments of the model, a tuple positional ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
Index = Tensor | slice


def leaves(inputs: Inputs) -> tuple[Tensor, ...]:
    """The tensors, always in the same order."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, dict):
        return tuple(inputs.values())
    return inputs


def rebuilt(like: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """Other tensors in the structure of `like`.

    >>> rebuilt({"ids": torch.zeros(2), "mask": torch.zeros(2)}, [torch.ones(1), torch.zeros(1)])
    {'ids': tensor([1.]), 'mask': tensor([0.])}
    """
    if isinstance(like, Tensor):
        (tensor,) = tensors
        return tensor
    if isinstance(like, dict):
        return dict(zip(like, tensors, strict=True))
    return tuple(tensors)


def mapped(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same structure, with `function` of each tensor."""
    tensors = [function(tensor) for tensor in leaves(inputs)]
    return rebuilt(inputs, tensors)


def rows(inputs: Inputs, index: Index) -> Inputs:
    """Some rows of every tensor."""
    if isinstance(inputs, Tensor):
        return inputs[index]
    return mapped(lambda tensor: tensor[index], inputs)


def length(inputs: Inputs) -> int:
    """The number of examples."""
    return len(leaves(inputs)[0])


def device(inputs: Inputs) -> torch.device:
    """Where the tensors lie."""
    return leaves(inputs)[0].device


def nbytes(inputs: Inputs) -> int:
    """What the tensors take in memory."""
    return sum(tensor.nbytes for tensor in leaves(inputs))


def concatenated(parts: Sequence[Inputs]) -> Inputs:
    """Examples of several parts, one part after the other."""
    columns = zip(*map(leaves, parts), strict=True)
    tensors = list(map(torch.cat, columns))
    return rebuilt(parts[0], tensors)


def names(inputs: Inputs) -> list[str]:
    """How an error message refers to each tensor: what follows the word "inputs".

    >>> names({"ids": torch.zeros(2), "mask": torch.zeros(2)}), names(torch.zeros(2))
    (["['ids']", "['mask']"], [''])
    """
    if isinstance(inputs, Tensor):
        return [""]
    if isinstance(inputs, dict):
        return [f"[{key!r}]" for key in inputs]
    return [f"[{place}]" for place in range(len(inputs))]


def shapes(inputs: Inputs) -> str:
    """An example's shapes and types in words.

    >>> shapes({"ids": torch.zeros(2, 8).long(), "mask": torch.zeros(2, 8)})
    "['ids'] [8] int64, ['mask'] [8] float32"
    """
    described = []
    for name, tensor in zip(names(inputs), leaves(inputs), strict=True):
        shape = example_shape(tensor)
        described.append(f"{name} {shape}".strip())
    return ", ".join(described)


def example_shape(tensor: Tensor) -> str:
    """The shape of one row, and the type."""
    sizes = list(tensor.shape[1:])
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{sizes} {kind}"


def call(model: nn.Module, inputs: Inputs, parameters: Mapping[str, Tensor] | None = None) -> Any:
    """What the model makes of these inputs; `parameters` take the place of its own."""
    if isinstance(inputs, dict):
        if parameters is None:
            return model(**inputs)
        return functional_call(model, dict(parameters), (), inputs)
    arguments = leaves(inputs)
    if parameters is None:
        return model(*arguments)
    return functional_call(model, dict(parameters), arguments)


def outputs(model: nn.Module, inputs: Inputs, parameters: Mapping[str, Tensor] | None = None) -> Any:
    """The same as the loss sees it: of an answer with logits, as Hugging Face's models give it, the logits."""
    answer = call(model, inputs, parameters)
    if isinstance(answer, Tensor):
        return answer
    is_dict = isinstance(answer, Mapping)
    logits = answer.get("logits") if is_dict else getattr(answer, "logits", None)
    if logits is None:
        return answer
    return logits
