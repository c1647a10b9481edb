"""Models by name, for experiments; in Python any torch module will do."""

import importlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .core.errors import InputError, check_whole, unknown


class FromBytes(nn.Module):
    """uint8 images to [0, 1]: data stay bytes in memory, and become numbers a batch at a time.

    `normalise` centres and scales them as natural images want it: all channels alike, as CIFAR's nearly are.
    """

    def __init__(self, normalise: bool = False) -> None:
        super().__init__()
        self.normalise = normalise

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.to(torch.get_default_dtype()) / 255
        return (scaled - 0.5) / 0.25 if self.normalise else scaled


def mlp(inputs: int, classes: int, hidden: Sequence[int] = (32,)) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise InputError(f"model.hidden={hidden!r}: give a list of widths, e.g. [32]")
    for width in hidden:
        check_whole("model.hidden", width, 1)
    widths = [inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(channels: int, classes: int, width: int = 16) -> nn.Module:
    """Three 3x3 convolutions with GroupNorm, pooled to one vector."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.ReLU()]

    first, second, third = block(channels, width), block(width, 2 * width), block(2 * width, 2 * width)
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)]
    return nn.Sequential(*first, nn.MaxPool2d(2), *second, nn.MaxPool2d(2), *third, *pooled)


class Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut: ResNet's basic block."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet18_gn(
    classes: int, channels: int = 3, stem: Literal["imagenet", "cifar"] = "imagenet", groups: int = 2
) -> nn.Module:
    """ResNet-18 with GroupNorm in place of BatchNorm; the authors have the ImageNet stem and 2 groups.

    >>> [sum(p.numel() for p in resnet18_gn(c).parameters()) for c in (10, 100)]
    [11181642, 11227812]
    """
    if stem not in ("imagenet", "cifar"):
        raise unknown("stem", str(stem), ("imagenet", "cifar"))
    if stem == "imagenet":
        first: list[nn.Module] = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()]
        first.append(nn.MaxPool2d(3, 2, 1))
    else:
        first = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()]
    blocks = [
        Block(before, after, stride, groups)
        for before, after, stride in (
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        )
    ]
    model = nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class NextToken(nn.Module):
    """Embedding, LSTM and linear layers that score the next symbol at every position: [b, symbols, time]."""

    def __init__(
        self,
        symbols: int,
        embedding: int = 8,
        hidden: int = 64,
        layers: int = 1,
        between: int | None = None,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding, padding_idx=padding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.between = nn.Identity() if between is None else nn.Linear(hidden, between)
        self.output = nn.Linear(between or hidden, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.output(self.between(self.lstm(self.embedding(tokens))[0]))
        return scores.transpose(1, 2)


def lstm_words(symbols: int, embedding: int = 96, hidden: int = 670) -> nn.Module:
    """The next-word network of Reddi et al.: embedding 96, LSTM 670, two linear layers.

    >>> sum(p.numel() for p in lstm_words(10_004).parameters())
    4053428
    """
    return NextToken(symbols, embedding, hidden, between=embedding, padding=0)


def lstm_chars(symbols: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """The next-character network of LEAF: embedding 8, two LSTM layers of 256.

    >>> sum(p.numel() for p in lstm_chars(80).parameters())
    819920
    """
    return NextToken(symbols, embedding, hidden, layers)


BY_NAME: dict[str, Callable[..., nn.Module]] = {
    "mlp": lambda inputs, classes, **k: mlp(inputs[0].numel(), classes, **k),
    "cnn": lambda inputs, classes, **k: cnn(_channels(inputs), classes, **k),
    "resnet18_gn": lambda inputs, classes, **k: resnet18_gn(classes, _channels(inputs), **k),
    "lstm_words": lambda inputs, classes, **k: lstm_words(_symbols(inputs, classes), **k),
    "lstm_chars": lambda inputs, classes, **k: lstm_chars(_symbols(inputs, classes), **k),
}


def get(name: str, inputs: Tensor, classes: int, normalise: bool = False, **options: Any) -> nn.Module:
    """A freshly initialised model for such inputs; one's own by dotted path, called with the options.

    `normalise`: images that come as bytes are centred, not only scaled to [0, 1].

    >>> import torch
    >>> sum(p.numel() for p in get("mlp", torch.zeros(1, 64), 10, hidden=[32]).parameters())
    2410
    """
    if name in BY_NAME:
        make = BY_NAME[name]
    elif "." in name:
        own = _imported(name)
        make = lambda inputs, classes, **k: own(**k)  # noqa: E731
    else:
        raise unknown("model", name, [*BY_NAME, "package.Class"])
    try:
        model = make(inputs, classes, **options)
    except TypeError as error:
        raise InputError(f"model {name}: {error}; see evenfed.models for its options") from None
    if not isinstance(model, nn.Module):
        raise InputError(f"model {name} made a {type(model).__name__}; it must make a torch.nn.Module")
    if inputs.dtype == torch.uint8:
        return nn.Sequential(FromBytes(normalise), model)
    if normalise:
        raise InputError(
            f"model.normalise=true centres images that come as bytes; these are {inputs.dtype}: leave it out"
        )
    return model


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"model '{path}' cannot be imported ({error}); give package.module.Class on Python's path"
        ) from None
    return found


def _channels(inputs: Tensor) -> int:
    if inputs.ndim != 4:
        raise InputError(f"this model needs images [n, channels, height, width]; the data are {list(inputs.shape)}")
    return inputs.shape[1]


def _symbols(inputs: Tensor, classes: int) -> int:
    if inputs.is_floating_point() or inputs.ndim != 2:
        raise InputError(
            f"this model needs sequences of symbols [n, time]; the data are {list(inputs.shape)} {inputs.dtype}"
        )
    return classes
