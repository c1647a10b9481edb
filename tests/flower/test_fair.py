"""`Fair` in place of FedAvg, over clients that do not use evenfed."""

import logging
import random
import weakref

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import evenfed
from evenfed.comparison.storage.folder import RunFolder
from evenfed.flower import Fair, loss_before, messaging
from local_grid import node_of, simulated
from stranger import CLIENTS, LR, SIZES, STEPS, app_of, extended, fair, model, run, train

pytestmark = pytest.mark.slow

REFUSED = {"ditto": "second model", "propfair": "changes the loss", "drfa": "models at a random step"}


def final(result):
    return torch.cat([values.flatten() for values in result.arrays.to_torch_state_dict().values()])


def by_client(strategy, column):
    """A record's numbers in the clients' order."""
    order = [strategy.clients.partitions[position] for position in range(len(column))]
    return np.asarray(column)[np.argsort(order)]


def test_every_algorithm_is_the_simulators_or_refused_with_the_reason(algorithm, recwarn):
    if algorithm.name in REFUSED:
        with pytest.raises(evenfed.InputError, match=rf"{algorithm.name} cannot.*{REFUSED[algorithm.name]}.*FairStr"):
            fair(algorithm)
        return
    strategy = fair(algorithm, trips=1)
    result, grid = run(strategy, extended())
    wanted = simulated(algorithm, CLIENTS, model, rounds=2, batch_size=None, local_epochs=STEPS, lr=LR)
    assert torch.allclose(final(result), wanted.server.theta, atol=1e-5)
    for ours, theirs in zip(strategy.records, wanted.records, strict=True):
        assert np.allclose(by_client(strategy, ours.losses), theirs.losses, atol=1e-5)
        assert np.allclose(by_client(strategy, ours.weights), theirs.weights, atol=1e-4)
    assert np.allclose(by_client(strategy, ours.accuracy), theirs.accuracy)
    assert {kind for kind, _ in grid.log} == {"train", "evaluate"}


@pytest.mark.parametrize("name", ["semi_vred[beta=1,smooth=0.5]", "delta_fl[alpha=0.3]"])
def test_trips_give_the_same_model_to_the_bit(name):
    models, kinds = [], []
    for trips in (1, 2, 3):
        strategy = fair(name, trips=trips)
        draw = np.random.default_rng(trips)
        result, grid = run(strategy, extended(), order=lambda names, draw=draw: list(draw.permutation(names)))
        models.append(final(result))
        kinds.append([kind for kind, _ in grid.log])
    assert torch.equal(models[0], models[1]) and torch.equal(models[0], models[2])
    assert kinds[0] == ["train"] * 8 + ["evaluate"] * 4
    assert kinds[2].count("query.loss") == 8
    if name.startswith("delta"):
        assert kinds[2].count("train") < kinds[1].count("train") < 8  # round 1 of two trips trains everyone


def test_the_client_stays_as_it_is_and_the_loss_it_averages_is_told_once(caplog):
    strategy = fair()
    result, _ = run(strategy)
    assert not torch.equal(final(result), final(run(FedAvg())[0]))
    told = [r for r in caplog.records if "does not say at which model" in r.getMessage()]
    assert len(told) == 1 and told[0].levelno == logging.WARNING and "'train_loss'" in told[0].getMessage()
    assert "round 2/2: objective" in caplog.text and "dropped: none" in caplog.text
    assert "mean weight" in caplog.text
    assert result.train_metrics_clientapp[2]["train_loss"] > 0
    assert result.evaluate_metrics_clientapp[2]["eval_acc"] > 0


@pytest.mark.parametrize("app", [lambda: app_of(mods=[loss_before]), extended], ids=["loss_before", "extend"])
def test_one_line_at_the_client_gives_the_loss_before_training(app, caplog):
    strategy = fair()
    run(strategy, app(), rounds=1)
    wanted = simulated("semi_vred", CLIENTS, model, rounds=1).records[0].losses
    assert np.allclose(by_client(strategy, strategy.records[0].losses), wanted, atol=1e-6)
    assert "does not say" not in caplog.text
    plain, marked = (run(FedAvg(), made)[0] for made in (None, app()))
    assert torch.equal(final(plain), final(marked))  # another server does not ask, and nothing changes


