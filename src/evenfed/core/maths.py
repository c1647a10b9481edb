"""Small exact solvers on vectors of one number per client; all in float64."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]


def project_simplex(y: Tensor) -> Tensor:
    """The nearest point to `y` [n] with entries >= 0 that sum to 1.

    >>> project_simplex(torch.tensor([1.339, 1.180, 0.753, 0.447], dtype=torch.float64))
    tensor([0.5795, 0.4205, 0.0000, 0.0000], dtype=torch.float64)
    """
    u = y.sort(descending=True).values
    excess = u.cumsum(0) - 1  # the sum must run to j <= k: stopping at j < k breaks the projection
    k = torch.arange(1, len(y) + 1, dtype=y.dtype)
    rho = int((u * k > excess).sum())
    return (y - excess[rho - 1] / rho).clamp(min=0)


def project_box_simplex(y: Vector, low: Vector, high: Vector) -> Vector:
    """The nearest point to `y` [n] with low <= x <= high that sums to 1 (sum low <= 1 <= sum high).

    x = clip(y - tau): the sum falls piecewise linearly in tau, so tau is exact between two breakpoints.
    """
    breaks = np.sort(np.concatenate([y - low, y - high]))
    sums = np.minimum(np.maximum(y - breaks[:, None], low), high).sum(1)  # decreasing
    right = min(max(int((sums >= 1).sum()), 1), len(breaks) - 1)
    fall, width = sums[right - 1] - sums[right], breaks[right] - breaks[right - 1]
    tau = breaks[right - 1] + (min((sums[right - 1] - 1) / fall, 1.0) * width if fall > 0 else 0.0)
    nearest: Vector = np.minimum(np.maximum(y - tau, low), high)
    return nearest


def least_norm_mixture(gram: Tensor, low: Tensor, high: Tensor, tolerance: float = 1e-11) -> Tensor:
    """argmin x'Gx over the simplex with low <= x <= high: accelerated projected gradient with restarts."""
    g, bottom, top = gram.numpy(), low.numpy(), high.numpy()
    scaled = g / max(np.linalg.eigvalsh(g)[-1], 1e-300)
    x = project_box_simplex(np.full(len(g), 1 / len(g)), bottom, top)
    y, momentum = x, 1.0
    for _ in range(5000):
        after = project_box_simplex(y - scaled @ y, bottom, top)
        if np.abs(after - y).max() < tolerance:
            return torch.from_numpy(after)
        if (y - after) @ (after - x) > 0:
            momentum = 1.0
        grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        y, x, momentum = after + (momentum - 1) / grown * (after - x), after, grown
    return torch.from_numpy(x)


def kept_tail(losses: Tensor, shares: Tensor, mass: float) -> Tensor:
    """[n] bool: the clients at or above the share-weighted (1 - mass) quantile of the losses."""
    ordered, by_loss = losses.sort()
    below = shares[by_loss].cumsum(0)
    threshold = ordered[int((below < (1 - mass) - 1e-9).sum().clamp(max=len(ordered) - 1))]
    return losses >= threshold


def capped(beta: float, safe: float | None, spread: Tensor) -> Tensor:
    """`beta`, held below `safe` times beta_max = 1 / (2 spread), past which a weight turns negative."""
    limit = torch.inf if safe is None else safe * (1 - 1e-12) / (2 * spread.detach())
    return torch.minimum(torch.as_tensor(beta, dtype=spread.dtype), torch.as_tensor(limit, dtype=spread.dtype))


def off_conflict(vectors: Tensor, other: Tensor, gram: Tensor, where: Tensor) -> Tensor:
    """Each of `vectors` [c, k] projected off `other` [k] where the two conflict.

    All are mixtures of k updates with inner products `gram`; the updates themselves are never touched.
    """
    dots, square = vectors @ gram @ other, other @ gram @ other
    conflict = where & (dots < 0) & (square > 0)
    return vectors - torch.where(conflict, dots / square.clamp(min=1e-300), 0.0)[:, None] * other


def stretched(mixture: Tensor, model: Tensor, gram: Tensor) -> Tensor:
    """The mixture at the length of another, `model`; zero where it has no length of its own."""
    length = (mixture @ gram @ mixture).clamp(min=0).sqrt()
    wanted = (model @ gram @ model).clamp(min=0).sqrt()
    return mixture * (wanted / length if length > 0 else 0.0)


def best_common_descent(gram: Tensor) -> Tensor:
    """The mixture of k updates that lowers the mean loss most while opposing none of them (an LP on `gram`).

    Falls back on the least-norm mixture, which opposes none by construction, where rounding leaves no solution.
    """
    from scipy.optimize import linprog  # only FCFL's second stage needs it

    k = len(gram)
    scaled = (gram / gram.diagonal().max().clamp(min=1e-300)).numpy()
    solved = linprog(
        -scaled.mean(0), A_ub=-scaled, b_ub=[0.0] * k, A_eq=[[1.0] * k], b_eq=[1.0], bounds=(0, 1), method="highs"
    )
    if solved.status == 0:
        return torch.from_numpy(solved.x)
    ones = torch.ones(k, dtype=gram.dtype)
    return least_norm_mixture(gram, 0 * ones, ones)
