"""What happens to a fair strategy on real networks: lost, late and broken replies, restarts, other loops."""

import json
import math
import weakref

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from torch import nn

import evenfed
from evenfed.comparison.storage.folder import RunFolder
from evenfed.flower import FairStrategy, client_app, messaging
from evenfed.flower.server import initial_arrays
from evenfed.report.live.page_versions import PageVersions
from local_grid import OPTIONS, LocalGrid, assert_same, node_of, on_flower, simulated, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow


def app_of(clients=None, model=small_model, **options):
    held = sites(clients or federation())
    return client_app(model, lambda context: held[context.node_config["partition-id"]], device="cpu", **options)


@pytest.mark.parametrize(
    "algorithm", ["semi_vred", "qffl", "fedfv", "fcfl", "ditto", "drfa"]
)  # every way to fold: weights, norms, inner products, personal models, snapshots
def test_replies_in_any_order_give_the_same_model(algorithm, recwarn):
    draw = np.random.default_rng(0)
    shuffled = LocalGrid(app_of(), 5, order=lambda ids: list(draw.permutation(ids)))
    strategy = FairStrategy(algorithm, **OPTIONS)
    strategy.start(shuffled, initial_arrays(small_model()))
    assert_same(strategy, simulated(algorithm), exact=False)
    trained = [client for kind, client in shuffled.log if kind == "train"]
    assert len(trained) >= 4


def test_replies_are_folded_as_they_arrive_and_let_go(monkeypatch):
    monkeypatch.setattr(messaging, "AT_ONCE", 4)
    alive, most = weakref.WeakSet(), []

    def seen(reply, by):
        if reply.metadata.message_type == "train":
            alive.add(reply)
            most.append(len(alive))
        return reply

    clients = federation(sizes=[4] * 10)
    for ordered in (True, False):
        grid = LocalGrid(app_of(clients), 10, spoil=seen)
        on_flower("semi_vred", clients, grid=grid, rounds=1, evaluate_every=0, ordered=ordered)
    assert len(most) == 20 and max(most) <= messaging.AT_ONCE + 1


def spoiled(kind, client, change):
    """A grid on which the replies of one client to one kind of order are changed."""

    def spoil(reply, by):
        return change(reply) if (reply.metadata.message_type, by) == (kind, client) else reply

    return LocalGrid(app_of(), 5, spoil=spoil)


def with_arrays(change):
    def changed(reply):
        arrays = reply.content["arrays"].to_torch_state_dict()
        return replaced(reply, {"arrays": ArrayRecord(change(arrays)), "metrics": reply.content["metrics"]})

    return changed


def replaced(reply, content):
    reply.content = RecordDict(content)
    return reply


