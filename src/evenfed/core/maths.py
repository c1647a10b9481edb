"""Small exact solvers on vectors of one number per client; all in float64."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]

_TINY = 1e-300  # keeps a quotient finite where its divisor is zero


def project_simplex(y: Tensor) -> Tensor:
    """The nearest point to `y` [n] with entries >= 0 that sum to 1.

    >>> project_simplex(torch.tensor([1.339, 1.180, 0.753, 0.447], dtype=torch.float64))
    tensor([0.5795, 0.4205, 0.0000, 0.0000], dtype=torch.float64)
    """
    u = y.sort(descending=True).values
    excess = u.cumsum(0) - 1  # the sum must run to j <= k: stopping at j < k breaks the projection
    k = torch.arange(1, len(y) + 1, dtype=y.dtype)
    rho = int((u * k > excess).sum())
    tau = excess[rho - 1] / rho
    return (y - tau).clamp(min=0)


def project_box_simplex(y: Vector, low: Vector, high: Vector) -> Vector:
    """The nearest point to `y` [n] with low <= x <= high that sums to 1 (sum low <= 1 <= sum high).

    x = clip(y - tau): the sum falls piecewise linearly in tau, so tau is exact between two breakpoints.
    """
    breaks = np.sort(np.concatenate([y - low, y - high]))
    sums = _clip(y - breaks[:, None], low, high).sum(1)  # decreasing
    above = int((sums >= 1).sum())
    right = min(max(above, 1), len(breaks) - 1)
    left = right - 1
    width = breaks[right] - breaks[left]
    fall = sums[left] - sums[right]
    fraction = 0.0
    if fall > 0:
        fraction = min((sums[left] - 1) / fall, 1.0)
    tau = breaks[left] + fraction * width
    return _clip(y - tau, low, high)


def _clip(x: Vector, low: Vector, high: Vector) -> Vector:
    """np.clip without its overhead, which is most of its time on short vectors."""
    clipped: Vector = np.minimum(np.maximum(x, low), high)
    return clipped


def least_norm_mixture(
    gram: Tensor,
    low: Tensor,
    high: Tensor,
    tolerance: float = 1e-11,
) -> Tensor:
    """argmin x'Gx over the simplex with low <= x <= high: accelerated projected gradient with restarts."""
    g = gram.numpy()
    bottom = low.numpy()
    top = high.numpy()
    largest = np.linalg.eigvalsh(g)[-1]
    scaled = g / max(largest, _TINY)
    uniform = np.full(len(g), 1 / len(g))
    x = project_box_simplex(uniform, bottom, top)
    y = x
    momentum = 1.0
    for _ in range(5000):
        x_next = project_box_simplex(y - scaled @ y, bottom, top)
        if np.abs(x_next - y).max() < tolerance:
            return torch.from_numpy(x_next)
        step = x_next - x
        if (y - x_next) @ step > 0:
            momentum = 1.0
        grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        y = x_next + (momentum - 1) / grown * step
        x = x_next
        momentum = grown
    return torch.from_numpy(x)


def kept_tail(losses: Tensor, shares: Tensor, mass: float) -> Tensor:
    """[n] bool: the clients at or above the share-weighted (1 - mass) quantile of the losses."""
    ordered, by_loss = losses.sort()
    cumulative = shares[by_loss].cumsum(0)
    below = cumulative < (1 - mass) - 1e-9
    last = len(ordered) - 1
    quantile = int(below.sum().clamp(max=last))
    return losses >= ordered[quantile]


def capped(beta: float, safe: float | None, spread: Tensor) -> Tensor:
    """`beta`, held below `safe` times beta_max = 1 / (2 spread), past which a weight turns negative."""
    wanted = torch.as_tensor(beta, dtype=spread.dtype)
    if safe is None:
        return wanted
    limit = safe * (1 - 1e-12) / (2 * spread.detach())
    return torch.minimum(wanted, limit)


def off_conflict(vectors: Tensor, other: Tensor, gram: Tensor, where: Tensor) -> Tensor:
    """Each of `vectors` [c, k] projected off `other` [k] where the two conflict.

    All are mixtures of k updates with inner products `gram`; the updates themselves are never touched.
    """
    dots = vectors @ gram @ other
    square = other @ gram @ other
    conflict = where & (dots < 0) & (square > 0)
    slopes = dots / square.clamp(min=_TINY)
    lengths = torch.where(conflict, slopes, 0.0)
    return vectors - lengths[:, None] * other


def stretched(mixture: Tensor, model: Tensor, gram: Tensor) -> Tensor:
    """The mixture at the length of another, `model`; zero where it has no length of its own."""
    length = (mixture @ gram @ mixture).clamp(min=0).sqrt()
    wanted = (model @ gram @ model).clamp(min=0).sqrt()
    return mixture * (wanted / length if length > 0 else 0.0)


def best_common_descent(gram: Tensor) -> Tensor:
    """The mixture of k updates that lowers the mean loss most while opposing none of them (an LP on `gram`).

    Where rounding leaves no solution, the least-norm mixture, which opposes none by construction.
    """
    from scipy.optimize import linprog  # optional: only the second stage of FCFL needs it

    k = len(gram)
    largest = gram.diagonal().max().clamp(min=_TINY)
    scaled = (gram / largest).numpy()
    solution = linprog(
        c=-scaled.mean(0),
        A_ub=-scaled,
        b_ub=np.zeros(k),
        A_eq=np.ones((1, k)),
        b_eq=np.ones(1),
        bounds=(0, 1),
        method="highs",
    )
    if solution.status == 0:
        return torch.from_numpy(solution.x)
    zeros = torch.zeros(k, dtype=gram.dtype)
    ones = torch.ones(k, dtype=gram.dtype)
    return least_norm_mixture(gram, zeros, ones)
