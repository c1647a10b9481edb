"""Every numbered statement of docs/theory.md (T1, T2, ...), each checked by the tests of its number."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar

import evenfed
from evenfed.algorithms import (
    AFL,
    BUILT_IN,
    CLIMB,
    DRFA,
    FCFL,
    QFFL,
    TERM,
    DeltaFL,
    Ditto,
    FedAvg,
    FedFV,
    FedMGDA,
    GiFair,
    PropFair,
    SemiVRed,
    VRed,
)
from evenfed.core.algorithm import gradient
from evenfed.fairness import oscillation
from worked_example import example_round

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
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
        turn = evenfed.open_round(server, self.losses(self.theta))
        local = self.theta.expand(len(self.sizes), 3).clone()
        for _ in range(steps):
            at = local.clone().requires_grad_()
            gap = at - self.centre
            f = torch.einsum("ni,nij,nj->n", gap, self.curvature, gap) / 2 + self.offset
            local -= lr * torch.autograd.grad(algorithm.local_loss(f).sum(), at)[0]
        updates = [evenfed.Update(int(i), self.theta - local[i]) for i in turn.plan.ids]
        return self.theta - evenfed.close_round(turn, updates)[0].params


# 1. What each algorithm minimises

DESCEND = [FedAvg(), TERM(), GiFair(), DeltaFL(alpha=0.4, exact=True), PropFair(baseline=20.0), VRed(), SemiVRed()]


@pytest.mark.parametrize("algorithm", DESCEND, ids=str)
@given(seed=seeds)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_t1_one_local_step_is_gradient_descent_on_the_objective(algorithm, seed):
    problem = Quadratics(seed)
    assert near(problem.round(algorithm, lr=1e-3) / 1e-3, problem.slope(algorithm, problem.theta), 1e-5)


@pytest.mark.parametrize("algorithm", DESCEND, ids=str)
def test_t1_more_local_steps_are_off_by_second_order(algorithm):
    problem = Quadratics(1)
    slope = problem.slope(algorithm, problem.theta)
    far, close = (float((problem.round(algorithm, lr, steps=5) - 5 * lr * slope).norm()) for lr in (2e-3, 1e-3))
    assert close > 0 and 3.5 < far / close < 4.5


def test_t1_q_fedavg_keeps_the_direction_and_shortens_the_step():
    problem, algorithm = Quadratics(2), QFFL(q=1, share_weighted=True)
    step, slope = problem.round(algorithm, lr=0.01), problem.slope(algorithm, problem.theta)
    assert near(step / step.norm(), slope / slope.norm(), 1e-5)
    sums = [example_round(QFFL(q=q, share_weighted=True))[1].weights.sum() for q in (0, 0.1, 1)]
    assert near(sums[0], 1) and 1 > sums[1] > sums[2] > 0


def worst_clients(f, p, mass):
    """Mean loss of the fewest levels of loss, worst first, that hold more than `mass` less rounding."""
    kept = next(f >= level for level in sorted(set(f)) if p[f <= level].sum() >= 1 - mass - 1e-9)
    return p[kept] @ f[kept] / p[kept].sum()


F_OF = {
    "fedavg": lambda f, p: p @ f,
    "afl": lambda f, p: f.max(),
    "drfa": lambda f, p: f.max(),
    "fcfl": lambda f, p: f.max(),
    "qffl": lambda f, p: np.mean(f**1.1) / 1.1,
    "term": lambda f, p: np.log(p @ np.exp(0.5 * f)) / 0.5,
    "propfair": lambda f, p: -p @ np.log(1 - f / 3),
    "delta_fl": lambda f, p: worst_clients(f, p, 0.5),
    "gifair": lambda f, p: p @ f + p.min() / (len(f) - 1) * sum(abs(a - b) for a, b in itertools.combinations(f, 2)),
    "vred": lambda f, p: p @ f + 0.2 * p @ (f - p @ f) ** 2,
    "semi_vred": lambda f, p: p @ f + 0.2 * p @ excess(f, p) ** 2,
    "climb": lambda f, p: f.mean(),
    "ditto": lambda f, p: p @ f,
    "fedmgda": lambda f, p: p @ f,
    "fedfv": lambda f, p: p @ f,
}


@given(clients=several)
@quick
def test_t2_the_table_states_the_objectives_of_the_library(clients):
    f, p = parts(clients)
    f = 0.05 + f / 2  # below the end of PropFair's log
    for name, formula in F_OF.items():
        assert near(value(evenfed.algorithms.get(name), f, p), formula(f, p), 1e-6), name


@given(clients=several)
@quick
def test_t2_the_table_states_the_weights_of_the_library(clients):
    f, p = parts(clients, distinct=True)
    ranks = np.sign(f[:, None] - f).sum(1)
    tilted = p * np.exp(0.5 * f)
    assert near(weights(TERM(alpha=0.5), f, p), tilted / tilted.sum())
    assert near(weights(GiFair(), f, p), p + p.min() / (len(f) - 1) * ranks)
    assert near(weights(QFFL(q=0.5, share_weighted=True), f, p), p * f**0.5, 1e-4)
    assert near(weights(PropFair(baseline=9), f, p), p / (9 - f))


def test_t2_the_table_has_every_algorithm_once():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(BUILT_IN) == sorted(F_OF)


@given(batches=st.lists(st.floats(0, 8), min_size=2, max_size=6))
@quick
def test_t3_batchwise_propfair_descends_an_upper_bound(batches):
    f = tensor(batches)
    huber = PropFair(baseline=3, tail="huber")
    assert huber.local_loss(f).mean() >= huber.local_loss(f.mean()) - 1e-9


def test_t3_not_with_the_linear_tail():
    f, linear = tensor([2.5, 2.9]), PropFair(baseline=3, tail="linear")
    assert linear.local_loss(f).mean() < linear.local_loss(f.mean()) - 0.5


@given(clients=several, alpha=st.floats(0.05, 1))
@quick
def test_t4_delta_fl_is_robust_to_mixtures_of_bounded_density(clients, alpha):
    f, p = parts(clients, distinct=True)
    worst = linprog(-f, A_eq=[np.ones(len(f))], b_eq=[1.0], bounds=[(0, q / alpha) for q in p])
    exact = value(DeltaFL(alpha=alpha, exact=True), f, p)
    assert near(exact, -worst.fun, 1e-6)
    assert value(DeltaFL(alpha=alpha), f, p) <= exact + 1e-9


def test_t4_limits_and_the_cost_of_the_whole_boundary_client():
    f, p = np.array([2.0, 1.0, 0.5]), np.array([0.1, 0.3, 0.6])
    assert near(value(DeltaFL(alpha=1, exact=True), f, p), value(FedAvg(), f, p))
    assert near(value(DeltaFL(alpha=0.1, exact=True), f, p), f.max())
    assert near(value(DeltaFL(alpha=0.2), f, p), 1.25) and near(value(DeltaFL(alpha=0.2, exact=True), f, p), 1.5)


MEANS = [  # algorithm, phi and its inverse
    (FedAvg(), lambda x: x, lambda y: y),
    (QFFL(q=2, share_weighted=True), lambda x: x**3, lambda y: y ** (1 / 3)),
    (TERM(alpha=0.7), lambda x: np.exp(0.7 * x), lambda y: np.log(y) / 0.7),
    (PropFair(baseline=9), lambda x: -np.log(9 - x), lambda y: 9 - np.exp(-y)),
]


@pytest.mark.parametrize(("algorithm", "phi", "inverse"), MEANS, ids=lambda x: getattr(x, "name", "·"))
@given(first=several, second=several)
@quick
def test_t5_four_algorithms_order_models_as_a_generalised_mean_does(algorithm, phi, inverse, first, second):
    n = min(len(first), len(second))
    (f, p), (g, _) = parts(first[:n], distinct=True), parts(second[:n], distinct=True)
    gap = inverse(p @ phi(f)) - inverse(p @ phi(g))
    if abs(gap) > 1e-4:
        assert np.sign(value(algorithm, f, p) - value(algorithm, g, p)) == np.sign(gap)


@given(clients=several, tilt=st.floats(1, 200), q=st.floats(0, 50))
@quick
def test_t5_afl_is_their_limit_and_how_fast(clients, tilt, q):
    f, p = parts(clients, distinct=True)
    k = f.argmax()
    assert f[k] - np.log(1 / p[k]) / tilt - 1e-9 <= value(TERM(alpha=tilt), f, p) <= f[k] + 1e-9
    power = (p @ f ** (q + 1)) ** (1 / (q + 1))
    assert p[k] ** (1 / (q + 1)) * f[k] - 1e-9 <= power <= f[k] + 1e-9


def test_t5_afl_and_vred_are_no_members():
    assert value(AFL(), [1.0, 2.0]) == value(AFL(), [1.5, 2.0])  # a generalised mean would rise
    pooled = np.array([0.5, 0.5, 2.0])  # the first two replaced by their own mean: a generalised mean would stay
    assert near(value(FedAvg(), [0.0, 1.0, 2.0]), value(FedAvg(), pooled))
    for algorithm in (VRed(), SemiVRed(), GiFair(strength=0.5)):
        inner = value(algorithm, [0.0, 1.0])
        assert not near(value(algorithm, [0.0, 1.0, 2.0]), value(algorithm, [inner, inner, 2.0]), 1e-3)


@given(clients=several, seed=seeds)
@quick
def test_t6_climb_weighs_by_the_gradient_of_its_lagrangian(clients, seed):
    f, _ = parts(clients)
    n = len(f)
    dual, losses = tensor(np.random.default_rng(seed).uniform(0, 2, n)), tensor(f).requires_grad_()
    lagrangian = losses.mean() + (dual * (losses - losses.mean() - 0.1)).sum() / n
    slope = torch.autograd.grad(lagrangian, losses)[0]
    assert near(slope, (1 + dual - dual.mean()) / n)
    server = evenfed.Server.start(CLIMB(), torch.zeros(1).double(), [1] * n, lr=0.1)
    turn = evenfed.open_round(evenfed.open_round(server, f).server, f)  # the second round: with multipliers
    learnt = np.clip((f - f.mean() - 0.1) / n, 0, 100)
    planned = np.zeros(n)
    planned[turn.plan.ids.numpy()] = turn.plan.weights.numpy()
    assert near(planned, (1 + learnt - learnt.mean()) / n)


def test_t6_fcfl_begins_as_an_unweighted_term_and_drfa_draws_its_mixture():
    f = [2.0, 1.0, 0.5]
    turn = evenfed.open_round(evenfed.Server.start(FCFL(temperature=0.5), torch.zeros(1), [1, 3, 6], lr=0.1), f)
    assert near(turn.plan.weights, weights(TERM(alpha=2), np.array(f)))
    total = np.zeros(3)
    for seed in range(3000):
        turn = evenfed.open_round(evenfed.Server.start(DRFA(), torch.zeros(1), [1, 3, 6], lr=0.1, seed=seed), f)
        total[turn.plan.ids.numpy()] += turn.plan.weights.numpy()
    assert np.abs(total / 3000 - [0.1, 0.3, 0.6]).max() < 0.02


def test_t6_afl_ends_on_the_worst_client_when_losses_stay():
    server = None
    for _ in range(12):
        server, record = example_round(AFL(lr_lambda=0.1), server=server)
    assert near(record.weights, [1, 0, 0])


def least_agreement(algorithm, seed):
    """The smallest inner product of the server step with a client's update."""
    draw = np.random.default_rng(seed)
    deltas = tensor(draw.normal(size=(3, 4)))
    server, _ = example_round(
        algorithm,
        draw.uniform(size=3).tolist(),
        [1, 2, 3],
        deltas,
        server=evenfed.Server.start(algorithm, torch.zeros(4).double(), [1, 2, 3], lr=0.1),
    )
    return float((deltas @ -server.params).min())


