"""How often clients are asked per round: fewer trips, the same model."""

import numpy as np
import pytest
import torch

import evenfed
from evenfed.core import spooled
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.drop_in import trips
from local_grid import LocalGrid, assert_same, on_flower, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow


CLIENTS = federation(sizes=(5, 3, 4))


def short(algorithm, **options):
    """Two rounds of three clients."""
    return on_flower(algorithm, CLIENTS, **{"rounds": 2, "local_epochs": 1, **options})


def asked(grid, kind):
    return [client for sent, client in grid.log if sent == kind]


AVERAGED = {"participation": 2, "smooth": 0.3, "average": 0.8}


@pytest.mark.parametrize(
    "options",
    [AVERAGED, {**AVERAGED, "weigh_at": "average"}, {"evaluate_every": 2}],
    ids=["averaged", "weighed at the average", "scored every second round"],
)
def test_two_trips_are_three_to_the_bit(options):
    three, _, _ = short("semi_vred[beta=1]", **options)
    two, _, grid = short("semi_vred[beta=1]", trips=2, **options)
    assert_same_run(two, three)
    rounds_without_scores = 1 if "evaluate_every" in options else 0
    drawn = options.get("participation", 3)
    assert len(asked(grid, "query.loss")) == drawn * (1 + rounds_without_scores)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fedfv", {}), ("delta_fl[alpha=0.3]", {}), ("qffl", {"guard": "on"}), ("semi_vred", {"on_disk": True})],
)
def test_one_trip_is_three_to_the_bit_where_updates_are_held(algorithm, options, monkeypatch):
    if options.pop("on_disk", False):
        monkeypatch.setattr(spooled, "MOST_HELD", 1500)  # bytes: the first update, no further one
    three, _, _ = short(algorithm, evaluate_every=0, **options)
    one, _, grid = short(algorithm, trips=1, **options)
    assert_same_run(one, three)
    assert asked(grid, "train") == [0, 1, 2, 0, 1, 2] and not asked(grid, "query.loss")


@pytest.mark.parametrize("algorithm", ["ditto", "vred[beta=2]"])
def test_one_trip_is_three_to_rounding_where_updates_are_summed(algorithm, monkeypatch):
    def refuse(*given):
        raise AssertionError("an update was held")

    three, _, _ = short(algorithm, evaluate_every=0)
    monkeypatch.setattr(trips.HeldUpdates, "add", refuse)
    one, _, _ = short(algorithm, trips=1)
    assert_same(one, three, exact=False)


def assert_same_run(found, wanted):
    assert_same(found, wanted)
    for ours, theirs in zip(found.records, wanted.records, strict=True):
        assert ours.objective == theirs.objective or np.isnan(theirs.objective)


def test_with_one_trip_a_client_without_a_reply_has_no_part_in_the_weights():
    held = sites(CLIENTS)
    app = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")

    def lost(reply, by):
        return None if (reply.metadata.message_type, by) == ("train", 1) else reply

    grid = LocalGrid(app, 3, spoil=lost)
    strategy, _, _ = short("semi_vred[beta=1]", grid=grid, trips=1, rounds=1, timeout=0.05)
    (record,) = strategy.records
    assert record.dropped == (1,) and record.weights[1] == 0
    assert np.isnan(record.losses[1]) and record.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"algorithm": "drfa", "trips": 1}, "drfa chooses who trains before"),
        ({"trips": 4}, "trips=4: give 1, 2 or 3"),
        ({"trips": True}, "trips=True"),
        ({"trips": 2, "private": True}, "masked sums have trips of their own"),
        ({"trips": 1, "average": 0.9, "weigh_at": "average"}, "trips=1 measures the model that clients train"),
    ],
)
def test_trips_that_cannot_be_are_refused(options, told):
    with pytest.raises(evenfed.InputError, match=told):
        FairStrategy(**options)


def test_a_killed_server_asks_for_the_losses_it_no_longer_has(tmp_path):
    whole, _, _ = short("semi_vred")
    short("semi_vred", trips=2, rounds=1, out=tmp_path)
    again, _, grid = short("semi_vred", trips=2, out=tmp_path)
    assert torch.equal(again.server.theta, whole.server.theta) and len(asked(grid, "query.loss")) == 3
