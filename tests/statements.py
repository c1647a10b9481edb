"""What the tests of docs/theory.md share: drawn losses and shares, an objective's value and weights, and clients."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

import evenfed
from evenfed.core.algorithm import gradient

quick = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 10**6)
several = st.lists(st.tuples(st.floats(0, 4), st.integers(1, 60)), min_size=2, max_size=7)  # (loss, size) of a client


def tensor(values):
    return torch.as_tensor(np.asarray(values, dtype=float))


def parts(clients, distinct=False):
    """Losses and shares; `distinct` losses are told apart by their third decimal."""
    f = np.array([round(loss, 2) + (0.001 * k if distinct else 0) for k, (loss, _) in enumerate(clients)])
    sizes = np.array([size for _, size in clients], dtype=float)
    return f, sizes / sizes.sum()


def value(algorithm, f, p=None):
    p = np.full(len(f), 1 / len(f)) if p is None else p
    return float(algorithm.objective(tensor(f), tensor(p)))


def weights(algorithm, f, p=None):
    p = np.full(len(f), 1 / len(f)) if p is None else p
    return gradient(algorithm, tensor(f), tensor(p)).numpy()


def excess(f, p):
    return np.maximum(f - p @ f, 0)


def near(a, b, tolerance=1e-9):
    return np.allclose(a, b, rtol=tolerance, atol=tolerance)


class Quadratics:
    """n clients with f_i(theta) = (theta - c_i)' A_i (theta - c_i) / 2 + b_i, in 3 dimensions, and random shares."""

    def __init__(self, seed, n=5):
        draw = np.random.default_rng(seed)
        root = draw.normal(size=(n, 3, 3))
        self.curvature = tensor(root @ root.transpose(0, 2, 1) / 3)
        self.centre, self.offset = tensor(draw.normal(size=(n, 3))), tensor(draw.uniform(0, 1, n))
        self.sizes = draw.integers(1, 50, n)
        self.shares, self.theta = tensor(self.sizes / self.sizes.sum()), tensor(draw.normal(size=3))

    def losses(self, theta):
        gap = theta - self.centre
        return torch.einsum("ni,nij,nj->n", gap, self.curvature, gap) / 2 + self.offset

    def gradients(self, theta):
        return torch.einsum("nij,nj->ni", self.curvature, theta - self.centre)

    def objective(self, algorithm, theta):
        return algorithm.objective(self.losses(theta), self.shares)

    def slope(self, algorithm, theta, step=1e-5):
        """Gradient of F in theta by central differences: independent of autograd and of the chain rule."""
        moves = step * torch.eye(3).double()
        rises = [self.objective(algorithm, theta + m) - self.objective(algorithm, theta - m) for m in moves]
        return torch.stack(rises) / (2 * step)

    def round(self, algorithm, lr, steps=1):
        """How far one round of the library moves theta, with full-batch local steps."""
        server = evenfed.Server.start(algorithm, self.theta, self.sizes.tolist(), lr=lr)
        opened = evenfed.open_round(server, self.losses(self.theta))
        local = self.theta.expand(len(self.sizes), 3).clone()
        for _ in range(steps):
            at = local.clone().requires_grad_()
            gap = at - self.centre
            f = torch.einsum("ni,nij,nj->n", gap, self.curvature, gap) / 2 + self.offset
            local -= lr * torch.autograd.grad(algorithm.local_loss(f).sum(), at)[0]
        updates = [evenfed.Update(int(i), self.theta - local[i]) for i in opened.plan.ids]
        return self.theta - evenfed.close_round(opened, updates)[0].params
