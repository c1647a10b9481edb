"""BatchNorm by policy, and modules that the user put into evaluation mode."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.core import streams
from evenfed.core.streams import Batching
from worked_example import federation

OPTIONS = {"rounds": 2, "lr": 0.1, "batch_size": 4, "device": "cpu"}
SIZES = (10, 0, 6, 18, 6)  # no batch of one example


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()


def clients():
    return federation(sizes=SIZES, dtype=torch.float64)


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_a_module_in_evaluation_mode_stays_so(engine):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model = nn.Sequential(base.requires_grad_(False).eval(), nn.Linear(4, 3)).double()
    result = evenfed.train(model, clients(), engine=engine, **OPTIONS)
    assert torch.equal(result.server.buffers["0.1.running_mean"], torch.zeros(4).double())
    assert "stacked" in result.engine or engine == "reference"
    assert model.training and not base.training  # the user's own model is as it was
    moving = nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3)).double()
    whole = evenfed.train(moving.eval(), clients(), engine=engine, **OPTIONS)
    assert float(whole.server.buffers["0.1.running_mean"].abs().sum()) > 0  # handed over in evaluation mode as a whole


def test_frozen_statistics_are_stacked_and_equal_the_reference():
    model = normed()
    model[1].running_mean += 0.3
    results = {}
    for engine in ("parallel", "reference"):
        results[engine] = evenfed.train(model, clients(), engine=engine, batch_norm="frozen", **OPTIONS)
    parallel = results["parallel"]
    reference = results["reference"]
    assert "stacked" in parallel.engine
    assert torch.allclose(parallel.server.theta, reference.server.theta, rtol=1e-9, atol=1e-12)
    for name, buffer in model.named_buffers():
        assert torch.equal(reference.server.buffers[name], buffer), name
        assert torch.equal(parallel.server.buffers[name], buffer), name
    learned = dict(parallel.model.named_parameters())["1.weight"]
    assert not torch.equal(learned, model[1].weight)  # the affine parameters learn


def by_hand(client, theta, norms, rounds_done):
    """A round of one FedBN client in plain torch: its own BatchNorm, everything else from the server."""
    model = normed()
    shared = {name: value for name, value in theta.items() if not name.startswith("1.")}
    model.load_state_dict({**model.state_dict(), **shared, **norms})
    inputs, targets = client.train
    table = streams.batches(0, rounds_done, np.array([client.place]), np.array([len(targets)]), Batching(4))
    model.train()
    for rows in table[0]:
        real = torch.from_numpy(rows[rows >= 0])
        loss = nn.functional.cross_entropy(model(inputs[real]), targets[real])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return model.state_dict()


@dataclass(frozen=True)
class Site:
    train: tuple
    place: int


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_local_norms_are_fedbn_as_written_in_plain_torch(engine):
    result = evenfed.train(normed(), clients(), "fedavg", engine=engine, batch_norm="local", **OPTIONS)
    everyone = clients()
    sizes = torch.tensor(SIZES).double()
    shares = sizes / sizes.sum()
    theta = normed().state_dict()
    own = {k: {} for k in range(len(SIZES))}
    for index in range(OPTIONS["rounds"]):
        trained = {}
        for k, size in enumerate(SIZES):
            if size:
                trained[k] = by_hand(Site(everyone[k].train, k), theta, own[k], index)
                own[k] = {name: value for name, value in trained[k].items() if name.startswith("1.")}
        for name in theta:
            if not name.startswith("1."):
                theta[name] = sum(shares[k] * after[name] for k, after in trained.items())
    for k in trained:
        served = result.client_model(k).state_dict()
        for name, value in {**theta, **own[k]}.items():
            assert torch.allclose(served[name], value, rtol=1e-9, atol=1e-12), (k, name)
        inputs, targets = everyone[k].test
        model = result.client_model(k)
        accuracy = (model(inputs).argmax(1) == targets).double().mean()
        assert result.accuracy[k] == pytest.approx(float(accuracy))  # each is judged on its own
    mean = sum(shares[k] * own[k]["1.running_mean"] for k in trained)
    assert torch.allclose(result.model[1].running_mean, mean)  # the global model has their average


def test_clients_never_drawn_are_served_by_the_average_of_those_drawn():
    options = {**OPTIONS, "rounds": 1, "participation": 2, "batch_norm": "local"}
    result = evenfed.train(normed(), clients(), "fedavg", **options)
    drawn = [k for k, loss in enumerate(result.records[0].losses) if loss == loss]
    others = [k for k in range(len(SIZES)) if k not in drawn]
    assert len(drawn) == 2
    for k in others:
        assert torch.equal(result.client_model(k)[1].running_var, result.model[1].running_var)
    for k in drawn:
        assert not torch.equal(result.client_model(k)[1].running_var, result.model[1].running_var)


def test_local_norms_resume_to_the_bit_and_go_with_snapshots_and_norms(tmp_path):
    for name in ("drfa", "qffl"):  # snapshots, and weights from the updates' lengths
        options = {**OPTIONS, "participation": 3, "batch_norm": "local"}
        straight = evenfed.train(normed(), clients(), name, **{**options, "rounds": 3})
        evenfed.train(normed(), clients(), name, out=tmp_path / name, **{**options, "rounds": 1})
        resumed = evenfed.train(normed(), clients(), name, out=tmp_path / name, **{**options, "rounds": 3})
        assert torch.equal(resumed.server.theta, straight.server.theta)
        assert torch.equal(resumed.state.norms.parameters, straight.state.norms.parameters)
        for buffer, rows in straight.state.norms.buffers.items():
            assert torch.equal(resumed.state.norms.buffers[buffer], rows)


def test_a_policy_without_effect_or_against_the_algorithm_is_said():
    plain = nn.Linear(6, 3).double()
    for policy in ("local", "frozen"):
        with pytest.warns(UserWarning, match=f"batch_norm='{policy}' has no effect"):
            evenfed.train(plain, clients(), batch_norm=policy, **{**OPTIONS, "rounds": 1})
    with pytest.raises(evenfed.InputError, match="trains a whole model for each client"):
        evenfed.train(normed(), clients(), "ditto", batch_norm="local", **OPTIONS)
    with pytest.raises(evenfed.InputError, match="batch_norm='local' needs the simulator"):
        evenfed.Settings(batch_norm="local", engine="flower")
    with pytest.raises(evenfed.InputError, match="batch_norm"):
        evenfed.Settings(batch_norm="mine")


def test_entries_of_a_comparison_may_treat_batch_norm_differently():
    entries = {"fedavg": "fedavg", "fedbn": {"algorithm": "fedavg", "batch_norm": "local"}}
    found = evenfed.compare(normed(), clients(), entries, seeds=1, noise_floor=False, **OPTIONS)
    alone = evenfed.train(normed(), clients(), "fedavg", batch_norm="local", **OPTIONS)
    (fedbn,) = found.results["fedbn"]
    assert torch.equal(fedbn.server.theta, alone.server.theta)
    assert not torch.equal(fedbn.server.theta, found.results["fedavg"][0].server.theta)
