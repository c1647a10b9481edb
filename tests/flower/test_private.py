"""Private rounds: weights from sums, masks on everything, drop-outs, and what Flower's privacy wrappers add."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from torch import nn

import evenfed
from evenfed.comparison.storage.folder import RunFolder
from evenfed.core.algorithm import Algorithm, PrivateInputs, PrivatePart, hyper
from evenfed.core.fold import Fold
from evenfed.core.sums import number_of_means, parts
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.client import Site
from evenfed.flower.secagg import mask_crypto, masking_client, masking_server
from evenfed.flower.server import initial_arrays
from evenfed.testing import check_algorithm
from local_grid import OPTIONS, LocalGrid, node_of, on_flower, simulated, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow

PRIVATE = ["fedavg", "propfair", "ditto", "vred", "semi_vred", "term", "qffl", "climb"]
VARIANTS = [
    *PRIVATE,
    "semi_vred[beta=2,safe=0.9]",
    "semi_vred[beta=0]",
    "term[alpha=0]",
    "term[alpha=20]",
    "qffl[q=2,share_weighted=true]",
    "qffl[q=0]",
    "climb[lr_dual=5,epsilon=0]",
    "propfair[baseline=2]",
]


def test_every_algorithm_is_either_private_or_refused_with_its_reason():
    refused, able = {}, ", ".join(sorted(PRIVATE, key=lambda name: (name != "fedavg", name)))
    for name in evenfed.algorithms.names():
        try:
            FairStrategy(name, private=True)
        except evenfed.InputError as error:
            refused[name] = str(error)
    assert set(evenfed.algorithms.names()) - set(refused) == set(PRIVATE)
    assert all("is not written" not in told and f"Those that can: {able}" in told for told in refused.values())


@pytest.mark.parametrize("label", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_what_clients_compute_from_sums_is_the_algorithm(label, seed):
    """Weights, objective and step of two rounds, against `plan` and the fold, from means alone."""
    algorithm = FairStrategy(label).algorithm
    draw = np.random.default_rng(seed)
    sizes, deltas = draw.integers(1, 50, 6).tolist(), torch.from_numpy(draw.normal(size=(6, 4)))
    server = evenfed.Server.start(algorithm, torch.zeros(4).double(), sizes, lr=0.1)
    share = algorithm.coefficients(torch.tensor(sizes).double() / sum(sizes)).numpy()
    dual = np.zeros(6)
    for _ in range(2):
        losses = draw.gamma(2.0, 0.5, 6)
        opened = evenfed.open_round(server, losses)
        own = [
            PrivateInputs(torch.tensor(losses[i]), 0.1, 6, dual[i], dual.mean(), float(deltas[i] @ deltas[i]))
            for i in range(6)
        ]
        found = parts(algorithm, own, share)
        weights = np.array([share[i] * float(found[i].weight) for i in range(6)])
        assert np.allclose(weights, opened.plan.weights.numpy(), rtol=1e-9, atol=1e-12)
        length = sum(share[i] * float(found[i].length) for i in range(6))
        fold, before = Fold(opened), server.theta
        for i in range(6):
            fold.add(evenfed.Update(i, deltas[i]))
        server, record = fold.close()
        assert np.allclose(weights @ deltas.numpy() / length, (before - server.theta).numpy(), rtol=1e-9)
        objective = sum(share[i] * float(found[i].objective) for i in range(6))
        assert objective == pytest.approx(record.objective, rel=1e-9)
        dual = np.array([float(part.dual) for part in found])
        if algorithm.name == "climb":
            assert np.allclose(dual, server.memory["dual"].numpy())
            assert dual.any()


PART = {"participation": 3, "smooth": 0.3, "server_lr": 0.7, "seed": 5}


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, PART if name in ("semi_vred", "qffl", "climb", "ditto") else {}) for name in PRIVATE],
)
def test_a_private_run_is_the_plain_one_within_the_quantisation_error(name, options, recwarn):
    """Largest difference of a parameter after two rounds: a few roundings of a float32."""
    strategy, _, _ = on_flower(name, private=True, rounds=2, evaluate_every=0, **options)
    wanted = simulated(name, rounds=2, evaluate_every=0, **options)
    assert float((strategy.server.theta - wanted.server.theta).abs().max()) < 3e-7
    assert float((strategy.server.theta - simulated(name, rounds=1, **options).server.theta).abs().max()) > 1e-3
    for ours, theirs in zip(strategy.records, wanted.records, strict=True):
        assert (ours.dropped, ours.skipped) == ((), False) and np.isnan(ours.losses).all() and ours.accuracy is None
        assert np.array_equal(np.isnan(ours.weights), ~np.isnan(theirs.losses))
        if "smooth" not in options:
            assert ours.objective == pytest.approx(theirs.objective, abs=1e-6)


@dataclass(frozen=True)
class Evener(Algorithm):
    """A plug-in: mean loss plus `strength` times the deviation of the losses."""

    strength: float = hyper(0.3, "weight of the deviation", least=0, reason="it is a penalty", fedavg=0)

    def objective(self, losses, shares):
        mean = shares @ losses
        return mean + self.strength * (shares @ (losses - mean) ** 2 + 0.01).sqrt()

    def private(self, own, mean):
        gap = own.loss - mean(own.loss)
        deviation = (mean(gap**2) + 0.01).sqrt()
        return PrivatePart(1 + self.strength * gap / deviation, own.loss + self.strength * deviation)


@dataclass(frozen=True)
class Wrong(Evener):
    """Its own objective, but the weights of another."""

    def objective(self, losses, shares):
        return losses.mean()


@dataclass(frozen=True)
class Mistaken(Evener):
    def private(self, own, mean):
        return PrivatePart(1.0, own.loss)


def test_a_plug_in_that_says_its_sums_runs_privately(monkeypatch, recwarn):
    monkeypatch.setitem(evenfed.algorithms._all(), "evener", Evener)  # as an entry point would
    algorithm = Evener(strength=0.5)
    assert number_of_means(algorithm) == 2
    strategy, _, _ = on_flower(algorithm, private=True, rounds=2, evaluate_every=0)
    wanted = simulated(algorithm, rounds=2, evaluate_every=0)
    assert float((strategy.server.theta - wanted.server.theta).abs().max()) < 3e-7
    for ours, theirs in zip(strategy.records, wanted.records, strict=True):
        assert ours.objective == pytest.approx(theirs.objective, abs=1e-6)
    check_algorithm(algorithm)


def test_sums_of_another_algorithm_are_refused_and_wrong_ones_are_found():
    with pytest.raises(evenfed.InputError, match="wrong cannot run with private=True: its method `private`"):
        FairStrategy(Wrong(), private=True)
    with pytest.raises(AssertionError, match="`private` gives the weights"):
        check_algorithm(Mistaken())


def test_numbers_are_summed_exactly_over_a_wide_range():
    draw = np.random.default_rng(0)
    for scale in (1e-9, 1.0, 1e5, 1e14):
        numbers = draw.normal(size=50) * scale
        words = np.sum([mask_crypto.words_of_numbers([x, 2 * x]) for x in numbers], axis=0, dtype=np.uint64)
        wanted = [math.fsum(numbers), 2 * math.fsum(numbers)]
        assert mask_crypto.numbers_of_words(words) == pytest.approx(wanted, rel=1e-15, abs=50 * 2.0**-40)
    for bad in (math.nan, math.inf, 1e16):
        with pytest.raises(evenfed.InputError, match="not finite or too large"):
            mask_crypto.words_of_numbers([bad])
    vectors = draw.uniform(-8, 8, size=(50, 20))
    words = np.sum([mask_crypto.words_of_vector(vector) for vector in vectors], axis=0, dtype=np.uint64)
    assert np.abs(mask_crypto.vector_of_words(words) - vectors.sum(0)).max() <= 50 * 2.0**-41


class Watch:
    """Everything the server receives, everything that was masked on the clients, and every sum that was opened."""

    def __init__(self, monkeypatch):
        self.replies, self.plain, self.sums = [], {}, []
        contribute, close = Site._contribution, masking_server.MaskedSum.opened

        def contribution(site, message, context, call_next):
            numbers, vector = contribute(site, message, context, call_next)
            self.plain.setdefault(context.node_id, []).append(np.concatenate([numbers, vector]))
            return numbers, vector

        def closed(run, stage):
            numbers, vector = close(run, stage)
            self.sums.append((run, np.concatenate([numbers, vector])))
            return numbers, vector

        monkeypatch.setattr(Site, "_contribution", contribution)
        monkeypatch.setattr(masking_server.MaskedSum, "opened", closed)

    def spoil(self, reply, client):
        self.replies.append((client, reply))
        return reply


def masked_in(reply):
    record = reply.content.config_records.get(masking_client.PROTOCOL, {})
    return np.frombuffer(record.get(masking_client.MASKED, b""), dtype="<u8")


def test_no_single_loss_update_or_score_reaches_the_server(monkeypatch):
    watch = Watch(monkeypatch)
    held = sites(federation())
    app = client_app(small_model, lambda c: held[c.node_config["partition-id"]], device="cpu")
    on_flower("semi_vred", grid=LocalGrid(app, 5, spoil=watch.spoil), private=True, rounds=3)
    allowed = {masking_client.KEYS, masking_client.SHARES, masking_client.MASKED, masking_client.OPENED}
    entries, sent = [], {}
    for client, reply in watch.replies:
        assert not reply.content.array_records
        if reply.metadata.message_type == "query.describe":
            assert not reply.content.metric_records
            continue
        assert reply.metadata.message_type == "train"  # never asked for a loss or a score
        assert set(reply.content.config_records) == {masking_client.PROTOCOL}
        assert set(reply.content.config_records[masking_client.PROTOCOL]) <= allowed
        assert [dict(m) for m in reply.content.metric_records.values()] == [{"num-examples": 1}]
        words = masked_in(reply)
        if len(words):
            sent.setdefault(node_of(client), []).append(words)
            entries.append(words / 2**64)
    # three rounds of: the mean loss (with the scores of the round before), the mean excess, the updates; last scores
    assert [len(found) for found in sent.values()] == [10] * 4 and len(watch.sums) == 10
    for node, vectors in sent.items():
        for masked, plain in zip(vectors, watch.plain[node], strict=True):
            in_the_clear = set(mask_crypto.words_of_numbers(plain[:3]).tolist()) | {1}
            if len(plain) > 5:
                in_the_clear |= set(mask_crypto.words_of_vector(plain[3:]).tolist())
            assert not in_the_clear & set(masked.tolist())
    spread = np.concatenate(entries)
    counts = np.histogram(spread, bins=16, range=(0, 1))[0]
    expected = len(spread) / 16
    assert len(spread) > 1000 and ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 15 degrees: p < 1e-4
    for at, (run, found) in enumerate(watch.sums):
        assert len(run.gave) == 4
        total = np.sum([plain[at] for plain in watch.plain.values()], axis=0)
        assert np.abs(found - total).max() <= 4 * 2.0**-40


STAGES = {
    masking_client.MASKED: "mean",
    masking_client.OPENED: "unmask",
    masking_client.KEYS: "setup",
    masking_client.SHARES: "keys",
}


def stage_of(reply):
    record = reply.content.config_records[masking_client.PROTOCOL]
    stage = next(stage for key, stage in STAGES.items() if key in record)
    return "update" if stage == "mean" and len(masked_in(reply)) > 20 else stage


def losing(app, clients, stage, count=5):
    """A grid that loses the first replies of `clients` in a stage."""
    seen = {}

    def spoil(reply, by):
        if reply.metadata.message_type != "train" or by not in clients or stage_of(reply) != stage:
            return reply
        seen[by] = seen.get(by, 0) + 1
        return None if seen[by] == 1 else reply

    return LocalGrid(app, count, spoil=spoil)


def app_of(clients=None, model=small_model, **options):
    held = sites(clients or federation())
    return client_app(model, lambda context: held[context.node_config["partition-id"]], device="cpu", **options)


@pytest.mark.parametrize("stage", ["setup", "keys", "mean", "update", "unmask"])
def test_a_client_that_drops_out_in_any_stage_is_left_out_and_comes_back(stage, caplog):
    grid = losing(app_of(), {3}, stage)
    strategy, _, _ = on_flower("semi_vred", grid=grid, private=True, rounds=2, evaluate_every=0, timeout=0.05)
    assert [r.skipped for r in strategy.records] == [False, False]
    dropped = () if stage == "unmask" else (3,)
    assert [r.dropped for r in strategy.records] == [dropped, ()]
    assert np.isnan(strategy.records[0].weights).tolist() == [True, False, True, stage == "unmask", True]
    assert ("client 3 (site-3) is dropped: no reply" in caplog.text) == bool(dropped)
    if stage != "update":  # from the losses of those who are left, as the plain round would
        without = federation()
        if dropped:
            without[3] = evenfed.Client(tuple(part[:0] for part in without[3].train), without[3].test, "site-3")
        wanted = simulated("semi_vred", without, rounds=1)
        assert strategy.records[0].objective == pytest.approx(wanted.records[0].objective, abs=1e-6)


def test_after_a_drop_out_the_step_is_divided_by_public_shares_alone(monkeypatch):
    """Dividing by the sum of the weights would tell the weight, and so the loss, of the one who left."""
    watch = Watch(monkeypatch)
    grid = losing(app_of(), {3}, "update")
    strategy, _, _ = on_flower("semi_vred", grid=grid, private=True, rounds=1, evaluate_every=0, timeout=0.05)
    theta = torch.cat([p.detach().flatten() for p in small_model().parameters()]).double().numpy()
    kept = np.sum([watch.plain[node_of(k)][2][3:] for k in (0, 2, 4)], axis=0)
    assert np.allclose(strategy.server.theta.numpy(), theta - kept / ((9 + 4 + 6) / 36), atol=3e-7)
    objective, length, dual = watch.sums[2][1][:3]
    assert objective > 0 and length == pytest.approx(19 / 36, abs=1e-11) and dual == 0  # no sum of weights


@pytest.mark.parametrize("name", ["fedavg", "qffl"])
def test_where_no_weight_would_be_told_a_drop_out_is_the_plain_one(name):
    grid = losing(app_of(), {3}, "update")
    strategy, _, _ = on_flower(name, grid=grid, private=True, rounds=1, evaluate_every=0, timeout=0.05)
    plain_grid = LocalGrid(
        app_of(), 5, spoil=lambda r, by: None if (r.metadata.message_type, by) == ("train", 3) else r
    )
    plain, _, _ = on_flower(name, grid=plain_grid, rounds=1, evaluate_every=0, timeout=0.05)
    assert torch.allclose(strategy.server.theta, plain.server.theta, atol=3e-7, rtol=0)


@pytest.mark.parametrize("stage", ["update", "unmask"])
def test_too_many_drop_outs_skip_the_round_and_the_next_goes_on(stage, caplog):
    grid = losing(app_of(), {2, 3}, stage)
    strategy, _, _ = on_flower("vred", grid=grid, private=True, rounds=2, evaluate_every=0, timeout=0.05)
    assert [r.skipped for r in strategy.records] == [True, False]
    assert strategy.records[0].dropped == (() if stage == "unmask" else (2, 3))
    assert "round 1 is skipped" in caplog.text and not strategy.records[0].weights.any()
    wanted = simulated("vred", rounds=1)
    assert strategy.records[1].objective == pytest.approx(wanted.records[0].objective, abs=1e-6)


NEEDED = {
    "setup": "set-up: 2 of 3 clients are left, 3 are needed",
    "keys": "share keys: 2 of 3 clients are left, 3 are needed",
    "mean": "masked mean 1: 2 of 3 clients are left, 3 are needed",
    "update": "masked update: 2 of 3 clients are left, 3 are needed",
    "unmask": "unmasking mean 1: too few clients helped to take off the masks, 3 are needed",
}


@pytest.mark.parametrize("stage", NEEDED)
def test_a_sum_over_two_clients_is_never_applied(stage, caplog):
    """From it each of the two would know the other's part."""
    clients = federation(sizes=(5, 3, 4))
    grid = losing(app_of(clients), {1}, stage, count=3)
    options = {"private": True, "rounds": 2, "local_epochs": 1, "evaluate_every": 0, "timeout": 0.05}
    strategy, _, _ = on_flower("vred", clients, grid=grid, **options)
    first, second = strategy.records
    assert first.skipped and first.reason == f"{NEEDED[stage]}; lost: site-1" and not first.weights.any()
    assert not second.skipped and "round 1/2: dropped: " in caplog.text and first.reason in caplog.text
    wanted = simulated("vred", clients, rounds=1, local_epochs=1)
    assert second.objective == pytest.approx(wanted.records[0].objective, abs=1e-6)


