"""A model's inputs: one tensor, or a dict or tuple of tensors, each with one row per example.

A dict becomes keyword arguments of the model, a tuple positional ones. NumPy arrays have the same structure before they
become tensors: `leaves`, `rebuilt`, `mapped` and `rows` take them too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
Index = Tensor | slice
Structure = TypeVar("Structure")  # one array, or a dict or tuple of them


def leaves(inputs: Any) -> tuple[Any, ...]:
    """The tensors, always in the same order."""
    if isinstance(inputs, tuple):
        return inputs
    if isinstance(inputs, Mapping):
        return tuple(inputs.values())
    return (inputs,)


def rebuilt(like: Structure, tensors: Sequence[Any]) -> Structure:
    """Other tensors in the structure of `like`.

    >>> rebuilt({"ids": torch.zeros(2), "mask": torch.zeros(2)}, [torch.ones(1), torch.zeros(1)])
    {'ids': tensor([1.]), 'mask': tensor([0.])}
    """
    structure: Any
    if isinstance(like, tuple):
        structure = tuple(tensors)
    elif isinstance(like, Mapping):
        structure = dict(zip(like, tensors, strict=True))
    else:
        (structure,) = tensors
    return cast(Structure, structure)


def mapped(function: Callable[[Any], Any], inputs: Structure) -> Structure:
    """The same structure, with `function` of each tensor."""
    tensors = [function(tensor) for tensor in leaves(inputs)]
    return rebuilt(inputs, tensors)


def rows(inputs: Structure, index: Index) -> Structure:
    """Some rows of every tensor."""
    return mapped(lambda tensor: tensor[index], inputs)


def length(inputs: Inputs) -> int:
    """The number of examples."""
    return len(leaves(inputs)[0])


def device(inputs: Inputs) -> torch.device:
    """Where the tensors lie."""
    first: Tensor = leaves(inputs)[0]
    return first.device


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


def call(
    model: nn.Module,
    inputs: Inputs,
    parameters: Mapping[str, Tensor] | None = None,
) -> Any:
    """What the model makes of these inputs; `parameters` take the place of its own."""
    named = inputs if isinstance(inputs, dict) else {}
    arguments = () if named else leaves(inputs)
    if parameters is None:
        return model(*arguments, **named)
    return functional_call(model, dict(parameters), arguments, named)


def output_rows(outputs: Any, rows: slice) -> Any:
    """Some rows of every tensor in what a model gave."""
    return tree_map_only(Tensor, lambda tensor: tensor[rows], outputs)


def outputs(
    model: nn.Module,
    inputs: Inputs,
    parameters: Mapping[str, Tensor] | None = None,
) -> Any:
    """The same as the loss sees it: of an answer with logits, as Hugging Face's models give it, the logits."""
    answer = call(model, inputs, parameters)
    if isinstance(answer, Tensor):
        return answer
    is_dict = isinstance(answer, Mapping)
    logits = answer.get("logits") if is_dict else getattr(answer, "logits", None)
    if logits is None:
        return answer
    return logits
