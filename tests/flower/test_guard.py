"""The guard on Flower: on by default, the same as the simulator's, and what masked sums allow of it."""

import logging

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

import evenfed
from evenfed.core.errors import InputError
from evenfed.core.guard import Guard
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.secagg.private_guard import UnusualError, check_mean, stepped, with_usual
from evenfed.flower.server import options
from local_grid import OPTIONS, LocalGrid, assert_same, on_flower, simulated, sites
from stranger import fair, run
from worked_example import federation, small_model

GUARDED = {**OPTIONS, "guard": "on"}
LIAR = 2


def lying(loss=None, factor=None):
    """A grid whose third client reports that loss, and sends its model so many times as far away."""

    def spoil(reply, client):
        if client != LIAR or reply.has_error():
            return reply
        for record in reply.content.metric_records.values():
            if loss is not None and "loss" in record:
                record["loss"] = loss
        for name, arrays in reply.content.array_records.items():
            if factor is not None:
                state = {key: tensor * factor for key, tensor in arrays.to_torch_state_dict().items()}
                reply.content[name] = ArrayRecord(state)
        return reply

    clients = sites(federation())
    app = client_app(small_model, lambda context: clients[context.node_config["partition-id"]], device="cpu")
    return LocalGrid(app, len(clients), spoil=spoil)


@pytest.mark.parametrize(
    "name", ["semi_vred", "drfa", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qffl", "fcfl", "afl"))]
)
def test_a_guarded_run_is_the_simulators_to_the_bit(name, recwarn):
    strategy, _, _ = on_flower(name, guard="on")
    wanted = simulated(name, guard="on")
    assert_same(strategy, wanted)
    assert [record.clipped for record in strategy.records] == [record.clipped for record in wanted.records]


def test_the_log_says_how_a_run_is_guarded(caplog):
    FairStrategy("fedavg").summary()
    assert "guard=on; other options: default" in caplog.text
    caplog.clear()
    FairStrategy("fedavg", guard="off").summary()
    assert "guard=off" in caplog.text


def test_a_guard_is_on_unless_turned_off():
    assert FairStrategy("fedavg").settings.guarding() == Guard()
    assert FairStrategy("fedavg", guard="off").settings.guarding() is None
    chosen = options({"evenfed.guard.update": 3.0}, {})
    assert FairStrategy("fedavg", **chosen).settings.guarding() == Guard(update=3.0)
    with pytest.raises(InputError, match="give on, off, or a table"):
        FairStrategy("fedavg", guard="maybe")


def test_one_client_that_lies_is_bounded_named_and_logged(caplog, recwarn):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy, _, _ = on_flower("vred", grid=lying(loss=1e6, factor=1e4), guard=None)
    assert bool(strategy.server.theta.isfinite().all())
    for record in strategy.records:
        held = {(clip.client, clip.what) for clip in record.clipped}
        assert {(LIAR, "loss"), (LIAR, "update")} <= held and not record.skipped
        assert np.abs(record.weights).max() < 1
    assert "its loss of 1e+06 counts as" in caplog.text and "is left out" in caplog.text


@pytest.mark.slow
def test_fair_is_guarded_too_and_keeps_the_first_size(recwarn):
    sizes = iter(range(1000, 9000, 1000))

    def spoil(reply, client):
        for record in reply.content.metric_records.values():
            if client == LIAR and "train_loss" in record:
                record["train_loss"] = 1e6
                record["num-examples"] = next(sizes)
        return reply

    strategy = fair("vred", trips=1, guard="on")
    result, _ = run(strategy, spoil=spoil)
    assert all(values.isfinite().all() for values in result.arrays.to_torch_state_dict().values())
    held = [{clip.what for clip in record.clipped} for record in strategy.records]
    assert "loss" in held[0] and "size" in held[0] and "size" not in held[1]
    assert 1000 in strategy.clients.sizes and 2000 not in strategy.clients.sizes


def test_sizes_are_those_of_the_first_day(tmp_path, caplog, recwarn):
    short = {**OPTIONS, "rounds": 1}
    on_flower("fedavg", out=tmp_path, **short)
    clients = sites(federation())
    app = client_app(small_model, lambda context: clients[context.node_config["partition-id"]], device="cpu")

    def spoil(reply, client):
        for record in reply.content.config_records.values():
            if client == LIAR and "train" in record:
                record["train"] = 10**12
        return reply

    with caplog.at_level(logging.WARNING, logger="flwr"):
        grid = LocalGrid(app, len(clients), spoil=spoil)
        strategy, _, _ = on_flower("fedavg", grid=grid, out=tmp_path, **{**short, "rounds": 2})
    assert int(strategy.server.sizes.max()) < 10**6
    assert "says 1000000000000 training examples" in caplog.text


def test_an_older_run_without_a_guard_goes_on_without(tmp_path, recwarn):
    on_flower("fedavg", out=tmp_path, **{**OPTIONS, "rounds": 1})
    with pytest.raises(InputError, match="guard"):
        on_flower("fedavg", out=tmp_path, **{**GUARDED, "rounds": 2})


def test_a_masked_sum_that_stands_out_skips_the_round():

    server = evenfed.Server.start(evenfed.algorithms.get("semi_vred"), torch.zeros(3), [10] * 5, lr=0.1, guard="on")
    server = with_usual(server)
    for _ in range(3):
        check_mean(server, 0, 1.0)
        server = stepped(server, torch.ones(3), [1.0, 0.1])
    with pytest.raises(UnusualError, match="mean 1 over the clients is 6"):
        check_mean(server, 0, 6.0)
    with pytest.raises(UnusualError, match="not finite"):
        check_mean(server, 0, float("nan"))
    with pytest.raises(UnusualError, match="times as long"):
        stepped(server, 100 * torch.ones(3), [1.0, 0.1])
    with pytest.raises(UnusualError, match="not finite"):
        stepped(with_usual(server), torch.full((3,), torch.inf), [1.0, 0.1])
    shortened = stepped(server, 4 * torch.ones(3), [1.0, 0.1])
    assert torch.allclose(server.theta - shortened.theta, torch.full((3,), 2.0))
