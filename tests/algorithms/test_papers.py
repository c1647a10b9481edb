"""Every worked number of the algorithms' definitions: p = (0.1, 0.3, 0.6), f = (2, 1, 0.5), theta = (1, 1)."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import evenfed
from evenfed.algorithms import (
    AFL,
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
from evenfed.core.algorithm import Round
from evenfed.core.maths import project_simplex
from worked_example import DELTAS, LOSSES, close, example_round

EQUAL = [200, 200, 200]
THIRD = [1 / 3] * 3

# algorithm, sizes, weights, Delta (None: not stated)
ONE_ROUND = [
    (FedAvg(), None, (0.1, 0.3, 0.6), (0.4, 0.0)),
    (FedAvg(), EQUAL, THIRD, (0.5, 1 / 6)),
    (AFL(lr_lambda=0.1), None, (0.18333333, 0.28333333, 0.53333333), (0.45, 0.01666667)),
    (QFFL(q=0), None, THIRD, (0.5, 0.16666667)),
    (QFFL(q=0.1), None, (0.19580327, 0.18269091, 0.17045664), (0.28103159, 0.09746259)),
    (QFFL(q=1), None, (0.07017544, 0.03508772, 0.01754386), (0.07894737, 0.02631579)),
    (QFFL(q=0, share_weighted=True), None, (0.1, 0.3, 0.6), (0.4, 0.0)),
    (QFFL(q=0.1, share_weighted=True), None, (0.05699693, 0.15954005, 0.29771226), (0.20585306, 0.01068392)),
    (QFFL(q=1, share_weighted=True), None, (0.02564103, 0.03846154, 0.03846154), (0.04487179, 0.01923077)),
    (TERM(alpha=0.01), None, (0.10120616, 0.30059744, 0.59819640), None),
    (TERM(alpha=0.5), None, (0.17687246, 0.32183572, 0.50129182), (0.42751837, 0.07118981)),
    (TERM(alpha=1), None, (0.29049338, 0.32059962, 0.38890700), None),
    (TERM(alpha=0.5), EQUAL, (0.48102426, 0.29175596, 0.22721977), None),
    (PropFair(), None, (0.1, 0.3, 0.6), (0.4, 0.0)),
    (DeltaFL(alpha=0.2), None, (0.25, 0.75, 0.0), None),
    (DeltaFL(alpha=0.2, exact=True), None, (0.5, 0.5, 0.0), None),
    (DeltaFL(alpha=0.5), None, (0.1, 0.3, 0.6), None),
    (DeltaFL(alpha=0.5, exact=True), None, (0.2, 0.6, 0.2), None),
    (DeltaFL(alpha=0.1), None, (0.25, 0.75, 0.0), None),
    (DeltaFL(alpha=0.1, exact=True), None, (1.0, 0.0, 0.0), None),
    (DeltaFL(alpha=1), None, (0.1, 0.3, 0.6), None),
    (GiFair(strength=1), None, (0.2, 0.3, 0.5), (0.45, 0.05)),
    (GiFair(strength=0.1), None, (0.11, 0.3, 0.59), None),
    (VRed(beta=0.2), None, (0.148, 0.324, 0.528), (0.412, 0.060)),
    (VRed(beta=1), None, (0.34, 0.42, 0.24), (0.46, 0.30)),
    (VRed(beta=2), None, (0.58, 0.54, -0.12), None),
    (VRed(beta=0.2), EQUAL, (0.44444444, 0.31111111, 0.24444444), None),
    (SemiVRed(beta=0.2), None, (0.1408, 0.3024, 0.5568), (0.4192, 0.0240)),
    (SemiVRed(beta=1), None, (0.304, 0.312, 0.384), (0.496, 0.120)),
    (SemiVRed(beta=3), None, (0.712, 0.336, -0.048), None),
    (SemiVRed(beta=0.2), EQUAL, (0.40740741, 0.29629630, 0.29629630), None),
    (Ditto(), None, (0.1, 0.3, 0.6), (0.4, 0.0)),
    (CLIMB(epsilon=0.1, lr_dual=1), None, THIRD, (0.5, 1 / 6)),
    (FCFL(temperature=0.5), None, (0.84379473, 0.11419520, 0.04201007), None),
    (FedMGDA(epsilon=1), None, (0.0, 0.5, 0.5 / math.sqrt(0.5)), (0.35355339, 0.14644661)),
    (FedMGDA(epsilon=0.1), None, (0.23333333, 0.43165825, 0.33500842 / math.sqrt(0.5)), (0.47022006, 0.19477153)),
    (FedFV(alpha=0.1), None, None, (0.51130999, 0.12782750)),
]


@pytest.mark.parametrize(("algorithm", "sizes", "weights", "step"), ONE_ROUND, ids=lambda v: str(v)[:40])
def test_weights_and_step_of_the_worked_example(algorithm, sizes, weights, step):
    server, record = example_round(algorithm, sizes=sizes or [100, 300, 600])
    if weights is not None:
        assert close(record.weights, weights)
        assert close(server.params, 1 - torch.tensor(weights).double() @ DELTAS)
    if step is not None:
        assert close(1 - server.params, step)


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        (FedAvg(), 0.8),
        (VRed(beta=1), 0.8 + 0.21),
        (SemiVRed(beta=1), 0.8 + 0.156),
        (AFL(), 2.0),
        (DeltaFL(alpha=0.2, exact=True), 1.5),
        (DeltaFL(alpha=0.5, exact=True), 1.1),
        (GiFair(strength=1), 0.8 + 0.05 * (1 + 1.5 + 0.5)),
        (CLIMB(), 3.5 / 3),
    ],
    ids=str,
)
def test_objective_of_the_worked_example(algorithm, value):
    _, record = example_round(algorithm)
    assert record.objective == pytest.approx(value, abs=1e-9)


def test_afl_goes_on_with_its_mixture():
    server, wanted = (
        None,
        [(0.18333333, 0.28333333, 0.53333333), (0.26666667, 0.26666667, 0.46666667), (0.35, 0.25, 0.40)],
    )
    for weights in wanted:
        server, record = example_round(AFL(), server=server)
        assert close(record.weights, weights)


def test_afl_collapses_onto_one_client_within_twelve_rounds():
    server = None
    for _ in range(12):
        server, record = example_round(AFL(), server=server)
    assert close(record.weights, (1, 0, 0))


def test_the_projection_does_not_have_the_published_bug():
    found = project_simplex(torch.tensor([1.339, 1.180, 0.753, 0.447]).double())
    assert close(found, (0.5795, 0.4205, 0, 0), 1e-6)
    assert float(found.sum()) == pytest.approx(1)


def test_vred_and_semi_vred_renormalise_shares_over_the_participants():
    _, vred = example_round(VRed(beta=0.2), ids=[0, 2])
    assert close(vred.weights, (0.21632653, 0, 0.78367347))
    _, semi = example_round(SemiVRed(beta=0.2), ids=[0, 2])
    assert close(semi.weights, (0.20583090, 0, 0.79416910))
    server, _ = example_round(VRed(beta=0.2), ids=[0, 2])
    assert close(1 - server.params, (0.60816327, -0.39183673))


@pytest.mark.parametrize(("make", "limit"), [(VRed, 1.66666667), (SemiVRed, 2.77777778)])
def test_weights_turn_negative_just_past_beta_max_and_safe_prevents_it(make, limit):
    _, below = example_round(make(beta=limit * 0.999))
    _, above = example_round(make(beta=limit * 1.001))
    assert below.weights.min() > 0 > above.weights.min()
    assert (below.negative_weights, above.negative_weights) == (0, 1)
    for safe in (0.5, 1.0):
        _, capped = example_round(make(beta=100, safe=safe))
        assert capped.weights.min() >= 0
        _, at_limit = example_round(make(beta=safe * limit))
        assert close(capped.weights, at_limit.weights, 1e-6)
    _, untouched = example_round(make(beta=0.2, safe=1.0))
    assert close(untouched.weights, example_round(make(beta=0.2))[1].weights)


def test_semi_vred_with_two_equal_clients_is_vred_with_half_the_beta():
    losses, deltas = [1.7, 0.4], DELTAS[:2]
    semi = example_round(SemiVRed(beta=0.6), losses, [50, 50], deltas)[1]
    vred = example_round(VRed(beta=0.3), losses, [50, 50], deltas)[1]
    assert close(semi.weights, vred.weights, 1e-12)


def test_remark_one_counter_example():
    losses, deltas = [0.2, 0.9, 1.0, 3.0, 1.4], torch.eye(5)[:, :2].double()
    vred = example_round(VRed(beta=0.2), losses, [1] * 5, deltas)[1]
    semi = example_round(SemiVRed(beta=0.2), losses, [1] * 5, deltas)[1]
    assert close(vred.weights, (0.112, 0.168, 0.176, 0.336, 0.208))
    assert close(semi.weights, (0.1712, 0.1712, 0.1712, 0.3072, 0.1792))


def test_streaming_sums_give_vred_and_semi_vred():
    n, f, beta = np.array([100.0, 300, 600]), np.array(LOSSES), 0.2
    d = DELTAS.numpy()
    s0, s1, d0, d1 = n.sum(), n @ f, n @ d, (n * f) @ d
    assert (s0, s1) == (1000, 800) and close(d0, (400, 0)) and close(d1, (350, 150))
    streamed = d0 / s0 + 2 * beta * (d1 / s0 - (s1 / s0) * (d0 / s0))
    assert close(1 - example_round(VRed(beta=beta))[0].params, streamed, 1e-12)
    excess = np.maximum(f - s1 / s0, 0)
    t0, t1 = n @ excess, (n * excess) @ d
    assert close(t0, 180) and close(t1, (120, 60))
    streamed = d0 / s0 + 2 * beta * (t1 / s0 - (t0 / s0) * (d0 / s0))
    assert close(1 - example_round(SemiVRed(beta=beta))[0].params, streamed, 1e-12)


def test_gifair_reversed_losses_ties_and_strength_above_one():
    assert close(example_round(GiFair(strength=1), [0.5, 1.0, 2.0])[1].weights, (0, 0.3, 0.7))
    past = example_round(GiFair(strength=2), [0.5, 1.0, 2.0])[1]
    assert close(past.weights, (-0.1, 0.3, 0.8)) and past.negative_weights == 1
    assert example_round(GiFair(strength=1), [0.5, 1.0, 2.0])[1].negative_weights == 0
    tied = example_round(GiFair(strength=1), [1.0, 1.0, 0.5])[1]
    assert close(tied.weights, np.array([0.1, 0.3, 0.6]) + 0.05 * np.array([1, 1, -2]))


def test_propfair_transform_and_its_tails():
    losses = torch.tensor([0.5, 1.0, 2.0, 2.81], dtype=torch.float64, requires_grad=True)

    def values_and_slopes(algorithm):
        value = algorithm.local_loss(losses)
        return value.detach(), torch.autograd.grad(value.sum(), losses)[0]

    value, slope = values_and_slopes(PropFair(baseline=3, tail="linear"))
    assert close(value, (0.182322, 0.405465, 1.098612, 0.936667), 1e-6)
    assert close(slope, (0.4, 0.5, 1.0, 0.333333), 1e-6)
    value, slope = values_and_slopes(PropFair(baseline=3, tail="huber"))
    assert close(slope, (0.4, 0.5, 1.0, 5.0), 1e-6)
    assert float(value[3]) == pytest.approx(14.05 - 2.8 / 0.2 - math.log(0.2 / 3), abs=1e-9)  # 14.05, made continuous
    _, slope = values_and_slopes(PropFair(baseline=5))
    assert close(slope[:3], (0.222222, 0.25, 0.333333), 1e-6)


def test_propfair_huber_is_continuous_at_its_end_and_linear_is_not():
    around = torch.tensor([2.8 - 1e-9, 2.8 + 1e-9], dtype=torch.float64)
    huber, linear = (PropFair(tail=t).local_loss(around) for t in ("huber", "linear"))
    assert float((huber[1] - huber[0]).abs()) < 1e-6 < 1 < float((linear[1] - linear[0]).abs())


def test_delta_fl_keeps_all_clients_tied_at_the_threshold():
    record = example_round(DeltaFL(alpha=0.1), [1.0, 1.0, 0.5])[1]
    assert close(record.weights, (0.25, 0.75, 0))
    exactly = example_round(DeltaFL(alpha=0.7), [0.5, 1.0, 2.0], [300, 400, 300])[1]  # 1 - 0.7 is not 0.3 in binary
    assert close(exactly.weights, (300 / 1000, 400 / 1000, 300 / 1000))


@pytest.mark.parametrize(
    ("sizes", "losses", "alpha", "weights"),
    [
        ([10, 10, 10, 10], [1, 1, 0, 0], 0.3, (0.5, 0.5, 0, 0)),
        ([10, 30, 20, 40], [1, 1, 1, 1], 0.2, (0.1, 0.3, 0.2, 0.4)),
        ([10, 30, 20, 40], [1, 2, 1, 0], 0.45, (0.05 / 0.45, 0.3 / 0.45, 0.1 / 0.45, 0)),
    ],
)
def test_exact_delta_fl_divides_what_is_left_among_tied_clients_by_size(sizes, losses, alpha, weights):
    algorithm = DeltaFL(alpha=alpha, exact=True)
    for order in (list(range(4)), [3, 1, 0, 2]):
        server = evenfed.Server.start(algorithm, torch.zeros(1), [sizes[i] for i in order], lr=0.1)
        plan = evenfed.open_round(server, [float(losses[i]) for i in order]).plan
        planned = dict(zip(plan.ids.tolist(), plan.weights.tolist(), strict=True))
        assert [planned.get(place, 0) for place in range(4)] == pytest.approx([weights[i] for i in order])


def test_climb_takes_a_step_whose_weights_sum_to_less_than_nothing():
    server, _ = example_round(CLIMB())
    server = dataclasses.replace(server, memory={"dual": torch.tensor([0.0, 0.0, 9.0]).double()})
    opened = evenfed.open_round(server, LOSSES[:2], torch.tensor([0, 1]))
    assert close(opened.plan.weights, (-1, -1))
    after, record = evenfed.close_round(opened, [evenfed.Update(i, torch.ones(2).double()) for i in (0, 1)])
    assert not record.skipped and close(after.params, (server.params + 2).tolist())
    _, record = evenfed.close_round(opened, [evenfed.Update(0, torch.ones(2).double())])
    assert record.skipped  # the planned total cannot be restored


def test_climb_second_round():
    server, _ = example_round(CLIMB(epsilon=0.1, lr_dual=1))
    assert close(server.memory["dual"], (0.24444444, 0, 0))
    before = server.params
    server, record = example_round(CLIMB(epsilon=0.1, lr_dual=1), server=server)
    assert close(record.weights, (0.38765432, 0.30617284, 0.30617284))
    assert close(before - server.params, (0.54074074, 0.15308642))


def round_for(ids, losses, local_steps=5) -> Round:
    shares = torch.tensor([0.1, 0.3, 0.6]).double()
    return Round(
        index=0,
        ids=torch.tensor(ids),
        losses=torch.tensor(losses).double(),
        shares=shares[ids] / shares[ids].sum(),
        population=shares,
        local_steps=torch.full((3,), local_steps),
        lr=0.1,
        rng=np.random.default_rng(0),
    )


@pytest.mark.parametrize(
    ("probe", "mixture"), [([0, 1, 2], (0.14166667, 0.29166667, 0.56666667)), ([0, 2], (0.1875, 0.2375, 0.575))]
)
def test_drfa_learns_from_the_snapshot(probe, mixture):
    drfa = DRFA(lr_lambda=0.01)
    round = round_for(probe, [LOSSES[i] for i in probe])
    plan, memory = drfa.plan(round, drfa.init(round.population))
    after = drfa.learn(round, plan, round.losses, memory)
    assert close(after["lambda"], mixture)


def test_drfa_draws_by_its_mixture_with_replacement():
    drfa, counts = DRFA(), torch.zeros(3).double()
    for seed in range(2000):
        round = round_for([0, 1, 2], LOSSES)
        round = Round(**{**round.__dict__, "rng": np.random.default_rng(seed)})
        plan, _ = drfa.plan(round, {"lambda": round.population})
        assert float(plan.weights.sum()) == pytest.approx(1)
        assert bool(((plan.weights * 3).round() == plan.weights * 3).all())  # multiplicity / m
        assert bool(((plan.snapshot_steps >= 1) & (plan.snapshot_steps <= 5)).all())
        counts[plan.ids] += plan.weights
    assert close(counts / 2000, (0.1, 0.3, 0.6), 0.03)


def test_ditto_personal_step():
    """v = (2, 0), w = (1, 1), gradient (0.3, -0.2), lr 0.1, lambda 1 -> (1.87, 0.12), through a real engine."""
    from evenfed.simulate.engines.reference import Reference
    from evenfed.simulate.problem import Problem, Task

    client = evenfed.Client((torch.tensor([[0.3, -0.2]]), torch.tensor([0.0])))
    linear = torch.nn.Linear(2, 1, bias=False)
    settings = evenfed.Settings(lr=0.1, device="cpu")
    problem = Problem.of(linear, [client], settings, loss=lambda outputs, targets: outputs[:, 0])  # gradient = input
    orders = Task(
        index=0,
        seed=0,
        theta=torch.tensor([1.0, 1.0]),
        ids=torch.tensor([0]),
        local=dataclasses.replace(settings.local(0), prox=1.0),
        starts=torch.tensor([[2.0, 0.0]]),
    )
    ((_, update),) = Reference(problem).train([orders])
    assert close(orders.theta - update.delta[0], (1.87, 0.12), 1e-6)


def test_fedmgda_around_the_shares():
    from evenfed.core.maths import least_norm_mixture

    unit = DELTAS / DELTAS.norm(dim=1, keepdim=True)
    p = torch.tensor([0.1, 0.3, 0.6]).double()
    found = least_norm_mixture(unit @ unit.T, (p - 0.1).clamp(min=0), (p + 0.1).clamp(max=1))
    assert close(found, (0, 0.4, 0.6))


def test_fedfv_projections():
    from evenfed.core.maths import project_off_conflicts

    gram, rows = DELTAS @ DELTAS.T, torch.eye(3).double()
    off_third = project_off_conflicts(rows[1:2], rows[2], gram, torch.tensor([True]))
    assert close(off_third @ DELTAS, [[0.5, 0.5]])
    off_second = project_off_conflicts(rows[2:3], rows[1], gram, torch.tensor([True]))
    assert close(off_second @ DELTAS, [[0.5, 0.0]])


def test_fcfl_cools_down_and_then_raises_the_mean_without_opposing_anyone():
    algorithm = FCFL(temperature=0.5, minimax_rounds=1)
    server, _ = example_round(algorithm, lr=100.0)  # long path: small gradients, so the soft maximum is flat
    assert close(server.memory["temperature"], [0.005], 1e-12)
    _, record = example_round(algorithm, server=server)
    step = torch.from_numpy(record.weights) @ DELTAS
    assert bool((DELTAS @ step >= -1e-9).all())
    assert float(step @ DELTAS.mean(0)) > 0
    assert record.weights.sum() == pytest.approx(1)
