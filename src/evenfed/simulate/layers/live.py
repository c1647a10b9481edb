"""The parameters that can change, in the order a stacked step reads them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...core.vector import Layout
from . import convolution, recurrent
from .rewriting import Rewritten


@dataclass(frozen=True)
class Part:
    """One parameter: its entries in the live vector lie as `shape`; `order` turns that into torch's axes."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    taps: convolution.Taps | None = None

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Live:
    """Weights that are multiplied come first (they may be computed with in less precision), then the rest.

    A convolution's weight lies as [out, taps, in], without the taps that only ever meet padding: those have
    no gradient. On 32x32 images that is 62 % of ResNet-18.
    """

    columns: Tensor  # [L] where each entry stands in the model's flat vector
    weights: tuple[Part, ...]
    rest: tuple[Part, ...]

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, example: Tensor, crop: bool) -> "Live":
        """Found by one forward pass over `example`, a batch of inputs."""
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        uses = _uses(model, parameters, example)
        places = layout.unflatten(torch.arange(sum(layout.sizes)))
        assert isinstance(places, dict)
        parts: dict[bool, list[Part]] = {True: [], False: []}
        columns: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, place in places.items():
            part, kept = _part(name, place, uses.get(name), crop)
            parts[place.ndim > 1].append(part)
            columns[place.ndim > 1].append(kept.reshape(-1))
        order = torch.cat(columns[True] + columns[False]).to(example.device)
        return cls(order, tuple(parts[True]), tuple(parts[False]))

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
        found: dict[str, Tensor] = {}
        for vector, parts in ((weights, self.weights), (rest, self.rest)):
            if parts:
                pieces = vector.split([part.size for part in parts])
                found |= {p.name: v.view(p.shape).permute(p.order) for p, v in zip(parts, pieces, strict=True)}
        return found

    @contextmanager
    def rewriting(self, parameters: Mapping[str, Tensor], plain: set[str] | None) -> Iterator[None]:
        """Layers in their stackable form, for a forward pass with just these parameters.

        `plain` takes the names of convolutions that have no such form. It is None where nothing is stacked: a whole
        kernel is then torch's own work, which is faster for whole groups of channels.
        """
        taps = {id(parameters[part.name]): part.taps for part in self.weights if part.taps is not None}

        def conv2d(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
            cropped = taps.get(id(weight))
            if plain is None and cropped is None and weight.shape[1] % convolution.ALIGNED == 0:
                return None
            found = convolution.conv2d(input, weight, *args, **kwargs, taps=cropped)
            if found is not None:
                return found
            return as_it_is(input, weight, *args, **kwargs)

        def torchs(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
            """All of one type: where clients are stacked torch asks for that before autocast has seen to it."""

            def noted(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
                if plain is not None:
                    plain.add(name)
                bias = None if bias is None else bias.to(weight.dtype)
                return function(input.to(weight.dtype), weight, bias, *args, **kwargs)

            return noted

        as_it_is = torchs(torch.conv2d, "conv2d with groups, padding by name or without a batch")

        others = {getattr(torch, name): torchs(getattr(torch, name), name) for name in convolution.OTHERS}
        with Rewritten({**recurrent.RULES, **convolution.RULES, **others, torch.conv2d: conv2d}):
            yield


def _part(name: str, place: Tensor, taps: convolution.Taps | None, crop: bool) -> tuple[Part, Tensor]:
    """How a parameter lies, and where its entries stand in the model's vector."""
    if taps is None:
        return Part(name, tuple(place.shape), tuple(range(place.ndim))), place
    cropped = None
    if crop and not taps.whole:
        place, cropped = place[:, :, taps.rows.start : taps.rows.stop, taps.columns.start : taps.columns.stop], taps
    last = place.permute(0, 2, 3, 1)
    return Part(name, tuple(last.shape), (0, 3, 1, 2), cropped), last


class _Watch(TorchFunctionMode):
    """Notes what each parameter is used for: the taps of a convolution, or anything else (None)."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.seen: dict[str, set[convolution.Taps | None]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taps = _taps(*args, **kwargs) if func is torch.conv2d else None
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        for used in tree_leaves((args, kwargs)):
            if isinstance(used, Tensor) and id(used) in self.names:
                self.seen.setdefault(self.names[id(used)], set()).add(taps if used is weight else None)
        return func(*args, **kwargs)


def _taps(
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> convolution.Taps | None:
    form = convolution.geometry(input, stride, padding, dilation, groups)
    taps = None if form is None else convolution.Taps.of(input.shape[2:], weight.shape[2:], *form)
    return taps if taps is not None and len(taps.rows) and len(taps.columns) else None


def _uses(model: nn.Module, parameters: Mapping[str, Tensor], example: Tensor) -> dict[str, convolution.Taps | None]:
    """Parameters used as the weight of one kind of convolution and for nothing else."""
    watch = _Watch({id(p): name for name, p in parameters.items()})
    training = model.training
    with torch.no_grad(), recurrent.wherever_weights_lie(), watch:
        functional_call(model.eval(), dict(parameters), (example,))
    model.train(training)
    return {name: next(iter(kinds)) for name, kinds in watch.seen.items() if len(kinds) == 1}
