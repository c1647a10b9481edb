"""Randomness that depends on (seed, round, client) alone, and the small solvers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from evenfed.core import streams
from evenfed.core.maths import (
    best_common_descent,
    gram_matrix,
    least_norm_mixture,
    project_box_simplex,
    project_simplex,
)
from worked_example import close


def test_every_epoch_visits_every_example_once():
    sizes = np.array([1, 5, 8, 23])
    table = streams.batches(3, 2, np.array([4, 1, 9, 0]), sizes, streams.Batching(4, epochs=3))
    for row, size in zip(table, sizes, strict=True):
        per_epoch = -(-size // 4)
        for epoch in range(3):
            seen = row[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(seen[seen >= 0].tolist()) == list(range(size))
        assert (row[3 * per_epoch :] == -1).all()


def test_a_clients_batches_do_not_depend_on_the_company():
    clients, sizes = np.array([2, 7, 5]), np.array([9, 30, 4])
    together = streams.batches(np.array([1, 1, 8]), 6, clients, sizes, streams.Batching(4, 2))
    for k, seed in enumerate((1, 1, 8)):
        alone = streams.batches(seed, 6, clients[k : k + 1], sizes[k : k + 1], streams.Batching(4, 2))[0]
        kept = together[k][: len(alone), : alone.shape[1]]
        assert (kept == alone).all() and (together[k][len(alone) :] == -1).all()


def test_batches_differ_between_seeds_rounds_clients_and_epochs():
    def order(seed, index, client):
        return streams.batches(seed, index, np.array([client]), np.array([40]), streams.Batching(40, 2))[0].tolist()

    base = order(0, 0, 0)
    assert base[0] != base[1]
    assert all(base != other for other in (order(1, 0, 0), order(0, 1, 0), order(0, 0, 1)))


def test_permutations_are_uniform():
    first = [
        int(streams.batches(seed, 0, np.array([0]), np.array([5]), streams.Batching())[0, 0, 0]) for seed in range(5000)
    ]
    assert np.allclose(np.bincount(first) / 5000, 0.2, atol=0.02)


def test_sampling_is_uniform_without_replacement():
    among = np.array([1, 3, 4, 8, 9])
    counts = np.zeros(10)
    for index in range(4000):
        drawn = streams.sample(5, index, among, 2)
        assert len(set(drawn)) == 2 and set(drawn) <= set(among)
        counts[drawn] += 1
    assert np.allclose(counts[among] / 4000, 0.4, atol=0.03)


numbers = st.lists(st.floats(-5, 5), min_size=1, max_size=12)


@given(numbers)
@settings(max_examples=100, deadline=None)
def test_projection_onto_the_simplex_is_nearest(values):
    y = torch.tensor(values, dtype=torch.float64)
    x = project_simplex(y)
    assert float(x.min()) >= 0 and float(x.sum()) == pytest.approx(1)
    for k in range(len(values)):  # no vertex is a better direction: the optimality condition of a projection
        vertex = torch.zeros_like(x)
        vertex[k] = 1
        assert float((y - x) @ (vertex - x)) <= 1e-9


@given(numbers, st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_projection_onto_a_box_in_the_simplex(values, epsilon):
    y, n = np.array(values), len(values)
    low, high = np.full(n, max(1 / n - epsilon, 0)), np.full(n, min(1 / n + epsilon, 1.0))
    x = project_box_simplex(y, low, high)
    assert (x >= low - 1e-12).all() and (x <= high + 1e-12).all() and x.sum() == pytest.approx(1)
    if epsilon == 1 or n == 1:
        assert close(x, project_simplex(torch.from_numpy(y)), 1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0])
def test_least_norm_mixture_agrees_with_scipy(seed, epsilon):
    from scipy.optimize import minimize

    rows = np.random.default_rng(seed).normal(size=(6, 9))
    gram = rows @ rows.T
    low, high = np.full(6, max(1 / 6 - epsilon, 0)), np.full(6, min(1 / 6 + epsilon, 1))
    ours = least_norm_mixture(*(torch.from_numpy(a) for a in (gram, low, high))).numpy()
    theirs = minimize(
        lambda x: x @ gram @ x,
        np.full(6, 1 / 6),
        jac=lambda x: 2 * gram @ x,
        method="SLSQP",
        options={"ftol": 1e-14},
        bounds=list(zip(low, high, strict=True)),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
    )
    assert ours @ gram @ ours <= theirs.x @ gram @ theirs.x + 1e-9
    assert ours.sum() == pytest.approx(1)


def test_best_common_descent_opposes_no_one():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 4)))
    gram = rows @ rows.T
    mixture = best_common_descent(gram)
    assert float((gram @ mixture).min()) >= -1e-8 and float(mixture.sum()) == pytest.approx(1)
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()  # two exact opposites: standing still is all there is
    assert close(opposite @ best_common_descent(opposite), (0, 0), 1e-6)


def drawn(key):
    """Two draws of one step: images to shift, and units to drop."""
    draw = streams.HashedNumbers(key, streams.AUGMENTATION)
    return draw.integers(9, 3, 2), draw.uniform(50)


def test_draws_of_a_step_are_the_same_alone_in_a_stack_under_vmap_and_traced():
    keys = torch.from_numpy(streams.step_keys(np.array([0, 0, 5]), 2, np.array([3, 4, 3]), 1))
    alone = [torch.stack(each) for each in zip(*[drawn(key) for key in keys], strict=True)]
    traced = make_fx(vmap(drawn))(keys)
    for way in (drawn(keys), vmap(drawn)(keys), traced(keys)):
        assert all(torch.equal(found, expected) for found, expected in zip(way, alone, strict=True))
    assert len(torch.unique(alone[1])) > 140  # no two clients, seeds or places share numbers


def test_draws_are_uniform_and_purposes_do_not_share_them():
    key = torch.from_numpy(streams.step_keys(0, 0, 0, 0))
    first, second = (streams.HashedNumbers(key, purpose) for purpose in (streams.AUGMENTATION, streams.DROPOUT))
    numbers = torch.stack([first.uniform(20_000), first.uniform(20_000), second.uniform(20_000)])
    counts = torch.stack([row.histc(10, 0, 1) for row in numbers])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert (counts - 2000).abs().max() < 5 * 2000**0.5
    assert (torch.corrcoef(numbers) - torch.eye(3)).abs().max() < 5 / 20_000**0.5
    assert torch.equal(torch.unique(second.integers(5, 999)), torch.arange(5))


@pytest.mark.parametrize("largest", [1e9, 1e17, 1e40, 1e300])
def test_a_projection_onto_the_simplex_survives_huge_numbers(largest):
    y = torch.tensor([largest, 0.5, largest, -3.0], dtype=torch.float64)
    assert project_simplex(y).tolist() == [0.5, 0.0, 0.5, 0.0]


def test_inner_products_of_huge_updates_are_finite_and_can_be_mixed():
    rows = torch.tensor([[1e25, 0.0], [1.0, 1.0]])
    gram = gram_matrix(rows)
    assert gram.isfinite().all() and gram[1, 1] == 2
    assert best_common_descent(gram).sum() == pytest.approx(1)