BROKEN = {
    "lost": ("train", lambda reply: None),
    "nan": ("train", with_arrays(lambda a: {k: v * math.nan for k, v in a.items()})),
    "infinite": ("train", with_arrays(lambda a: {k: v + math.inf for k, v in a.items()})),
    "wrong shape": ("train", with_arrays(lambda a: {k: v.flatten()[:-1] for k, v in a.items()})),
    "other names": ("train", with_arrays(lambda a: {f"x{k}": v for k, v in a.items()})),
    "no model": ("train", lambda reply: replaced(reply, {"metrics": reply.content["metrics"]})),
    "loss lost": ("query.loss", lambda reply: None),
    "no loss": ("query.loss", lambda reply: replaced(reply, {})),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_reply_is_dropped_and_named_and_not_averaged_in(case, caplog):
    kind, change = BROKEN[case]
    strategy, _, _ = on_flower("semi_vred", grid=spoiled(kind, 3, change), rounds=2, timeout=0.05)
    for record in strategy.records:
        assert record.dropped == (3,) and not record.skipped
        assert record.weights[3] == 0 and record.weights.sum() == pytest.approx(1)
        assert math.isnan(record.losses[3]) == (kind == "query.loss")
    assert "client 3 (site-3) is dropped" in caplog.text
    without = federation()
    if kind == "query.loss":  # as if client 3 had not taken part at all
        without[3] = evenfed.Client(tuple(part[:0] for part in without[3].train), without[3].test, "site-3")
        assert torch.allclose(strategy.server.theta, simulated("semi_vred", without, rounds=2).server.theta, atol=1e-6)


def test_a_client_that_is_lost_while_it_is_judged_has_no_accuracy_and_stays_in_the_round():
    strategy, _, _ = on_flower("fedavg", grid=spoiled("evaluate", 3, lambda reply: None), rounds=2, timeout=0.05)
    wanted = simulated("fedavg", rounds=2)
    assert torch.equal(strategy.server.theta, wanted.server.theta)
    for ours, theirs in zip(strategy.records, wanted.records, strict=True):
        expected = theirs.accuracy.copy()
        expected[3] = math.nan
        assert ours.dropped == () and np.array_equal(ours.accuracy, expected, equal_nan=True)


def test_a_client_app_that_raises_is_dropped_with_its_reason(caplog):
    held, calls = sites(federation()), []

    def data(context):
        calls.append(context.node_config["partition-id"])
        if calls[-1] == 2 and calls.count(2) == 3:  # described itself, told its loss, and cannot train
            raise OSError("the disk is gone")
        return held[context.node_config["partition-id"]]

    app = client_app(small_model, data, device="cpu")
    strategy, _, _ = on_flower("fedavg", app=app, rounds=1, tell_errors=True)
    assert strategy.records[0].dropped == (2,) and strategy.records[0].weights[2] == 0
    assert "client 2 (site-2) is dropped: it failed" in caplog.text and "the disk is gone" in caplog.text


def test_no_usable_reply_skips_the_round_and_the_next_goes_on():
    rounds = iter([True] * 4 + [False] * 100)
    grid = LocalGrid(
        app_of(), 5, spoil=lambda reply, by: None if reply.metadata.message_type == "train" and next(rounds) else reply
    )
    strategy, _, _ = on_flower("fedavg", grid=grid, rounds=2, timeout=0.05)
    assert [r.skipped for r in strategy.records] == [True, False]
    assert strategy.records[0].dropped == (0, 2, 3, 4) and strategy.server.index == 2


def test_clients_of_weight_zero_are_not_asked_to_train():
    strategy, _, grid = on_flower(evenfed.algorithms.DeltaFL(alpha=0.3), rounds=1)
    trained = [client for kind, client in grid.log if kind == "train"]
    asked = [client for kind, client in grid.log if kind == "query.loss"]
    assert asked == [0, 2, 3, 4] and trained == np.flatnonzero(strategy.records[0].weights).tolist()
    assert 0 < len(trained) < 4


def test_participation_is_drawn_from_the_runs_seed():
    runs = [on_flower("fedavg", participation=2, rounds=2, seed=seed)[2].log for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert [kind for kind, _ in runs[0]].count("train") == 2 * 2


def test_a_node_that_comes_back_under_another_id_is_the_same_client():
    grid = LocalGrid(app_of(), 5)
    away = []

    def away_and_back(progress):
        if progress.round == 1:
            away.append(grid.contexts.pop(node_of(3)))
        if progress.round == 2:
            grid.contexts[12345] = away.pop()

    strategy = FairStrategy("semi_vred", ordered=True, listen=away_and_back, **OPTIONS)
    strategy.start(grid, initial_arrays(small_model()))
    assert [r.dropped for r in strategy.records] == [(), (3,), ()]


RESUMED = ["drfa", "climb", "fedfv", "ditto"]  # one of each kind of memory


@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_server_goes_on_and_ends_as_if_undisturbed(name, tmp_path):
    options = {"smooth": 0.3, "server_optimizer": "adam", "server_lr": 0.01, "participation": 3}
    if name == "fedfv":
        name = evenfed.algorithms.FedFV(tau=3)
    app = app_of(state=tmp_path / "personal")
    whole, _, _ = on_flower(name, app=app, out=tmp_path / "whole", label="whole", **options)

    class Killed(BaseException): ...

    def kill(reply, by):
        if reply.metadata.message_type == "train" and strategy.server.index == 2:
            raise Killed  # in round 2, after a client has trained
        return reply

    def made():
        return FairStrategy(name, out=tmp_path / "cut", label="cut", ordered=True, timeout=1, **OPTIONS, **options)

    strategy = made()
    with pytest.raises(Killed):
        strategy.start(LocalGrid(app, 5, spoil=kill), initial_arrays(small_model()))
    again = made()
    again.start(LocalGrid(app, 5), initial_arrays(small_model()))
    assert torch.equal(again.server.theta, whole.server.theta)
    assert all(torch.equal(again.server.memory[k], v) for k, v in whole.server.memory.items())
    rows = [lines(tmp_path / folder / folder / "seed-0") for folder in ("cut", "whole")]
    assert rows[0] == rows[1] and len(rows[0]) == OPTIONS["rounds"]
    header = RunFolder(tmp_path / "cut" / "cut" / "seed-0").header()
    assert header.resumed_at == [0, 2] and header.finished


def lines(folder):
    found = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def test_results_carry_provenance_and_every_clients_row(tmp_path):
    strategy, _, _ = on_flower("vred[beta=0.1]", out=tmp_path, rounds=2)
    folder = RunFolder(tmp_path / "vred[beta=0.1]" / "seed-0")
    header, history = folder.header(), folder.history()
    assert header.config["algorithm"] == "vred" and header.config["hyper_parameters"]["beta"] == 0.1
    assert header.clients["names"] == [f"site-{k}" for k in range(5)] and header.provenance["versions"]["evenfed"]
    assert header.train_sizes == [9, 0, 4, 17, 6] and header.engine.startswith("flower")
    for kept, record in zip(history.records, strategy.records, strict=True):
        assert np.array_equal(kept.losses, record.losses, equal_nan=True)
        assert np.array_equal(kept.accuracy, record.accuracy, equal_nan=True)
    with pytest.raises(evenfed.InputError, match="finished run"):
        on_flower("vred[beta=0.1]", out=tmp_path, rounds=2)
    with pytest.raises(evenfed.InputError, match=r"another configuration.*lr"):
        on_flower("vred[beta=0.1]", out=tmp_path, rounds=2, lr=0.3)


def test_personal_models_live_in_the_clients_state_and_are_the_simulators(tmp_path):
    held = sites(federation())
    grid = LocalGrid(client_app(small_model, lambda c: held[c.node_config["partition-id"]], device="cpu"), 5)
    strategy, _, _ = on_flower("ditto", grid=grid, participation=2)
    wanted = simulated("ditto", participation=2)
    assert_same(strategy, wanted)
    took_part = [k for k in range(5) if any(not math.isnan(r.losses[k]) for r in wanted.records)]
    assert 1 < len(took_part) < 5
    for k in range(5):
        kept = {name: r for name, r in grid.contexts[node_of(k)].state.array_records.items() if "personal" in name}
        assert len(kept) <= 2 and bool(kept) == (k in took_part)
        if kept:
            newest = kept[max(kept, key=lambda name: int(name.rpartition("-")[2]))]["theta"].numpy()
            assert np.allclose(newest, wanted.personal[k].numpy(), atol=1e-6)


def test_buffers_travel_and_are_averaged_by_share():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    clients = federation(sizes=(8, 4, 12))
    strategy, result, _ = on_flower("semi_vred", clients, model)
    wanted = simulated("semi_vred", clients, model)
    assert_same(strategy, wanted)
    found = result.arrays.to_torch_state_dict()
    assert all(torch.equal(found[k], v) for k, v in wanted.model.state_dict().items())


def test_dropout_and_frozen_statistics_are_the_simulators():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    strategy, result, _ = on_flower("semi_vred", model=model, batch_norm="frozen")
    wanted = simulated("semi_vred", model=model, batch_norm="frozen")
    assert_same(strategy, wanted)
    assert torch.equal(result.arrays.to_torch_state_dict()["1.running_mean"], torch.zeros(8))
    with pytest.raises(evenfed.InputError, match="batch_norm='local' needs the simulator"):
        FairStrategy("semi_vred", batch_norm="local")


def test_frozen_parameters_stay_at_home_and_are_the_same_everywhere():
    def model():
        made = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))  # drawn anew at every call
        made[0].weight.requires_grad_(False)
        return made

    from evenfed.simulate.problem import initial_model

    strategy, result, _ = on_flower("semi_vred", model=lambda: initial_model(model, 0))
    assert_same(strategy, simulated("semi_vred", model=lambda: initial_model(model, 0)))
    assert set(result.arrays) == {"0.bias", "2.weight", "2.bias"}