def test_t7_which_gradient_methods_never_oppose_a_client():
    for algorithm in (FedMGDA(epsilon=1.0), FCFL(minimax_rounds=0)):
        assert min(least_agreement(algorithm, seed) for seed in range(60)) > -1e-6
    for algorithm in (FedFV(), FedMGDA(epsilon=0.1), FedAvg()):
        assert min(least_agreement(algorithm, seed) for seed in range(300)) < -1e-3


def test_t7_ditto_ties_personal_models_and_leaves_the_global_one_to_fedavg():
    server = evenfed.Server.start(Ditto(lam=0.7), torch.zeros(1), [1, 3, 6], lr=0.1)
    plan = evenfed.open_round(server, [2.0, 1.0, 0.5]).plan
    assert near(plan.weights, [0.1, 0.3, 0.6]) and plan.personal == 0.7
    wanted = tensor([[5.0], [1.0]])
    clients = [evenfed.Client((torch.ones(k, 1).double(), y.expand(k))) for k, y in zip((1, 3), wanted, strict=True)]
    result = evenfed.train(
        torch.nn.Linear(1, 1, bias=False).double(),
        clients,
        Ditto(lam=0.7),
        loss=lambda out, y: (out[:, 0] - y) ** 2 / 2,
        rounds=80,
        lr=0.3,
        engine="reference",
        device="cpu",
    )
    assert near(result.model.weight.item(), 2, 1e-6)  # the mean
    for k, own in enumerate((5, 1)):
        assert near(result.client_model(k).weight.item(), (own + 0.7 * 2) / 1.7, 1e-6)