class Leaving(LocalGrid):
    """From the second round on a site is gone, for so many looks at who is there."""

    looks = 0
    back_after = 3

    def get_node_ids(self):
        present = set(self.contexts)
        if sum(kind == "train" for kind, _ in self.log) >= 12:  # the first round's: keys, shares, update, opening
            self.looks += 1
            if self.looks <= self.back_after:
                present.discard(node_of(1))
        return list(present)


@pytest.mark.parametrize(("back_after", "skipped"), [(3, [False, False]), (10**9, [False, True])])
def test_a_round_waits_for_the_third_site_that_it_cannot_do_without(back_after, skipped, caplog):
    clients = federation(sizes=(5, 3, 4))
    grid = Leaving(app_of(clients), 3)
    grid.back_after = back_after
    options = {"private": True, "rounds": 2, "evaluate_every": 2, "evaluate_participation": 0.0, "wait": 1.0}
    strategy, _, _ = on_flower("fedavg", clients, grid=grid, **options)
    assert "round 2: 2 sites are connected, 3 are needed; waiting up to 1 s" in caplog.text
    assert [record.skipped for record in strategy.records] == skipped


def test_a_site_does_not_rest_where_it_cannot_be_spared():
    """It was silent for a while, and the run has three sites."""
    clients = federation(sizes=(5, 3, 4))
    grid = losing(app_of(clients), {1}, "update", count=3)
    options = {"private": True, "rounds": 2, "evaluate_participation": 0.0, "timeout": 0.05, "rest": 1}
    strategy, _, _ = on_flower("fedavg", clients, grid=grid, **options)
    assert [record.skipped for record in strategy.records] == [True, False]


