"""Convolution of stacked clients with no patches in memory, where a GPU has kernels for it.

    y[c, b, o, n] = sum over taps i and channels k of  x[c, b, o stride + i - padding, k] w[c, n, i, k]

Clients c, examples b, places o; everything lies with the channels last. Its two gradients are sums of the same kind.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .correlation import correlate, weight_gradient
from .geometry import Axis, Pair

CHANNELS = 16  # kernels work on whole groups of so many
PLACES = 4096  # of all a client's results: fewer leave a kernel's units idle, patches and products do not
NUMBERS = 2**31  # that a kernel can count


def convolution(
    x: Tensor,
    w: Tensor,
    stride: Pair,
    padding: Pair,
) -> Tensor | None:
    """x [b, h, w, in] and w [out, kh, kw, in] of a client, stacked by vmap; None where no kernel pays."""
    batch, *image, inputs = x.shape
    outputs, *kernel, _ = w.shape
    step, across = stride
    ragged = inputs % CHANNELS or outputs % CHANNELS
    if ragged or step != across:
        return None
    height, width = _size(image, kernel, step, padding)
    places = batch * height * width
    numbers = max(x.numel(), places * outputs)
    if places < PLACES or numbers >= NUMBERS:
        return None
    dtype = w.dtype
    if not has_kernels(x.device.type, dtype):
        return None
    images = x[None].to(dtype)
    kernels = w[None]
    convolved: Tensor = _Convolution.apply(images, kernels, step, padding)
    return convolved[0]


@cache
def has_kernels(device: str, dtype: torch.dtype) -> bool:
    """By a small trial: a GPU or a Triton that cannot do it keeps to patches and products."""
    if device != "cuda" or dtype != torch.bfloat16:
        return False
    if torch.cuda.get_device_capability() < (8, 0):  # before Ampere there are no units for bf16
        return False
    try:
        from . import kernels  # noqa: F401  (Triton is optional; this gives both operations their form for GPUs)

        size = [4, 4]
        kernel = [3, 3]
        padding = [1, 1]
        x = torch.ones((1, 1, *size, 16), device=device, dtype=dtype)
        w = torch.ones((1, 16, *kernel, 16), device=device, dtype=dtype)
        y = correlate(x, w, size, 1, 1, padding, False)
        gradient = correlate(y, w, size, 1, 1, padding, True)
        weight_gradient(x, gradient, kernel, 1, padding)
        inside = y[0, 0, 1, 1]
        correct = inside == 9 * 16
        return bool(correct.all())
    except ImportError:  # torch without Triton
        return False
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        warnings.warn(f"convolutions keep to patches and products, as their kernels fail here: {error}", stacklevel=2)
        return False


class _Convolution(torch.autograd.Function):
    """x [c, b, h, w, in], w [c, out, kh, kw, in] -> [c, b, oh, ow, out]."""

    @staticmethod
    def forward(
        x: Tensor,
        w: Tensor,
        stride: int,
        padding: Pair,
    ) -> Tensor:
        _, _, *image, _ = x.shape
        _, _, *kernel, _ = w.shape
        size = _size(image, kernel, stride, padding)
        around = list(padding)
        convolved: Tensor = correlate(x, w, size, stride, 1, around, False)
        return convolved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        _, _, *image, _ = x.shape
        _, _, *kernel, _ = w.shape
        stride = ctx.stride
        padding = list(ctx.padding)
        gradient = gradient.contiguous()
        of_x = None
        of_w = None
        x_needed, w_needed, *_ = ctx.needs_input_grad
        if x_needed:
            top = kernel[0] - 1 - padding[0]
            left = kernel[1] - 1 - padding[1]
            around = [top, left]
            of_x = correlate(gradient, w, image, 1, stride, around, True)
        if w_needed:
            of_w = weight_gradient(x, gradient, kernel, stride, padding)
            of_w = of_w.to(w.dtype)
        return of_x, of_w, None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        x: Tensor,
        w: Tensor,
        *form: Any,
    ) -> tuple[Tensor, int]:
        """What is stacked are more clients; under one weight for all of them, more images of each."""
        count = info.batch_size
        x_dim, w_dim = dims[:2]
        inputs = x.shape[-1]
        outputs = w.shape[1]
        pixels = x.numel() // inputs
        numbers = pixels * max(inputs, outputs)
        countable = numbers < NUMBERS
        if w_dim is None and x_dim is not None and countable:
            images = x.movedim(x_dim, 1)
            images = images.flatten(1, 2).contiguous()
            of_all: Tensor = _Convolution.apply(images, w, *form)
            by_client = of_all.unflatten(1, (count, -1))
            return by_client, 1
        x = _stacked(x, x_dim, count)
        w = _stacked(w, w_dim, count)
        of_each: Tensor = _Convolution.apply(x, w, *form)
        by_client = of_each.unflatten(0, (count, -1))
        return by_client, 0


def _stacked(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """[count x clients, ...]: along `dim`, or the same for each."""
    each = tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return each.flatten(0, 1).contiguous()


def _size(
    image: list[int],
    kernel: list[int],
    stride: int,
    padding: Pair,
) -> list[int]:
    strides = (stride, stride)
    rows, columns = map(Axis, image, kernel, strides, padding)
    return [rows.outputs, columns.outputs]
