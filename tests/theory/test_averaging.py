"""docs/theory.md, 7: the average of a run's models (T31 to T34), on quadratic federations."""

import numpy as np
import pytest
import torch

import evenfed
from evenfed.algorithms import FedAvg, VRed
from evenfed.core.average import Average, ModelState
from statements import Quadratics, near, tensor

DECAYS = [0.5, 0.8, 0.9]
LR = 0.2


def tug_of_war(algorithm, rounds, lr=LR, start=1.0, **options):
    """Two equal clients with f = (theta - 1)^2 / 2 and (theta + 1)^2 / 2; the server after every round, and records."""
    server = evenfed.Server.start(algorithm, tensor([start]), [1, 1], lr=lr, **options)
    servers = []
    records = []
    for _ in range(rounds):
        weighed = float(server.weighed_params)
        opened = evenfed.open_round(server, [(weighed - 1) ** 2 / 2, (weighed + 1) ** 2 / 2])
        slopes = server.params + tensor([[-1], [1]])
        updates = [evenfed.Update(int(i), lr * slopes[i]) for i in opened.plan.ids]
        server, record = evenfed.close_round(opened, updates)
        servers.append(server)
        records.append(record)
    return servers, records


def swinging(rho, lr=LR):
    """VRed whose round is theta <- -rho theta (T28)."""
    return VRed(beta=((1 + rho) / lr - 1) / 2)


def paths(servers):
    """The current and the deployed theta after rounds 1, 2, ..."""
    current = np.array([float(server.params) for server in servers])
    deployed = np.array([float(server.deployed_params) for server in servers])
    return current, deployed


def averaged(models, d):
    """The library's average of these models [t, D], one after the other."""
    average = Average(d)
    for theta in models:
        average = average.including(ModelState(theta, {}))
    return average.model.theta.numpy()


def counts(d, t):
    """[t] how much each of t models counts in the average."""
    return averaged(torch.eye(t).double(), d)


def part_in_average(x, d, t):
    """T31: what the average holds of a part x^t."""
    if x == d:
        return t * d**t * (1 - d) / (1 - d**t)
    return x * (x**t - d**t) / (x - d) * (1 - d) / (1 - d**t)


@pytest.mark.parametrize("d", DECAYS)
@pytest.mark.parametrize("rho", [0.3, 0.9, 1.0])
def test_t31_what_the_deployed_model_keeps_of_a_swing(rho, d):
    servers, _ = tug_of_war(swinging(rho), 6, average=d)
    current, deployed = paths(servers)
    t = np.arange(1, 7)
    assert near(current, (-rho) ** t, 1e-7)
    assert near(deployed, part_in_average(-rho, d, t), 1e-7)


@pytest.mark.parametrize("d", DECAYS)
def test_t31_a_lasting_swing_and_independent_noise_shrink_by_the_same_factor(d):
    factor = (1 - d) / (1 + d)
    assert near(part_in_average(-1, d, np.array([200, 201])), [factor, -factor], 1e-7)
    for t in (1, 2, 7, 30):
        assert near((counts(d, t) ** 2).sum(), factor * (1 + d**t) / (1 - d**t))


def test_t31_the_excess_loss_shrinks_by_the_square():
    d = 0.5
    servers, _ = tug_of_war(swinging(1), 20, average=d)
    current, deployed = paths(servers)
    excess = deployed**2 / current**2  # the mean of both losses is (1 + theta^2) / 2
    assert near(excess[-1], ((1 - d) / (1 + d)) ** 2, 1e-4)


def test_t31_a_trained_model_is_averaged_so_and_its_training_is_the_same():
    """evenfed.train on linear least squares: f = (theta - y)^2 has twice the slope, so lr and beta are halved."""
    clients = [evenfed.Client(train=(torch.ones(1, 1), torch.full((1, 1), y))) for y in (1.0, -1.0)]
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    algorithm = VRed(beta=swinging(1).beta / 2)
    options = {"loss": "mse", "rounds": 12, "lr": LR / 2}
    plain = evenfed.train(model, clients, algorithm, **options)
    result = evenfed.train(model, clients, algorithm, average=0.8, **options)
    assert near(plain.model.weight.item(), 1, 1e-5)
    assert near(result.model.weight.item(), part_in_average(-1, 0.8, 12), 1e-5)
    for record, other in zip(plain.records, result.records, strict=True):
        assert np.array_equal(record.weights, other.weights)


@pytest.mark.parametrize("d", DECAYS)
def test_t32_the_average_is_late_by_at_most_half_the_rounds_so_far(d):
    for t in (1, 2, 5, 20, 200):
        ages = np.arange(t)[::-1]
        lag = counts(d, t) @ ages
        assert near(lag, d / (1 - d) - t * d**t / (1 - d**t), 1e-7)
        assert lag <= (t - 1) / 2 + 1e-9
    assert near(lag, d / (1 - d), 1e-6)


