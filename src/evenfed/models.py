"""Models by name, for experiments; in Python any torch module will do."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .core.errors import InputError, check_whole, unknown


class FromBytes(nn.Module):
    """uint8 images to [0, 1]: data stay bytes in memory and become numbers one batch at a time.

    `normalise` also centres and scales them: all channels alike, as CIFAR's nearly are.
    """

    def __init__(self, normalise: bool = False) -> None:
        super().__init__()
        self.normalise = normalise

    def forward(self, images: Tensor) -> Tensor:
        dtype = torch.get_default_dtype()
        scaled = images.to(dtype) / 255
        if self.normalise:
            return (scaled - 0.5) / 0.25
        return scaled


def mlp(inputs: int, classes: int, hidden: Sequence[int] = (32,)) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    is_list = isinstance(hidden, Sequence)
    is_text = isinstance(hidden, str)
    if not is_list or is_text:
        raise InputError(f"model.hidden={hidden!r}: give a list of widths, e.g. [32]")
    for width in hidden:
        check_whole("model.hidden", width, 1)
    layers: list[nn.Module] = [nn.Flatten()]
    width = inputs
    for wider in hidden:
        linear = nn.Linear(width, wider)
        layers += [linear, nn.ReLU()]
        width = wider
    output = nn.Linear(width, classes)
    layers.append(output)
    return nn.Sequential(*layers)


def cnn(channels: int, classes: int, width: int = 16) -> nn.Module:
    """Three 3x3 convolutions with GroupNorm, pooled to one vector."""
    widest = 2 * width
    convolution = partial(_convolution, kernel=3, stride=1, groups=2, bias=True)
    return nn.Sequential(
        *convolution(channels, width),
        nn.MaxPool2d(2),
        *convolution(width, widest),
        nn.MaxPool2d(2),
        *convolution(widest, widest),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widest, classes),
    )


def _convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    groups: int,
    bias: bool = False,
) -> tuple[nn.Module, ...]:
    """A convolution that keeps the image's size, or divides it by `stride`; GroupNorm and ReLU."""
    padding = kernel // 2
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
    norm = nn.GroupNorm(groups, outputs)
    return convolution, norm, nn.ReLU()


class Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut: ResNet's basic block."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        groups: int,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        keeps_shape = stride == 1 and inputs == outputs
        if not keeps_shape:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            norm = nn.GroupNorm(groups, outputs)
            self.shortcut = nn.Sequential(projection, norm)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x)
        out = torch.relu(self.norm1(out))
        out = self.conv2(out)
        out = self.norm2(out)
        return torch.relu(out + self.shortcut(x))


def resnet18_gn(
    classes: int,
    channels: int = 3,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    groups: int = 2,
) -> nn.Module:
    """ResNet-18 with GroupNorm in place of BatchNorm; the authors have the ImageNet stem and 2 groups.

    >>> [sum(p.numel() for p in resnet18_gn(c).parameters()) for c in (10, 100)]
    [11181642, 11227812]
    """
    layers: list[nn.Module] = []
    if stem == "imagenet":
        layers += _convolution(channels, 64, 7, 2, groups)
        layers.append(nn.MaxPool2d(3, 2, 1))
    elif stem == "cifar":
        layers += _convolution(channels, 64, 3, 1, groups)
    else:
        raise unknown("stem", str(stem), ("imagenet", "cifar"))
    width = 64
    for wider in (64, 128, 256, 512):
        stride = 1 if wider == width else 2
        widening = Block(width, wider, stride, groups)
        keeping = Block(wider, wider, 1, groups)
        layers += [widening, keeping]
        width = wider
    output = nn.Linear(width, classes)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), output]
    model = nn.Sequential(*layers)
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
        self.between: nn.Module = nn.Identity()
        if between is not None:
            self.between = nn.Linear(hidden, between)
            hidden = between
        self.output = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        states, _ = self.lstm(embedded)
        states = self.between(states)
        scores: Tensor = self.output(states)
        return scores.transpose(1, 2)


def lstm_words(symbols: int, embedding: int = 96, hidden: int = 670) -> nn.Module:
    """The next-word network of Reddi et al.: embedding 96, LSTM 670, two linear layers.

    >>> sum(p.numel() for p in lstm_words(10_004).parameters())
    4053428
    """
    return NextToken(symbols, embedding, hidden, between=embedding, padding=0)


