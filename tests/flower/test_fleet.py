"""Large and unreliable fleets: who is drawn, when a round closes, who rests, and how many requests it takes."""

import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import evenfed
from evenfed.flower import Fair, FairStrategy, messaging, wire
from evenfed.flower.fleet_options import FleetOptions, RoundClosing
from evenfed.flower.logs import final_table
from evenfed.flower.server import options
from fleet_grid import FleetGrid, node_of

pytestmark = pytest.mark.slow
SIZES = (2, 3, 4, 5, 6, 2)
LONG = 30  # seconds that no test waits for


def phones(mute=(), kinds=("query", "train", "evaluate")):
    return FleetGrid(len(SIZES), mute=mute, kinds=kinds)


def run(grid, algorithm="fedavg", rounds=1, **chosen):
    settings = {"guard": "off", "lr": 0.1, "rounds": rounds, "wait": 1, "timeout": LONG, "evaluate_every": 0}
    strategy = FairStrategy(algorithm, **{**settings, **chosen})
    began = time.monotonic()
    strategy.start(grid, grid.start())
    assert time.monotonic() - began < LONG / 2
    return strategy


def fair(grid, rounds=2, timeout=LONG, **chosen):
    strategy = Fair("semi_vred", guard="off", trips=1, measured_before=True, **chosen)
    began = time.monotonic()
    strategy.start(grid, grid.start(), rounds, timeout)
    assert time.monotonic() - began < LONG / 2
    return strategy


def test_tasks_are_pushed_together():
    grid = phones()
    run(grid)
    assert grid.pushes == [6, 6, 6, 6]  # who are you, loss, train, score


def test_a_batch_that_flower_finds_too_large_is_pushed_in_parts():
    grid = phones()
    grid.most_at_once = 2
    strategy = run(grid)
    assert max(grid.pushes) == 2 and strategy.records[0].dropped == ()


def messages_of(count, entries, shared=True):
    """Tasks to train; the model is one record for all, or each has its own."""
    grid = phones()  # names the sender
    record = ArrayRecord({"a": Array(np.zeros(entries, np.float32))})
    made = []
    for node in grid.nodes:
        own = record if shared else ArrayRecord({"a": Array(np.full(entries, node % 7, np.float32))})
        content = RecordDict({wire.ARRAYS: own, wire.CONFIG: ConfigRecord({})})
        made.append(Message(content, dst_node_id=node, message_type=wire.TRAIN))
    return made[:count]


def test_batches_are_bounded_by_the_bytes_that_are_not_shared(monkeypatch):
    monkeypatch.setattr(messaging, "PUSHED_BYTES", 10_000)
    shared = [len(batch) for batch in messaging._batches(messages_of(6, 5_000), messaging._Sizes())]
    assert shared == [1, 5]  # the model is 20 kB, and counts once
    assert [len(batch) for batch in messaging._batches(messages_of(6, 1_000, shared=False), messaging._Sizes())] == [
        1
    ] * 6
    monkeypatch.setattr(messaging, "PUSHED_AT_ONCE", 4)
    assert [len(batch) for batch in messaging._batches(messages_of(6, 10), messaging._Sizes())] == [4, 2]


def test_large_models_are_pulled_one_by_one_and_numbers_together(monkeypatch):
    monkeypatch.setattr(messaging, "PULLED_BYTES", 50_000)
    waiting = messaging.PendingReplies(phones(), messaging.Responsiveness())
    waiting.push(messages_of(6, 5_000))
    assert waiting.together == 2
    question = RecordDict({wire.CONFIG: ConfigRecord({})})
    waiting.push([Message(question, dst_node_id=node, message_type=wire.LOSS) for node in waiting.grid.nodes])
    assert waiting.together > 6


@pytest.mark.parametrize("trips", [1, 2, 3])
def test_a_quorum_closes_a_round_without_those_that_do_not_answer(trips, caplog):
    grid = phones(mute=[3], kinds=("train", "evaluate"))
    strategy = run(grid, "semi_vred", rounds=2, quorum=0.8, trips=trips, rest=0)
    for record in strategy.records:
        assert record.dropped == (3,) and record.weights[3] == 0
        assert record.weights.sum() == pytest.approx(1) and not record.skipped
    assert "client 3 (phone-3) is dropped: the round closed without it" in caplog.text


