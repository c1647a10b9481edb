"""Small exact solvers on vectors of one number per client; all in float64."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]

_HUGE = 1e8  # next to such numbers 1 is rounded away
_CONVERGED = 1e-11  # change of a mixture in one iteration
_TINY = 1e-300  # keeps a quotient finite where its divisor is zero


def project_simplex(y: Tensor) -> Tensor:
    """The nearest point to `y` [n] with entries >= 0 that sum to 1.

    >>> project_simplex(torch.tensor([1.339, 1.180, 0.753, 0.447], dtype=torch.float64))
    tensor([0.5795, 0.4205, 0.0000, 0.0000], dtype=torch.float64)
    """
    n = len(y)
    largest = y.max()
    if largest > _HUGE:
        y = y - largest  # the nearest point is the same
    u = y.sort(descending=True).values
    excess = u.cumsum(0) - 1  # the sum must run to j <= k: stopping at j < k breaks the projection
    k = torch.arange(1, n + 1, dtype=y.dtype)
    positive = u * k > excess
    rho = int(positive.sum())
    tau = excess[rho - 1] / rho
    return (y - tau).clamp(min=0)


def project_box_simplex(y: Vector, low: Vector, high: Vector) -> Vector:
    """The nearest point to `y` [n] with low <= x <= high that sums to 1 (sum low <= 1 <= sum high).

    x = clip(y - tau): the sum falls piecewise linearly in tau, so tau is exact between two breakpoints.
    """
    breaks = np.concatenate([y - low, y - high])
    breaks.sort()
    shifted = y - breaks[:, None]
    sums = _clip(shifted, low, high).sum(1)  # decreasing
    above = int((sums >= 1).sum())
    last = len(breaks) - 1
    right = max(above, 1)
    right = min(right, last)
    left = right - 1
    start = breaks[left]
    width = breaks[right] - start
    most = sums[left]
    fall = most - sums[right]
    fraction = 0.0
    if fall > 0:
        fraction = min((most - 1) / fall, 1.0)
    tau = start + fraction * width
    moved = y - tau
    return _clip(moved, low, high)


def _clip(x: Vector, low: Vector, high: Vector) -> Vector:
    """np.clip without its overhead, which is most of its time on short vectors."""
    raised = np.maximum(x, low)
    clipped: Vector = np.minimum(raised, high)
    return clipped


def least_norm_mixture(
    gram: Tensor,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    """argmin x'Gx over the simplex with low <= x <= high: accelerated projected gradient with restarts."""
    g = gram.numpy()
    bottom = low.numpy()
    top = high.numpy()
    eigenvalues = np.linalg.eigvalsh(g)
    scaled = g / max(eigenvalues[-1], _TINY)
    n = len(g)
    uniform = np.full(n, 1 / n)
    x = project_box_simplex(uniform, bottom, top)
    y = x
    momentum = 1.0
    for _ in range(5000):
        descended = y - scaled @ y
        x_next = project_box_simplex(descended, bottom, top)
        change = y - x_next
        if np.abs(change).max() < _CONVERGED:
            return torch.from_numpy(x_next)
        step = x_next - x
        if change @ step > 0:
            momentum = 1.0
        root = (1 + 4 * momentum**2) ** 0.5
        grown = (1 + root) / 2
        inertia = (momentum - 1) / grown
        y = x_next + inertia * step
        x = x_next
        momentum = grown
    return torch.from_numpy(x)


def upper_tail_mask(losses: Tensor, shares: Tensor, mass: float) -> Tensor:
    """[n] bool: the clients at or above the share-weighted (1 - mass) quantile of the losses."""
    ordered, by_loss = losses.sort()
    cumulative = shares[by_loss].cumsum(0)
    before_tail = (1 - mass) - 1e-9
    below = cumulative < before_tail
    last = len(ordered) - 1
    quantile = min(int(below.sum()), last)
    return losses >= ordered[quantile]


def capped_beta(beta: float, safe: float | None, spread: Tensor) -> Tensor:
    """`beta`, held below `safe` times beta_max = 1 / (2 spread), past which a weight turns negative."""
    wanted = torch.as_tensor(beta, dtype=spread.dtype)
    if safe is None:
        return wanted
    width = 2 * spread.detach()
    limit = safe * (1 - 1e-12) / width
    return torch.minimum(wanted, limit)


def project_off_conflicts(
    vectors: Tensor,
    other: Tensor,
    gram: Tensor,
    where: Tensor,
) -> Tensor:
    """Each of `vectors` [c, k] projected off `other` [k] where the two conflict.

    All are mixtures of k updates with inner products `gram`; the updates themselves are never touched.
    """
    dots = vectors @ gram @ other
    square = other @ gram @ other
    opposed = dots < 0
    conflict = where & opposed & (square > 0)
    slopes = dots / square.clamp(min=_TINY)
    lengths = torch.where(conflict, slopes, 0.0)
    projections = lengths[:, None] * other
    return vectors - projections


def rescaled_to_norm_of(mixture: Tensor, model: Tensor, gram: Tensor) -> Tensor:
    """The mixture at the length of another, `model`; zero where it has no length of its own."""
    length = _length(mixture, gram)
    if not length > 0:
        return mixture * 0.0
    wanted = _length(model, gram)
    return mixture * (wanted / length)


def _length(mixture: Tensor, gram: Tensor) -> Tensor:
    square = mixture @ gram @ mixture
    return square.clamp(min=0).sqrt()


def gram_matrix(rows: Tensor) -> Tensor:
    """[k, k] the inner products of rows [k, D], in float64 on the host."""
    products = rows @ rows.T
    gram = products.double().cpu()
    if bool(gram.isfinite().all()):
        return gram
    wide = rows.double()  # squares of huge numbers overflow in float32
    products = wide @ wide.T
    return products.cpu()


def best_common_descent(gram: Tensor) -> Tensor:
    """The mixture of k updates that lowers the mean loss most while opposing none of them (an LP on `gram`).

    Where rounding leaves no solution, the least-norm mixture, which opposes none by construction.
    """
    from scipy.optimize import linprog  # optional: only the second stage of FCFL needs it

    k = len(gram)
    largest = gram.diagonal().max()
    relative = gram / largest.clamp(min=_TINY)
    scaled = relative.numpy()
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


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all entries of all tensors are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The derivative of `function`, entry by entry."""
    at = at.detach().requires_grad_()
    with torch.enable_grad():
        total = function(at).sum()
        (derivative,) = torch.autograd.grad(total, at)
    return derivative
