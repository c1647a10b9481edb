"""Convolution of stacked clients with no patches in memory, where a GPU has kernels for it.

    y[c, b, o, n] = sum over taps i and channels k of  x[c, b, o stride + i - padding, k] w[c, n, i, k]

Clients c, examples b, places o; everything lies with the channels last. Its two gradients are sums of the same kind.
The operations have kernels on GPUs (`kernels.py`); elsewhere they are torch's own, client after client.
"""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

CHANNELS = 16  # kernels work on whole groups of so many
PLACES = 4096  # of all a client's results: fewer leave a kernel's units idle, patches and products do not
NUMBERS = 2**31  # that a kernel can count


def convolution(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor | None:
    """x [b, h, w, in] and w [out, kh, kw, in] of a client, stacked by vmap; None where no kernel pays."""
    rows, columns = _size(x.shape[1:3], w.shape[1:3], stride[0], padding)
    places = x.shape[0] * rows * columns
    whole = x.shape[3] % CHANNELS == 0 and w.shape[0] % CHANNELS == 0 and stride[0] == stride[1]
    counted = places >= PLACES and max(x.numel(), places * w.shape[0]) < NUMBERS
    if not whole or not counted or not has_kernels(x.device.type, w.dtype):
        return None
    found: Tensor = _Convolution.apply(x[None].to(w.dtype), w[None], stride[0], (padding[0], padding[1]))
    return found[0]


@cache
def has_kernels(device: str, dtype: torch.dtype) -> bool:
    """By a small trial: a GPU or a Triton that cannot do it keeps to patches and products."""
    if device != "cuda" or dtype != torch.bfloat16 or torch.cuda.get_device_capability() < (8, 0):
        return False  # before Ampere there are no units for bf16
    try:
        from . import kernels  # noqa: F401  (gives the operations below their form for GPUs)

        x, w = (torch.ones(shape, device=device, dtype=dtype) for shape in ((1, 1, 4, 4, 16), (1, 16, 3, 3, 16)))
        y = correlate(x, w, [4, 4], 1, 1, [1, 1], False)
        weight_gradient(x, correlate(y, w, [4, 4], 1, 1, [1, 1], True), [3, 3], 1, [1, 1])
        return bool((y[0, 0, 1, 1] == 9 * 16).all())
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
    def forward(x: Tensor, w: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
        size = _size(x.shape[2:4], w.shape[2:4], stride, padding)
        found: Tensor = correlate(x, w, size, stride, 1, list(padding), False)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), gradient, of_x, of_w = ctx.saved_tensors, gradient.contiguous(), None, None
        if ctx.needs_input_grad[0]:
            beyond = [w.shape[2 + k] - 1 - ctx.padding[k] for k in range(2)]
            of_x = correlate(gradient, w, list(x.shape[2:4]), 1, ctx.stride, beyond, True)
        if ctx.needs_input_grad[1]:
            of_w = weight_gradient(x, gradient, list(w.shape[2:4]), ctx.stride, list(ctx.padding)).to(w.dtype)
        return of_x, of_w, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, w: Tensor, *form: Any) -> tuple[Tensor, int]:
        """What is stacked are more clients; under one weight for all of them, more images of each."""
        count = info.batch_size
        numbers = x.numel() // x.shape[-1] * max(x.shape[-1], w.shape[1])
        if dims[1] is None and dims[0] is not None and numbers < NUMBERS:
            images = x.movedim(dims[0], 1)
            of_all: Tensor = _Convolution.apply(images.flatten(1, 2).contiguous(), w, *form)
            return of_all.unflatten(1, (count, -1)), 1
        x, w = (
            (each.expand(count, *each.shape) if dim is None else each.movedim(dim, 0)).flatten(0, 1).contiguous()
            for each, dim in ((x, dims[0]), (w, dims[1]))
        )
        found: Tensor = _Convolution.apply(x, w, *form)
        return found.unflatten(0, (count, -1)), 0


def _size(image: Sequence[int], kernel: Sequence[int], stride: int, padding: Sequence[int]) -> list[int]:
    return [(image[k] + 2 * padding[k] - kernel[k]) // stride + 1 for k in range(2)]


# the forms are spelt out, as torch 2.6 does not read `list[int]` in a signature
@torch.library.custom_op(
    "evenfed::correlate",
    mutates_args=(),
    schema="(Tensor x, Tensor w, SymInt[] size, SymInt up, SymInt down, SymInt[] padding, bool transposed) -> Tensor",
)
def correlate(
    x: Tensor, w: Tensor, size: list[int], up: int, down: int, padding: list[int], transposed: bool
) -> Tensor:
    """Place o and tap i see x at (o up + i - padding) / down, where that is whole and inside.

    Transposed, w's outputs and inputs change roles and its taps run backwards: the gradient of the plain form.
    """
    found = []
    for one, weight in zip(x.permute(0, 1, 4, 2, 3), w.permute(0, 1, 4, 2, 3), strict=True):
        if not transposed:
            found.append(F.conv2d(one, weight, stride=up, padding=padding))
            continue
        before = [weight.shape[2 + k] - 1 - padding[k] for k in range(2)]
        least = [(one.shape[2 + k] - 1) * down - 2 * before[k] + weight.shape[2 + k] for k in range(2)]
        more = [size[k] - least[k] for k in range(2)]
        found.append(F.conv_transpose2d(one, weight, stride=down, padding=before, output_padding=more))
    return torch.stack(found).permute(0, 1, 3, 4, 2).contiguous()


@correlate.register_fake
def _correlate(
    x: Tensor, w: Tensor, size: list[int], up: int, down: int, padding: list[int], transposed: bool
) -> Tensor:
    return x.new_empty(*x.shape[:2], *size, w.shape[4 if transposed else 1])


@torch.library.custom_op(
    "evenfed::weight_gradient",
    mutates_args=(),
    schema="(Tensor x, Tensor gradient, SymInt[] kernel, SymInt stride, SymInt[] padding) -> Tensor",
)
def weight_gradient(x: Tensor, gradient: Tensor, kernel: list[int], stride: int, padding: list[int]) -> Tensor:
    """[c, out, kh, kw, in], in float32 at least."""
    shape = (gradient.shape[4], x.shape[4], *kernel)
    found = [
        conv2d_weight(one, shape, slope, stride=stride, padding=padding)
        for one, slope in zip(x.permute(0, 1, 4, 2, 3), gradient.permute(0, 1, 4, 2, 3), strict=True)
    ]
    return torch.stack(found).permute(0, 1, 3, 4, 2).to(_wide(x)).contiguous()


@weight_gradient.register_fake
def _weight_gradient(x: Tensor, gradient: Tensor, kernel: list[int], stride: int, padding: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], gradient.shape[4], *kernel, x.shape[4], dtype=_wide(x))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
