"""docs/theory.md, 6: who takes part (T25 to T27)."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import evenfed
from evenfed.algorithms import TERM, FedAvg, SemiVRed, VRed
from statements import excess, near, parts, quick, weights


def expected_weights(make, f, count, sizes=None):
    """Mean over all sets of `count` clients of the weights [n] the library plans."""
    n, sizes = len(f), np.ones(len(f)) if sizes is None else np.asarray(sizes, dtype=float)
    total, sets = np.zeros(n), list(itertools.combinations(range(n), count))
    for chosen in map(list, sets):
        total[chosen] += weights(make, f[chosen], sizes[chosen] / sizes[chosen].sum())
    return total / len(sets)


@given(losses=st.lists(st.floats(0, 4), min_size=2, max_size=6), count=st.integers(1, 6))
@quick
def test_t25_sampling_shrinks_beta_of_vred(losses, count):
    f = np.array(losses)
    n, m = len(f), min(count, len(f))
    kept = n * (m - 1) / (m * (n - 1))
    variances = [np.var(f[list(s)]) for s in itertools.combinations(range(n), m)]
    assert near(np.mean(variances), kept * np.var(f))
    assert near(expected_weights(VRed(beta=0.4), f, m), weights(VRed(beta=0.4 * kept), f))


def test_t25_unequal_sizes_bias_even_fedavg():
    f, sizes = np.array([2.0, 1.0, 0.5]), [100, 300, 600]
    assert near(expected_weights(FedAvg(), f, 1, sizes), np.full(3, 1 / 3))
    assert np.abs(expected_weights(FedAvg(), f, 2, sizes) - [0.1, 0.3, 0.6]).max() > 0.05
    server = evenfed.Server.start(VRed(beta=0.4), torch.zeros(1), [1] * 3, lr=0.1)
    assert near(evenfed.open_round(server, [2.0], torch.tensor([0])).plan.weights, [1])  # m = 1: nothing to compare


def test_t26_sampling_can_shrink_or_swell_the_semi_variance():
    for f, before, swells in ((np.eye(10)[0], 0.081, False), (1 - np.eye(10)[0], 0.009, True)):
        whole = np.mean(excess(f, np.full(10, 0.1)) ** 2)
        drawn = [np.mean(excess(f[list(s)], np.full(2, 0.5)) ** 2) for s in itertools.combinations(range(10), 2)]
        assert near(whole, before) and near(np.mean(drawn), 0.025) and (np.mean(drawn) > whole) == swells
        assert not near(np.mean(drawn), 10 / 18 * whole, 1e-3)  # VRed's factor n(m-1)/(m(n-1)) does not hold


@given(losses=st.lists(st.floats(0, 4), min_size=3, max_size=6))
@quick
def test_t26_two_participants_make_it_half_a_vred(losses):
    f = np.array(losses)
    assert near(expected_weights(SemiVRed(beta=0.4), f, 2), expected_weights(VRed(beta=0.2), f, 2))


def after_dropout(algorithm, f, sizes, lost):
    server = evenfed.Server.start(algorithm, torch.zeros(1).double(), sizes, lr=0.1)
    opened = evenfed.open_round(server, f)
    updates = [evenfed.Update(int(i), torch.ones(1).double()) for i in opened.plan.ids if int(i) not in lost]
    return evenfed.close_round(opened, updates)[1]


@given(clients=st.lists(st.tuples(st.floats(0, 4), st.integers(1, 60)), min_size=3, max_size=6), beta=st.floats(0, 1))
@quick
def test_t27_after_dropout_vred_goes_on_with_another_beta(clients, beta):
    f, p = parts(clients)
    stay = np.arange(len(f)) >= 1
    among, q = f[stay], p[stay] / p[stay].sum()
    factor = 1 + 2 * beta * (q @ among - p @ f)
    record = after_dropout(VRed(beta=beta), f, [size for _, size in clients], lost={0})
    if abs(factor) > 1e-3:
        assert record.skipped == (factor < 0)
    if factor > 1e-3:
        assert near(record.weights[stay], weights(VRed(beta=beta / factor), among, q), 1e-6) and near(
            record.weights.sum(), 1
        )
    assert near(after_dropout(FedAvg(), f, [size for _, size in clients], lost={0}).weights[stay], q)
    tilted = after_dropout(TERM(alpha=0.5), f, [size for _, size in clients], lost={0})
    assert near(tilted.weights[stay], weights(TERM(alpha=0.5), among, q))


def test_t27_semi_vred_does_not():
    f, sizes = np.array([5.0, 1.0, 0.5, 0.0]), [1, 1, 1, 1]
    assert near(after_dropout(SemiVRed(beta=0.2), f, sizes, lost={0}).weights[1:], np.full(3, 1 / 3))
    assert after_dropout(SemiVRed(beta=1), f, sizes, lost={0}).skipped  # 1 - 2 beta s < 0
    assert np.abs(weights(SemiVRed(beta=0.2), f[1:]) - 1 / 3).max() > 0.01
    assert after_dropout(VRed(beta=1), np.array([10.0, 0, 0]), [1, 1, 1], lost={0}).skipped
