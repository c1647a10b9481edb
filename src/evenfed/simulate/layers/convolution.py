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
    image = input.shape[2:]
    kernel = weight.shape[2:] if taps is None else taps.kernel
    acting = Taps.of(image, kernel, *form)
    if acting.count == 0:
        return None
    if taps is None:
        weight = acting.crop(weight)
    images = input.to(weight.dtype)
    images = images.permute(0, 2, 3, 1)
    kernels = weight.permute(0, 2, 3, 1)
    out = _product(images, kernels, acting, *form)
    out = out.permute(0, 3, 1, 2)
    if bias is None:
        return out
    bias = bias.to(out.dtype)
    per_channel = bias[:, None, None]
    return out + per_channel


def _product(
    x: Tensor,
    kernels: Tensor,
    taps: Taps,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """[b, h, w, out], without patches in memory where a kernel does that."""
    dilated = dilation != (1, 1)
    if taps.whole and taps.count > 1 and not dilated:
        convolved = implicit.convolution(x, kernels, stride, padding)
        if convolved is not None:
            return convolved
    patches = _patches(x, taps, stride, padding, dilation)
    batch, height, width, depth = patches.shape
    kernels = kernels.reshape(-1, depth)
    missing = -depth % ALIGNED
    if missing:  # the zeros are written with the patches
        zeros = (0, missing)
        patches = F.pad(patches, zeros)
        kernels = F.pad(kernels, zeros)
    rows = patches.flatten(0, 2)
    product = rows @ kernels.T
    return product.view(batch, height, width, -1)


def _patches(
    x: Tensor,
    taps: Taps,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """[b, h, w, taps x channels]: what each output position sees."""
    image = x.shape[1:3]
    rows, columns = map(Axis, image, taps.kernel, stride, padding, dilation)
    x = _reached(x, 1, rows, taps.rows)
    x = _reached(x, 2, columns, taps.columns)
    if taps.count == 1:
        down, across = stride
        return x[:, ::down, ::across]
    windows: Tensor = _Windows.apply(x, taps.shape, stride, dilation)
    return windows


def _reached(
    x: Tensor,
    dim: int,
    axis: Axis,
    taps: range,
) -> Tensor:
    """The image cut or padded along one axis to what the taps reach."""
    first = taps.start * axis.dilation - axis.padding
    across_taps = (len(taps) - 1) * axis.dilation
    across_places = (axis.outputs - 1) * axis.stride
    end = first + across_taps + across_places + 1
    inside = max(0, first)
    inside_end = min(axis.size, end)
    x = x.narrow(dim, inside, inside_end - inside)
    low = max(0, -first)
    high = max(0, end - axis.size)
    if low == 0 and high == 0:
        return x
    axes_after = 3 - dim
    unpadded = (0, 0) * axes_after  # torch's order has the last axis first
    return F.pad(x, (*unpadded, low, high))


class _Windows(torch.autograd.Function):
    """[b, height, width, channels] -> [b, h, w, taps x channels], one copy of overlapping views.

    Its gradient is a sum of shifts, not a scatter of additions: it repeats bit for bit.
    """

    @staticmethod
    def forward(
        x: Tensor,
        taps: Pair,
        stride: Pair,
        dilation: Pair,
    ) -> Tensor:
        x = x.contiguous()
        batch, *image, channels = x.shape
        no_padding = (0, 0)
        rows, columns = map(Axis, image, taps, stride, no_padding, dilation)
        places = (batch, rows.outputs, columns.outputs)
        sample, row, column, _ = x.stride()
        next_row = row * stride[0]
        next_column = column * stride[1]
        place_steps = (sample, next_row, next_column)
        tall, wide = taps
        down = row * dilation[0]
        across = column * dilation[1]
        size: tuple[int, ...] = (*places, tall, wide, channels)
        steps: tuple[int, ...] = (*place_steps, down, across, 1)
        if dilation[1] == 1:  # a row of taps lies together
            size = (*places, tall, wide * channels)
            steps = (*place_steps, down, 1)
        windows = x.as_strided(size, steps)
        return windows.reshape(*places, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *ctx.form = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        taps, stride, dilation = ctx.form
        tap_rows, tap_columns = taps
        row_step, column_step = stride
        row_gap, column_gap = dilation
        shape = ctx.shape
        batch, _, width, channels = shape
        shifts = gradient.unflatten(3, (*taps, channels))
        rows, columns = shifts.shape[1:3]
        across = (batch, rows, width, channels)
        tall = (rows - 1) * row_step + 1
        wide = (columns - 1) * column_step + 1
        total = None
        for i in range(tap_rows):
            for j in range(tap_columns):
                y = i * row_gap
                x = j * column_gap
                shift = shifts[:, :, :, i, j]
                shift = _unslice(shift, across, 2, x, x + wide, column_step)
                shift = _unslice(shift, shape, 1, y, y + tall, row_step)
                total = shift if total is None else total + shift
        return total, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        x: Tensor,
        *form: Any,
    ) -> tuple[Tensor, int]:
        """Clients are more images of the same batch."""
        client_dim = dims[0]
        assert client_dim is not None
        stacked = x.movedim(client_dim, 0)
        images = stacked.flatten(0, 1)
        windows: Tensor = _Windows.apply(images, *form)
        by_client = windows.unflatten(0, stacked.shape[:2])
        return by_client, 0


_unslice = torch.ops.aten.slice_backward.default


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch's group_norm in any memory order, computed in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    groups = x.to(wide)
    groups = groups.unflatten(1, (num_groups, -1))
    axes = tuple(range(2, groups.ndim))
    variance, mean = torch.var_mean(groups, axes, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    out = (groups - mean) * scale
    out = out.flatten(1, 2)
    places = [1] * (x.ndim - 2)
    per_channel = (-1, *places)
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
    slope = weight.to(input.dtype)
    return torch.prelu(input, slope)


OTHERS = ("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")  # torch's own, stacked or not
RULES: Rules = {
    torch.conv2d: conv2d,
    F.group_norm: group_norm,
    torch.prelu: prelu,
}