def test_more_than_needed_are_drawn_and_the_first_close_the_round():
    grid = phones(mute=[0, 5], kinds=("train",))
    strategy = run(grid, rounds=2, participation=4, oversample=1.5, trips=1)
    assert len(grid.asked("train")) == 12
    for record in strategy.records:
        assert record.dropped == (0, 5) and np.count_nonzero(record.weights) == 4
        assert record.weights.sum() == pytest.approx(1)


def test_spares_are_spent_on_the_trips_before_the_last():
    closing = FleetOptions(oversample=1.3).closing(100, 1000)
    assert (closing.drawn, closing.needed, closing.spare) == (130, 100, 30)
    assert closing.introductions(130).usable == 123
    assert closing.losses(130).usable == 115
    assert closing.updates(115, measured=115).usable == 100
    assert closing.updates(23, measured=115).usable == 20  # clients of weight zero do not train
    assert closing.updates(90, measured=90) is None
    everyone = RoundClosing(1.0, 10, 10)
    assert everyone.losses(10) is None and everyone.updates(10, 10) is None and everyone.scores(10) is None
    assert RoundClosing(0.9, 10, 10).updates(10, 10).answered == 9


def test_lost_weight_is_replaced_as_far_as_the_guard_allows():
    grid = phones(mute=[0, 1, 2, 3], kinds=("train",))
    strategy = run(grid, quorum=0.3, guard={"rescue": 1.5}, rest=0)
    (record,) = strategy.records
    planned = np.array(SIZES) / sum(SIZES)
    assert record.dropped == (0, 1, 2, 3)
    assert np.allclose(record.weights[4:], 1.5 * planned[4:])


def test_a_mute_client_costs_one_timeout_and_then_rests_longer_each_time(caplog):
    grid = phones(mute=[3], kinds=())

    def fall_silent(progress):
        grid.kinds = ("query", "train", "evaluate")

    strategy = run(grid, rounds=9, timeout=0.1, rest=1, listen=fall_silent, evaluate_every=1)
    asked = [index for index, record in enumerate(strategy.records) if not record.dropped]
    assert asked == [0]
    assert len(grid.asked("query.loss")) == 9 * 5 + 1 + 3  # in rounds 0, 1, 3 and 6
    scored = [index for index, client in enumerate(grid.asked("evaluate")) if client == 3]
    assert len(scored) == 1  # not asked twice in a round
    node = node_of(3)
    for line in (  # rounds are counted from 1
        "round 2: client 3 (phone-3) is dropped: no reply",
        f"round 2: node {node} did not answer in time and rests for the next round",
        "round 3: client 3 (phone-3) is dropped: it did not answer in time and rests until round 4",
        "round 4: client 3 (phone-3) is dropped: no reply",
        f"round 4: node {node} did not answer in time and rests for the next 2 rounds",
    ):
        assert line in caplog.text
    assert "round 0" not in caplog.text