def test_t32_slow_progress_is_deployed_late_and_fast_progress_is_slowed_to_the_decay():
    d = 0.5
    t = np.arange(1, 16)
    for x in (0.9, 0.5, 0.3):  # FedAvg's round is theta <- (1 - lr) theta
        current, deployed = paths(tug_of_war(FedAvg(), 15, lr=1 - x, average=d)[0])
        assert near(deployed, part_in_average(x, d, t), 1e-7)
        assert (np.abs(deployed[1:]) > np.abs(current[1:])).all()
        if x > d:
            assert near(deployed[-1] / current[-1], x * (1 - d) / (x - d), 1e-2)
        if x < d:
            assert near(deployed[-1] / deployed[-2], d, 1e-3)


def test_t32_a_swing_that_dies_out_by_itself_ends_smaller_in_the_current_model():
    current, deployed = paths(tug_of_war(swinging(0.7), 25, average=0.9)[0])
    assert abs(deployed[2]) < 0.6 * abs(current[2])
    assert abs(deployed[-1]) > 10 * abs(current[-1])


@pytest.mark.parametrize(("d", "k"), [(0.5, 3), (0.8, 9), (0.9, 19)])
def test_t33_a_mean_of_the_last_models_with_the_same_lag_has_the_same_noise_and_swing(d, k):
    assert near(k, (1 + d) / (1 - d))
    t = 400
    average = counts(d, t)
    mean = np.zeros(t)
    mean[-k:] = 1 / k
    ages = np.arange(t)[::-1]
    swing = (-1.0) ** ages
    for figure in (lambda c: c @ ages, lambda c: c @ c, lambda c: c @ swing):
        assert near(figure(average), figure(mean), 1e-6)
    assert near(average[:-k].sum(), d**k)
    assert 0.12 < d**k < 0.14
    mean[-k] = 0  # k - 1 models: an even number
    assert near(mean @ swing, 0)


def test_t34_weighing_at_the_average_is_the_recursion_of_smoothing():
    """theta <- (1 - lr) theta - 2 lr beta s: s is theta averaged in one, half the smoothed losses' gap in the other."""
    d = 0.8
    beta = 20.0
    servers, _ = tug_of_war(VRed(beta=beta), 8, start=1e-3, average=d, weigh_at="average")
    current, deployed = paths(servers)
    assert near(current[1:], (1 - LR) * current[:-1] - 2 * LR * beta * deployed[:-1], 1e-7)
    servers, _ = tug_of_war(VRed(beta=beta), 8, start=1e-3, smooth=1 - d)
    current, _ = paths(servers)
    smoothed = np.array([float(server.smoothed @ tensor([-0.5, 0.5])) for server in servers])  # of rounds 0, 1, ...
    assert near(current[1:], (1 - LR) * current[:-1] - 2 * LR * beta * smoothed[1:], 1e-7)
    assert near(smoothed[1:], d * smoothed[:-1] + (1 - d) * current[:-1], 1e-7)


@pytest.mark.parametrize("d", DECAYS)
@pytest.mark.parametrize("lr", [0.05, 0.3, 1.5])
def test_t34_it_allows_the_penalty_that_smoothing_does(d, lr):
    limit = (2 - lr) * (1 + d) / (1 - d) / (2 * lr)
    for part, is_stable in ((0.999, True), (1.001, False)):
        current_row = np.array([1 - lr, -2 * lr * part * limit])  # of the pair (theta, average)
        average_row = (1 - d) * current_row + [0, d]
        radius = np.abs(np.linalg.eigvals([current_row, average_row])).max()
        assert (radius < 1) == is_stable


def test_t34_the_weights_stop_swinging_as_they_do_with_smoothing():
    d = 0.8
    swings = {}
    ways = {"current": {}, "smooth": {"smooth": 1 - d}, "average": {"average": d, "weigh_at": "average"}}
    for name, options in ways.items():
        _, records = tug_of_war(swinging(0.98), 25, **options)
        weights = np.array([record.weights[0] for record in records])
        swings[name] = weights[15:].std()
    assert swings["average"] < 0.05 * swings["current"]
    assert swings["smooth"] < 0.05 * swings["current"]


@pytest.mark.parametrize("seed", range(3))
def test_t34_smoothing_adds_a_clients_curvature_along_the_swing_to_its_loss(seed):
    clients = Quadratics(seed)
    d = 0.7
    thetas = tensor(np.random.default_rng(seed).normal(size=(9, 3)))
    c = tensor(counts(d, 9))
    average = tensor(averaged(thetas, d))
    mean_of_losses = sum(share * clients.losses(theta) for share, theta in zip(c, thetas, strict=True))
    gaps = thetas - average
    curvature = torch.einsum("t,ti,nij,tj->n", c, gaps, clients.curvature, gaps) / 2
    assert near(mean_of_losses - clients.losses(average), curvature)
    assert (curvature > 0).all()
    assert curvature.max() > 2 * curvature.min()
