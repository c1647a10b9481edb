"""The kernels of `implicit.py` for GPUs, in Triton, which comes with torch there: the client is a grid axis.

A matrix product whose left factor is read from the images in place, not from patches. No sum is made of additions to
a shared cell: long ones are split into parts that are written and added, so that a result repeats bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .implicit import correlate, weight_gradient

_PROGRAMS = 1024  # sums are split until there are as many: some for every unit of a large GPU


@triton.jit
def _correlate(
    x, w, y, rows,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, N: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, TRANSPOSED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[m, n] = sum over taps and k of x[at(m, tap), k] w[n, tap, k], for the images m of one client."""
    client = tl.program_id(1).to(tl.int64)
    x += client * (rows // (OH * OW)) * (H * W * K)
    w += client * (KH * KW * K * N)
    y += client * rows * N
    tile = tl.program_id(0)
    m = (tile // (N // BN)) * BM + tl.arange(0, BM)
    n = (tile % (N // BN)) * BN + tl.arange(0, BN)
    image, place = m // (OH * OW), m % (OH * OW)
    row, column = place // OW * UP - TOP, place % OW * UP - LEFT
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(KH * KW * (K // BK)):
        tap = step // (K // BK)
        k = step % (K // BK) * BK + tl.arange(0, BK)
        h, v = row + tap // KW, column + tap % KW
        inside = (m < rows) & (h >= 0) & (h < H * DOWN) & (v >= 0) & (v < W * DOWN)
        if DOWN > 1:
            inside = inside & (h % DOWN == 0) & (v % DOWN == 0)
            h, v = h // DOWN, v // DOWN
        seen = tl.load(x + ((image * H + h) * W + v)[:, None] * K + k[None, :], mask=inside[:, None], other=0.0)
        if TRANSPOSED:  # w lies as [K, taps, N] and is read from its last tap on
            weight = tl.load(w + (k[:, None] * (KH * KW) + (KH * KW - 1 - tap)) * N + n[None, :])
        else:  # [N, taps, K]
            weight = tl.load(w + (n[None, :] * (KH * KW) + tap) * K + k[:, None])
        total = tl.dot(seen, weight, total)
    tl.store(y + m[:, None] * N + n[None, :], total.to(y.dtype.element_ty), mask=(m < rows)[:, None])


@triton.jit
def _weight_gradient(
    x, g, d, rows, STEPS: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, N: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, UP: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """d[n, tap, k] = sum over m of g[m, n] x[at(m, tap), k], over one part of one client's images."""
    client, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    x += client * (rows // (OH * OW)) * (H * W * K)
    g += client * rows * N
    d += (part * tl.num_programs(1) + client) * (N * KH * KW * K)
    tile = tl.program_id(0)
    tap, tile = tile % (KH * KW), tile // (KH * KW)
    n = (tile // (K // BK)) * BN + tl.arange(0, BN)
    k = (tile % (K // BK)) * BK + tl.arange(0, BK)
    total = tl.zeros((BN, BK), dtype=tl.float32)
    for step in range(STEPS):
        m = (part * STEPS + step) * BM + tl.arange(0, BM)
        place = m % (OH * OW)
        h, v = place // OW * UP + (tap // KW - TOP), place % OW * UP + (tap % KW - LEFT)
        inside = (m < rows) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        at = (m // (OH * OW) * H + h) * W + v
        seen = tl.load(x + at[:, None] * K + k[None, :], mask=inside[:, None], other=0.0)
        slope = tl.load(g + m[:, None] * N + n[None, :], mask=(m < rows)[:, None], other=0.0)
        total = tl.dot(tl.trans(slope), seen, total)
    tl.store(d + (n[:, None] * (KH * KW) + tap) * K + k[None, :], total)


@correlate.register_kernel("cuda")
def correlated(
    x: Tensor, w: Tensor, size: list[int], up: int, down: int, padding: list[int], transposed: bool
) -> Tensor:
    x, w = x.contiguous(), w.contiguous()  # a compiler may have padded them
    clients, batch, height, width, depth = x.shape
    count, rows = w.shape[4 if transposed else 1], batch * size[0] * size[1]
    bm, bn, bk = 128, min(128, _divisor(count)), min(64, _divisor(depth))
    y = x.new_empty(clients, batch, *size, count)
    _correlate[triton.cdiv(rows, bm) * (count // bn), clients](
        x, w, y, rows, height, width, depth, *size, count, *w.shape[2:4], up, down, *padding, transposed, bm, bn, bk,
        num_warps=8 if bn == 128 else 4, num_stages=3,
    )  # fmt: skip
    return y


@weight_gradient.register_kernel("cuda")
def weight_gradients(x: Tensor, gradient: Tensor, kernel: list[int], stride: int, padding: list[int]) -> Tensor:
    x, gradient = x.contiguous(), gradient.contiguous()
    clients, batch, height, width, depth = x.shape
    size, count = gradient.shape[2:4], gradient.shape[4]
    bm, bn, bk = 64, min(128, _divisor(count)), min(64, _divisor(depth))
    rows, tiles = batch * size[0] * size[1], kernel[0] * kernel[1] * (count // bn) * (depth // bk)
    parts = max(1, min(_PROGRAMS // (tiles * clients), rows // (8 * bm)))
    steps = triton.cdiv(triton.cdiv(rows, parts), bm)  # of one part
    parts = triton.cdiv(rows, steps * bm)
    d = x.new_empty(parts, clients, count, *kernel, depth, dtype=torch.float32)
    _weight_gradient[tiles, clients, parts](
        x, gradient, d, rows, steps, height, width, depth, *size, count, *kernel, stride, *padding, bm, bn, bk,
        num_warps=8 if bn == 128 else 4, num_stages=3,
    )  # fmt: skip
    return d.sum(0) if parts > 1 else d[0]


def _divisor(count: int) -> int:
    """The largest power of two that divides it."""
    return count & -count
