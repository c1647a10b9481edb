"""Augmentation of training batches. Give one of these, its name, or a function of your own as `augment`.

An augmentation takes a batch of inputs and a `draw`, the run's own random stream: `draw.uniform(*shape)` and
`draw.integers(high, *shape)` are functions of seed, round, client and local step, on the batch's device. Every engine
therefore sees the same images, whoever else trains. Take random numbers from there only, and use tensor operations
only: a stack of clients calls the function under `torch.vmap`.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .core.choices import kind_and_options
from .core.errors import InputError, check_whole
from .core.naming import StoredFunction
from .core.scalars import unwrap_fields
from .core.streams import HashedNumbers

Augmentation = Callable[[Any, HashedNumbers], Any]  # a batch of inputs -> the same number of examples
AugmentationChoice = str | Mapping[str, Any] | Augmentation | None
_COLOURS = (1, 3, 4)  # how many colour channels images usually have


@dataclass(frozen=True)
class CropAndFlip:
    """Images [b, channels, height, width] moved by up to `padding` pixels each way, and mirrored half of the time."""

    padding: int = 4

    def __post_init__(self) -> None:
        unwrap_fields(self)
        check_whole("augment crop_and_flip: padding", self.padding, 0)

    def __call__(self, batch: Any, draw: HashedNumbers) -> Tensor:
        if not isinstance(batch, Tensor) or batch.ndim != 4:
            kind = type(batch).__name__
            if isinstance(batch, Tensor):
                kind = str(list(batch.shape))
            raise InputError(
                f"augment crop_and_flip takes images [batch, channels, height, width], not {kind}; leave it out, or "
                "give a function of your own"
            )
        count, channels, height, width = batch.shape
        if width in _COLOURS and channels > width and height != width:
            raise InputError(
                f"augment crop_and_flip takes images [batch, channels, height, width], and {list(batch.shape)} look "
                "like channels last; give x.movedim(-1, 1) (NumPy: np.moveaxis(x, -1, 1)), or a function of your own"
            )
        shifts = draw.integers(2 * self.padding + 1, count, 2)
        down, right = shifts.unbind(-1)
        is_mirrored = draw.integers(2, count).bool()
        border = [self.padding] * 4
        padded = F.pad(batch, border)
        row = torch.arange(height, device=batch.device)
        column = torch.arange(width, device=batch.device)
        mirrored = width - 1 - column
        columns = torch.where(is_mirrored[:, None], mirrored, column)
        rows = row + down[:, None]
        columns = columns + right[:, None]
        rows = rows[:, None, :, None]
        columns = columns[:, None, None, :]
        padded_width = padded.shape[3]
        whole_rows = padded.gather(2, rows.expand(-1, channels, -1, padded_width))
        return whole_rows.gather(3, columns.expand(-1, channels, height, -1))


def crop_and_flip(padding: int = 4) -> CropAndFlip:
    """The usual augmentation of small images: pad with zeros, crop at random, mirror half of them.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> crop_and_flip(2)(images, HashedNumbers(torch.tensor(0), 0)).shape
    torch.Size([2, 3, 8, 8])
    """
    return CropAndFlip(padding)


AUGMENTATIONS: dict[str, type[CropAndFlip]] = {"crop_and_flip": CropAndFlip}


def augmentation_of(choice: AugmentationChoice) -> Augmentation | None:
    """From a name, a table with a name and options, or a function; None for none."""
    if choice is None:
        return None
    if callable(choice):
        if not isinstance(choice, Hashable):
            raise InputError(f"augment={choice!r} has no hash; give a function, or make its dataclass frozen")
        return choice
    example = '{"name": "crop_and_flip", "padding": 4}'
    kind, options = kind_and_options("augment", choice, AUGMENTATIONS, example, "a function of (batch, draw)")
    return kind(**options)


def table_of(choice: AugmentationChoice) -> dict[str, Any] | None:
    """As it can be sent to another machine: name and options. A function of the user's is refused."""
    augmentation = augmentation_of(choice)
    if augmentation is None:
        return None
    for name, kind in AUGMENTATIONS.items():
        if isinstance(augmentation, kind):
            return {"name": name, **dataclasses.asdict(augmentation)}
    if isinstance(augmentation, StoredFunction):
        return {"name": augmentation.name}
    raise InputError(
        f"augment={augmentation!r}: a function cannot be sent to Flower's clients; give one by name "
        f"({', '.join(AUGMENTATIONS)}), or augment in your client app's model"
    )