@pytest.mark.parametrize(
    ("name", "messages", "options"),
    [
        ("semi_vred", [10, 6, 6], {"average": 0.9, "weigh_at": "average"}),
        ("vred", [6, 6, 4], {"evaluate_every": 2}),
        ("fedavg", [7, 7, 7], {"participation": 3}),  # all four are scored, under keys of their own
    ],
)
def test_how_many_messages_a_client_gets(name, messages, options, caplog):
    """Keys once, the next round's along with the update, and its first mean along with the scores."""
    counts = []

    def count(record):
        counts.append(len(grid.log))

    grid = LocalGrid(app_of(), 5)
    wanted = simulated(name, rounds=3, **options)
    strategy, _, _ = on_flower(name, grid=grid, private=True, rounds=3, listen=count, **options)
    assert float((strategy.server.theta - wanted.server.theta).abs().max()) < 3e-7
    for record in strategy.records:
        if record.scores is not None:
            assert record.scores["mean-accuracy"] == pytest.approx(np.nanmean(wanted.records[record.index].accuracy))
    per_client = np.diff([5, *counts]) / 4
    assert per_client.tolist() == messages
    drawn = options.get("participation", 4)
    assert f"masked update {drawn}/{drawn} in " in caplog.text


def test_climb_and_smoothing_count_the_memory_of_rounds_that_counted():
    """A client whose update was lost goes on from the memory the sums know of."""
    grid = losing(app_of(), {3}, "update")
    options = {"rounds": 4, "evaluate_every": 0, "smooth": 0.5, "timeout": 0.05}
    strategy, _, grid = on_flower("climb[lr_dual=5,epsilon=0]", grid=grid, private=True, **options)
    assert [r.dropped for r in strategy.records] == [(3,), (), (), ()]
    duals = []
    for k in (0, 2, 3, 4):
        state = grid.contexts[node_of(k)].state.array_records
        newest = max((n for n in state if n.startswith("memory.")), key=lambda n: int(n.rpartition("-")[2]))
        duals.append(float(state[newest]["theta"].numpy()[1]))
    assert sum(duals) == pytest.approx(float(strategy.server.memory["dual_total"]), abs=1e-9) and max(duals) > 0


