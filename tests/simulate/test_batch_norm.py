"""BatchNorm by policy, and modules that the user put into evaluation mode."""

import pytest
import torch
from torch import nn

import evenfed
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
