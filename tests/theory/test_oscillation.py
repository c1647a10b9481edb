"""docs/theory.md, 7: oscillation and smoothing (T28 to T30); averaging (T31 to T34) is in test_averaging.py."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evenfed
from evenfed.algorithms import FedAvg, SemiVRed, VRed
from evenfed.fairness import oscillation
from statements import near, quick, tensor, weights


def tug_of_war(algorithm, lr, rounds, smooth=None, start=0.1, server_lr=1.0):
    """Two equal clients with f = (theta - 1)^2 / 2 and (theta + 1)^2 / 2; theta and the losses, round by round."""
    server = evenfed.Server.start(algorithm, tensor([start]), [1, 1], lr=lr, smooth=smooth, server_lr=server_lr)
    path, losses = [start], []
    for _ in range(rounds):
        theta = float(server.params)
        losses.append([(theta - 1) ** 2 / 2, (theta + 1) ** 2 / 2])
        opened = evenfed.open_round(server, losses[-1])
        slopes = tensor([theta - 1, theta + 1])
        server, _ = evenfed.close_round(
            opened, [evenfed.Update(int(i), lr * slopes[i : i + 1]) for i in opened.plan.ids]
        )
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
        opened = evenfed.open_round(server, lasting + (-1) ** t * swing)
        server = opened.server
        planned.append(opened.plan.weights.numpy())
    up, down = planned[-2], planned[-1]  # rounds of + and of - swing
    assert near((up + down) / 2, weights(VRed(beta=beta), lasting))
    whole = weights(VRed(beta=beta), lasting + swing) - weights(VRed(beta=beta), lasting)
    assert near((up - down) / 2, a / (2 - a) * whole)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "lr"), [(0.1, 0.05), (0.1, 1.5), (0.25, 0.3), (0.5, 1.5), (1.0, 0.05), (1.0, 0.3)])
def test_t30_smoothing_allows_a_penalty_larger_by_the_same_factor(a, lr):
    limit = (2 - lr) * (2 - a) / a / (2 * lr)
    for part, stable in ((0.95, True), (1.05, False)):
        path, _ = tug_of_war(VRed(beta=part * limit), lr, 300, smooth=a, start=1e-3)
        assert (np.abs(path[-5:]).max() < 1e-3) == stable, (part, path[-3:])
