"""Splitting data over clients: bit-exact to the authors' generator, stratified, recorded, repeatable."""

import numpy as np
import pytest

import evenfed
from evenfed.data import Dataset, DataSettings, federate, federation, store
from evenfed.data.partition import dirichlet, iid, natural, shards, split

LABELS = np.repeat(np.arange(100), 500)  # CIFAR-100's training classes


def test_the_papers_cifar100_split_is_reconstructed_exactly():
    splits = [split(rows, LABELS, 0.8) for rows in dirichlet(LABELS, 50, 0.05, seed=0)]
    assert (sum(len(s.train) for s in splits), sum(len(s.test) for s in splits)) == (39_445, 10_555)
    assert [len(s.train) for s in splits[:10]] == [1129, 960, 285, 693, 1044, 889, 587, 1596, 705, 567]
    assert [len(s.test) for s in splits[:10]] == [296, 257, 82, 186, 272, 233, 154, 421, 190, 153]


def test_cifar10s_split_with_seed_zero():
    labels = np.repeat(np.arange(10), 5000)
    splits = [split(rows, labels, 0.5) for rows in dirichlet(labels, 50, 0.05, seed=0)]
    assert (sum(len(s.train) for s in splits), sum(len(s.test) for s in splits)) == (24_957, 25_043)
    assert min(len(s.train) for s in splits) == 5


@pytest.mark.parametrize("parts", [dirichlet(LABELS, 7, 0.3, 1), shards(LABELS, 7, 3, 1), iid(len(LABELS), 7, 1)])
def test_every_row_has_exactly_one_client(parts):
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))


def test_shards_hold_few_classes_and_iid_all():
    assert max(len(np.unique(LABELS[p])) for p in shards(LABELS, 50, 2, 0)) <= 4
    assert min(len(np.unique(LABELS[p])) for p in iid(len(LABELS), 10, 0)) == 100


def test_natural_clients_are_drawn_uniformly_among_those_large_enough():
    owners = np.repeat([5, 2, 9, 7], [3, 10, 1, 6])
    parts, who = natural(owners, clients=0, least=3, seed=0)
    assert who == [2, 5, 7] and [len(p) for p in parts] == [10, 3, 6]
    assert all((owners[p] == w).all() for p, w in zip(parts, who, strict=True))
    drawn = {tuple(natural(owners, 2, 3, seed)[1]) for seed in range(40)}
    assert drawn == {(2, 5), (2, 7), (5, 7)}


def test_splits_are_stratified_and_disjoint_with_a_validation_part():
    rows = np.arange(1000, 2000)
    found = split(rows, LABELS, 0.6, 0.25, shuffle=3)
    together = np.concatenate([found.train, found.validation, found.test])
    assert sorted(together.tolist()) == rows.tolist()
    for label in (2, 3):
        counts = [(LABELS[part] == label).sum() for part in (found.train, found.validation, found.test)]
        assert counts == [225, 75, 200]


def test_a_federation_holds_each_clients_own_rows():
    settings = DataSettings(clients=12, concentration=0.3, validation_fraction=0.2, seed=3)
    found, again = federate(settings), federate(settings)
    data = store.read("digits")
    splits = [split(rows, data.targets, 0.5, 0.2) for rows in dirichlet(data.targets, 12, 0.3, 3)]
    for k, part in enumerate(splits):
        for pool, rows in ((found.train, part.train), (found.validation, part.validation), (found.judged, part.test)):
            inputs, targets = pool.of(k)
            assert np.array_equal(inputs.numpy(), data.inputs[rows]) and np.array_equal(
                targets.numpy(), data.targets[rows]
            )
    assert (found.class_counts.sum(1) == found.train_sizes + found.judged_sizes + found.validation.sizes.numpy()).all()
    assert np.array_equal(found.train.inputs.numpy(), again.train.inputs.numpy())
    client = found.clients()[4]
    assert client.name == "digits-4" and client.train[0].data_ptr() == found.train.of(4)[0].data_ptr()  # no copy


def test_small_clients_are_kept_dropped_or_drawn_again_as_asked(monkeypatch):
    base = {"clients": 30, "concentration": 0.1, "min_train": 5, "min_test": 5}
    kept = federate(DataSettings(**base))
    assert len(kept.names) == 30 and kept.train_sizes.min() == 0
    few = int(((kept.train_sizes < 5) | (kept.judged_sizes < 5)).sum())
    assert few > 1
    assert kept.notes[-1] == f"{few} of 30 clients have fewer than 5 training or fewer than 5 test examples; kept"
    (empty,) = federate(DataSettings(clients=30, concentration=0.1)).notes
    assert empty == "1 of 30 clients has no training or no test examples; kept"
    dropped = federate(DataSettings(**base, small="drop"))
    assert len(dropped.names) < 30 and dropped.train_sizes.min() >= 5 and "dropped" in dropped.notes[-1]
    base["clients"] = 12
    drawn = federate(DataSettings(**base, small="redraw"))
    assert len(drawn.names) == 12 and drawn.train_sizes.min() >= 5
    assert drawn.seed == 0 or f"seed {drawn.seed}" in drawn.notes[-1]
    monkeypatch.setattr(federation, "MOST_DRAWS", 20)
    with pytest.raises(evenfed.InputError, match="small='redraw'"):
        federate(DataSettings(clients=40, concentration=0.01, small="redraw", min_train=50))


def test_fewer_examples_for_a_first_look():
    found = federate(DataSettings(clients=5, examples=300, concentration=1.0))
    assert found.train_sizes.sum() + found.judged_sizes.sum() == 300 and "300 of 1797" in found.notes[0]


def test_sequences_take_natural_clients(monkeypatch):
    owners = np.repeat(np.arange(4), [10, 3, 20, 8])
    words = np.arange(41 * 5).reshape(41, 5) % 9
    monkeypatch.setattr(
        federation, "dataset", lambda _: Dataset("text", words, words, 9, owners, ("a", "b", "c", "d"), 0)
    )
    found = federate(DataSettings(partition="natural", clients=0, min_examples=8, train_fraction=0.75))
    assert found.names == ["a", "c", "d"] and found.class_counts is None and found.padding == 0
    assert found.train_sizes.tolist() == [7, 15, 6] and found.judged_sizes.tolist() == [3, 5, 2]
    thin = federate(DataSettings(partition="natural", clients=0, min_examples=8, examples=19))
    assert (thin.train_sizes + thin.judged_sizes).tolist() == [5, 10, 4]  # every client keeps its share
    with pytest.raises(evenfed.InputError, match="needs classes"):
        federate(DataSettings(partition="dirichlet"))
    with pytest.raises(evenfed.InputError, match="no owner"):
        federate(DataSettings(partition="natural", min_examples=100))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "cifar11"}, "did you mean 'cifar10'"),
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"clients": 0}, "clients=0"),
        ({"concentration": 0}, "concentration=0"),
        ({"train_fraction": 1.0}, "train_fraction=1.0"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
        ({"examples": 0}, "examples=0"),
        ({"seed": -1}, "seed=-1"),
        ({"name": "folder"}, "data.name='folder' needs a path: set data.path .with `data show`: --path DIR"),
        ({"path": "x"}, "path goes with"),
        ({"small": "merge"}, "data.small"),
    ],
)
def test_bad_data_settings(given, told):
    with pytest.raises(evenfed.InputError, match=told):
        DataSettings(**given)


def test_digits_has_no_natural_clients():
    with pytest.raises(evenfed.InputError, match="no natural clients"):
        federate(DataSettings(partition="natural"))