def test_the_rehearsal_draws_no_random_numbers_of_the_training():
    def drawing(message, context):
        reply = train(message, context)
        reply.content["metrics"]["draw"] = random.random()
        return reply

    draws = []
    for mods in ([], [loss_before]):
        result, _ = run(fair("fedavg"), app_of(drawing, mods), rounds=1)
        draws.append(result.train_metrics_clientapp[1]["draw"])
    assert draws[0] == draws[1]


def test_a_loop_that_steps_by_hand_is_told_by_loss_before(caplog):
    def by_hand(message, context):
        reply = train(message, context)
        arrays = reply.content["arrays"]
        for name in arrays:
            arrays[name] = Array(arrays[name].numpy() + 1)
        return reply

    result, _ = run(fair(), app_of(by_hand, [loss_before]), rounds=1)
    assert caplog.text.count("is dropped: it failed") == len(SIZES) and not result.train_metrics_clientapp


def test_losses_of_an_evaluation_serve_the_next_round():
    strategy = fair(loss_from="eval_loss", loss_in="evaluate")
    _, grid = run(strategy)
    kinds = [kind for kind, _ in grid.log]
    assert kinds == ["evaluate"] * 4 + (["train"] * 4 + ["evaluate"] * 4) * 2
    assert not np.isnan(strategy.records[1].losses).any()


@pytest.mark.parametrize("name", ["afl", "semi_vred[smooth=0.5]"])
def test_clients_that_come_later_are_taken_in(name):
    strategy = fair(name, fraction_train=0.25, min_train_nodes=1, average=0.5)
    result, _ = run(strategy, extended(), rounds=4)
    assert len(strategy.records) == 4 and all(r.weights.sum() == pytest.approx(1) for r in strategy.records)
    assert torch.equal(final(result), strategy.server.deployed.theta)
    assert sorted(strategy.clients.sizes)[-1] <= max(SIZES)


def test_a_mixture_makes_room_for_a_new_client():
    algorithm = evenfed.algorithms.AFL()
    server = evenfed.Server.start(algorithm, torch.zeros(1), [10, 30], lr=0.1, smooth=0.5)
    grown = server.with_sizes(torch.tensor([10.0, 30.0, 40.0]))
    assert grown.memory["lambda"].tolist() == [0.125, 0.375, 0.5]
    assert grown.smoothed.isnan().all() and len(grown.smoothed) == 3
    duals = evenfed.Server.start(evenfed.algorithms.CLIMB(), torch.zeros(1), [10, 30], lr=0.1)
    duals.memory["dual"] += 2
    assert duals.with_sizes(torch.tensor([10.0, 30.0, 40.0])).memory["dual"].tolist() == [2, 2, 0]


def test_replies_are_let_go_as_they_arrive(monkeypatch):
    monkeypatch.setattr(messaging, "AT_ONCE", 1)
    alive = weakref.WeakSet()
    most = []

    def seen(reply, client):
        if reply.metadata.message_type == "train":
            alive.add(reply)
            most.append(len(alive))
        return reply

    run(fair(trips=2), extended(), spoil=seen)
    assert len(most) == 8 and max(most) <= 2


def test_flowers_privacy_wrapper_fits():
    strategy = fair(trips=2)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e6, 4)
    result, _ = run(wrapped, extended())
    assert torch.allclose(final(result), final(run(fair(), extended())[0]), atol=1e-5)


def test_rounds_skipped_before_the_first_reply_are_not_in_the_average():
    train_replies = 0

    def lose_the_first_round(reply, client):
        nonlocal train_replies
        if reply.metadata.message_type == "train":
            train_replies += 1
        return None if train_replies <= len(SIZES) and reply.metadata.message_type == "train" else reply

    strategy = fair("fedavg", trips=1, average=0.8)
    run(strategy, extended(), rounds=4, spoil=lose_the_first_round)
    assert [record.skipped for record in strategy.records] == [True, False, False, False]
    wanted = simulated("fedavg", CLIENTS, model, rounds=3, batch_size=None, local_epochs=STEPS, lr=LR, average=0.8)
    torch.testing.assert_close(strategy.server.deployed.theta, wanted.server.deployed.theta, atol=1e-6, rtol=0)