# 2. VRed and Semi-VRed


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


# 3. Label shift


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


# 4. GiFair


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


# 5. Robust optimisation


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


# 6. Who takes part


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
    turn = evenfed.open_round(server, f)
    updates = [evenfed.Update(int(i), torch.ones(1).double()) for i in turn.plan.ids if int(i) not in lost]
    return evenfed.close_round(turn, updates)[1]


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
    assert np.abs(weights(SemiVRed(beta=0.2), f[1:]) - 1 / 3).max() > 0.01
    assert after_dropout(VRed(beta=1), np.array([10.0, 0, 0]), [1, 1, 1], lost={0}).skipped


# 7. Oscillation


def tug_of_war(algorithm, lr, rounds, smooth=None, start=0.1, server_lr=1.0):
    """Two equal clients with f = (theta - 1)^2 / 2 and (theta + 1)^2 / 2; theta and the losses, round by round."""
    server = evenfed.Server.start(algorithm, tensor([start]), [1, 1], lr=lr, smooth=smooth, server_lr=server_lr)
    path, losses = [start], []
    for _ in range(rounds):
        theta = float(server.params)
        losses.append([(theta - 1) ** 2 / 2, (theta + 1) ** 2 / 2])
        turn = evenfed.open_round(server, losses[-1])
        slopes = tensor([theta - 1, theta + 1])
        server, _ = evenfed.close_round(turn, [evenfed.Update(int(i), lr * slopes[i : i + 1]) for i in turn.plan.ids])
        path.append(float(server.params))
    return np.array(path), np.array(losses)


