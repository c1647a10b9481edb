"""The same run with its batches in another order: what the paired noise floor is made of."""

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.comparison.runs import FLOOR_NAMES

CPU = {"device": "cpu", "rounds": 3, "batch_size": 4, "lr": 0.3}


@pytest.fixture(scope="module")
def clients():
    draw = torch.Generator().manual_seed(0)
    made = []
    for _ in range(5):
        x = torch.randn(10, 6, generator=draw)
        made.append(evenfed.Client((x, x[:, :3].argmax(1)), (x, x[:, :3].argmax(1))))
    return made


def linear():
    return nn.Linear(6, 3)


def trained(clients, **options):
    torch.manual_seed(1)
    return evenfed.train(linear(), clients, **{**CPU, "participation": 3, **options})


def test_other_batches_leave_the_initial_model_and_who_takes_part(clients):
    usual = trained(clients)
    same = trained(clients, batch_seed=0)  # that of `seed`
    other = trained(clients, batch_seed=7)
    assert torch.equal(same.server.theta, usual.server.theta)
    first, changed = usual.records[0], other.records[0]
    np.testing.assert_array_equal(first.losses, changed.losses)  # the same model, the same clients
    for one, two in zip(usual.records, other.records, strict=True):
        assert np.array_equal(np.isnan(one.losses), np.isnan(two.losses))
    assert not torch.equal(other.server.theta, usual.server.theta)
    whole = [trained(clients, batch_size=None, batch_seed=k).server.theta for k in (None, 7)]
    assert torch.allclose(*whole, atol=1e-6)  # one batch has no order
    one_by_one = trained(clients, batch_seed=7, engine="reference")
    assert torch.allclose(one_by_one.server.theta, other.server.theta, atol=1e-5)


@pytest.mark.parametrize(
    ("noise_floor", "batch_size", "labels"),
    [
        (True, 4, ["fedavg-other-batches"]),
        (True, None, ["fedavg-other-seeds"]),  # batches have no order
        ("both", 4, ["fedavg-other-batches", "fedavg-other-seeds"]),
        ("seeds", 4, ["fedavg-other-seeds"]),
        (False, 4, []),
    ],
)
def test_which_repetitions_a_comparison_runs(clients, noise_floor, batch_size, labels):
    options = {**CPU, "rounds": 1, "batch_size": batch_size}
    compared = evenfed.compare(linear, clients, ["vred"], seeds=2, noise_floor=noise_floor, **options)
    assert [run.label for run in compared.floor] == [label for label in labels for _ in range(2)]
    if "fedavg-other-batches" in labels:
        again, usual = compared.floor[0], compared["fedavg"][0]
        assert again.settings.batch_seed == 1_000_000 and again.seed == usual.seed == 0
        np.testing.assert_array_equal(again.records[0].losses, usual.records[0].losses)
        assert compared.noise_floor.label == "fedavg, other batches"
    for label, name in FLOOR_NAMES.items():
        assert (name in str(compared)) == (label in labels)


def test_a_comparison_on_disk_resumes_its_floor_and_tells_it_from_fedavg(clients, tmp_path):
    short = {**CPU, "rounds": 2}
    whole = evenfed.compare(linear, clients, ["vred"], seeds=1, **CPU)
    evenfed.compare(linear, clients, ["vred"], seeds=1, out=tmp_path, **short)
    longer = evenfed.compare(linear, clients, ["vred"], seeds=1, out=tmp_path, **CPU)
    assert torch.equal(longer.floor[0].server.theta, whole.floor[0].server.theta)
    back = evenfed.load(tmp_path)
    assert [run.label for run in back.floor] == ["fedavg-other-batches"] and list(back) == ["fedavg", "vred"]
    assert back.floor[0].header.train["batch_seed"] == 1_000_000
    trained(clients, out=tmp_path / "alone")
    with pytest.raises(evenfed.InputError, match=r"train\.batch_seed: None there, 5 here"):
        trained(clients, out=tmp_path / "alone", batch_seed=5)


def test_mistakes_are_told(clients):
    with pytest.raises(evenfed.InputError, match="batch_seed=-1"):
        trained(clients, batch_seed=-1)
    with pytest.raises(evenfed.InputError, match="takes `seeds`"):
        evenfed.compare(linear, clients, batch_seed=3)
    with pytest.raises(evenfed.InputError, match="'batches', 'seeds' or 'both'"):
        evenfed.compare(linear, clients, noise_floor="batch")


@pytest.mark.parametrize("label", ["fedavg-other-batches", "fedavg-other-seeds"])
def test_no_entry_takes_the_noise_floors_labels(clients, label):
    with pytest.raises(evenfed.InputError, match=f"the label '{label}' stands for the noise floor"):
        evenfed.compare(linear, clients, {label: "vred"}, rounds=1, noise_floor=False)
