"""The forms in which a client's data come, each trained on and compared with the same data as a pair."""

import gc
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import evenfed
from evenfed import Client, InputError
from evenfed.clients import client, examples, lazy
from evenfed.clients.tables import Heading
from evenfed.simulate.engines.parallel import Parallel
from evenfed.simulate.problem import EvalRequest, Problem

X = torch.randn(12, 3, generator=torch.manual_seed(0))
Y = torch.arange(12) % 2
FRAME = pd.DataFrame({"age": X[:, 0].numpy(), "bmi": X[:, 1].numpy(), "dose": X[:, 2].numpy(), "label": Y.numpy()})


class Items(Dataset):
    """Items of whatever shape `item` gives."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return len(Y)

    def __getitem__(self, position):
        return self.item(position)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def tensors(part, **options):
    return client.tensors(part, "client a, train", torch.float32, **options)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param((X.numpy(), Y.numpy()), id="arrays"),
        pytest.param([X.tolist(), Y.tolist()], id="lists"),
        pytest.param(TensorDataset(X, Y), id="TensorDataset"),
        pytest.param(Subset(TensorDataset(X.repeat(2, 1), Y.repeat(2)), range(12, 24)), id="Subset"),
        pytest.param(Items(lambda k: (X[k], int(Y[k]))), id="Dataset"),
        pytest.param(Subset(Items(lambda k: (X[k].numpy(), Y[k])), range(12)), id="Subset of a Dataset"),
        pytest.param(Items(lambda k: {"x": X[k], "y": Y[k]}), id="dicts"),
        pytest.param(DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, drop_last=True), id="DataLoader"),
        pytest.param(DataLoader(TensorDataset(X, Y), 4, sampler=SubsetRandomSampler(range(12))), id="sampler"),
        pytest.param(FRAME, id="DataFrame"),
        pytest.param((FRAME[["age", "bmi", "dose"]], FRAME["label"]), id="columns of a DataFrame"),
        pytest.param({"label": Y, "age": X[:, 0], "bmi": X[:, 1], "dose": X[:, 2]}, id="columns"),
        pytest.param({"label": Y, "x": X}, id="column of arrays"),
        pytest.param(lambda: (X, Y), id="function"),
    ],
)
def test_every_form_is_the_same_pair(part):
    inputs, targets = tensors(part)
    torch.testing.assert_close(inputs, X)
    assert targets.dtype == torch.int64 and targets.tolist() == Y.tolist()


def test_a_table_says_what_is_to_be_predicted():
    named = FRAME.rename(columns={"label": "outcome"})
    torch.testing.assert_close(tensors(named, target="outcome")[0], X)
    regression, target = tensors(FRAME, target="age")
    assert regression.shape == (12, 3) and target.dtype == torch.float32
    whole = pd.DataFrame({"n": pd.array([1, 2], dtype="Int64"), "smokes": [True, False], "y": [True, False]})
    inputs, targets = tensors(whole)
    assert inputs.tolist() == [[1, 1], [2, 0]] and targets.tolist() == [1, 0]
    mixed, targets = tensors((whole[["n", "smokes"]], whole["y"]))  # of such a frame, numpy makes an array of objects
    assert mixed.tolist() == [[1, 1], [2, 0]] and targets.tolist() == [1, 0]
    several, _ = tensors(Items(lambda k: (X[k], X[k, :1], Y[k])))
    assert [tensor.shape for tensor in several] == [(12, 3), (12, 1)]
    by_name, _ = tensors({"ids": X, "mask": X > 0, "label": Y})
    assert sorted(by_name) == ["ids", "mask"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (FRAME.assign(sex="f"), "column 'sex' is str, not numbers; encode it .pandas.get_dummies. or drop it"),
        (FRAME.assign(label="yes"), "column 'label' is str, not numbers; give class numbers from 0"),
        (FRAME.assign(age=[np.nan, *range(11)]), "column 'age' has 1 missing values; fill them or drop"),
        (FRAME.assign(y=0), "which of the columns age, bmi, dose, label, y .*target='y'"),
        (FRAME[["label"]], "no column but its target 'label'"),
        (FRAME["age"], "a Series is no table"),
        (pd.concat([FRAME, FRAME[["age"]]], axis=1), "several columns are called 'age'"),
        ({"label": Y, "text": ["a"] * 12}, "column 'text' is <U1, not numbers"),
        ({"label": Y, "x": [[1], [1, 2]]}, "rows of column 'x' differ in shape"),
        (Stream(), "Stream is a stream; give a dataset with a length"),
        (Items(lambda k: X[k]), "items have no target; let each item be"),
        (Items(lambda k: (X[: k + 1], 0)), "do not make one batch .*ToTensor"),
        (DataLoader(Stream()), "without batches|is a stream"),
        (X, "a Tensor; give a pair .inputs, targets., a torch or Hugging Face dataset"),
        ("nowhere", r"x\.npy cannot be read .*give a folder with x\.npy and y\.npy"),
        (lambda: 1 / 0, "function that loads it failed .ZeroDivisionError: division by zero"),
        (lambda: len, "gave another function"),
        (
            Items(lambda k: {"x": X[k]}["z"]),
            "item 0 of Items cannot be read .KeyError: 'z'.; let every item from 0 to 11",
        ),
        ((X, pd.Series(["no", "yes"] * 6)), "the target column is str, not numbers; give class numbers from 0"),
        (
            (X, np.array(["no", "yes"] * 6)),
            "targets are text; give class numbers from 0, the same for all clients, e.g.",
        ),
        ((X, ["no", "yes"] * 6), "targets are text; give class numbers from 0"),
        ({"label": ["no", "yes"] * 6, "x": X}, "column 'label' is <U3, not numbers; give class numbers from 0"),
        ((scipy.sparse.csr_matrix(X.numpy()), Y), r"a sparse csr_matrix; give a dense array: \.toarray\(\)"),
        ((np.array([None] * 12), Y), "its values are object, not numbers"),
    ],
)
def test_what_cannot_be_used_is_told(part, message):
    with pytest.raises(InputError, match=message) as caught:
        tensors(part)
    assert str(caught.value).startswith("client a, train")


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int16, torch.uint16])
def test_classes_of_any_whole_type_or_truth_values_become_int64(kind):
    assert torch.equal(tensors((X, Y.to(kind)))[1], Y)
    assert torch.equal(tensors((X, Y.to(kind).numpy()))[1], Y)


@pytest.mark.parametrize("form", [lambda table: table, lambda table: {name: table[name].to_numpy() for name in table}])
def test_several_target_columns_are_several_numbers_to_predict(form):
    part = form(FRAME[["age", "bmi", "dose"]])
    inputs, targets = tensors(part, target=["dose", "age"])
    torch.testing.assert_close(targets, X[:, [2, 0]])
    torch.testing.assert_close(inputs, X[:, 1:2])
    with pytest.raises(InputError, match="no column 'label' for target=; the columns are age, bmi, dose"):
        tensors(part, target=["age", "label"])


def test_a_test_table_without_the_target_is_named():
    """The advice was to predict a feature."""
    bare = FRAME.drop(columns="label")
    with pytest.raises(
        InputError, match=r"^client a, test: the table has no column 'label', the target in client a, tr"
    ):
        rounds_of([Client(FRAME, bare, name="a")])


def test_options_of_a_client_that_would_be_ignored_are_refused():
    with pytest.raises(InputError, match=r"unknown option 'tests'; did you mean 'test'. Allowed: train, test, name"):
        Client((X, Y), tests=(X, Y))
    with pytest.raises(InputError, match="size=5 with tuple: it says how many examples a function loads; leave it out"):
        Client((X, Y), size=5)
    with pytest.raises(InputError, match="test_size=5 with no data"):
        Client((X, Y), test_size=5)
    assert pickle.loads(pickle.dumps(Client((X, Y), name="a"))).name == "a"


PAIR = (X, Y)
DATASET = TensorDataset(X, Y)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([PAIR, DATASET, DataLoader(DATASET), FRAME, Client(PAIR)], "01234"),
        ({"a": Client(PAIR), "b": DATASET, "c": Client(PAIR, name="c")}, "abc"),
    ],
    ids=["list", "dict"],
)
def test_clients_may_be_given_as_their_data_or_by_name(given, names):
    result = rounds_of(given, unseen=[Client((X, Y), (X, Y))])
    assert result.client_names == list(names) and result.server.sizes.tolist() == [12] * len(names)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": Client(PAIR, name="b")}, r"clients\['a'\] is called 'b'; give it one name"),
        (
            [(DATASET, DATASET)],
            r"is a pair \(TensorDataset, TensorDataset\); give evenfed.Client\(train=..., test=...\)",
        ),
        ([(PAIR, PAIR)], r"is a pair \(tuple, tuple\); give evenfed.Client\(train=..., test=...\)"),
        ({"x": X, "y": Y}, r"clients\['x'\] is a Tensor; give evenfed.Client"),
        (PAIR, r"clients\[0\] is a Tensor; give evenfed.Client"),
    ],
)
def test_what_is_no_client_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        rounds_of(given)


@pytest.mark.parametrize(
    ("clients", "unseen", "message"),
    [
        ([Client(PAIR, name="a")], [Client((X, Y), name="a")], "a training client is called 'a' too"),
        ([ours := Client(PAIR, (X, Y))], [Client(DATASET), ours], "the data of client 1 are trained on"),
        ([DATASET], [DATASET], "the data of client 0 are trained on"),
    ],
    ids=["name", "client", "data"],
)
def test_a_held_out_client_that_trains_is_refused(clients, unseen, message):
    """It was shown as held out."""
    with pytest.raises(InputError, match=f"^unseen: {message}.*held-out clients must not train"):
        rounds_of(clients, unseen=unseen)


def test_a_client_may_be_an_empty_subset():
    nobody = Subset(Items(lambda k: (X[k], 0)), [])
    result = rounds_of([Client(nobody), Client((X, Y), (X, Y))])
    assert result.shares.tolist() == [0, 1]


SWAPPED = FRAME[["label", "bmi", "age", "dose"]]
RENAMED = FRAME.rename(columns={"bmi": "weight", "dose": "amount"})


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda frame: frame, id="DataFrame"),
        pytest.param(lambda frame: (frame.drop(columns="label"), frame["label"]), id="pair"),
        pytest.param(lambda frame: {name: frame[name].to_numpy() for name in frame}, id="columns"),
        pytest.param(lambda frame: (frame.drop(columns="label"), Y), id="pair with a tensor"),
        pytest.param(
            lambda frame: Items(lambda k: {str(name): value for name, value in frame.iloc[k].items()}), id="Dataset"
        ),
    ],
)
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (SWAPPED, "the table's columns are 'bmi', 'age', 'dose', but {first} has 'age', 'bmi', 'dose'"),
        (RENAMED, "other columns than {first} .'bmi', 'dose' missing, 'weight', 'amount' added."),
        (FRAME.drop(columns="bmi"), "other columns than {first} .'bmi' missing."),
    ],
)
def test_columns_of_other_names_or_in_another_order_are_refused(form, wrong, told):
    """In a test part, between clients, in held-out data, and in what is loaded later."""
    right = Client(FRAME, FRAME, name="a")
    bad = form(wrong)
    for clients, held_out, where in (
        ([Client(FRAME, bad, name="a")], {}, "client a, test"),
        ([right, Client(bad, name="b")], {}, "client b, train"),
        ([right], {"unseen": [Client(bad, name="c")]}, "client c, unseen"),
        ([right], {"test": bad}, "client all, test"),
        ([right, Client(lambda: bad, size=12, name="b")], {}, "client b, train"),
        ([Client(lambda: FRAME, size=12, name="a"), Client(bad, name="b")], {}, None),
    ):
        message = told.format(first="client a, train")
        if where is None:  # what is at hand is read first
            where, message = "client a, train", "columns"
        with pytest.raises(InputError, match=f"^{where}: .*{message}"):
            rounds_of(clients, **held_out)
    with pytest.raises(InputError, match="^client 3, test: .*" + told.format(first="client 3, train")):
        client.single_client_pools(Client(FRAME, bad), 3, torch.float32)


def test_columns_of_one_table_for_all_clients_are_compared_too():
    features, swapped = FRAME[["age", "bmi", "dose"]], FRAME[["bmi", "age", "dose"]]
    sizes = [6, 6]
    rounds_of(evenfed.Clients((features, FRAME["label"]), sizes, (features, FRAME["label"]), sizes))
    with pytest.raises(InputError, match=r"^test: the table's columns are 'bmi', 'age', 'dose', but train has"):
        rounds_of(evenfed.Clients((features, FRAME["label"]), sizes, (swapped, FRAME["label"]), sizes))


def test_columns_without_names_are_not_compared():
    numbered = pd.DataFrame(X.numpy())
    for test in ((X, Y), (numbered, Y), (FRAME[["age", "bmi", "dose"]], FRAME["label"]), {"x": X, "y": Y}):
        clients = [Client(FRAME, test), Client(test, FRAME)]
        assert rounds_of(clients).accuracy.shape == (2,)
    by_name = {"ids": X, "mask": X > 0, "label": Y}  # inputs of a model that are told apart by name, in any order
    reordered = {"label": Y, "mask": X > 0, "ids": X}
    heading = Heading()
    for part in (by_name, reordered):
        assert list(tensors(part, heading=heading)[0]) == ["ids", "mask"]


def test_long_tables_are_not_listed_whole():
    wide = pd.DataFrame(np.zeros((2, 40)), columns=[f"c{k}" for k in range(40)]).assign(y=[0, 1])
    with pytest.raises(InputError, match="'c7' and 32 more missing") as refused:
        rounds_of([Client(wide, FRAME)])
    assert "'c8'" not in str(refused.value)


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ((X, Y), "12"),
        ([X, Y], "12"),
        (FRAME, "12"),
        ({"x": X, "y": Y}, "12"),
        (TensorDataset(X, Y), "12"),
        (Subset(TensorDataset(X, Y), range(5)), "5"),
        (DataLoader(TensorDataset(X, Y), batch_size=4), "12"),
        (DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, drop_last=True), "12"),
        (DataLoader(TensorDataset(X, Y), 4, sampler=SubsetRandomSampler(range(7))), "7"),
        (Stream(), "when drawn"),
        (lambda: (X, Y), "when drawn"),
        ("north", "in a folder"),
        (Path("north"), "in a folder"),
    ],
)
def test_a_client_shows_examples_not_batches(part, shown):
    assert repr(Client(part, part)) == f"<Client without a name: train {shown}, test {shown}>"


def test_a_target_that_is_not_there_is_told():
    with pytest.raises(InputError, match="no column 'outcome' for target=; the columns are age, bmi, dose, label"):
        tensors(FRAME, target="outcome")


FEATURES = FRAME[["age", "bmi", "dose"]]
BACKWARDS = FRAME.iloc[::-1]
HALF = RandomSampler(range(12), num_samples=6)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ((FEATURES, BACKWARDS["label"]), "the same row labels in another order.*bring them into one order"),
        ((FRAME, FRAME["label"]), "the inputs still hold the targets, as column 'label'; drop it"),
        ((np.ma.masked_array(X.numpy(), X.numpy() > 0), Y), "has masked values; fill them"),
        (DataLoader(TensorDataset(X, Y), 4, sampler=HALF), "RandomSampler may repeat or leave out items"),
        (({"a": FRAME["age"], "b": BACKWARDS["bmi"]}, Y), "the same row labels in another order"),
        ({"a": FRAME["age"], "label": BACKWARDS["label"]}, "the same row labels in another order"),
        (
            DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(SubsetRandomSampler([1, 2, 3]), 2, True)),
            r"a batch_sampler of its own \(BatchSampler\), which may leave out items",
        ),
        (DataLoader(TensorDataset(X, Y), batch_size=None), r"a DataLoader without batches \(batch_size=None\)"),
        ("d.csv", r"'d.csv' is the path of a file.*pandas.read_csv\('d.csv'\)"),
    ],
    ids=["order", "answer", "masked", "sampler", "inputs", "columns", "batch sampler", "no batches", "file"],
)
def test_data_that_would_train_something_else_are_refused(part, message):
    """They had trained in silence: on wrong pairs, with the answer given away, on hidden values, on other items."""
    with pytest.raises(InputError, match=message):
        tensors(part)


def test_tables_are_paired_by_position_where_labels_say_nothing_else():
    backwards = BACKWARDS.reset_index(drop=True)
    inputs, targets = tensors((backwards[["age", "bmi", "dose"]], backwards["label"]))
    torch.testing.assert_close(inputs, X.flip(0))
    assert targets.tolist() == Y.flip(0).tolist()
    other_labels = FRAME["label"].set_axis([f"row {k}" for k in range(12)])
    inputs, targets = tensors((FEATURES, other_labels))
    assert targets.tolist() == Y.tolist()
    inputs, _ = tensors((np.ma.masked_array(X.numpy()), Y))  # nothing is masked
    torch.testing.assert_close(inputs, X)


@pytest.mark.parametrize("groups", [["f", None] * 6, ["f", np.nan] * 6, np.array([1.0, np.nan] * 6)])
def test_examples_without_a_group_are_no_group(groups):
    with pytest.raises(InputError, match="client a: groups has 6 missing values; give them a name such as 'unknown'"):
        Client((X, Y), (X, Y), "a", groups=groups)


@pytest.mark.parametrize("part", [FRAME, (FEATURES, FRAME["label"]), (X, FRAME["label"]), dict(FRAME)])
def test_groups_in_another_order_than_the_test_table_are_refused(part):
    groups = pd.Series(["f", "m"] * 6)
    with pytest.raises(InputError, match=r"client a: test and groups: .*the same row labels in another order"):
        Client(part, part, "a", groups=groups.iloc[::-1])
    assert Client(part, part, "a", groups=groups).groups is groups
    assert len(Client(part, part, "a", groups=pd.Categorical(groups)).groups) == 12


@pytest.mark.parametrize("part", [(X, Y), TensorDataset(X, Y), Items(lambda k: (X[k], Y[k])), lambda: (X, Y)])
def test_a_target_where_there_are_no_columns_is_told(part):
    """It was not looked at: a model was trained on something else than what was named."""
    named = Client(part, part, target="outcome", size=12, test_size=12)
    with pytest.raises(InputError, match=r"target='outcome' names a column, but .* has none.*leave the name out"):
        evenfed.train(torch.nn.Linear(3, 2), [named, named], "fedavg", rounds=1)


def test_a_table_to_train_on_may_have_a_pair_to_test_on():
    frame = pd.DataFrame(X.numpy(), columns=["a", "b", "c"]).assign(outcome=Y.numpy())
    mixed = [Client(frame, (X, Y), target="outcome"), Client((X, Y), frame, target="outcome")]
    train, test = lazy.pools(mixed, torch.float32)
    for pool in (train, test):
        assert torch.equal(pool.of(0)[0], pool.of(1)[0]) and torch.equal(pool.of(0)[1], pool.of(1)[1])


@pytest.mark.slow
def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"label": Y.tolist(), "x": X.tolist()})
    inputs, targets = tensors(table)
    torch.testing.assert_close(inputs, X)
    assert targets.tolist() == Y.tolist()
    tokens = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2]] * 3, "attention_mask": [[1, 0]] * 3, "labels": [0, 1, 0]}
    )
    by_name, _ = tensors(tokens)
    assert {name: tensor.shape for name, tensor in by_name.items()} == {"attention_mask": (3, 2), "input_ids": (3, 2)}
    pictures = datasets.Dataset.from_dict(
        {"image": [np.full((4, 5, 3), k, np.uint8) for k in range(3)], "label": [0, 1, 2]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(3)}),
    )
    images, _ = tensors(pictures)
    assert images.shape == (3, 3, 4, 5) and images.dtype == torch.uint8
    halved = pictures.with_transform(lambda batch: {"x": [np.zeros(2, np.float32)] * 3, "label": batch["label"]})
    assert tensors(halved)[0].shape == (3, 2)
    text = datasets.Dataset.from_dict({"text": ["a", "b"], "ids": [[1], [2]], "label": [0, 1]})
    with pytest.raises(InputError, match=r"column 'text' is text.*dataset.remove_columns\('text'\)"):
        tensors(text)
    assert tensors(text.with_format("torch", columns=["ids", "label"]))[0].shape == (2, 1)
    with pytest.raises(InputError, match=r"a dict of datasets \(train\); give one of them"):
        tensors(datasets.DatasetDict({"train": table}))
    with pytest.raises(InputError, match="load the dataset without streaming=True"):
        tensors(table.to_iterable_dataset())


# Data that memory does not hold


def rounds_of(clients, **options):
    torch.manual_seed(0)
    return evenfed.train(torch.nn.Linear(3, 2), clients, "fedavg", rounds=2, lr=0.1, batch_size=4, **options)


def shards(count=4):
    generator = torch.manual_seed(1)
    return [(torch.randn(10 + k, 3, generator=generator), torch.arange(10 + k) % 2) for k in range(count)]


@pytest.mark.parametrize("engine", ["reference", "parallel"])
def test_functions_are_called_when_a_client_is_drawn_and_train_the_same(engine):
    data = shards()
    loads = []

    def loader(k):
        def load():
            loads.append(k)
            return data[k]

        return load

    drawn_later = [Client(loader(k), data[k], size=10 + k) for k in range(4)]
    at_hand = rounds_of([Client(pair, pair) for pair in data], engine="reference", participation=2)
    result = rounds_of(drawn_later, engine=engine, participation=2)
    torch.testing.assert_close(result.server.theta, at_hand.server.theta)
    np.testing.assert_allclose(result.accuracy, at_hand.accuracy)
    drawn = set().union(*(np.flatnonzero(np.isfinite(record.losses)) for record in result.records))
    assert set(loads) == drawn | {0}  # client 0 once more, to try the model on
    if engine == "parallel":
        assert "the data of client 0 are loaded when it is drawn" in result.engine


def test_lazy_test_data_are_scored_beside_stacked_clients():
    at_hand = [Client(pair, pair) for pair in shards()]
    loaded = [Client(pair, lambda pair=pair: pair, test_size=len(pair[1])) for pair in shards()]
    problem = Problem.of(torch.nn.Linear(3, 2), at_hand, evenfed.Settings(batch_size=4))
    engine = Parallel(problem, 4)
    assert "stacked" in engine.how
    question = EvalRequest(problem.theta, torch.arange(4), {})
    _, read_later = lazy.pools(loaded, torch.float32)
    (expected,) = engine.scores([question], problem.judged, (problem.loss,))
    (scores,) = engine.scores([question], read_later, (problem.loss,))
    torch.testing.assert_close(scores.means, expected.means)


def test_what_is_held_is_bounded_and_used_again(monkeypatch):
    data = shards()
    loads = []
    clients = [Client(lambda k=k: loads.append(k) or data[k], size=10 + k) for k in range(4)]
    rounds_of(clients)
    assert sorted(loads) == [0, 0, 1, 2, 3]  # each once, and the first for a trial
    loads.clear()
    monkeypatch.setenv("EVENFED_HELD_MB", "0")
    rounds_of(clients)
    assert len(loads) == 1 + 2 * 2 * 4  # measured and trained in each of two rounds
    monkeypatch.setenv("EVENFED_HELD_MB", "much")
    with pytest.raises(InputError, match="EVENFED_HELD_MB='much': give a number of megabytes"):
        rounds_of(clients)


def test_memory_holds_a_tenth_of_the_data(monkeypatch):
    monkeypatch.setenv("EVENFED_HELD_MB", "0")
    rows, width, count = 200, 1000, 20  # 0.8 MB a client, 16 MB in all

    def load(k):
        return np.full((rows, width), k, np.float32), np.arange(rows) % 2

    clients = [Client(lambda k=k: load(k), size=rows) for k in range(count)]
    model = torch.nn.Linear(width, 2)
    gc.collect()
    tracemalloc.start()  # numpy's memory, which the loaded tensors share
    try:
        evenfed.train(model, clients, "fedavg", rounds=1, lr=0.01, batch_size=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rows * width * 4 * count / 10 * 2


def test_mapped_arrays_are_not_read_whole(tmp_path: Path):
    for k, (x, y) in enumerate(shards()):
        folder = tmp_path / str(k)
        folder.mkdir()
        np.save(folder / "x.npy", x.numpy())
        np.save(folder / "y.npy", y.numpy())
    x = np.load(tmp_path / "0" / "x.npy", mmap_mode="r")
    tensor = examples.as_tensor(x)
    assert tensor.data_ptr() == x.ctypes.data  # no copy
    paths = [Client(tmp_path / str(k), tmp_path / str(k)) for k in range(4)]
    result = rounds_of(paths)
    assert "client 0 are mapped from disk and read row by row" in result.engine
    at_hand = rounds_of([Client(pair, pair) for pair in shards()], engine="reference")
    torch.testing.assert_close(result.server.theta, at_hand.server.theta)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Client(lambda: (X, Y)), "client 1, train: a function .*without their number; .*size=N"),
        (Client((X, Y), lambda: (X, Y)), "client 1, test: a function .*test_size=N"),
        (Client(lambda: (X, Y), size=-1), "client 1, train: size=-1: give a whole number"),
        (Client(lambda: (X, Y), size=5), "the function loaded 12 examples, not 5; give evenfed.Client the number"),
        (Client(lambda: (X[:, :2], Y), size=12), r"examples are \[2\] float32.*those of the first client are \[3\]"),
        (Client(lambda: (X, Y + 1), size=12), "targets go from 1 to 2, but the model scores 2 classes"),
    ],
)
def test_lazy_clients_that_do_not_fit_are_told(given, message):
    with pytest.raises(InputError, match=message):
        rounds_of([Client(lambda: (X, Y), (X, Y), size=12), given])
