"""Where each algorithm is FedAvg, and what does not change its weights."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenfed.algorithms import AFL, CLIMB, QFFL, TERM, DeltaFL, Ditto, FedAvg, GiFair, PropFair, SemiVRed, VRed
from evenfed.testing import check_algorithm
from worked_example import DELTAS, LOSSES, SIZES, close, example_round

P = np.array([0.1, 0.3, 0.6])
UNIFORM = np.full(3, 1 / 3)


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        (VRed(beta=0), P),
        (SemiVRed(beta=0), P),
        (QFFL(q=0, share_weighted=True), P),
        (QFFL(q=0), UNIFORM),
        (TERM(alpha=0), P),
        (DeltaFL(alpha=1), P),
        (DeltaFL(alpha=1, exact=True), P),
        (GiFair(strength=0), P),
        (AFL(lr_lambda=0), P),
        (Ditto(lam=0), P),
        (PropFair(), P),
        (CLIMB(epsilon=1e6), UNIFORM),
        (CLIMB(lr_dual=0), UNIFORM),
    ],
    ids=str,
)
def test_fedavg_limit_over_several_rounds(algorithm, weights):
    server = None
    for _ in range(3):
        server, record = example_round(algorithm, server=server)
        assert close(record.weights, weights, 1e-12)


@pytest.mark.parametrize("algorithm", [AFL(), TERM(), VRed(), SemiVRed(), GiFair(), DeltaFL(alpha=0.3)], ids=str)
def test_equal_losses_give_fedavg(algorithm):
    assert close(example_round(algorithm, [1.3, 1.3, 1.3])[1].weights, P, 1e-9)


many_losses = st.lists(st.floats(0.01, 20), min_size=2, max_size=8)
SHIFT_INVARIANT = [VRed(), SemiVRed(), TERM(), GiFair(), DeltaFL(alpha=0.4), AFL()]


@pytest.mark.parametrize("algorithm", SHIFT_INVARIANT, ids=str)
@given(losses=many_losses, shift=st.floats(0.0, 5.0))
@settings(max_examples=25, deadline=None)
def test_adding_a_constant_to_all_losses_changes_nothing(algorithm, losses, shift):
    losses = [round(x, 6) + k * 1e-3 for k, x in enumerate(losses)]  # no ties made or broken by rounding
    sizes, deltas = [10 + 7 * k for k in range(len(losses))], torch.ones(len(losses), 2).double()
    here = example_round(algorithm, losses, sizes, deltas)[1].weights
    there = example_round(algorithm, [x + shift for x in losses], sizes, deltas)[1].weights
    assert close(here, there, 1e-6)


@given(losses=many_losses, scale=st.floats(0.1, 5))
@settings(max_examples=25, deadline=None)
def test_scaling_the_losses_is_scaling_beta(losses, scale):
    sizes, deltas = [10 + 7 * k for k in range(len(losses))], torch.ones(len(losses), 2).double()
    for make in (VRed, SemiVRed):
        scaled = example_round(make(beta=0.3), [scale * x for x in losses], sizes, deltas)[1].weights
        assert close(scaled, example_round(make(beta=0.3 * scale), losses, sizes, deltas)[1].weights, 1e-8)


@pytest.mark.parametrize("algorithm", [FedAvg(), VRed(), SemiVRed(), TERM(), DeltaFL(alpha=0.45, exact=True)], ids=str)
def test_splitting_a_client_in_two_halves_changes_nothing(algorithm):
    whole = example_round(algorithm)[1].weights
    halves = torch.cat([DELTAS, DELTAS[1:2]])
    split = example_round(algorithm, [*LOSSES, LOSSES[1]], [100, 150, 600, 150], halves)[1].weights
    assert close([split[0], split[1] + split[3], split[2]], whole, 1e-9)


@given(losses=many_losses)
@settings(max_examples=50, deadline=None)
def test_semi_vred_tolerates_a_larger_beta_than_vred(losses):
    f = np.array(losses)
    mean = f.mean()
    vred_spread, semi_spread = mean - f.min(), np.maximum(f - mean, 0).mean()
    assert semi_spread <= vred_spread + 1e-12


def test_contract(algorithm):
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    "algorithm",
    [
        VRed(beta=5),
        SemiVRed(beta=5, safe=0.5),
        QFFL(q=2, share_weighted=True),
        DeltaFL(alpha=0.2, exact=True),
        PropFair(tail="linear"),
    ],
    ids=str,
)
def test_contract_away_from_the_defaults(algorithm):
    check_algorithm(algorithm)


def test_extreme_losses_stay_finite():
    assert close(example_round(TERM(alpha=500), [2.0, 1.0, 0.5])[1].weights, (1, 0, 0))
    record = example_round(QFFL(q=0.1), [0.0, 1.0, 0.5])[1]
    assert np.isfinite(record.weights).all()
    assert example_round(QFFL(q=3), [0.0, 0.0, 0.0])[1].weights.sum() <= 1


def test_weights_sum_to_at_most_one_for_q_fedavg():
    for q in (0, 0.01, 0.1, 1, 5):
        assert example_round(QFFL(q=q))[1].weights.sum() <= 1 + 1e-12


def test_a_single_client_gets_its_own_update(algorithm):
    delta = torch.tensor([[0.3, -0.4]]).double()
    server, _ = example_round(algorithm, [1.2], [7], delta)
    step = 1 - server.params
    assert close(step / step.norm(), delta[0] / delta.norm(), 1e-9)
    if algorithm.name not in ("qffl", "fedmgda"):  # whose step has another length by definition
        assert close(step, delta[0], 1e-9)


def test_sizes_used_here_are_the_worked_example():
    assert close(np.array(SIZES) / sum(SIZES), P)
