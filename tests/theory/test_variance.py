"""docs/theory.md, 2 and 3: VRed and Semi-VRed, and label shift (T8 to T18)."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.algorithms import FedAvg, SemiVRed, VRed
from statements import Quadratics, excess, near, parts, quick, seeds, several, tensor, value, weights


@given(seed=seeds, beta=st.floats(0, 2))
@quick
def test_t8_lemma_1_with_unequal_shares(seed, beta):
    problem = Quadratics(seed)
    f, p = problem.losses(problem.theta), problem.shares
    w = p * (1 + 2 * beta * (f - p @ f))
    assert near(w @ problem.gradients(problem.theta), problem.slope(VRed(beta=beta), problem.theta), 1e-4)
    assert near(w, weights(VRed(beta=beta), f, p)) and near(w.sum(), 1)


@given(seed=seeds, beta=st.floats(0, 2))
@quick
def test_t9_lemma_2_with_unequal_shares(seed, beta):
    problem = Quadratics(seed)
    f, p = problem.losses(problem.theta), problem.shares
    above = torch.relu(f - p @ f)
    s = p @ above
    w = p * (1 + 2 * beta * (above - s))
    assert near(w @ problem.gradients(problem.theta), problem.slope(SemiVRed(beta=beta), problem.theta), 1e-4)
    assert near(w, weights(SemiVRed(beta=beta), f, p)) and near(w.sum(), 1)
    assert near(s, p @ (f - p @ f).abs() / 2)
    assert near((w / p)[f <= p @ f], 1 - 2 * beta * s)


def test_t9_the_paper_s_weights_are_wrong_for_unequal_shares():
    f, p, n = np.array([2.0, 1.0, 0.5]), np.array([0.1, 0.3, 0.6]), 3
    for algorithm, form in ((VRed(), lambda f, m: f - m), (SemiVRed(), lambda f, m: np.maximum(f - m, 0))):

        def printed(mean, form=form, algorithm=algorithm):
            part = form(f, mean)
            return (1 + 2 * 0.2 * (part - (part.mean() if algorithm.name == "semi_vred" else 0))) / n

        assert near(printed(f.mean()), weights(algorithm, f))  # right for equal shares
        assert np.abs(printed(p @ f) - weights(algorithm, f, p)).max() > 0.1


@given(seed=seeds, beta=st.floats(0.1, 2))
@quick
def test_t10_algorithm_1_is_the_weighted_sum(seed, beta):
    draw = np.random.default_rng(seed)
    f, p, delta = draw.uniform(0, 3, 5), draw.dirichlet(np.ones(5)), draw.normal(size=(5, 2))
    mean = p @ delta
    for algorithm, part in ((VRed(beta=beta), f - p @ f), (SemiVRed(beta=beta), excess(f, p))):
        printed = mean + 2 * beta * (p * part) @ (delta - mean)
        assert near(printed, weights(algorithm, f, p) @ delta, 1e-9)
        without = mean + 2 * beta * (p * part) @ delta
        assert near(printed, without) == (algorithm.name == "vred")
        assert near((p * (1 + 2 * beta * part)).sum(), 1 + 2 * beta * p @ part)


@given(clients=several)
@quick
def test_t11_beta_max_is_sharp_and_larger_for_semi_vred(clients):
    f, p = parts(clients, distinct=True)
    mean = p @ f
    limit = {VRed: 1 / (2 * (mean - f.min())), SemiVRed: 1 / (2 * p @ excess(f, p))}
    for make, beta in limit.items():
        assert weights(make(beta=0.999 * beta), f, p).min() > 0 > weights(make(beta=1.001 * beta), f, p).min()
    assert limit[SemiVRed] >= (1 - 1e-9) * limit[VRed] / p[f < mean].sum() > limit[VRed]


@given(clients=several, beta=st.floats(0, 1e6), safe=st.floats(0.1, 1))
@quick
def test_t11_safe_keeps_weights_non_negative(clients, beta, safe):
    f, p = parts(clients)
    for make in (VRed, SemiVRed):
        assert weights(make(beta=beta, safe=safe), f, p).min() >= -1e-12


def test_t12_both_objectives_prefer_levelling_down_past_beta_max():
    for algorithm, limit in ((VRed(beta=1), 1 / 5), (SemiVRed(beta=1), 1 / 2.5)):
        assert limit < algorithm.beta
        assert value(algorithm, [4.0, 5.0]) < value(algorithm, [0.0, 5.0])
    assert value(FedAvg(), [4.0, 5.0]) > value(FedAvg(), [0.0, 5.0])


@given(clients=several, share=st.floats(0, 1), which=st.integers(0, 6))
@quick
def test_t12_below_beta_max_a_better_client_lowers_the_objective(clients, share, which):
    f, p = parts(clients)
    better = f.copy()
    better[which % len(f)] *= share
    spread = max(max(p @ x - x.min() for x in (f, better)), 1e-9)  # VRed's limit, monotone along the way
    for make in (VRed, SemiVRed):
        beta = 0.99 / (2 * spread)
        assert value(make(beta=beta), better, p) <= value(make(beta=beta), f, p) + 1e-9


@given(clients=several, beta=st.floats(0.01, 1))
@quick
def test_t13_remark_1_corrected(clients, beta):
    f, p = parts(clients)
    mean, s = p @ f, p @ excess(f, p)
    vred, semi = weights(VRed(beta=beta), f, p), weights(SemiVRed(beta=beta), f, p)
    assert near(semi - vred, 2 * beta * p * (np.maximum(mean - f, 0) - s))
    clear = np.abs(mean - f - s) > 1e-9
    assert ((semi > vred) == (mean - f > s))[clear & (np.abs(semi - vred) > 1e-12)].all()
    if f.max() - f.min() > 1e-6:
        assert (semi < vred)[f > mean].all()
        band = (f > mean + 1e-9) & (f < mean + s - 1e-9)
        assert (semi < p)[band].all()


def test_t13_remark_1_as_printed_fails():
    f = np.array([0.2, 0.9, 1.0, 3.0, 1.4])
    vred, semi = weights(VRed(beta=0.2), f), weights(SemiVRed(beta=0.2), f)
    assert near(vred, [0.112, 0.168, 0.176, 0.336, 0.208]) and near(semi, [0.1712, 0.1712, 0.1712, 0.3072, 0.1792])
    assert f[4] > f.mean() and semi[4] < 0.2  # worse than average, and down-weighted
    assert f[2] < f.mean() and semi[2] < vred[2]  # better than average, and below VRed's weight
    assert semi[3] < vred[3]  # the worst served


@given(split=st.lists(st.booleans(), min_size=2, max_size=6), gap=st.floats(0.1, 5), seed=seeds)
@quick
def test_t14_with_two_levels_of_loss_semi_vred_is_a_weaker_vred(split, gap, seed):
    split[:2] = [True, False]
    f, p = gap * np.array(split, dtype=float), np.random.default_rng(seed).dirichlet(np.ones(len(split)))
    better = p[f == 0].sum()
    assert near(weights(SemiVRed(beta=0.3), f, p), weights(VRed(beta=0.3 * better), f, p))


@given(clients=several, scale=st.floats(0.1, 10), shift=st.floats(-5, 5))
@quick
def test_t15_beta_is_measured_in_one_over_loss(clients, scale, shift):
    f, p = parts(clients)
    for make in (VRed, SemiVRed):
        assert near(weights(make(beta=0.3), scale * f + shift, p), weights(make(beta=0.3 * scale), f, p), 1e-7)
        assert near(value(make(beta=0.3), scale * f + shift, p), scale * value(make(beta=0.3 * scale), f, p) + shift)


@given(seed=seeds, beta=st.floats(0.01, 2))
@quick
def test_t16_the_penalty_adds_curvature_along_the_clients_disagreement(seed, beta):
    problem = Quadratics(seed)
    f, p, g = problem.losses(problem.theta), problem.shares, problem.gradients(problem.theta)
    added = []
    for make, counted in ((VRed, torch.ones_like(f)), (SemiVRed, (f > p @ f).double())):
        found = torch.autograd.functional.hessian(lambda t, m=make: problem.objective(m(beta=beta), t), problem.theta)
        w, gap = tensor(weights(make(beta=beta), f, p)), g - p @ g
        added.append(2 * beta * torch.einsum("n,ni,nj->ij", p * counted, gap, gap))
        assert near(found, torch.einsum("n,nij->ij", w, problem.curvature) + added[-1], 1e-7)
    assert torch.linalg.eigvalsh(added[0] - added[1]).min() > -1e-9


@given(seed=seeds)
@quick
def test_t17_lemma_3_with_unequal_shares(seed):
    draw = np.random.default_rng(seed)
    classes, p, by_class = draw.dirichlet(np.ones(4), size=6), draw.dirichlet(np.ones(6)), draw.uniform(0, 3, 4)
    overall = p @ classes
    lemma = overall @ by_class + 0.4 * p @ np.maximum((classes - overall) @ by_class, 0) ** 2
    assert near(lemma, value(SemiVRed(beta=0.4), classes @ by_class, p))
    unweighted = classes.mean(0)
    printed = unweighted @ by_class + 0.4 * np.mean(np.maximum((classes - unweighted) @ by_class, 0) ** 2)
    assert near(printed, value(SemiVRed(beta=0.4), classes @ by_class))  # the paper's, for equal shares
    assert not near(printed, lemma, 1e-8)


def example_1(n, a, first, second):
    f = np.full(n, a / 2 * first + (1 - a / 2) * second)
    f[0] = (1 - a / 2) * first + a / 2 * second
    return f


@given(n=st.integers(2, 30), a=st.floats(0, 0.9), first=st.floats(0, 4), second=st.floats(0, 4))
@quick
def test_t18_example_1_with_its_condition(n, a, first, second):
    f = example_1(n, a, first, second)
    coefficient = 0.4 * (n - 1) * (1 - a) ** 2 / n**3 * (n - 1 if first >= second else 1)
    assert near(value(SemiVRed(beta=0.4), f), f.mean() + coefficient * (first - second) ** 2, 1e-8)
    ratio = weights(SemiVRed(beta=0.4), f)[0] * n
    if first >= second:
        assert near(ratio, 1 + 0.8 * (1 - 1 / n) ** 2 * (1 - a) * (first - second), 1e-8)


def test_t18_the_printed_formula_fails_without_it():
    f = example_1(10, 0.1, first=0.5, second=2.0)
    printed = f.mean() + 0.4 * 9**2 * 0.9**2 / 10**3 * 1.5**2
    assert printed > value(SemiVRed(beta=0.4), f) + 0.05
