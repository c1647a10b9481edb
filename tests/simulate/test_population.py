"""Many clients: in a few arrays, evaluated on a panel, recorded for those alone who took part."""

import weakref
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import evenfed
from evenfed.core import sparse, streams
from evenfed.core.errors import InputError
from evenfed.core.fold import Fold
from evenfed.simulate import optimizer_states

COUNT = 60
OPTIONS = {"rounds": 3, "lr": 0.1, "participation": 7, "batch_size": 2, "device": "cpu", "progress": False}


def arrays(rows):
    draw = torch.Generator().manual_seed(rows)
    inputs = torch.randn((rows, 4), generator=draw)
    return inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long()


@pytest.fixture(scope="module")
def clients():
    sizes = np.arange(COUNT) % 4 + 1
    test_sizes = np.arange(COUNT) % 3
    return evenfed.Clients(arrays(int(sizes.sum())), sizes, arrays(int(test_sizes.sum())), test_sizes)


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def same(one, two):
    for first, second in zip(one.records, two.records, strict=True):
        for field in ("losses", "weights", "accuracy", "test_losses"):
            assert np.array_equal(getattr(first, field), getattr(second, field), equal_nan=True), field


@pytest.mark.parametrize("form", ["tensors", "arrays", "mixed"])
def test_clients_in_arrays_train_as_single_ones_do(clients, form):
    singles = list(clients)
    if form != "tensors":
        for k, client in enumerate(singles):
            if form == "arrays" or k % 2:
                train, test = ((x.numpy(), y.numpy()) for x, y in (client.train, client.test))
                singles[k] = evenfed.Client(train, test if len(test[1]) else None)
    together = evenfed.train(model(), clients, "semi_vred", **OPTIONS)
    apart = evenfed.train(model(), singles, "semi_vred", **OPTIONS)
    same(together, apart)
    assert apart.client_names == together.client_names == [str(k) for k in range(COUNT)]


def test_an_error_in_one_of_many_clients_names_it(clients):
    singles = list(clients)
    inputs, targets = singles[41].train
    spoilt = inputs.clone()
    spoilt[0, 0] = torch.nan
    singles[41] = evenfed.Client((spoilt, targets))
    with pytest.raises(InputError, match="client 41, train inputs: NaN or infinity in example 0"):
        evenfed.train(model(), singles, **OPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": [3, 3]}, "sizes add up to 6, but train has 9 rows"),
        ({"sizes": [10, -1]}, "whole numbers of at least 0"),
        ({"sizes": [[9]]}, "whole numbers of at least 0"),
        ({"sizes": [4.5, 4.5]}, "whole numbers of at least 0"),
        ({"names": ["a"]}, "1 names for 2 clients"),
        ({"test_sizes": [1, 1]}, "belong together"),
        ({"train": torch.zeros(9)}, "give a pair"),
        ({"names": ["a", "a"]}, "clients 0 and 1 are both called 'a'"),
    ],
)
def test_wrong_arrays_of_clients(change, message):
    given = {"train": arrays(9), "sizes": [4, 5], **change}
    with pytest.raises(InputError, match=message):
        evenfed.train(model(), evenfed.Clients(**given), **OPTIONS)


def test_a_panel_is_the_same_in_every_round_and_its_figures_are_those_of_everyone(clients):
    everyone = evenfed.train(model(), clients, "semi_vred", **OPTIONS)
    panel = evenfed.train(model(), clients, "semi_vred", evaluate_participation=10, **OPTIONS)
    other_seed = evenfed.train(model(), clients, "fedavg", seed=3, evaluate_participation=10, **OPTIONS)
    evaluated = ~np.isnan(panel.records[0].accuracy)
    assert evaluated.sum() == 10
    for result in (panel, other_seed):
        for record in result.records:
            assert np.array_equal(~np.isnan(record.accuracy), evaluated)
            assert np.array_equal(~np.isnan(record.test_losses), evaluated)
    for whole, part in zip(everyone.records, panel.records, strict=True):
        assert np.array_equal(whole.losses, part.losses, equal_nan=True)
        assert np.allclose(whole.accuracy[evaluated], part.accuracy[evaluated], atol=1e-12)
    counts = panel.header.label_counts[evaluated]
    last = panel.records[-1]
    assert last.recalls @ counts.sum(0) == pytest.approx(np.nansum(last.accuracy * (np.arange(COUNT) % 3)))
    assert panel.fairness.mean == pytest.approx(np.nanmean(last.accuracy))


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_a_fraction_of_those_with_test_data_is_evaluated(clients, engine):
    result = evenfed.train(model(), clients, evaluate_participation=0.25, engine=engine, **OPTIONS)
    assert np.isfinite(result.accuracy).sum() == 10  # of 40


