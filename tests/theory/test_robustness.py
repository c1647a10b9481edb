"""docs/theory.md, 4 and 5: GiFair and robust optimisation (T19 to T24)."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from evenfed.algorithms import TERM, GiFair, VRed
from statements import near, parts, quick, seeds, several, value, weights


@given(clients=several)
@quick
def test_t19_variance_is_a_sum_over_pairs(clients):
    f, p = parts(clients)
    pairs = list(itertools.combinations(range(len(f)), 2))
    assert near(p @ (f - p @ f) ** 2, sum(p[i] * p[j] * (f[i] - f[j]) ** 2 for i, j in pairs))
    assert near(((f - f.mean()) ** 2).sum(), sum((f[i] - f[j]) ** 2 for i, j in pairs) / len(f))


def gifair_bound(f, beta, reach):
    n = len(f)
    return value(GiFair(strength=beta * reach * (n - 1) / n), f)  # lambda = beta reach / n^2


@given(losses=st.lists(st.floats(0, 9), min_size=2, max_size=8), beta=st.floats(0, 3))
@quick
def test_t20_gifair_bounds_vred_with_the_largest_gap_in_the_constant(losses, beta):
    f = np.array(losses)
    assert value(VRed(beta=beta), f) <= gifair_bound(f, beta, f.max() - f.min()) + 1e-9
    unit = f / max(f.max(), 1e-9)  # gaps of at most 1: the bound without a gap in it
    assert value(VRed(beta=beta), unit) <= gifair_bound(unit, beta, 1.0) + 1e-9


@given(losses=st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8))
@quick
def test_t20_the_constant_cannot_be_lowered(losses):
    f = np.array([0.0, 1.0, *losses])
    assert near(value(VRed(beta=0.7), f), gifair_bound(f, 0.7, 1.0))
    assert value(VRed(beta=0.7), f) > gifair_bound(f, 0.7, 0.999)


def test_t20_the_paper_s_chain_is_twice_too_large_and_needs_its_condition():
    f, beta = np.array([0.3, 0.0, 1.0, 0.7]), 0.5
    n, pairs = len(f), list(itertools.combinations(f, 2))
    penalty = n * (value(VRed(beta=beta), f) - f.mean())  # the paper's Table 1 has sums
    printed = 2 * beta / n * sum((a - b) ** 2 for a, b in pairs)
    assert near(printed, 2 * penalty)
    assert near(2 * beta / n * sum((a - b) ** 2 for a, b in itertools.permutations(f, 2)), 4 * penalty)
    far = np.array([0.0, 5.0])
    penalty, printed = 2 * (value(VRed(beta=1), far) - far.mean()), 2 * 1 / 2 * 5
    assert near(penalty, 12.5) and near(printed, 5) and penalty > printed
    assert value(VRed(beta=1), far) > gifair_bound(far, 1, 1.0)
    below_one = np.array([-9.0, 0.5])  # "all losses below 1" does not help where losses may be negative
    assert value(VRed(beta=1), below_one) > gifair_bound(below_one, 1, 1.0)


@given(clients=several, order=seeds)
@quick
def test_t21_lambda_max(clients, order):
    _, p = parts(clients)
    n = len(p)
    f = np.random.default_rng(order).permutation(n).astype(float)
    assert weights(GiFair(strength=1), f, p).min() >= -1e-12
    smallest_served_best = np.where(np.arange(n) == p.argmin(), -1.0, f)
    assert weights(GiFair(strength=1.01), smallest_served_best, p).min() < 0
    assert np.abs(weights(GiFair(strength=1), f, p) - p).max() <= p.min() + 1e-12


def chi_square_worst(f, p, beta):
    """argmax over the simplex of sum l_i f_i - sum (l_i - p_i)^2 / (4 beta p_i), by bisection on its multiplier."""

    def mixture(level):
        return p * np.maximum(0, 1 + 2 * beta * (f - level))

    low, high = f.min() - 1 / beta, f.max() + 1 / beta
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mixture(middle).sum() > 1 else (low, middle)
    return mixture((low + high) / 2)


@given(clients=several, part=st.floats(0.05, 4), seed=seeds)
@quick
def test_t22_vred_is_chi_square_robust_exactly_up_to_beta_max(clients, part, seed):
    f, p = parts(clients, distinct=True)
    beta = part / (2 * (p @ f - f.min()))

    def penalised(mixture):
        return mixture @ f - ((mixture - p) ** 2 / p).sum() / (4 * beta)

    worst = chi_square_worst(f, p, beta)
    others = np.random.default_rng(seed).dirichlet(np.ones(len(f)), size=200)
    assert near(worst.sum(), 1) and max(map(penalised, others)) <= penalised(worst) + 1e-9
    if part <= 1:
        assert near(worst, weights(VRed(beta=beta), f, p)) and near(penalised(worst), value(VRed(beta=beta), f, p))
    if part > 1.1:
        assert weights(VRed(beta=beta), f, p).min() < 0 and penalised(worst) < value(VRed(beta=beta), f, p)
    signed = others[:20] + 0.3 * (others[20:40] - others[40:60])  # mixtures that may be negative: always exact
    assert max(map(penalised, signed)) <= value(VRed(beta=beta), f, p) + 1e-9
    assert near(penalised(weights(VRed(beta=beta), f, p)), value(VRed(beta=beta), f, p))


@given(clients=several, alpha=st.floats(0.1, 2), seed=seeds)
@quick
def test_t23_term_is_robust_under_kl(clients, alpha, seed):
    f, p = parts(clients, distinct=True)

    def penalised(mixture):
        return mixture @ f - mixture @ np.log(np.maximum(mixture, 1e-300) / p) / alpha

    best = weights(TERM(alpha=alpha), f, p)
    assert near(penalised(best), value(TERM(alpha=alpha), f, p))
    others = np.random.default_rng(seed).dirichlet(np.ones(len(f)), size=200)
    assert max(map(penalised, others)) <= penalised(best) + 1e-9


def test_t23_term_is_vred_to_second_order_and_not_beyond():
    f, p = np.array([2.0, 1.0, 0.5]), np.array([0.1, 0.3, 0.6])
    third = p @ (f - p @ f) ** 3
    assert third > 0.1
    errors = []
    for alpha in (0.04, 0.02, 0.01):
        gap = value(TERM(alpha=alpha), f, p) - value(VRed(beta=alpha / 2), f, p)
        errors.append(abs(gap / alpha**2 - third / 6))
        assert abs(gap) > 0.02 * alpha**2  # no identity, as the paper's equation would have it
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.01 * third


@given(clients=several, part=st.floats(0.01, 1), seed=seeds)
@quick
def test_t24_a_chi_square_ball_gives_the_standard_deviation(clients, part, seed):
    f, p = parts(clients, distinct=True)
    var, reach = p @ (f - p @ f) ** 2, p @ f - f.min()
    radius = part * var / reach**2
    worst = p * (1 + np.sqrt(radius / var) * (f - p @ f))
    assert worst.min() >= -1e-12 and near(((worst - p) ** 2 / p).sum(), radius)
    assert near(worst @ f, p @ f + np.sqrt(radius * var))
    others = np.random.default_rng(seed).dirichlet(np.ones(len(f)), size=200)
    others = p + (others - p) * np.minimum(1, np.sqrt(radius / ((others - p) ** 2 / p).sum(1)))[:, None]
    assert (others @ f).max() <= worst @ f + 1e-9


def test_t24_a_kl_ball_does_so_in_the_limit():
    f, p = np.array([2.0, 1.0, 0.5]), np.array([0.1, 0.3, 0.6])
    std, errors = np.sqrt(p @ (f - p @ f) ** 2), []
    for radius in (1e-2, 1e-4, 1e-6):
        dual = minimize_scalar(
            lambda log, r=radius: value(TERM(alpha=np.exp(log)), f, p) + r / np.exp(log), (-7, 0), method="golden"
        )
        errors.append(abs((dual.fun - p @ f) / np.sqrt(2 * radius) - std))
    assert errors[0] > 0.01 > errors[1] > errors[2] and errors[2] < 1e-3
