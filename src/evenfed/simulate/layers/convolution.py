"""Convolution as a gather of patches and one matrix product, and the normalisation that goes with it.

Stacked over clients, torch's own convolution becomes a grouped one, which leaves a GPU mostly idle; the
product of patches becomes a batched matrix product. Activations keep their shape [b, channels, h, w] and lie
in memory with the channels last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import implicit
from .rewriting import Rules

ALIGNED = 8


@dataclass(frozen=True)
class Taps:
    """The part of a kernel that ever meets the image: the rest multiplies padding only, and never learns.

    >>> Taps.of((1, 1), (3, 3), (1, 1), (1, 1), (1, 1))  # on a single pixel only the centre acts
    Taps(kernel=(3, 3), rows=range(1, 2), columns=range(1, 2))
    """

    kernel: tuple[int, int]
    rows: range
    columns: range

    @classmethod
    def of(
        cls,
        image: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> "Taps":
        rows, columns = (_live(*each) for each in zip(image, kernel, stride, padding, dilation, strict=True))
        return cls((kernel[0], kernel[1]), rows, columns)

    @property
    def whole(self) -> bool:
        return (len(self.rows), len(self.columns)) == self.kernel


def _live(size: int, kernel: int, stride: int, padding: int, dilation: int) -> range:
    steps = range((size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
    live = [k for k in range(kernel) if any(0 <= s * stride + k * dilation - padding < size for s in steps)]
    return range(live[0], live[-1] + 1) if live else range(0)


def geometry(
    x: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Stride, padding and dilation of a convolution that has this form, else None."""
    if x.ndim != 4 or isinstance(padding, str) or groups != 1:
        return None
    return _pair(stride), _pair(padding), _pair(dilation)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    taps: Taps | None = None,
) -> Tensor | None:
    """torch's conv2d, or None for forms that stay torch's own; with `taps` the weight holds those only."""
    form, x = geometry(input, stride, padding, dilation, groups), input
    if form is None:
        return None
    kernel = tuple(weight.shape[2:]) if taps is None else taps.kernel
    acting = Taps.of(x.shape[2:], kernel, *form)
    if not len(acting.rows) or not len(acting.columns):
        return None
    if taps is None and not acting.whole:
        weight = weight[:, :, acting.rows.start : acting.rows.stop, acting.columns.start : acting.columns.stop]
    kernels = weight.permute(0, 2, 3, 1)
    out = _product(x.to(weight.dtype).permute(0, 2, 3, 1), kernels, acting, *form).permute(0, 3, 1, 2)
    return out if bias is None else out + bias.to(out.dtype)[:, None, None]


def _product(
    x: Tensor, kernels: Tensor, taps: Taps, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    """[b, h, w, out], without patches in memory where a kernel does that."""
    if taps.whole and len(taps.rows) * len(taps.columns) > 1 and dilation == (1, 1):
        found = implicit.convolution(x, kernels, stride, padding)
        if found is not None:
            return found
    patches = _patches(x, taps, stride, padding, dilation)
    batch, height, width, depth = patches.shape
    kernels = kernels.reshape(-1, depth)
    if depth % ALIGNED:  # matrix units want whole groups; the zeros are written with the patches
        patches, kernels = (F.pad(each, (0, -depth % ALIGNED)) for each in (patches, kernels))
    product = patches.flatten(0, 2) @ kernels.T
    return product.view(batch, height, width, -1)


def _patches(
    x: Tensor, taps: Taps, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    """[b, h, w, taps x channels]: what each output position sees."""
    for axis, live in ((1, taps.rows), (2, taps.columns)):  # cut or pad the image to what the taps reach
        k, size = axis - 1, x.shape[axis]
        outputs = (size + 2 * padding[k] - dilation[k] * (taps.kernel[k] - 1) - 1) // stride[k] + 1
        first = live.start * dilation[k] - padding[k]
        reach = (len(live) - 1) * dilation[k] + (outputs - 1) * stride[k] + 1
        x = x.narrow(axis, max(0, first), min(size, first + reach) - max(0, first))
        low, high = max(0, -first), max(0, first + reach - size)
        if low or high:
            x = F.pad(x, (0, 0) * (2 - k) + (low, high))
    if len(taps.rows) == len(taps.columns) == 1:
        return x[:, :: stride[0], :: stride[1]]
    windows: Tensor = _Windows.apply(x, (len(taps.rows), len(taps.columns)), stride, dilation)
    return windows


class _Windows(torch.autograd.Function):
    """[b, height, width, channels] -> [b, h, w, taps x channels], one copy of overlapping views.

    Its gradient is a sum of shifts, not a scatter of additions: it repeats bit for bit.
    """

    @staticmethod
    def forward(x: Tensor, taps: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Tensor:
        x = x.contiguous()
        batch, height, width, channels = x.shape
        outputs = [(size - dilation[k] * (taps[k] - 1) - 1) // stride[k] + 1 for k, size in enumerate((height, width))]
        sample, row, column, _ = x.stride()
        down, across = row * stride[0], column * stride[1]
        if dilation[1] == 1:  # a row of taps lies together
            shape: tuple[int, ...] = (batch, *outputs, taps[0], taps[1] * channels)
            steps: tuple[int, ...] = (sample, down, across, row * dilation[0], 1)
        else:
            shape = (batch, *outputs, *taps, channels)
            steps = (sample, down, across, row * dilation[0], column * dilation[1], 1)
        return x.as_strided(shape, steps).reshape(batch, *outputs, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *ctx.form = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        taps, stride, dilation = ctx.form
        batch, _, width, channels = ctx.shape
        shifts = gradient.unflatten(3, (*taps, channels))
        tall, wide = ((shifts.shape[k + 1] - 1) * stride[k] + 1 for k in range(2))
        total = None
        for i in range(taps[0]):
            for j in range(taps[1]):
                y, x = i * dilation[0], j * dilation[1]
                inner = (batch, shifts.shape[1], width, channels)
                part = _unslice(shifts[:, :, :, i, j], inner, 2, x, x + wide, stride[1])
                part = _unslice(part, ctx.shape, 1, y, y + tall, stride[0])
                total = part if total is None else total + part
        return total, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, *form: Any) -> tuple[Tensor, int]:
        """Clients are more images of the same batch."""
        assert dims[0] is not None
        stacked = x.movedim(dims[0], 0)
        windows: Tensor = _Windows.apply(stacked.flatten(0, 1), *form)
        return windows.unflatten(0, stacked.shape[:2]), 0


_unslice = torch.ops.aten.slice_backward.default


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """torch's group_norm in any memory order, computed in float32 at least."""
    wide = x if x.dtype == torch.float64 else x.float()
    groups = wide.unflatten(1, (num_groups, -1))
    axes = tuple(range(2, groups.ndim))
    variance, mean = torch.var_mean(groups, axes, correction=0, keepdim=True)
    out = ((groups - mean) * torch.rsqrt(variance + eps)).flatten(1, 2)
    trailing = (-1, *[1] * (x.ndim - 2))
    if weight is not None:
        out = out * weight.to(out.dtype).view(trailing)
    if bias is not None:
        out = out + bias.to(out.dtype).view(trailing)
    rounded: Tensor = out.to(x.dtype)
    return rounded


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """torch's prelu with the few numbers of its weight in the type of its input."""
    return torch.prelu(input, weight.to(input.dtype))


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])


OTHERS = ("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")  # torch's own, stacked or not
RULES: Rules = {torch.conv2d: conv2d, F.group_norm: group_norm, torch.prelu: prelu}
