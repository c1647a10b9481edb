"""Models by name, for the command line; in Python any torch module will do."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from .core.errors import InputError, unknown


def mlp(inputs: int, classes: int, hidden: tuple[int, ...] = (32,)) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(channels: int, classes: int, width: int = 16) -> nn.Module:
    """Three 3x3 convolutions with GroupNorm, pooled to one vector."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.ReLU()]

    return nn.Sequential(
        *block(channels, width),
        nn.MaxPool2d(2),
        *block(width, 2 * width),
        nn.MaxPool2d(2),
        *block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


class NextToken(nn.Module):
    """Embedding, LSTM and a linear layer that scores the next symbol at every position: [b, symbols, time]."""

    def __init__(self, symbols: int, embedding: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.output(self.lstm(self.embedding(tokens))[0])
        return states.transpose(1, 2)


def _for_images(inputs: Tensor) -> Tensor:
    if inputs.ndim != 4:
        raise InputError(f"model cnn needs images [n, channels, height, width]; these are {list(inputs.shape)}")
    return inputs


BY_NAME: dict[str, Callable[..., nn.Module]] = {
    "mlp": lambda inputs, classes, **k: mlp(inputs[0].numel(), classes, **{n: tuple(v) for n, v in k.items()}),
    "cnn": lambda inputs, classes, **k: cnn(_for_images(inputs).shape[1], classes, **k),
}


def get(name: str, inputs: Tensor, classes: int, **options: Any) -> nn.Module:
    """A freshly initialised model for such inputs.

    >>> import torch
    >>> sum(p.numel() for p in get("mlp", torch.zeros(1, 64), 10, hidden=[32]).parameters())
    2410
    """
    if name not in BY_NAME:
        raise unknown("model", name, BY_NAME)
    try:
        return BY_NAME[name](inputs, classes, **options)
    except TypeError as error:
        raise InputError(f"model {name}: {error}; see evenfed.models.{name} for its options") from None