def test_more_clients_to_evaluate_than_there_are(clients):
    with pytest.raises(InputError, match="evaluate_participation=41 clients, but only 40 have test data"):
        evenfed.train(model(), clients, evaluate_participation=41, **OPTIONS)
    with pytest.raises(InputError, match="evaluate_participation=0: give a fraction"):
        evenfed.Settings(evaluate_participation=0)


def test_the_smallest_hashes_are_the_same_in_pieces(monkeypatch):
    among = np.flatnonzero(np.arange(1000) % 7)
    whole = {count: streams.sample(5, 2, among, count) for count in (1, 30, 500, len(among))}
    monkeypatch.setattr(streams, "_PIECE", 64)
    hashes = streams.hashed(5, 2, streams.SAMPLING, among)
    for count, ids in whole.items():
        assert np.array_equal(streams.sample(5, 2, among, count), ids)
        assert np.array_equal(np.sort(among[hashes.argsort()[:count]]), ids)
        assert len(np.unique(ids)) == count and np.isin(ids, among).all()


def test_records_of_many_clients_keep_those_who_took_part(clients, monkeypatch):
    options = {**OPTIONS, "evaluate_participation": 10}
    written_out = evenfed.train(model(), clients, "semi_vred", **options)
    monkeypatch.setattr(sparse, "MANY", 10)
    result = evenfed.train(model(), clients, "semi_vred", **options)
    same(result, written_out)
    for record in result.records:
        assert len(record.kept("losses").ids) == len(record.known("losses")) == 7
        assert len(record.kept("accuracy").values) == 10
        assert record.losses.shape == (COUNT,)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("fedmgda", "fedmgda needs the updates of all 7 clients of a round at once"),
        ("fedfv", "fedfv needs the updates"),
        ("ditto", "ditto keeps a model for each of 60 clients"),
    ],
)
def test_what_memory_does_not_hold_is_refused_in_words(clients, monkeypatch, algorithm, reason):
    monkeypatch.setattr(optimizer_states, "memory_of", lambda device: 1000)
    with pytest.raises(InputError, match=f"{reason}.* GB of cpu memory; "):
        evenfed.train(model(), clients, algorithm, **OPTIONS)
    assert evenfed.train(model(), clients, "semi_vred", **OPTIONS).records


@pytest.mark.parametrize("engine", ["reference", "parallel"])
def test_a_round_takes_the_memory_of_a_few_models_however_many_train(engine):
    """80 clients, whose updates together would take 80 times the model."""
    width = 400
    inputs = torch.randn(80, width)
    many = evenfed.Clients((inputs, torch.arange(80) % width), np.ones(80, dtype=int))
    largest = []

    def watch(progress):
        largest.append(progress.server.theta.nbytes)

    with tracked_tensors() as held:
        evenfed.train(
            torch.nn.Linear(width, width),
            many,
            "fedavg",
            rounds=1,
            lr=0.1,
            engine=engine,
            device="cpu",
            progress=False,
            callbacks=[watch],
        )
    assert max(held) < 20 * largest[0]


@contextmanager
def tracked_tensors():
    """The bytes of updates that are alive, noted whenever one is folded."""
    held = []
    alive = weakref.WeakSet()
    add = Fold.add

    def noted(fold, update):
        alive.add(update.delta)
        held.append(sum(delta.nbytes for delta in alive))
        add(fold, update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fold, "add", noted)
        yield held