def lstm_chars(
    symbols: int,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """The next-character network of LEAF: embedding 8, two LSTM layers of 256.

    >>> sum(p.numel() for p in lstm_chars(80).parameters())
    819920
    """
    return NextToken(symbols, embedding, hidden, layers)


def _of_numbers(inputs: Tensor, classes: int) -> dict[str, int]:
    return {"inputs": inputs[0].numel(), "classes": classes}


def _of_images(inputs: Tensor, classes: int) -> dict[str, int]:
    shape = list(inputs.shape)
    if len(shape) != 4:
        raise InputError(f"this model needs images [n, channels, height, width]; the data are {shape}")
    return {"channels": shape[1], "classes": classes}


def _of_symbols(inputs: Tensor, classes: int) -> dict[str, int]:
    shape = list(inputs.shape)
    if inputs.is_floating_point() or len(shape) != 2:
        raise InputError(f"this model needs sequences of symbols [n, time]; the data are {shape} {inputs.dtype}")
    return {"symbols": classes}


Maker = Callable[..., nn.Module]
Sizes = Callable[[Tensor, int], dict[str, int]]  # the arguments that come from the data: inputs, and number of classes

BY_NAME: dict[str, tuple[Maker, Sizes]] = {
    "mlp": (mlp, _of_numbers),
    "cnn": (cnn, _of_images),
    "resnet18_gn": (resnet18_gn, _of_images),
    "lstm_words": (lstm_words, _of_symbols),
    "lstm_chars": (lstm_chars, _of_symbols),
}
_FROM_DATA = ("inputs", "classes", "channels", "symbols")  # arguments that are no options
_OF_EVERY_MODEL = ("normalise",)


def get(
    name: str,
    inputs: Tensor,
    classes: int,
    /,
    normalise: bool = False,
    **options: Any,
) -> nn.Module:
    """A freshly initialised model for such inputs; a dotted path names your own, called with the options.

    `normalise`: images that come as bytes are centred, not only scaled to [0, 1].

    >>> import torch
    >>> sum(p.numel() for p in get("mlp", torch.zeros(1, 64), 10, hidden=[32]).parameters())
    2410
    """
    check(name, options)
    make = _maker(name)
    sizes = {}
    if name in BY_NAME:
        _, sizes_of = BY_NAME[name]
        sizes = sizes_of(inputs, classes)
    try:
        model = make(**sizes, **options)
    except TypeError as error:
        listed = ", ".join(_options_of(name)) or "none"
        raise InputError(f"model {name}: {error}; its options: {listed}") from None
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise InputError(f"model {name} made a {kind}; it must make a torch.nn.Module")
    if inputs.dtype == torch.uint8:
        numbers = FromBytes(normalise)
        return nn.Sequential(numbers, model)
    if normalise:
        raise InputError(
            f"model.normalise=true centres images that come as bytes; these are {inputs.dtype}: leave it out"
        )
    return model


def check(name: str, options: Iterable[str]) -> None:
    """Refuse a name that is no model's, and an option that the model does not have."""
    if name not in BY_NAME and "." not in name:
        raise unknown("model", name, [*BY_NAME, "package.Class"])
    parameters = _parameters(name)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    allowed = [*_options_of(name), *_OF_EVERY_MODEL]
    for option in options:
        if option not in allowed:
            raise unknown(f"option of model {name}", option, allowed)


def _options_of(name: str) -> list[str]:
    """What can be given in addition to the name: arguments of your own class, or of the bundled model's function."""
    options = []
    for parameter in _parameters(name):
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            options.append(parameter.name)
    if name in BY_NAME:
        options = [option for option in options if option not in _FROM_DATA]
    return options


def _parameters(name: str) -> list[inspect.Parameter]:
    """Of what makes the model; those of a class that does not tell them may be any."""
    make = _maker(name)
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return [inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)]
    return list(signature.parameters.values())


def _maker(name: str) -> Maker:
    if name in BY_NAME:
        make, _ = BY_NAME[name]
        return make
    own: Maker = imported(name, "model", "module.Class")
    return own


def importable_from(folders: Sequence[str]) -> None:
    """Modules in these folders can be imported, as a script imports from its own folder; the first folder wins."""
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def imported(path: str, what: str, form: str) -> Any:
    """What the dotted path names; `what` it should be, and its `form`, are for the error."""
    package, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(package)
        return getattr(module, name)
    except Exception as error:  # whatever one's own module may raise
        kind = type(error).__name__
        raise InputError(
            f"{what} '{path}' cannot be imported ({kind}: {error}); give {form}, with module.py next to the "
            "experiment's file, in the working folder or on Python's path"
        ) from None
