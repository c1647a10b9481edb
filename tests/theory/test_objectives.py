"""docs/theory.md, 1: what each algorithm minimises (T1 to T7)."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

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
from statements import Quadratics, excess, near, parts, quick, seeds, several, tensor, value, weights
from worked_example import example_round

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


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
    opened = evenfed.open_round(evenfed.open_round(server, f).server, f)  # the second round: with multipliers
    learnt = np.clip((f - f.mean() - 0.1) / n, 0, 100)
    planned = np.zeros(n)
    planned[opened.plan.ids.numpy()] = opened.plan.weights.numpy()
    assert near(planned, (1 + learnt - learnt.mean()) / n)


@pytest.mark.slow
def test_t6_fcfl_begins_as_an_unweighted_term_and_drfa_draws_its_mixture():
    f = [2.0, 1.0, 0.5]
    opened = evenfed.open_round(evenfed.Server.start(FCFL(temperature=0.5), torch.zeros(1), [1, 3, 6], lr=0.1), f)
    assert near(opened.plan.weights, weights(TERM(alpha=2), np.array(f)))
    total = np.zeros(3)
    for seed in range(3000):
        opened = evenfed.open_round(evenfed.Server.start(DRFA(), torch.zeros(1), [1, 3, 6], lr=0.1, seed=seed), f)
        total[opened.plan.ids.numpy()] += opened.plan.weights.numpy()
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


@pytest.mark.slow
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
