"""Convolution as a gather of patches and one matrix product, and the normalisation that goes with it.

Stacked over clients, torch's own convolution becomes a grouped one, which leaves a GPU mostly idle; the
product of patches becomes a batched matrix product. Activations keep their shape [b, channels, h, w] and lie
in memory with the channels last.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import implicit
from .geometry import Axis, Pair, Taps, geometry
from .rewriting import Rules

ALIGNED = 8  # matrix units want whole groups of so many


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
    form = geometry(input, stride, padding, dilation, groups)
    if form is None:
        return None
    kernel = weight.shape[2:] if taps is None else taps.kernel
    acting = Taps.of(input.shape[2:], kernel, *form)
    if acting.count == 0:
        return None
    if taps is None:
        weight = acting.crop(weight)
    images = input.to(weight.dtype).permute(0, 2, 3, 1)
    kernels = weight.permute(0, 2, 3, 1)
    out = _product(images, kernels, acting, *form)
    out = out.permute(0, 3, 1, 2)
    if bias is None:
        return out
    bias = bias.to(out.dtype)
    return out + bias[:, None, None]


def _product(
    x: Tensor,
    kernels: Tensor,
    taps: Taps,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """[b, h, w, out], without patches in memory where a kernel does that."""
    if taps.whole and taps.count > 1 and dilation == (1, 1):
        convolved = implicit.convolution(x, kernels, stride, padding)
        if convolved is not None:
            return convolved
    patches = _patches(x, taps, stride, padding, dilation)
    batch, height, width, depth = patches.shape
    kernels = kernels.reshape(-1, depth)
    missing = -depth % ALIGNED
    if missing:  # the zeros are written with the patches
        patches = F.pad(patches, (0, missing))
        kernels = F.pad(kernels, (0, missing))
    product = patches.flatten(0, 2) @ kernels.T
    return product.view(batch, height, width, -1)


def _patches(
    x: Tensor,
    taps: Taps,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """[b, h, w, taps x channels]: what each output position sees."""
    rows, columns = map(Axis, x.shape[1:3], taps.kernel, stride, padding, dilation)
    x = _reached(x, 1, rows, taps.rows)
    x = _reached(x, 2, columns, taps.columns)
    if taps.count == 1:
        return x[:, :: stride[0], :: stride[1]]
    windows: Tensor = _Windows.apply(x, taps.shape, stride, dilation)
    return windows


def _reached(x: Tensor, dim: int, axis: Axis, taps: range) -> Tensor:
    """The image cut or padded along one axis to what the taps reach."""
    first = taps.start * axis.dilation - axis.padding
    across_taps = (len(taps) - 1) * axis.dilation
    across_places = (axis.outputs - 1) * axis.stride
    end = first + across_taps + across_places + 1
    inside = max(0, first)
    x = x.narrow(dim, inside, min(axis.size, end) - inside)
    low = max(0, -first)
    high = max(0, end - axis.size)
    if low == 0 and high == 0:
        return x
    other_axes = (0, 0) * (3 - dim)  # those after it, in torch's order of the last axis first
    return F.pad(x, (*other_axes, low, high))


class _Windows(torch.autograd.Function):
    """[b, height, width, channels] -> [b, h, w, taps x channels], one copy of overlapping views.

    Its gradient is a sum of shifts, not a scatter of additions: it repeats bit for bit.
    """

    @staticmethod
    def forward(x: Tensor, taps: Pair, stride: Pair, dilation: Pair) -> Tensor:
        x = x.contiguous()
        batch, _, _, channels = x.shape
        rows, columns = map(Axis, x.shape[1:3], taps, stride, (0, 0), dilation)
        places = (batch, rows.outputs, columns.outputs)
        sample, row, column, _ = x.stride()
        place_steps = (sample, row * stride[0], column * stride[1])
        tall, wide = taps
        down = row * dilation[0]
        across = column * dilation[1]
        if dilation[1] == 1:  # a row of taps lies together
            windows = x.as_strided((*places, tall, wide * channels), (*place_steps, down, 1))
        else:
            windows = x.as_strided((*places, tall, wide, channels), (*place_steps, down, across, 1))
        return windows.reshape(*places, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *ctx.form = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        taps, stride, dilation = ctx.form
        batch, _, width, channels = ctx.shape
        shifts = gradient.unflatten(3, (*taps, channels))
        rows, columns = shifts.shape[1:3]
        across = (batch, rows, width, channels)
        tall = (rows - 1) * stride[0] + 1
        wide = (columns - 1) * stride[1] + 1
        total = None
        for i in range(taps[0]):
            for j in range(taps[1]):
                y = i * dilation[0]
                x = j * dilation[1]
                shift = shifts[:, :, :, i, j]
                shift = _unslice(shift, across, 2, x, x + wide, stride[1])
                shift = _unslice(shift, ctx.shape, 1, y, y + tall, stride[0])
                total = shift if total is None else total + shift
        return total, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, *form: Any) -> tuple[Tensor, int]:
        """Clients are more images of the same batch."""
        assert dims[0] is not None
        stacked = x.movedim(dims[0], 0)
        images = stacked.flatten(0, 1)
        windows: Tensor = _Windows.apply(images, *form)
        return windows.unflatten(0, stacked.shape[:2]), 0


_unslice = torch.ops.aten.slice_backward.default


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """torch's group_norm in any memory order, computed in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    groups = x.to(wide).unflatten(1, (num_groups, -1))
    axes = tuple(range(2, groups.ndim))
    variance, mean = torch.var_mean(groups, axes, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    out = (groups - mean) * scale
    out = out.flatten(1, 2)
    per_channel = (-1, *[1] * (x.ndim - 2))
    if weight is not None:
        weight = weight.to(wide)
        out = out * weight.view(per_channel)
    if bias is not None:
        bias = bias.to(wide)
        out = out + bias.view(per_channel)
    rounded: Tensor = out.to(x.dtype)
    return rounded


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """torch's prelu with the few numbers of its weight in the type of its input."""
    return torch.prelu(input, weight.to(input.dtype))


OTHERS = ("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")  # torch's own, stacked or not
RULES: Rules = {torch.conv2d: conv2d, F.group_norm: group_norm, torch.prelu: prelu}