def test_flowers_own_start_gives_the_same_model():
    from flwr.serverapp.strategy import Strategy

    strategy = FairStrategy("drfa", **OPTIONS)
    result = Strategy.start(strategy, LocalGrid(app_of(), 5), initial_arrays(small_model()), OPTIONS["rounds"])
    assert_same(strategy, simulated("drfa"), exact=False)
    assert len(result.train_metrics_clientapp) == len(result.evaluate_metrics_clientapp) == OPTIONS["rounds"]


@pytest.mark.parametrize("side", ["server", "client"])
def test_flowers_clipping_wraps_a_fair_strategy(side):
    """A clipping norm no update reaches changes nothing; a small one bounds the step; noise is carried on."""

    def run(norm, noise=0.0, loop="own"):
        strategy = FairStrategy("semi_vred", ordered=True, **{**OPTIONS, "rounds": 2})
        if side == "server":
            wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, noise, norm, 4)
            app = app_of()
        else:
            wrapped = DifferentialPrivacyClientSideFixedClipping(strategy, noise, norm, 4)
            app = app_of(mods=[fixedclipping_mod])
        grid, start = LocalGrid(app, 5), initial_arrays(small_model())
        result = strategy.start(grid, start, wrapped=wrapped) if loop == "own" else wrapped.start(grid, start, 2)
        final = strategy._state.layout.read(result.arrays)[0]
        assert torch.equal(final, strategy.server.theta)
        return strategy

    plain, unclipped = simulated("semi_vred", rounds=2), run(1e6)
    assert torch.allclose(unclipped.server.theta, plain.server.theta, atol=1e-5)
    assert torch.allclose(run(1e6, loop="flower's").server.theta, plain.server.theta, atol=1e-5)
    initial = torch.cat([p.detach().flatten() for p in small_model().parameters()])
    assert float((run(1e-3).server.theta - initial).norm()) <= 2 * 1e-3 * 1.01
    noisy = run(1e6, noise=1e-9)
    assert not torch.equal(noisy.server.theta, unclipped.server.theta)
    assert len({tuple(r.losses[[0, 2, 3]]) for r in noisy.records}) == 2


