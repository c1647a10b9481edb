"""The operations of `correlation.py` on GPUs, in Triton, which comes with torch there: the client is a grid axis.

A matrix product whose left factor is read from the images in place, not from patches. No sum is made of additions to
a shared cell: long ones are split into parts that are written and added, so that a result repeats bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .correlation import correlate, weight_gradient

_PROGRAMS = 1024  # sums are split until there are as many: some for every unit of a large GPU


@triton.jit
def _correlate(
    x,
    w,
    y,
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    UP: tl.constexpr,
    DOWN: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y[m, n] = sum over taps and k of x[at(m, tap), k] w[n, tap, k], for the images m of one client."""
    places: tl.constexpr = OH * OW
    taps: tl.constexpr = KH * KW
    k_blocks: tl.constexpr = K // BK
    n_blocks: tl.constexpr = N // BN
    client = tl.program_id(1).to(tl.int64)
    x += client * (rows // places) * (H * W * K)
    w += client * (taps * K * N)
    y += client * rows * N
    tile = tl.program_id(0)
    m = (tile // n_blocks) * BM + tl.arange(0, BM)
    n = (tile % n_blocks) * BN + tl.arange(0, BN)
    exists = m < rows
    image = m // places
    place = m % places
    row = place // OW * UP - TOP
    column = place % OW * UP - LEFT
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(taps * k_blocks):
        tap = step // k_blocks
        k = step % k_blocks * BK + tl.arange(0, BK)
        h = row + tap // KW
        v = column + tap % KW
        inside = exists & (h >= 0) & (h < H * DOWN) & (v >= 0) & (v < W * DOWN)
        if DOWN > 1:
            inside = inside & (h % DOWN == 0) & (v % DOWN == 0)
            h = h // DOWN
            v = v // DOWN
        pixel = (image * H + h) * W + v
        seen = tl.load(x + pixel[:, None] * K + k[None, :], mask=inside[:, None], other=0.0)
        if TRANSPOSED:  # w lies as [K, taps, N] and is read from its last tap on
            kernel = k[:, None] * taps + (taps - 1 - tap)
            weight = tl.load(w + kernel * N + n[None, :])
        else:  # [N, taps, K]
            kernel = n[None, :] * taps + tap
            weight = tl.load(w + kernel * K + k[:, None])
        total = tl.dot(seen, weight, total)
    tl.store(y + m[:, None] * N + n[None, :], total.to(y.dtype.element_ty), mask=exists[:, None])


@triton.jit
def _weight_gradient(
    x,
    g,
    d,
    rows,
    STEPS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    UP: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """d[n, tap, k] = sum over m of g[m, n] x[at(m, tap), k], over one part of one client's images."""
    places: tl.constexpr = OH * OW
    taps: tl.constexpr = KH * KW
    k_blocks: tl.constexpr = K // BK
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    x += client * (rows // places) * (H * W * K)
    g += client * rows * N
    d += (part * tl.num_programs(1) + client) * (N * taps * K)
    tile = tl.program_id(0)
    tap = tile % taps
    block = tile // taps
    n = (block // k_blocks) * BN + tl.arange(0, BN)
    k = (block % k_blocks) * BK + tl.arange(0, BK)
    row = tap // KW - TOP
    column = tap % KW - LEFT
    total = tl.zeros((BN, BK), dtype=tl.float32)
    for step in range(STEPS):
        m = (part * STEPS + step) * BM + tl.arange(0, BM)
        image = m // places
        place = m % places
        h = place // OW * UP + row
        v = place % OW * UP + column
        exists = m < rows
        inside = exists & (h >= 0) & (h < H)
        inside = inside & (v >= 0) & (v < W)
        pixel = (image * H + h) * W + v
        entry = pixel[:, None] * K + k[None, :]
        seen = tl.load(x + entry, mask=inside[:, None], other=0.0)
        result = m[:, None] * N + n[None, :]
        slope = tl.load(g + result, mask=exists[:, None], other=0.0)
        total = tl.dot(tl.trans(slope), seen, total)
    kernel = n[:, None] * taps + tap
    tl.store(d + kernel * K + k[None, :], total)


@correlate.register_kernel("cuda")
def correlated(
    x: Tensor,
    w: Tensor,
    size: list[int],
    up: int,
    down: int,
    padding: list[int],
    transposed: bool,
) -> Tensor:
    x = x.contiguous()  # a compiler may have padded it
    w = w.contiguous()
    clients, batch, height, width, depth = x.shape
    _, outputs, kernel_height, kernel_width, inputs = w.shape
    count = inputs if transposed else outputs
    out_height, out_width = size
    rows = batch * out_height * out_width
    bm = 128
    bn = min(128, _divisor(count))
    bk = min(64, _divisor(depth))
    y = x.new_empty(clients, batch, *size, count)
    row_tiles = triton.cdiv(rows, bm)
    tiles = row_tiles * (count // bn)
    _correlate[tiles, clients](
        x,
        w,
        y,
        rows,
        H=height,
        W=width,
        K=depth,
        OH=out_height,
        OW=out_width,
        N=count,
        KH=kernel_height,
        KW=kernel_width,
        UP=up,
        DOWN=down,
        TOP=padding[0],
        LEFT=padding[1],
        TRANSPOSED=transposed,
        BM=bm,
        BN=bn,
        BK=bk,
        num_warps=_warps(bn),
        num_stages=3,
    )
    return y


@weight_gradient.register_kernel("cuda")
def weight_gradients(
    x: Tensor,
    gradient: Tensor,
    kernel: list[int],
    stride: int,
    padding: list[int],
) -> Tensor:
    x = x.contiguous()
    gradient = gradient.contiguous()
    clients, batch, height, width, depth = x.shape
    _, _, out_height, out_width, count = gradient.shape
    rows = batch * out_height * out_width
    bm = 64
    bn = min(128, _divisor(count))
    bk = min(64, _divisor(depth))
    kernel_height, kernel_width = kernel
    taps = kernel_height * kernel_width
    blocks = (count // bn) * (depth // bk)
    tiles = taps * blocks
    most = _PROGRAMS // (tiles * clients)
    useful = rows // (8 * bm)
    parts = max(1, min(most, useful))
    part_rows = triton.cdiv(rows, parts)
    steps = triton.cdiv(part_rows, bm)  # of one part
    parts = triton.cdiv(rows, steps * bm)
    shape = (parts, clients, count, *kernel, depth)
    d = x.new_empty(shape, dtype=torch.float32)
    _weight_gradient[tiles, clients, parts](
        x,
        gradient,
        d,
        rows,
        STEPS=steps,
        H=height,
        W=width,
        K=depth,
        OH=out_height,
        OW=out_width,
        N=count,
        KH=kernel_height,
        KW=kernel_width,
        UP=stride,
        TOP=padding[0],
        LEFT=padding[1],
        BM=bm,
        BN=bn,
        BK=bk,
        num_warps=_warps(bn),
        num_stages=3,
    )
    if parts == 1:
        return d[0]
    return d.sum(0)


def _warps(block: int) -> int:
    return 8 if block == 128 else 4


def _divisor(count: int) -> int:
    """The largest power of two that divides it."""
    return count & -count
