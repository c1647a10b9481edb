"""Flower runs that deploy the running mean of their models."""

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy
from safetensors.torch import load_file
from torch import nn

from evenfed.comparison.storage.folder import RunFolder
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.server import initial_arrays, options
from local_grid import OPTIONS, LocalGrid, assert_same, on_flower, simulated, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow
DECAY = 0.8
AVERAGED = {"average": DECAY, "weigh_at": "average"}


def app_of(clients=None, model=small_model, **others):
    held = sites(clients or federation())
    return client_app(model, lambda context: held[context.node_config["partition-id"]], device="cpu", **others)


def mean_by_hand(thetas):
    """sum_k d^(t-k) theta_k / sum_k d^(t-k), in float64."""
    weights = [DECAY ** (len(thetas) - 1 - k) for k in range(len(thetas))]
    total = sum(weight * theta.double() for weight, theta in zip(weights, thetas, strict=True))
    return total / sum(weights)


def flat(arrays):
    """Parameters of a model without buffers."""
    return torch.cat([tensor.flatten() for tensor in arrays.to_torch_state_dict().values()])


def test_clients_train_the_current_model_and_are_judged_by_the_average():
    sent = {}

    def keep(messages):
        for message in messages:
            kind = message.metadata.message_type
            index = message.content.config_records["config"].get("evenfed.index")
            sent[kind, index] = {name: flat(record) for name, record in message.content.array_records.items()}

    class Watched(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            keep(messages)
            return super().push_messages(messages)

    thetas = []
    central = {}

    def keep_theta(progress):
        thetas.append(progress.server.theta)

    def evaluate_centrally(number, arrays):
        central[number] = flat(arrays)
        return MetricRecord({"seen": 1})

    strategy = FairStrategy("semi_vred", **AVERAGED, **OPTIONS, ordered=True, timeout=1, listen=keep_theta)
    grid = Watched(app_of(), 5)
    result = strategy.start(grid, initial_arrays(small_model()), evaluate_fn=evaluate_centrally)
    averages = [mean_by_hand(thetas[: k + 1]) for k in range(3)]
    for done in range(1, 3):  # rounds
        near = {"rtol": 1e-6, "atol": 1e-7}
        assert torch.equal(sent["train", done]["arrays"], thetas[done - 1])
        torch.testing.assert_close(sent["query.loss", done]["arrays"].double(), averages[done - 1], **near)
        assert set(sent["query.loss", done]) == set(sent["train", done]) == {"arrays"}
        torch.testing.assert_close(sent["evaluate", done + 1]["arrays"].double(), averages[done], **near)
        assert torch.equal(sent["evaluate", done + 1]["current"], thetas[done])
        assert torch.equal(central[done + 1], sent["evaluate", done + 1]["arrays"])
    assert torch.equal(flat(result.arrays), strategy.server.deployed.theta)
    assert not torch.equal(flat(result.arrays), strategy.server.theta)
    metrics = result.evaluate_metrics_clientapp[3]
    assert metrics["mean-accuracy"] == pytest.approx(np.nanmean(strategy.records[-1].accuracy))
    assert metrics["current-mean-accuracy"] == pytest.approx(np.nanmean(strategy.records[-1].current))
    assert metrics["current-worst-accuracy"] == np.nanmin(strategy.records[-1].current)


def test_without_an_average_messages_and_records_are_as_they_were():
    seen = []

    def spoil(reply, by):
        seen.append(set(reply.content.metric_records["metrics"]) if reply.content.metric_records else set())
        return reply

    strategy, result, _ = on_flower("fedavg", grid=LocalGrid(app_of(), 5, spoil=spoil), rounds=1)
    assert {"accuracy", "test_losses", "num-examples"} in seen and not any("current" in names for names in seen)
    assert strategy.records[0].current is None and strategy.records[0].current_losses is None
    assert set(result.evaluate_metrics_clientapp[1]) == {"mean-accuracy", "worst-accuracy"}


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_a_killed_run_with_buffers_goes_on_to_the_bit_and_saves_the_average(tmp_path):
    clients = federation(sizes=(8, 4, 12))

    def run(folder, stop_after=None):
        options = {"out": tmp_path / folder, "label": "x", "leave_after": stop_after}
        return on_flower("semi_vred", clients, normed, **options, **AVERAGED)[:2]

    whole, result = run("whole")
    wanted = simulated("semi_vred", clients, normed, **AVERAGED)
    assert_same(whole, wanted)
    run("cut", stop_after=0)
    run("cut", stop_after=1)
    again, resumed = run("cut")
    assert [record.index for record in again.records] == [0, 1, 2]
    for model in (result.arrays.to_torch_state_dict(), resumed.arrays.to_torch_state_dict()):
        for name, tensor in wanted.model.state_dict().items():
            assert torch.equal(model[name], tensor)
    assert torch.equal(again.server.theta, whole.server.theta)
    for name in ("whole", "cut"):
        folder = RunFolder(tmp_path / name / "x" / "seed-0")
        for record, other in zip(folder.history().records, wanted.records, strict=True):
            np.testing.assert_array_equal(record.current, other.current)
            np.testing.assert_allclose(record.current_losses, other.current_losses, rtol=1e-7)
        saved = load_file(folder.model_path)
        assert all(torch.equal(saved[name], tensor) for name, tensor in wanted.model.state_dict().items())


def test_flowers_own_start_returns_the_current_model_and_the_strategy_knows_the_average():
    options = {**OPTIONS, **AVERAGED, "rounds": 3, "participation": 2}
    strategy = FairStrategy("semi_vred", **options)
    result = Strategy.start(strategy, LocalGrid(app_of(), 5), initial_arrays(small_model()), num_rounds=3)
    assert_same(strategy, simulated("semi_vred", **options), exact=False)
    assert torch.equal(flat(result.arrays), strategy.server.theta)
    assert torch.equal(flat(strategy.deployed), strategy.server.deployed.theta)


def test_the_average_is_of_the_models_with_a_wrappers_noise():
    """A model without the noise must not leave the server through the average."""
    options = {**OPTIONS, **AVERAGED, "rounds": 3, "evaluate_every": 0, "participation": 3}
    thetas = []
    listen = {"listen": lambda progress: thetas.append(progress.server.theta)}
    strategy = FairStrategy("fedavg", private=True, **options, **listen)
    wrapped = DifferentialPrivacyClientSideFixedClipping(strategy, 0.5, 1.0, 3)
    grid = LocalGrid(app_of(mods=[fixedclipping_mod]), 5)
    result = strategy.start(grid, initial_arrays(small_model()), wrapped=wrapped)
    assert not any(record.skipped for record in strategy.records)
    torch.testing.assert_close(flat(result.arrays).double(), mean_by_hand(thetas), rtol=1e-5, atol=1e-6)


def test_a_private_run_deploys_the_average_is_weighed_at_it_and_goes_on(tmp_path):
    options = {**AVERAGED, "rounds": 3}
    wanted = simulated("semi_vred", **options)
    for _ in range(2):  # stopped after two rounds, then resumed
        strategy, result, _ = on_flower("semi_vred", private=True, out=tmp_path, leave_after=1, **options)
    assert strategy.server.index == 3 and [record.index for record in strategy.records] == [0, 1, 2]
    assert float((flat(result.arrays) - wanted.server.deployed.theta).abs().max()) < 3e-7
    assert float((strategy.server.theta - wanted.server.theta).abs().max()) < 3e-7
    assert float((strategy.server.theta - wanted.server.deployed.theta).abs().max()) > 1e-3
    records = RunFolder(tmp_path / "semi_vred" / "seed-0").history().records
    for record, other in zip(records, wanted.records, strict=True):
        assert record.objective == pytest.approx(other.objective, abs=1e-6)
        assert record.scores["mean-accuracy"] == pytest.approx(np.nanmean(other.accuracy), abs=1e-6)
        assert record.scores["current-mean-accuracy"] == pytest.approx(np.nanmean(other.current), abs=1e-6)
        assert record.scores["current-std-accuracy"] == pytest.approx(np.nanstd(other.current), abs=1e-5)
        assert record.accuracy is None and record.current is None
    assert dict(result.evaluate_metrics_clientapp[3]) == records[2].scores


def test_losses_of_a_private_run_without_means_are_measured_at_the_average():
    """FedAvg's weights need no loss. Its objective does, and comes with the updates."""
    options = {"average": DECAY, "rounds": 3, "participation": 3, "evaluate_every": 0}
    strategy, _, _ = on_flower("fedavg", private=True, weigh_at="average", **options)
    with pytest.warns(UserWarning, match="weigh_at has no effect"):  # on the weights
        at_average = simulated("fedavg", weigh_at="average", **options)
    at_current = simulated("fedavg", **options)
    objective = strategy.records[2].objective
    assert objective == pytest.approx(at_average.records[2].objective, abs=1e-6)
    assert objective != pytest.approx(at_current.records[2].objective, abs=1e-4)


def test_the_options_travel_in_a_runs_configuration_and_in_an_entry():
    config = {"evenfed.average": 0.9, "evenfed.weigh_at": "average", "evenfed.algorithm": "vred"}
    settings = FairStrategy(**options(config, {})).settings
    assert (settings.average, settings.weigh_at) == (0.9, "average")
    settings = FairStrategy("vred[average=0.9,weigh_at=average]").settings
    assert (settings.average, settings.weigh_at) == (0.9, "average")