def test_many_clients_share_masks_with_neighbours_only(monkeypatch):
    monkeypatch.setattr(masking_server, "NEIGHBOURS", 5)
    clients = federation(sizes=[4] * 9)
    grid = losing(app_of(clients), {2}, "update", count=9)
    options = {"rounds": 1, "evaluate_every": 0, "timeout": 0.05}
    strategy, _, _ = on_flower("fedavg", clients, grid=grid, private=True, **options)
    assert strategy.records[0].dropped == (2,) and not strategy.records[0].skipped
    plain_grid = LocalGrid(
        app_of(clients), 9, spoil=lambda r, by: None if (r.metadata.message_type, by) == ("train", 2) else r
    )
    plain, _, _ = on_flower("fedavg", clients, grid=plain_grid, **options)
    assert torch.allclose(strategy.server.theta, plain.server.theta, atol=3e-7, rtol=0)


def test_scores_come_as_mean_and_deviation_and_are_kept(tmp_path, caplog):
    strategy, result, _ = on_flower("fedavg", private=True, rounds=2, out=tmp_path)
    (row,) = (line.split() for line in caplog.text.splitlines() if "site-3  " in line)
    assert row[-4:] == ["-", "-", "-", "0"]  # loss, accuracy and weight are the client's alone to know
    wanted = simulated("fedavg", rounds=2).records[-1].accuracy
    known = wanted[~np.isnan(wanted)]
    found = result.evaluate_metrics_clientapp[2]
    assert found["mean-accuracy"] == pytest.approx(known.mean(), abs=1e-6)
    assert found["std-accuracy"] == pytest.approx(known.std(), abs=1e-5)
    kept = RunFolder(tmp_path / "fedavg" / "seed-0").history().records
    assert kept[-1].scores == strategy.records[-1].scores == dict(found) and kept[-1].accuracy is None