@given(lr=st.floats(0.05, 0.5), beta=st.floats(0, 6))
@quick
def test_t28_the_penalty_shortens_the_stable_step(lr, beta):
    path, _ = tug_of_war(VRed(beta=beta), lr, 4)
    assert near(path, 0.1 * (1 - lr * (1 + 2 * beta)) ** np.arange(5), 1e-7)
    assert near(tug_of_war(SemiVRed(beta=2 * beta), lr, 4)[0], path, 1e-7)
    halved, _ = tug_of_war(VRed(beta=beta), lr, 4, server_lr=0.5)
    assert near(halved, 0.1 * (1 - lr * (1 + 2 * beta) / 2) ** np.arange(5), 1e-7)


def test_t28_past_it_the_losses_swing_with_period_two_while_fedavg_settles():
    swinging, losses = tug_of_war(VRed(beta=4.5), 0.2, 40)  # lr (1 + 2 beta) = 2
    assert near(swinging[2:], swinging[:-2], 1e-7) and near(swinging[1:], -swinging[:-1], 1e-7)
    assert oscillation(losses, np.array([0.5, 0.5])) < -0.99
    assert abs(tug_of_war(VRed(beta=4.6), 0.2, 200)[0][-1]) > 1 > 1e-3 > abs(tug_of_war(FedAvg(), 0.2, 40)[0][-1])


@pytest.mark.parametrize("a", [0.1, 0.25, 0.5, 1.0])
def test_t29_smoothing_damps_the_alternating_part_alone(a):
    lasting, swing, beta = np.array([2.0, 1.0, 0.6]), np.array([0.3, -0.2, 0.1]), 0.2
    server = evenfed.Server.start(VRed(beta=beta), torch.zeros(1), [1, 1, 1], lr=0.1, smooth=a)
    planned = []
    for t in range(300):
        turn = evenfed.open_round(server, lasting + (-1) ** t * swing)
        server = turn.server
        planned.append(turn.plan.weights.numpy())
    up, down = planned[-2], planned[-1]  # rounds of + and of - swing
    assert near((up + down) / 2, weights(VRed(beta=beta), lasting))
    whole = weights(VRed(beta=beta), lasting + swing) - weights(VRed(beta=beta), lasting)
    assert near((up - down) / 2, a / (2 - a) * whole)


@pytest.mark.parametrize("a", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("lr", [0.05, 0.3, 1.5])
def test_t30_smoothing_allows_a_penalty_larger_by_the_same_factor(a, lr):
    limit = (2 - lr) * (2 - a) / a / (2 * lr)
    for part, stable in ((0.95, True), (1.05, False)):
        path, _ = tug_of_war(VRed(beta=part * limit), lr, 300, smooth=a, start=1e-3)
        assert (np.abs(path[-5:]).max() < 1e-3) == stable, (part, path[-3:])


# The page and this file


def test_every_statement_has_a_test_and_every_test_a_statement():
    stated = [int(k) for k in re.findall(r"\*\*T(\d+)\b", PAGE.read_text())]
    tested = {int(k) for k in re.findall(r"^def test_t(\d+)_", Path(__file__).read_text(), flags=re.MULTILINE)}
    assert stated == list(range(1, len(stated) + 1)) and set(stated) == tested


def test_statements_referred_to_exist():
    page = PAGE.read_text()
    stated = set(re.findall(r"\*\*T(\d+)\b", page))
    assert set(re.findall(r"\bT(\d+)\b", page)) <= stated
    assert max(map(len, page.splitlines())) <= 120