def test_local_privacy_touches_training_alone():
    app = app_of(mods=[LocalDpMod(clipping_norm=1e6, sensitivity=1e-9, epsilon=1.0, delta=0.1)])
    strategy, _, _ = on_flower("semi_vred", app=app)
    plain = simulated("semi_vred")
    assert strategy.records[0].losses[0] == plain.records[0].losses[0]
    assert torch.allclose(strategy.server.theta, plain.server.theta, atol=1e-4)
    assert not torch.equal(strategy.server.theta, plain.server.theta)


def told_of(app):
    return on_flower("fedavg", app=app, tell_errors=True)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: FairStrategy("semi_vrd"), "did you mean 'semi_vred'"),
        (lambda: FairStrategy("fedavg", roundss=3), "did you mean 'rounds'"),
        (lambda: FairStrategy("fedavg", lr=-1), "lr=-1"),
        (lambda: FairStrategy(3), "algorithm is a int"),
        (lambda: FairStrategy("fedavg", label="../x"), "cannot name a folder"),
        (lambda: FairStrategy("fedavg", timeout=0), "timeout=0"),
        (lambda: FairStrategy("fedavg", clients=0), "clients=0"),
        (lambda: on_flower("fedavg", participation=9), "only 4 have training data"),
        (lambda: FairStrategy("fedavg").server, "has not begun"),
        (
            lambda: FairStrategy("fedavg", wait=0.1, clients=7).start(
                LocalGrid(app_of(), 5), initial_arrays(small_model())
            ),
            r"5 of 7 clients connected.*SuperNodes",
        ),
        (
            lambda: on_flower("fedavg", app=client_app(small_model, lambda c: [1, 2]), tell_errors=True),
            "must return an evenfed.Client",
        ),
        (
            lambda: on_flower("fedavg", app=client_app(lambda: 3, lambda c: federation()[0]), tell_errors=True),
            "must make a torch",
        ),
        (
            lambda: FairStrategy("fedavg", rounds=1).start(LocalGrid(app_of(), 5), initial_arrays(nn.Linear(6, 3))),
            "initial model lacks",
        ),
    ],
)
def test_bad_input_is_told(build, told):
    with pytest.raises(evenfed.InputError, match=f"(?s){told}"):
        build()


