"""The parameters that can change, in the order a stacked step reads them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ... import trees
from ...core.vector import Layout
from ...trees import Inputs
from . import attention, convolution, recurrent
from .geometry import Taps, geometry
from .rewriting import Rewritten


@dataclass(frozen=True)
class LiveParameter:
    """One parameter: its entries in the live vector lie as `shape`; `order` turns that into torch's axes."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    taps: Taps | None = None

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()

    def view(self, entries: Tensor) -> Tensor:
        """Its entries as torch's layers expect them."""
        return entries.view(self.shape).permute(self.order)


@dataclass(frozen=True)
class LiveParameters:
    """Weights that are multiplied come first (they may be computed with in less precision), then the rest.

    A convolution's weight lies as [out, taps, in], without the taps that only ever meet padding: those have
    no gradient. On 32x32 images that is 62 % of ResNet-18.
    """

    columns: Tensor  # [L] each entry's place in the model's flat vector
    weights: tuple[LiveParameter, ...]
    rest: tuple[LiveParameter, ...]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        layout: Layout,
        example: Inputs,
        crop: bool,
    ) -> "LiveParameters":
        """Determined by one forward pass over `example`, a batch of inputs."""
        uses = _uses(model, example)
        total = sum(layout.sizes)
        everything = torch.arange(total)
        indices = layout.unflatten(everything)
        assert isinstance(indices, dict)
        is_weight = {name: index.ndim > 1 for name, index in indices.items()}
        weights: list[LiveParameter] = []
        rest: list[LiveParameter] = []
        columns: list[Tensor] = []
        for name in sorted(indices, key=is_weight.__getitem__, reverse=True):  # a stable order
            part, live_index = _part(name, indices[name], uses.get(name), crop)
            group = weights if is_weight[name] else rest
            group.append(part)
            columns.append(live_index.reshape(-1))
        return cls(
            columns=torch.cat(columns).to(trees.device(example)),
            weights=tuple(weights),
            rest=tuple(rest),
        )

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many entries are weights, and how many the rest."""
        weights = sum(part.size for part in self.weights)
        return weights, len(self) - weights

    def split(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """[..., L] as weights and rest."""
        weights, rest = vectors.split(self.sizes, -1)
        return weights, rest

    def parameters(self, weights: Tensor, rest: Tensor) -> dict[str, Tensor]:
        """The model's parameters by name, as views of the two vectors."""
        parameters = _views(weights, self.weights)
        parameters |= _views(rest, self.rest)
        return parameters

    @contextmanager
    def rewriting(
        self,
        parameters: Mapping[str, Tensor],
        plain: set[str] | None,
    ) -> Iterator[None]:
        """Layers in their stackable form, for a forward pass with just these parameters.

        `plain` takes the names of convolutions that have no such form. It is None where nothing is stacked: a whole
        kernel is then torch's own work, which is faster for whole groups of channels.
        """
        cropped = {}
        for part in self.weights:
            if part.taps is not None:
                weight = parameters[part.name]
                cropped[id(weight)] = part.taps
        rules = {**recurrent.RULES, **attention.RULES, **convolution.RULES}
        rules[torch.conv2d] = partial(_conv2d, cropped, plain)
        for name in convolution.OTHERS:
            function = getattr(torch, name)
            rules[function] = partial(_torchs_own, function, name, plain)
        with Rewritten(rules):
            yield


def _views(vector: Tensor, parts: tuple[LiveParameter, ...]) -> dict[str, Tensor]:
    views: dict[str, Tensor] = {}
    if not parts:
        return views
    sizes = [part.size for part in parts]
    pieces = vector.split(sizes)
    for part, piece in zip(parts, pieces, strict=True):
        views[part.name] = part.view(piece)
    return views


def _conv2d(
    cropped: Mapping[int, Taps],
    plain: set[str] | None,
    input: Tensor,
    weight: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor | None:
    """The rule for conv2d; `cropped` has the taps of cropped weights by their id."""
    taps = cropped.get(id(weight))
    channels = weight.shape[1]
    aligned = channels % convolution.ALIGNED == 0
    if plain is None and taps is None and aligned:
        return None
    convolved = convolution.conv2d(input, weight, *args, **kwargs, taps=taps)
    if convolved is not None:
        return convolved
    name = "conv2d with groups, padding by name or without a batch"
    return _torchs_own(torch.conv2d, name, plain, input, weight, *args, **kwargs)


def _torchs_own(
    function: Callable[..., Tensor],
    name: str,
    plain: set[str] | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """All of one type: where clients are stacked torch asks for that before autocast has seen to it."""
    if plain is not None:
        plain.add(name)
    dtype = weight.dtype
    if bias is not None:
        bias = bias.to(dtype)
    input = input.to(dtype)
    return function(input, weight, bias, *args, **kwargs)


def _part(
    name: str,
    index: Tensor,
    taps: Taps | None,
    crop: bool,
) -> tuple[LiveParameter, Tensor]:
    if taps is None:
        shape = tuple(index.shape)
        order = tuple(range(index.ndim))
        return LiveParameter(name, shape, order), index
    cropped = None
    if crop and not taps.whole:
        cropped = taps
        index = taps.crop(index)
    channels_last = index.permute(0, 2, 3, 1)
    part = LiveParameter(
        name=name,
        shape=tuple(channels_last.shape),
        order=(0, 3, 1, 2),
        taps=cropped,
    )
    return part, channels_last


class _Watch(TorchFunctionMode):
    """Notes what each parameter is used for: the taps of a convolution, or anything else (None)."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.uses: dict[str, set[Taps | None]] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        weight = None
        taps = None
        if func is torch.conv2d:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            taps = _taps(*args, **kwargs)
        for leaf in tree_leaves((args, kwargs)):
            if not isinstance(leaf, Tensor):
                continue
            name = self.names.get(id(leaf))
            if name is not None:
                use = taps if leaf is weight else None
                uses = self.uses.setdefault(name, set())
                uses.add(use)
        return func(*args, **kwargs)


def _taps(
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Taps | None:
    form = geometry(input, stride, padding, dilation, groups)
    if form is None:
        return None
    image = input.shape[2:]
    kernel = weight.shape[2:]
    taps = Taps.of(image, kernel, *form)
    return taps if taps.count else None


def _uses(model: nn.Module, example: Inputs) -> dict[str, Taps | None]:
    """Parameters used as the weight of one kind of convolution and for nothing else."""
    parameters: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters[name] = parameter
            names[id(parameter)] = name
    watch = _Watch(names)
    training = model.training
    with torch.no_grad(), recurrent.wherever_weights_lie(), watch:
        trees.call(model.eval(), example, parameters)
    model.train(training)
    only: dict[str, Taps | None] = {}
    for name, uses in watch.uses.items():
        if len(uses) == 1:
            (only[name],) = uses
    return only
