"""Runs that deploy the running mean of their models."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.algorithms import get
from evenfed.core.average import Average, ModelState
from evenfed.core.round import close_round, open_round
from evenfed.core.server import Server, Update
from evenfed.simulate import shared_training
from evenfed.simulate.loop import engine_for, rounds, start
from evenfed.simulate.problem import Problem
from evenfed.simulate.state import Run

DECAY = 0.8


def clients(count=4, rows=12):
    made = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(rows, 3, generator=generator)
        targets = torch.randint(0, 2, (rows,), generator=generator)
        made.append(evenfed.Client(train=(inputs, targets), test=(inputs, targets)))
    return made


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def mean_by_hand(thetas):
    """sum_k d^(t-k) theta_k / sum_k d^(t-k), in float64."""
    weights = [DECAY ** (len(thetas) - 1 - k) for k in range(len(thetas))]
    total = sum(weight * theta.double() for weight, theta in zip(weights, thetas, strict=True))
    return total / sum(weights)


class Thetas:
    """A callback that keeps the server after every round."""

    def __init__(self):
        self.servers = []

    def round(self, progress):
        self.servers.append(progress.server)


@pytest.mark.parametrize("engine", ["parallel", "reference"])
@pytest.mark.parametrize("algorithm", ["fedavg", "semi_vred", "qffl", "fedmgda", "drfa", "ditto"])
def test_the_average_is_the_weighted_mean_of_the_models_after_each_round(engine, algorithm):
    seen = Thetas()
    result = evenfed.train(
        linear(), clients(), algorithm=algorithm, rounds=5, lr=0.3, average=DECAY, engine=engine, callbacks=seen
    )
    expected = mean_by_hand([server.theta for server in seen.servers])
    torch.testing.assert_close(result.server.deployed.theta.double(), expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(result.server.theta, result.server.deployed.theta)


def test_training_is_the_same_with_and_without_an_average():
    plain = evenfed.train(linear(), clients(), algorithm="semi_vred", rounds=4, lr=0.3)
    averaged = evenfed.train(linear(), clients(), algorithm="semi_vred", rounds=4, lr=0.3, average=DECAY)
    assert torch.equal(plain.server.theta, averaged.server.theta)
    for record, other in zip(plain.records, averaged.records, strict=True):
        np.testing.assert_array_equal(record.accuracy, other.current)
        np.testing.assert_array_equal(record.test_losses, other.current_losses)
    assert plain.records[-1].current is None
    assert not np.array_equal(plain.records[-1].test_losses, averaged.records[-1].test_losses)


def test_the_result_is_the_average():
    result = evenfed.train(linear(), clients(), algorithm="vred", rounds=4, lr=0.3, average=DECAY)
    weight = result.model.weight.detach().flatten()
    assert torch.equal(weight, result.server.deployed.theta[: len(weight)])
    inputs, targets = clients()[0].train
    accuracy = (result.model(inputs).argmax(1) == targets).double().mean()
    assert result.accuracy[0] == pytest.approx(float(accuracy))


def test_batchnorms_statistics_are_averaged_and_its_counter_is_copied():
    seen = Thetas()

    result = evenfed.train(normed(), clients(), rounds=3, lr=0.3, batch_size=4, average=DECAY, callbacks=seen)
    means = [server.buffers["1.running_mean"] for server in seen.servers]
    statistics = result.model[1]
    torch.testing.assert_close(statistics.running_mean.double(), mean_by_hand(means), rtol=1e-6, atol=1e-7)
    assert statistics.num_batches_tracked == seen.servers[-1].buffers["1.num_batches_tracked"]


def test_own_batchnorm_layers_are_in_the_average_of_the_rest():
    seen = Thetas()

    options = {"rounds": 3, "lr": 0.3, "batch_size": 4, "average": DECAY, "batch_norm": "local"}
    result = evenfed.train(normed(), clients(), callbacks=seen, **options)
    expected = mean_by_hand([server.theta for server in seen.servers])
    torch.testing.assert_close(result.server.deployed.theta.double(), expected, rtol=1e-6, atol=1e-7)


def test_losses_are_measured_at_the_average_once_per_round():
    seen = Thetas()
    options = {"rounds": 3, "lr": 0.3, "average": DECAY, "callbacks": seen}
    result = evenfed.train(linear(), clients(), algorithm="vred", weigh_at="average", **options)
    model = linear()
    inputs, targets = clients()[1].train
    deployed = seen.servers[1].deployed_params  # after round 2: where round 3 measures
    model.load_state_dict(deployed)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    assert result.records[2].losses[1] == pytest.approx(loss.item(), rel=1e-5)
    current = evenfed.train(linear(), clients(), algorithm="vred", **options)
    assert result.records[0].losses.tolist() == current.records[0].losses.tolist()  # nothing to average yet
    assert result.records[2].losses.tolist() != current.records[2].losses.tolist()


def test_runs_that_differ_in_their_average_alone_are_trained_once(monkeypatch):
    asked = []
    entries = ["vred", "vred[average=0.8]", "vred[average=0.9]", "vred[average=0.9,weigh_at=average]"]
    from evenfed.simulate.engines.parallel import Parallel

    train = Parallel.train

    def counted(engine, tasks):
        asked.append(len(tasks))
        return train(engine, tasks)

    monkeypatch.setattr(Parallel, "train", counted)
    together = evenfed.compare(linear(), clients(), entries, seeds=1, rounds=3, lr=0.3, noise_floor=False)
    assert asked == [3, 3, 3]  # FedAvg, VRed and VRed weighed at its average
    for entry in entries:
        alone = evenfed.compare(linear(), clients(), [entry], seeds=1, rounds=3, lr=0.3, noise_floor=False)
        run = together[entry][0]
        other = alone[entry][0]
        assert torch.equal(run.server.deployed.theta, other.server.deployed.theta)
        np.testing.assert_array_equal(run.records[-1].accuracy, other.records[-1].accuracy)


def test_runs_that_stand_elsewhere_do_not_share_their_training():
    problem = Problem.of(linear(), clients(), evenfed.Settings(rounds=2, lr=0.3))
    algorithm = evenfed.algorithms.get("vred")
    runs = [Run(str(decay), algorithm, evenfed.Settings(rounds=2, lr=0.3, average=decay)) for decay in (0.8, 0.9)]
    states = [start(run, problem) for run in runs]
    assert shared_training.leaders(runs, states) == [0, 0]
    server = dataclasses.replace(states[1].server, theta=states[1].server.theta + 1)
    assert shared_training.leaders(runs, [states[0], dataclasses.replace(states[1], server=server)]) == [0, 1]


def test_a_run_goes_on_to_the_bit_from_a_checkpoint(tmp_path):
    from evenfed.simulate import checkpoint

    settings = evenfed.Settings(rounds=5, lr=0.3, average=DECAY, weigh_at="average", batch_size=4)

    problem = Problem.of(normed(), clients(), settings)
    run = Run("run", evenfed.algorithms.get("semi_vred"), settings)
    engine = engine_for(problem, [run])
    fresh = start(run, problem)
    whole = [(states[0], records[0]) for states, records in rounds([run], [fresh], problem, engine)]
    for stop in range(4):
        checkpoint.save(whole[stop][0], tmp_path / "state")
        restored = checkpoint.load(fresh, tmp_path / "state")
        rest = list(rounds([run], [restored], problem, engine))
        states, records = rest[-1]
        last_state, last_record = whole[-1]
        assert torch.equal(states[0].server.deployed.theta, last_state.server.deployed.theta)
        for name, buffer in last_state.server.deployed.buffers.items():
            assert torch.equal(states[0].server.deployed.buffers[name], buffer)
        np.testing.assert_array_equal(records[0].weights, last_record.weights)


def test_a_folder_holds_the_average_and_comes_back_with_it(tmp_path):
    made = evenfed.train(linear(), clients(), algorithm="vred", rounds=3, lr=0.3, average=DECAY, out=tmp_path / "run")
    result = evenfed.load(tmp_path / "run", model=linear())
    assert torch.equal(result.model.weight, made.model.weight)
    np.testing.assert_array_equal(result.records[-1].current, made.records[-1].current)
    longer = evenfed.train(linear(), clients(), algorithm="vred", rounds=5, lr=0.3, average=DECAY, out=tmp_path / "run")
    at_once = evenfed.train(linear(), clients(), algorithm="vred", rounds=5, lr=0.3, average=DECAY)
    assert torch.equal(longer.model.weight, at_once.model.weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"average": 1.0}, "average=1.0 is out of range; give a number above 0 and below 1"),
        ({"average": "0.9"}, "average='0.9' is out of range"),
        ({"weigh_at": "average"}, "weigh_at='average' needs an average"),
        ({"weigh_at": "mean", "average": 0.9}, "weigh_at 'mean'"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(evenfed.InputError) as error:
        evenfed.Settings(**options)
    assert words in str(error.value)


def test_a_mean_of_counters_never_leaves_whole_numbers():
    average = Average(0.5)
    for rounds_done in (1, 2):
        model = ModelState(torch.ones(1), {"count": torch.tensor(rounds_done)})
        average = average.including(model)
    assert average.model.buffers["count"] == torch.tensor(2)


def test_a_buffer_may_have_any_name():
    model = ModelState(torch.ones(1), {"theta": torch.tensor(3)})
    average = Average(0.5).including(model)
    assert average.model.theta.dtype == torch.float32 and average.model.buffers["theta"] == 3


def test_a_skipped_round_leaves_the_average_as_it_was():
    def round_of(server, updates):
        opened = open_round(server, torch.ones(2))
        after, record = close_round(opened, updates)
        assert record.skipped == (not updates)
        return after

    def moved_by(step):
        return [Update(client, torch.full((1,), step)) for client in range(2)]

    server = Server.start(get("fedavg"), torch.zeros(1), [1, 1], lr=0.1, average=0.5)
    server = round_of(server, [])
    assert server.average.model is None
    assert server.deployed.theta == torch.zeros(1)  # there is nothing else yet
    server = round_of(server, moved_by(-1.0))
    server = round_of(server, [])
    assert server.deployed.theta == torch.ones(1)  # the initial model is not in it
    server = round_of(server, moved_by(-3.0))
    assert server.deployed.theta == torch.tensor([3.0])  # (0.5 * 1 + 4) / (0.5 + 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_average_of_a_narrow_model_follows_it(dtype):
    average = Average(0.99)
    narrow = torch.linspace(1.0, 1.5, 400).to(dtype)
    for value in narrow:
        average = average.including(ModelState(value[None], {"running": value[None]}))
    weights = 0.99 ** torch.arange(399, -1, -1, dtype=torch.float64)
    expected = (weights * narrow.double()).sum() / weights.sum()
    assert average.model.theta.dtype == dtype
    torch.testing.assert_close(average.model.theta[0].double(), expected, rtol=4e-3, atol=0)
    torch.testing.assert_close(average.model.buffers["running"][0].double(), expected, rtol=4e-3, atol=0)
    model = ModelState(narrow[-1:], {"running": narrow[-1:]})
    again = Average(0.99).restored(average.stored(), model, rounds=400)
    assert torch.equal(again.including(model).mean.theta, average.including(model).mean.theta)
    older = {"theta": narrow[-1:], "buffers.running": narrow[-1:]}  # in the model's own type, and of every round
    went_on = Average(0.99).restored(older, model, rounds=400).including(model)
    assert went_on.models == 401 and torch.equal(went_on.model.theta, model.theta)
