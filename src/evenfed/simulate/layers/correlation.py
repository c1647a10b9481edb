"""Convolution of stacked clients and its weight gradient as two operations of torch.

Everything lies with the channels last. On a GPU the operations have kernels (`kernels.py`); elsewhere they are torch's
own, client after client.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight


# the schemas are spelt out, as torch 2.6 does not read `list[int]` in a signature
@torch.library.custom_op(
    "evenfed::correlate",
    mutates_args=(),
    schema="(Tensor x, Tensor w, SymInt[] size, SymInt up, SymInt down, SymInt[] padding, bool transposed) -> Tensor",
)
def correlate(
    x: Tensor,
    w: Tensor,
    size: list[int],
    up: int,
    down: int,
    padding: list[int],
    transposed: bool,
) -> Tensor:
    """Place o and tap i see x at (o up + i - padding) / down, where that is whole and inside.

    Transposed, w's outputs and inputs change roles and its taps run backwards: the gradient of the plain form.
    """
    results = []
    for images, weight in zip(_channels_first(x), _channels_first(w), strict=True):
        if transposed:
            result = _transposed(images, weight, size, down, padding)
        else:
            result = F.conv2d(images, weight, stride=up, padding=padding)
        results.append(result)
    stacked = torch.stack(results)
    return _channels_last(stacked).contiguous()


def _transposed(
    images: Tensor,
    weight: Tensor,
    size: list[int],
    stride: int,
    padding: list[int],
) -> Tensor:
    """torch's transposed convolution, with results of this size."""
    inner = []  # the padding of the plain form whose gradient this is
    missing = []  # what torch's result lacks to the size
    image_size = images.shape[2:]
    kernel_size = weight.shape[2:]
    for image, kernel, beyond, wanted in zip(image_size, kernel_size, padding, size, strict=True):
        around = kernel - 1 - beyond
        least = (image - 1) * stride - 2 * around + kernel
        inner.append(around)
        missing.append(wanted - least)
    return F.conv_transpose2d(
        images,
        weight,
        stride=stride,
        padding=inner,
        output_padding=missing,
    )


@correlate.register_fake
def _correlate(
    x: Tensor,
    w: Tensor,
    size: list[int],
    up: int,
    down: int,
    padding: list[int],
    transposed: bool,
) -> Tensor:
    clients, batch = x.shape[:2]
    outputs = w.shape[4] if transposed else w.shape[1]
    return x.new_empty(clients, batch, *size, outputs)


@torch.library.custom_op(
    "evenfed::weight_gradient",
    mutates_args=(),
    schema="(Tensor x, Tensor gradient, SymInt[] kernel, SymInt stride, SymInt[] padding) -> Tensor",
)
def weight_gradient(
    x: Tensor,
    gradient: Tensor,
    kernel: list[int],
    stride: int,
    padding: list[int],
) -> Tensor:
    """[c, out, kh, kw, in], in float32 at least."""
    shape = (gradient.shape[4], x.shape[4], *kernel)
    results = []
    for images, slopes in zip(_channels_first(x), _channels_first(gradient), strict=True):
        result = conv2d_weight(images, shape, slopes, stride=stride, padding=padding)
        results.append(result)
    stacked = torch.stack(results).to(_wide(x))
    return _channels_last(stacked).contiguous()


@weight_gradient.register_fake
def _weight_gradient(
    x: Tensor,
    gradient: Tensor,
    kernel: list[int],
    stride: int,
    padding: list[int],
) -> Tensor:
    clients = x.shape[0]
    inputs = x.shape[4]
    outputs = gradient.shape[4]
    return x.new_empty(clients, outputs, *kernel, inputs, dtype=_wide(x))


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