@pytest.mark.parametrize("start", [run, fair])
def test_who_rests_goes_on_to_rest_after_a_restart(start, tmp_path):
    grid = phones(mute=[3], kinds=())

    def fall_silent(progress):
        grid.kinds = ("query", "train", "evaluate")
        if progress.round == 5:  # silent in rounds 2 and 4: it rests in 5, which is done again, and 6
            raise KeyboardInterrupt

    kept = {"rounds": 6, "timeout": 0.05, "rest": 1, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        start(grid, listen=fall_silent, **kept)
    grid.log.clear()
    strategy = start(grid, **kept)
    assert len(strategy.records) == 6
    assert {client for _, client in grid.log} == {0, 1, 2, 4, 5}


def test_a_site_that_was_silent_once_is_asked_again():
    grid = phones(mute=[3], kinds=())

    def silent_in_the_second_round(progress):
        grid.kinds = ("query", "train", "evaluate") if progress.round == 1 else ()

    strategy = run(grid, rounds=4, timeout=0.1, listen=silent_in_the_second_round)
    assert [record.dropped for record in strategy.records] == [(), (3,), (), ()]


def test_a_new_node_that_does_not_answer_holds_nobody_up():
    grid = phones(mute=[-1])

    def join(progress):
        if progress.round == 1:
            grid.nodes[7] = -1

    strategy = run(grid, rounds=3, listen=join)
    assert [record.dropped for record in strategy.records] == [()] * 3


def test_some_clients_are_scored():
    grid = phones()
    strategy = run(grid, rounds=3, evaluate_participation=2, evaluate_every=1)
    scored = [np.flatnonzero(~np.isnan(record.accuracy)).tolist() for record in strategy.records]
    assert len(scored[0]) == 2 and scored == [scored[0]] * 3  # the same in every round, as in the simulator
    assert len(grid.asked("evaluate")) == 6
    unscored = run(phones(), fraction_evaluate=0.0, evaluate_every=1)
    assert unscored.records[0].accuracy is None


def fleet(grid, algorithm="fedavg", **chosen):
    return run(grid, algorithm, **{"min_available": 2, "participation": 2, "fraction_evaluate": 0.0, **chosen})


def test_those_online_are_drawn_and_met_when_they_are_drawn():
    grid = phones()
    for client in (0, 1):
        del grid.nodes[node_of(client)]
    strategy = fleet(grid, rounds=1)
    assert len(grid.asked("query.describe")) == len(grid.asked("train")) == 2
    assert strategy.records[0].dropped == () and (strategy.server.sizes > 0).sum() == 2
    assert set(grid.asked("train")) <= {2, 3, 4, 5}
    assert len(strategy.server.sizes) == len(SIZES)


@pytest.mark.parametrize("algorithm", ["afl", "semi_vred[smooth=0.5]", "ditto", "drfa", "qffl"])
def test_a_fleet_that_is_met_bit_by_bit_keeps_each_algorithms_memory_whole(algorithm, recwarn):
    grid = phones()
    strategy = fleet(grid, algorithm, rounds=6, batch_size=2, fraction_evaluate=0.5)
    described = grid.asked("query.describe")
    assert sorted(described) == sorted(set(described))
    met = sorted(set(grid.asked("train")))
    assert len(met) > 3
    sizes = strategy.server.sizes
    assert all(sizes[client] == SIZES[client] for client in described)
    steps = strategy.server.local_steps.tolist()
    assert all(steps[client] == -(-SIZES[client] // 2) for client in described)
    for values in strategy.server.memory.values():
        assert bool(values.isfinite().all())
    if algorithm == "afl":
        assert float(strategy.server.memory["lambda"].sum()) == pytest.approx(1)
    for record in strategy.records:
        assert record.weights.sum() > 0 and not record.skipped


def test_a_fleet_goes_on_where_it_was_left(tmp_path):
    first = fleet(phones(), "afl", rounds=3, out=tmp_path)
    again = fleet(phones(), "afl", rounds=6, out=tmp_path)
    whole = fleet(phones(), "afl", rounds=6)
    assert len(again.records) == 6 and first.records[2].weights.tolist() == again.records[2].weights.tolist()
    assert again.server.sizes.tolist() == whole.server.sizes.tolist()
    assert torch.allclose(again.server.memory["lambda"], whole.server.memory["lambda"], atol=1e-6)
    assert torch.allclose(again.server.theta, whole.server.theta, atol=1e-6)
    header = again.folder.header()
    assert header.train_sizes == again.server.sizes.tolist()
    met = [client for client, size in enumerate(header.train_sizes) if size]
    assert all(header.clients["names"][client] == f"phone-{client}" for client in met)


def test_a_fleet_in_which_nobody_is_left_skips_rounds_and_goes_on():
    grid = phones()

    def all_leave(progress):
        if progress.round == 1:
            grid.away, grid.nodes = grid.nodes, {}
        if progress.round == 2:
            grid.nodes = grid.away

    strategy = fleet(grid, rounds=3, wait=0.2, listen=all_leave)
    assert [record.skipped for record in strategy.records] == [False, True, False]


def test_mute_nodes_of_a_fleet_rest_and_others_take_their_place():
    grid = phones(mute=[1, 4])
    strategy = fleet(grid, rounds=4, timeout=0.2, oversample=1.5, participation=2)
    assert all(np.count_nonzero(record.weights) >= 1 for record in strategy.records)
    asked = grid.asked("query.describe")
    assert asked.count(1) <= 1 and asked.count(4) <= 1


def test_flowers_names_mean_the_same():
    strategy = FairStrategy("fedavg", fraction_train=0.5, fraction_evaluate=1, min_available_nodes=3, min_train_nodes=2)
    assert strategy.settings.participation == 0.5
    habits = strategy.fleet_options
    assert (habits.min_available, habits.min_train_nodes) == (3, 2)
    assert isinstance(strategy.settings.evaluate_participation, float)
    assert options({"evenfed.fraction_train": 0.2, "evenfed.quorum": 0.9}, {}) == {"fraction_train": 0.2, "quorum": 0.9}
    same = FairStrategy("fedavg", fraction_train=0.5, participation=0.5)
    assert same.settings.participation == 0.5


def test_numpy_scalars_are_pythons_numbers():
    given = {"fraction_train": np.float32(0.5), "fraction_evaluate": np.int64(1), "oversample": np.float32(1.5)}
    strategy = FairStrategy("fedavg", clients=np.int64(4), rest=np.int64(1), wait=np.float32(5), **given)
    assert repr(strategy.fleet_options) == repr(FleetOptions(oversample=1.5, rest=1))
    assert repr(strategy.settings.participation) == "0.5" and repr(strategy.wait) == "5.0"
    fair = Fair("fedavg", participation=np.float32(0.5), oversample=np.float32(1.5))
    assert repr(fair.fraction_train) == "0.5"


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"fraction_train": 0.5, "participation": 0.2}, "fraction_train=0.5 and participation=0.2 mean the same"),
        ({"quorum": 0}, "quorum=0: give the part"),
        ({"quorum": 1.1}, "quorum=1.1"),
        ({"oversample": 0.9}, "oversample=0.9"),
        ({"min_available": 0}, "min_available=0"),
        ({"evaluate_participation": 1.5}, "evaluate_participation=1.5"),
        ({"rest": -1}, "rest=-1"),
        ({"quorum": 0.9, "ordered": True}, "ordered=True repeats a run to the bit"),
        ({"oversample": 1.3, "private": True}, "masks are made for the clients of a round"),
        ({"quorm": 0.9}, "did you mean 'quorum'"),
    ],
)
def test_habits_that_cannot_be_are_refused(chosen, told):
    with pytest.raises(evenfed.InputError, match=told):
        FairStrategy("fedavg", **chosen)