def test_buffers_are_averaged_by_size_and_counters_copied():
    from evenfed.flower.array_layout import ArrayLayout

    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    layout = ArrayLayout.by_pattern(ArrayRecord(net.state_dict()))
    assert layout.buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    again = layout.arrays(layout.read(ArrayRecord(net.state_dict()))).to_torch_state_dict()
    assert list(again) == list(net.state_dict())
    assert all(torch.equal(again[k], v) and again[k].dtype == v.dtype for k, v in net.state_dict().items())


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Fair("semi_vrd"), "did you mean 'semi_vred'"),
        (lambda: Fair("fedavg", smoth=1), "did you mean 'smooth'"),
        (lambda: Fair("fedavg", los_from="a"), r"did you mean 'loss_from'?"),
        (lambda: Fair(0.5), r"names an algorithm.*fraction_train=\.\.\."),
        (lambda: Fair("fedavg", rounds=3), "give num_rounds to start"),
        (lambda: Fair("fedavg", private=True), r"FairStrategy\(private=True\)"),
        (lambda: Fair("fedavg", fraction_train="0.5"), r"fraction_train='0.5': give a fraction in \[0, 1\]"),
        (lambda: Fair("fedavg", fraction_evaluate=-1.0), "fraction_evaluate=-1.0"),
        (lambda: Fair("fedavg", participation=1.5), "fraction_train=1.5"),
        (lambda: Fair("fedavg", min_train_nodes=1.5), "min_train_nodes=1.5"),
        (lambda: Fair("fedavg", score_range=(1, 0)), r"score_range=\(1, 0\)"),
        (lambda: Fair("fedavg", score_higher_is_better="no"), "score_higher_is_better='no'"),
        (lambda: run(fair(), rounds=0), "num_rounds=0"),
        (lambda: Fair("fedavg", batch_size=3), "belongs to the clients' training"),
        (lambda: Fair("fedprox[mu=0.1]"), "prox belongs to the clients' training"),
        (lambda: Fair("fcfl"), r"give Fair\(local_steps=...\)"),
        (lambda: Fair("fedavg", trips=0), "trips=0"),
        (lambda: Fair("fedavg", loss_in="evaluation"), "did you mean 'evaluate'"),
        (lambda: Fair("fedavg", loss_in="evaluate", trips=1), "asks for no evaluation"),
        (lambda: Fair("fedavg", sites="no.toml"), "sites='no.toml': there is no such file"),
        (lambda: Fair().server, "no client has replied"),
        (lambda: run(fair(trips=3)), r"trips=3: no client answered.*extend"),
        (lambda: Fair("qffl").configure_train(1, ArrayRecord(model().state_dict()), ConfigRecord(), None), "'lr' in"),
    ],
)
def test_bad_input_is_told(build, told):
    with pytest.raises(evenfed.InputError, match=f"(?s){told}"):
        build()


def listed_sites(tmp_path, places, **first):
    """sites.toml with a row per client of `places` (client -> partition); `first` are more fields of the first row."""
    rows = []
    for client, partition in places.items():
        rows.append(f"[[site]]\npartition = {partition}\nnode = {node_of(client)}\n")
    more = "".join(f"{name} = {value!r}\n" for name, value in first.items())
    path = tmp_path / "sites.toml"
    path.write_text(rows[0] + more + "".join(rows[1:]))
    return path


def test_listed_sites_alone_are_asked_under_the_names_and_up_to_the_sizes_of_the_list(tmp_path, caplog):
    places = {2: 0, 1: 1, 0: 2}  # the fourth node is a stranger
    listed = listed_sites(tmp_path, places, name="ward 3", largest=5)
    strategy = fair("fedavg", sites=listed, trips=2, min_available_nodes=3, out=tmp_path / "runs")
    _, grid = run(strategy)  # its clients say nothing of partitions
    assert {client for _, client in grid.log} == {0, 1, 2}
    assert strategy.clients.sizes == [5, 4, 9]  # 17 of the first are not believed
    first, second = strategy.records
    assert np.allclose(first.weights, np.array([5, 4, 9]) / 18)
    assert first.refused == (f"node {node_of(3)}: it is not in sites.toml",) and second.refused == ()
    assert [(clip.client, clip.reported, clip.counted) for clip in first.clipped] == [(0, 17, 5)]
    assert not second.clipped
    assert "client 0 says 17 training examples, and sites.toml allows 5" in caplog.text
    clients = RunFolder.at(tmp_path / "runs", strategy.label, 0).header().clients
    assert clients["names"] == ["ward 3", "client 1", "client 2"] and clients["train"] == [5, 4, 9]