def test_a_private_run_is_kept_reported_and_gone_on_with(tmp_path):
    options = {"smooth": 0.3, "participation": 3, "private": True, "label": "x", "evaluate_every": 0}
    name = "climb[lr_dual=5,epsilon=0]"
    app = app_of(state=tmp_path / "sites")
    whole, _, _ = on_flower(name, app=app, **options)
    app = app_of(state=tmp_path / "others")
    for _ in range(2):
        cut, _, _ = on_flower(name, app=app, out=tmp_path, leave_after=1, **options)
    assert cut.server.index == 3 and [r.index for r in cut.records] == [0, 1, 2]
    assert torch.allclose(cut.server.theta, whole.server.theta, atol=3e-7, rtol=0)
    folder = RunFolder(tmp_path / "x" / "seed-0")
    history = folder.history()
    assert folder.header().config["private"] is True and len(history.records) == 3
    assert all(np.isnan(r.losses).all() and not math.isnan(r.objective) for r in history.records)
    with pytest.raises(evenfed.InputError, match="private"):
        on_flower(name, out=tmp_path, **{**options, "private": False})


def batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        *[(lambda n=n: FairStrategy(n, private=True), f"{n} cannot run with private=True: it compares")
          for n in ("fedmgda", "fedfv", "fcfl")],
        (lambda: FairStrategy("fedavg", private="yes"), "private='yes'"),
        (lambda: FairStrategy("gifair", private=True), "ranks"),
        (lambda: FairStrategy("delta_fl", private=True), "quantile"),
        (lambda: FairStrategy("afl", private=True), "simplex"),
        (lambda: FairStrategy("drfa", private=True), "single losses"),
        (lambda: FairStrategy("vred[safe=0.9]", private=True), "smallest loss.*semi_vred"),
        (lambda: on_flower("fedavg", private=True, participation=2), "2 clients per round.*at least 3"),
        (lambda: on_flower("fedavg", model=batch_norm, private=True), "GroupNorm"),
        (
            lambda: FairStrategy("fedavg", private=True).start(
                LocalGrid(app_of(), 5),
                initial_arrays(small_model()),
                wrapped=DifferentialPrivacyServerSideFixedClipping(FairStrategy("fedavg"), 0.0, 1.0, 4),
            ),
            "looks into single replies.*fixedclipping_mod",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_private_is_told(build, told):
    with pytest.raises(evenfed.InputError, match=f"(?s){told}"):
        build()


def test_an_update_beyond_the_masks_range_is_dropped_and_named(caplog):
    clients = federation()
    clients[3] = evenfed.Client((clients[3].train[0] * 1e4, clients[3].train[1]), clients[3].test, "site-3")
    options = {"rounds": 1, "evaluate_every": 0, "timeout": 0.05, "tell_errors": True}
    strategy, _, _ = on_flower("fedavg", clients, lambda: nn.Linear(6, 3), private=True, **options)
    assert strategy.records[0].dropped == (3,) and not strategy.records[0].skipped
    assert "beyond 8; lower the learning rate" in caplog.text


def test_clients_clip_before_the_mask():
    """Flower's client-side clipping inside, secure sums outside: central noise on a sum nobody saw the parts of."""

    def run(norm, noise=0.0):
        strategy = FairStrategy("semi_vred", private=True, evaluate_every=0, **{**OPTIONS, "rounds": 1})
        wrapped = DifferentialPrivacyClientSideFixedClipping(strategy, noise, norm, 4)
        grid = LocalGrid(app_of(mods=[fixedclipping_mod]), 5)
        strategy.start(grid, initial_arrays(small_model()), wrapped=wrapped)
        return strategy.server.theta

    plain, initial = simulated("semi_vred", rounds=1).server.theta, initial_theta()
    assert torch.allclose(run(1e6), plain, atol=1e-5)
    assert 1e-4 < float((run(1e-3) - initial).norm()) <= 1e-3 * 1.01
    assert not torch.allclose(run(1e6, noise=1e-6), plain, atol=1e-3)


def test_local_noise_is_added_before_the_mask():
    app = app_of(mods=[LocalDpMod(clipping_norm=1e6, sensitivity=1e-4, epsilon=1.0, delta=0.1)])
    strategy, _, _ = on_flower("semi_vred", app=app, private=True, rounds=1, evaluate_every=0)
    apart = float((strategy.server.theta - simulated("semi_vred", rounds=1).server.theta).abs().max())
    assert 1e-5 < apart < 1e-2


def initial_theta():
    return torch.cat([p.detach().flatten() for p in small_model().parameters()])


@pytest.mark.parametrize("side", ["server", "client"])
def test_flowers_adaptive_clipping_wraps_a_fair_strategy(side):
    """Nothing clipped: the plain result. All clipped: small steps. The norm moves towards the updates'."""

    def run(norm, noise=0.0):
        strategy = FairStrategy("semi_vred", ordered=True, **OPTIONS)
        kind = DifferentialPrivacyServerSideAdaptiveClipping
        if side == "client":
            kind = DifferentialPrivacyClientSideAdaptiveClipping
        wrapped = kind(strategy, noise, 4, initial_clipping_norm=norm, clipped_count_stddev=1e-6 if noise else 0.0)
        app = app_of(mods=[adaptiveclipping_mod] if side == "client" else [])
        strategy.start(LocalGrid(app, 5), initial_arrays(small_model()), wrapped=wrapped)
        return strategy, wrapped.clipping_norm

    strategy, norm = run(1e6)
    assert torch.allclose(strategy.server.theta, simulated("semi_vred").server.theta, atol=1e-5)
    clipped, after = run(1e-3)
    assert not any(r.skipped for r in strategy.records + clipped.records)
    factor = math.exp(0.2 * 0.5 * OPTIONS["rounds"])
    assert norm == pytest.approx(1e6 / factor) or norm == pytest.approx(1e6 * factor)
    assert (norm / 1e6 - 1) * (after / 1e-3 - 1) < 0
    assert float((clipped.server.theta - initial_theta()).norm()) <= OPTIONS["rounds"] * 1.5e-3


def test_orders_for_training_without_masks_pass_through():
    strategy, _, grid = on_flower("fedavg", rounds=1)
    kinds = {kind for kind, _ in grid.log}
    assert kinds == {"query.describe", "query.loss", "train", "evaluate"} and not strategy.private


def test_a_silent_client_costs_one_timeout_per_round_under_the_rounds_own_number(caplog):
    clients = federation(sizes=(5, 3, 4))
    options = {"private": True, "rounds": 2, "timeout": 0.05, "rest": 0}
    silent = LocalGrid(
        app_of(clients), 3, spoil=lambda reply, client: None if client == 0 and private(reply) else reply
    )
    strategy, _, grid = on_flower("fedavg", clients, grid=silent, **options)
    assert [record.skipped for record in strategy.records] == [True, True]
    assert len([kind for kind, client in grid.log if client == 0 and kind == "train"]) == 2
    assert caplog.text.count("client 0 (site-0) is dropped: no reply") == 2 and "round 3" not in caplog.text
    assert "round 1: no scores: 2 clients have answered, 3 are needed" in caplog.text


def private(reply):
    return reply.metadata.message_type == "train"


def test_a_client_lost_in_the_scores_is_not_scored_in_that_round(caplog):
    grid = losing(app_of(), {3}, "mean")  # fedavg has no means: this is the sum of the scores
    on_flower("fedavg", grid=grid, private=True, rounds=1, timeout=0.05)
    assert "round 1: client 3 (site-3) is not scored: no reply" in caplog.text