def test_too_few_online_at_the_beginning_are_told():
    with pytest.raises(evenfed.InputError, match=r"6 clients online within 0.1 s, and min_available=7"):
        fleet(phones(), min_available=7, wait=0.1)


def test_fair_closes_with_a_quorum_and_with_the_first_of_those_drawn():
    by_quorum = fair(phones(mute=[3], kinds=("train",)), quorum=0.8)
    grid = phones(mute=[0, 5], kinds=("train",))
    first = fair(grid, participation=0.7, oversample=1.5)
    assert len(grid.asked("train")) == 12 and max(grid.pushes) == 6
    for record in (*by_quorum.records, *first.records):
        assert record.weights.sum() == pytest.approx(1) and not record.skipped
    assert [len(record.dropped) for record in (*by_quorum.records, *first.records)] == [1, 1, 2, 2]


def test_fair_lets_mute_clients_rest():
    grid = phones(mute=[3])
    strategy = fair(grid, rounds=4, timeout=0.1, rest=1, fraction_evaluate=0.0)
    assert [len(record.dropped) for record in strategy.records] == [1, 0, 1, 0]
    assert grid.asked("train").count(3) == 2


def test_fair_takes_either_name():
    strategy = Fair("fedavg", participation=0.5, min_available=3)
    assert (strategy.fraction_train, strategy.min_available_nodes) == (0.5, 3)
    with pytest.raises(evenfed.InputError, match=r"fraction_train=0.2 and participation=0.5 mean the same"):
        Fair("fedavg", participation=0.5, fraction_train=0.2)
    with pytest.raises(evenfed.InputError, match=r"participation=3: Fair draws as FedAvg does"):
        Fair("fedavg", participation=3)


def test_the_table_of_many_clients_shows_those_served_worst():
    grid = FleetGrid(120)
    strategy = run(grid)
    lines = final_table(strategy.records, strategy.journal.sizes, strategy.roster.name)
    assert len(lines) == 52 and lines[1].startswith("phone-0 ") and lines[-1].startswith("and 70 more clients")