def test_a_message_of_another_strategy_is_told():
    grid = LocalGrid(app_of(), 1)
    from flwr.serverapp.strategy import FedAvg

    asked = FedAvg(min_train_nodes=1, min_available_nodes=1).configure_train(
        1, initial_arrays(small_model()), ConfigRecord(), grid
    )
    (reply,) = grid.send_and_receive(asked)
    assert isinstance(reply, Message) and "FairStrategy" in reply.error.reason


LOCAL_TRAINING = [
    {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "clip": 0.5},
    {
        "optimizer": {"name": "adam", "betas": (0.8, 0.9), "keep": True},
        "local_epochs": 1,
        "local_steps": 3,
        "drop_last": True,
        "lr_schedule": lambda index: 1 / (1 + index),
        "participation": 2,
        "batch_seed": 2**63 - 1,  # the initial model and who takes part stay those of `seed`
    },
]


@pytest.mark.parametrize("options", LOCAL_TRAINING, ids=["momentum", "kept"])
def test_local_training_is_the_simulators(options):
    strategy, _, _ = on_flower("qffl", **options)
    assert_same(strategy, simulated("qffl", **options))


def test_clients_augment_as_the_simulator_does():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))

    pictures = []
    for client in federation(sizes=(6, 4), features=16):
        examples = [(inputs.view(-1, 1, 4, 4), targets) for inputs, targets in (client.train, client.test)]
        pictures.append(evenfed.Client(*examples))
    options = {"clients": pictures, "model": make, "augment": evenfed.augment.crop_and_flip(1)}
    strategy, _, _ = on_flower("fedavg", **options)
    assert_same(strategy, simulated("fedavg", **options))


def test_the_page_of_a_run_grows_with_it(tmp_path):
    editions = PageVersions(tmp_path, pause=0, idle=0)
    sentences = []

    def look():
        content = json.loads(editions.newest().data)["content"]
        sentences.append(content["facts"][0])
        assert content["glances"][0]["lines"][0]["entry"] == "semi_vred"

    strategy = FairStrategy("semi_vred", out=tmp_path, **{**OPTIONS, "rounds": 2})
    strategy.journal.interrupted = look  # after a round is written
    strategy.start(LocalGrid(app_of(), 5), initial_arrays(small_model()))
    assert sentences[0].startswith("The run is at round 1 of 2, last written at ")
    assert sentences[1] == "The run has finished."


def test_a_client_lost_while_it_is_scored_is_named(caplog):
    grid = LocalGrid(app_of(), 5, spoil=lambda r, client: None if client == 2 and kind_of(r) == "evaluate" else r)
    strategy, _, _ = on_flower("fedavg", grid=grid, rounds=1, timeout=0.05)
    assert "round 1: client 2 (site-2) is not scored: no reply" in caplog.text
    assert np.isnan(strategy.records[0].accuracy[2]) and strategy.records[0].dropped == ()


def kind_of(message):
    return message.metadata.message_type


def test_clients_are_judged_by_the_metric_that_the_settings_name(caplog):
    strategy, result, _ = on_flower("fedavg", metric="loss", rounds=1)
    assert strategy.journal.about.metric.is_loss and "test loss" in caplog.text
    losses = strategy.records[0].test_losses
    assert result.evaluate_metrics_clientapp[1]["worst-loss"] == np.nanmax(losses)
    with pytest.raises(evenfed.InputError, match="metric='loss' with private=True"):
        FairStrategy("fedavg", metric="loss", private=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FairStrategy(ordered="false"), "ordered='false': give true or false"),
        (lambda: FairStrategy(ordered=1), "ordered=1"),
        (lambda: FairStrategy().start(LocalGrid(app_of(), 1), initial_arrays(small_model()), 0), "num_rounds=0"),
        (lambda: on_flower("fedavg", grid=Deaf(app_of(), 3), wait=0.1), r"3 nodes are connected, 0 answered.*`wait`"),
    ],
)
def test_wrong_options_and_silent_nodes_are_named(build, message):
    with pytest.raises(evenfed.InputError, match=message):
        build()


class Deaf(LocalGrid):
    """Its nodes are connected and never answer."""

    def pull_messages(self, message_ids):
        return []


def test_the_guard_over_two_clients_is_explained_once(caplog):
    clients = federation(sizes=(5, 4))
    on_flower("semi_vred", clients, guard="on", rounds=2)
    assert caplog.text.count("two clients: the guard") == 1