def test_a_site_that_claims_anothers_place_is_dropped(tmp_path, caplog):
    listed = listed_sites(tmp_path, {0: 0, 1: 2, 2: 1, 3: 3})
    with pytest.raises(evenfed.InputError, match=r"min_available_nodes=5, but .* lists 4 sites; give 4 or less"):
        fair("fedavg", sites=listed, min_available_nodes=5)
    strategy = fair("fedavg", sites=listed)
    run(strategy, extended(), rounds=1)
    assert strategy.records[0].dropped == (1, 2)
    assert "client 2 is dropped: it says partition-id=1, and sites.toml gives it 2" in caplog.text


def lost(client, kind, replaced=None):
    """Replies of that kind from one client are lost, or changed."""

    def spoil(reply, sender):
        is_it = reply.metadata.message_type == kind and (client is None or sender == client)
        if is_it and replaced is not None:
            replaced(reply.content["metrics"])
            return reply
        return None if is_it else reply

    return spoil


def test_a_loss_of_the_evaluation_is_never_replaced_by_that_of_training(caplog):
    strategy = fair(loss_from="eval_loss", loss_in="evaluate")
    run(strategy, spoil=lost(1, "evaluate"))
    position = strategy.clients.positions[node_of(1)]
    for record in strategy.records:
        assert record.dropped == (position,) and np.isnan(record.losses[position])
    assert "is dropped: no reply with its loss" in caplog.text
    averaged = fair(loss_from="eval_loss", loss_in="evaluate", average=0.5)
    run(averaged)
    assert averaged.records[1].dropped == () and not np.isnan(averaged.records[1].losses).any()


def test_a_score_is_kept_where_only_the_loss_is_missing():
    strategy = fair(loss_from="eval_loss", loss_in="evaluate")
    run(strategy, spoil=lost(1, "evaluate", lambda metrics: metrics.pop("eval_loss")))
    position = strategy.clients.positions[node_of(1)]
    assert strategy.records[0].dropped == (position,) and strategy.records[0].accuracy[position] >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_from": "los"}, "no train reply holds 'los', which loss_from names; they hold train_loss, num-examples"),
        ({"size_from": "size"}, "no train reply holds 'size', which size_from names"),
        ({"loss_in": "evaluate"}, "no evaluate reply holds 'train_loss'.*they hold eval_acc, eval_loss, num-examples"),
        ({"score_from": "eval_accuracy"}, "'eval_accuracy', which score_from names; they hold eval_acc, eval_loss"),
    ],
)
def test_a_name_that_no_client_reports_stops_the_run(options, message):
    with pytest.raises(evenfed.InputError, match=message):
        run(fair(**options))


def test_a_default_score_that_nobody_reports_and_one_out_of_range_are_warnings(caplog):
    run(fair(), spoil=lost(None, "evaluate", lambda metrics: metrics.pop("eval_acc")))
    assert caplog.text.count("no evaluate reply holds a score 'eval_acc'; they hold eval_loss, num-examples") == 1
    run(fair(score_from="eval_acc"), rounds=1, spoil=lost(None, "evaluate", lambda sent: sent.update(eval_acc=26)))
    assert "eval_acc=26 is not within 0 .. 1; give the range of your scores, such as Fair(score_range=" in caplog.text
    result, _ = run(fair(score_from="accuracy", trips=1), extended(), rounds=1)  # its training is not thrown away
    assert result.arrays and "no evaluate reply holds a score 'accuracy'" in caplog.text


def test_less_is_better_for_a_score_that_is_a_loss(caplog):
    metrics = {}
    for name, given in (("eval_loss", None), ("eval_acc", False)):
        strategy = fair(score_from=name, score_range=(0, 10), score_higher_is_better=given)
        result, _ = run(strategy, rounds=1)
        metrics[name] = result.evaluate_metrics_clientapp[1]["worst-score"]
        scores = strategy.records[0].accuracy
        assert metrics[name] == scores.max() > scores.min()
        assert f"worst {strategy.clients.name(int(scores.argmax()))} ({name} {scores.max():.3f}" in caplog.text
        assert strategy.journal.about.metric.higher_is_better is False


def test_a_client_lost_while_it_is_scored_is_named(caplog):
    strategy = fair()
    result, _ = run(strategy, extended(), rounds=1, spoil=lost(2, "evaluate"))
    name = strategy.clients.name(strategy.clients.positions[node_of(2)])
    assert f"round 1: {name} is not scored: no reply" in caplog.text
    aggregated = {**result.train_metrics_clientapp[1], **result.evaluate_metrics_clientapp[1]}
    assert "evenfed.partition" not in aggregated and "evenfed.size" not in aggregated
