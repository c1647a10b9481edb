"""One's own arrays, and the partitions of flwr-datasets, as clients."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader, TensorDataset

import evenfed
from evenfed import InputError
from evenfed.data import DataSettings, from_flwr
from evenfed.data.partition import held_out

X = torch.arange(600.0).reshape(300, 2)
Y = torch.arange(300) % 3


def rows(clients):
    """Every row of every client, by its first number, which counts them."""
    taken = [int(x[0]) // 2 for client in clients for part in (client.train, client.test) for x in part[0]]
    return sorted(taken)


@pytest.mark.filterwarnings("ignore:1 of 6 clients got no examples")
@pytest.mark.parametrize("partition", ["dirichlet", "shards", "iid", None])
def test_every_row_goes_to_one_client_and_a_fifth_is_for_testing(partition):
    clients = evenfed.federate(X, Y, partition, clients=6, seed=1)
    assert [client.name for client in clients] == [f"client-{k}" for k in range(6)]
    assert rows(clients) == list(range(300))
    for client in clients:
        count = len(client.train[1]) + len(client.test[1])
        assert len(client.test[1]) == (min(max(round(count / 5), 1), count - 1) if count > 1 else 0)
    again = evenfed.federate(X.numpy(), Y.numpy(), partition, clients=6, seed=1)
    assert all(np.array_equal(a.train[0], b.train[0]) for a, b in zip(clients, again, strict=True))


def test_natural_clients_bear_their_owners_names():
    owners = np.array(["north", "south", "west"])[np.arange(300) % 3]
    clients = evenfed.federate({"a": X, "b": X.numpy()}, Y, owners=owners, test=0)
    assert [client.name for client in clients] == ["north", "south", "west"]
    assert [client.test for client in clients] == [None] * 3
    assert clients[1].train[0]["b"][0].tolist() == [2, 3]
    frame = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "site": owners, "y": Y})
    by_column = evenfed.federate(frame, "y", "natural", owners="site")
    assert [client.name for client in by_column] == ["north", "south", "west"]
    assert rows(by_column) == list(range(300))


def test_numpy_scalars_are_pythons_numbers():
    plain = evenfed.federate(X, Y, clients=4, concentration=0.5, test=0.25, seed=1)
    options = {"clients": np.int64(4), "concentration": np.float32(0.5), "test": np.float32(0.25), "seed": np.uint8(1)}
    ours = evenfed.federate(X, Y, **options)
    for a, b in zip(plain, ours, strict=True):
        assert a.name == b.name and np.array_equal(a.train[0], b.train[0]) and np.array_equal(a.test[0], b.test[0])
    settings = DataSettings(clients=np.int64(4), concentration=np.float32(0.5), seed=np.int64(1))
    assert repr(settings) == repr(DataSettings(clients=4, concentration=0.5, seed=1))
    with pytest.raises(InputError, match=r"clients=0: give a whole number, at least 1"):
        evenfed.federate(X, Y, clients=np.int64(0))


PAIRS = TensorDataset(X, Y)


@pytest.mark.parametrize(
    "data",
    [
        PAIRS,
        (X, Y),
        DataLoader(PAIRS, batch_size=7),
        {"x": X, "y": Y},
        pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "y": Y}),
    ],
    ids=["dataset", "pair", "loader", "dict", "frame"],
)
def test_data_with_targets_of_their_own_need_no_y(data):
    """A partition in the place of y was taken for the name of a column, and then not looked at."""
    clients = evenfed.federate(data, partition="iid", clients=4)
    assert [len(client.train[1]) + len(client.test[1]) for client in clients] == [75] * 4
    assert rows(clients) == list(range(300))
    with pytest.raises(InputError, match=r"y='iid' is a partition.*write partition='iid'"):
        evenfed.federate(data, "iid", clients=4)


@pytest.mark.parametrize(
    ("data", "y", "message"),
    [
        (PAIRS, "foo", "x: target='foo' names a column, but a dataset whose items are tuples has none"),
        ((X, Y), "foo", "x: target='foo' names a column, but a pair has none"),
        (PAIRS, Y, "y with a TensorDataset, whose items hold their own targets; leave y out"),
        (X, None, "y is missing for a Tensor; give one target for each row of x"),
    ],
)
def test_targets_that_would_not_be_looked_at_are_told(data, y, message):
    with pytest.raises(InputError, match=message):
        evenfed.federate(data, y, partition="iid", clients=4)


def test_owners_in_another_order_than_the_table_are_told():
    table = pd.DataFrame({"u": X[:, 0], "y": Y})
    owners = pd.Series(["north", "south", "west"] * 100)
    with pytest.raises(InputError, match=r"x and owners: .*the same row labels in another order"):
        evenfed.federate(table, "y", owners=owners.iloc[::-1])
    columns = {"u": table["u"], "v": table["u"].iloc[::-1]}
    with pytest.raises(InputError, match=r"x: .*the same row labels in another order"):
        evenfed.federate(columns, table["y"], "iid", clients=2)
    with pytest.raises(InputError, match=r"x and owners: .*the same row labels in another order"):
        evenfed.federate({"u": table["u"]}, table["y"], owners=owners.iloc[::-1])


def test_a_column_may_have_the_name_of_a_partition():
    clients = evenfed.federate({"x": X, "natural": Y}, "natural", "iid", clients=4)
    assert rows(clients) == list(range(300))


def test_a_column_of_a_dict_may_be_the_owners():
    owners = np.array(["north", "south", "west"])[np.arange(300) % 3]
    clients = evenfed.federate({"x": X, "site": owners, "y": Y}, "y", owners="site")
    assert [client.name for client in clients] == ["north", "south", "west"]
    assert rows(clients) == list(range(300))


@pytest.mark.parametrize(
    "owners",
    [
        np.array([1.0, np.nan, np.nan] * 100),
        torch.tensor([1.0, np.nan, np.nan] * 100),
        [1, None, None] * 100,
        ["a", np.nan, np.nan] * 100,  # of which numpy makes the text "nan"
        np.array(["a", None, None] * 100, dtype=object),
        pd.Series(["a", None, None] * 100),
        pd.Series(["a", None, None] * 100, dtype="string"),
        pd.Series(["a", None, None] * 100, dtype="category"),
        pd.Series([1, None, None] * 100, dtype="Int64"),
        np.ma.masked_array([1, 2, 3] * 100, [0, 1, 1] * 100),
        pd.to_datetime(pd.Series(["2026-01-01", None, None] * 100)),
    ],
    ids=lambda owners: f"{type(owners).__name__} of {getattr(owners, 'dtype', type(owners[0]).__name__)}",
)
def test_rows_without_an_owner_are_no_client(owners):
    with pytest.raises(InputError, match="owners has 200 missing values; fill them or drop those rows"):
        evenfed.federate(X, Y, owners=owners)
    table = {"x": X, "site": owners, "y": Y}
    with pytest.raises(InputError, match="owners: column 'site' has 200 missing values; fill them or drop"):
        evenfed.federate(table, owners="site")
    if not isinstance(owners, torch.Tensor | np.ma.MaskedArray):
        frame = pd.DataFrame({"u": X[:, 0], "site": owners, "y": Y})
        with pytest.raises(InputError, match="owners: column 'site' has 200 missing values"):
            evenfed.federate(frame, owners="site")


def test_targets_that_are_no_classes_are_split_by_no_class():
    evenfed.federate(X, (Y > 0).float(), "dirichlet", clients=3)  # 0.0 and 1.0 of a binary task are classes
    quantities = torch.rand(300)
    assert len(evenfed.federate(X, quantities, "iid", clients=3)) == 3
    with pytest.raises(InputError, match=r"partition='dirichlet' splits by class.*use 'iid', or give owners="):
        evenfed.federate(X, quantities, clients=3)


def test_mapped_arrays_stay_on_disk(tmp_path: Path):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    clients = evenfed.federate(mapped, Y.numpy(), "iid", clients=3)
    assert [callable(client.train) for client in clients] == [True] * 3
    assert [(client.size, client.test_size) for client in clients] == [(80, 20)] * 3
    result = evenfed.train(torch.nn.Linear(2, 3), clients, "fedavg", rounds=1, lr=1e-6)
    assert "loaded when it is drawn" in result.engine


def test_clients_without_examples_are_named_dropped_or_drawn_again():
    """They vanished from the statistics without a word."""
    options = {"clients": 20, "concentration": 0.03}
    with pytest.warns(UserWarning, match=r"(\d+) of 20 clients got no examples and 1 more no test example") as warned:
        kept = evenfed.federate(X, Y, **options, seed=2)
    assert len(warned) == 1 and warned[0].filename == __file__
    served = [client for client in kept if len(client.test[1])]
    assert len(served) < len(kept) == 20
    assert [c.name for c in evenfed.federate(X, Y, **options, seed=2, small="drop")] == [c.name for c in served]
    with pytest.raises(InputError, match="small='redraw': none of 1000 draws gives every client 9 training and 1 test"):
        evenfed.federate(X, Y, **options, small="redraw", min_train=9)
    with pytest.warns(UserWarning, match="small='drop' leaves them out; or ask for fewer clients"):  # most are small
        evenfed.federate(X, Y, clients=10, concentration=1e-3)
    lone = evenfed.federate(X, Y, clients=3, concentration=2e-3, small="redraw", seed=3)  # seed 3 gives NaN
    assert all(len(client.test[1]) for client in lone)
    redrawn = evenfed.federate(X, Y, clients=6, seed=1, small="redraw", min_train=5, min_test=2)
    assert all(len(client.train[1]) >= 5 and len(client.test[1]) >= 2 for client in redrawn)
    assert rows(redrawn) == list(range(300))
    with pytest.warns(UserWarning, match="1 of 2 clients got no test example.*small='drop' leaves them out$"):
        evenfed.federate(X, Y, owners=[0] + [1] * 299)
    assert len(evenfed.federate(X, Y, owners=[0] + [1] * 299, test=0)) == 2
    with pytest.warns(UserWarning, match="3 of 3 clients have fewer than 90 training or 1 test examples"):
        evenfed.federate(X, Y, "iid", clients=3, min_train=90)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"owners": Y, "clients": 5}, "partition='natural' with clients=5: natural clients are as many as"),
        (
            {"partition": "shards", "concentration": 0.3},
            "concentration=0.3: concentration goes with 'dirichlet'; leave",
        ),
        ({"partition": "iid", "shards_per_client": 2}, "shards_per_client goes with 'shards'"),
        ({"alpha": 0.1}, "unknown option 'alpha'; did you mean 'concentration'"),
        ({"client": 3}, "unknown option 'client'; did you mean 'clients'"),
        (
            {"y": np.array(["a", "b", "c"] * 100)},
            r"y is text; give class numbers.*np\.unique\(y, return_inverse=True\)",
        ),
        ({"x": scipy.sparse.csr_matrix(X.numpy())}, r"x: a sparse csr_matrix; give a dense array: \.toarray\(\)"),
        ({"small": "redraw", "owners": Y}, "owners are not drawn; use small='drop'"),
        ({"min_test": 2, "test": 0}, "min_test=2 with test=0: no client has test examples"),
        ({"min_train": 300, "small": "drop"}, "small='drop': no client has 300 training and 1 test examples"),
        ({"partition": "dirichelt"}, "unknown partition 'dirichelt'; did you mean 'dirichlet'"),
        ({"clients": 0}, "clients=0: give a whole number, at least 1"),
        ({"clients": 301}, "clients=301 of 300 examples"),
        ({"concentration": 0}, "concentration=0: it must be a number above 0"),
        ({"test": 1.0}, "test=1.0: it must be at least 0 and below 1"),
        ({"partition": "natural"}, "'natural' needs them"),
        ({"partition": "iid", "owners": Y}, "owners go with 'natural'"),
        ({"owners": "site"}, "owners='site' names no column of x; its columns are: none"),
        ({"x": "d.csv", "y": "y", "owners": "site"}, r"x: 'd.csv' is the path of a file.*pandas.read_csv\('d.csv'\)"),
        ({"x": Path("d.parquet"), "y": "y"}, r"pandas.read_parquet\('d.parquet'\)"),
        (
            {"x": pd.DataFrame({"a": [0], "b": [1], "c": [2]}), "y": ["a", "b"]},
            r"y=\['a', 'b'\] names several columns, and federate takes one target column",
        ),
        ({"groups": Y}, "groups= labels the examples inside clients.*give owners=, else name the partition too"),
        ({"groups": Y[:3], "partition": "iid"}, r"groups has the shape \(3,\) for 300 examples"),
        ({"groups": "sex", "partition": "iid"}, "groups='sex' names no column of x"),
        ({"groups": [None] * 300, "partition": "iid"}, "groups has 300 missing values"),
        ({"owners": Y[:3]}, r"owners has the shape \(3,\) for 300 examples"),
        ({"y": Y[:3]}, "x has 300 rows, y has 3"),
        ({"x": DataSettings()}, "use evenfed.data.federate"),
        ({"x": X[:0], "y": Y[:0]}, "no rows"),
    ],
)
def test_what_cannot_be_split_is_told(given, message):
    with pytest.raises(InputError, match=message):
        evenfed.federate(**{"x": X, "y": Y, **given})


def test_groups_go_along_with_the_test_examples(tmp_path):
    """From a column, which is then no input, or from an array; also of clients that are read when they are drawn."""
    table = pd.DataFrame({"u": X[:, 0].numpy(), "y": Y.numpy()})
    table["sex"] = np.where(table["u"] % 4 == 0, "f", "m")
    table["site"] = ["north", "south", "west"] * 100
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for clients in (
        evenfed.federate(table, "y", owners="site", groups="sex"),
        evenfed.federate(X[:, :1], Y, "iid", clients=3, groups=list(table["sex"])),
        evenfed.federate(mapped[:, :1], Y.numpy(), "iid", clients=3, groups=table["sex"]),
    ):
        for client in clients:
            inputs, _ = client.test() if callable(client.test) else client.test
            assert inputs.shape[1] == 1
            assert list(client.groups) == ["f" if u % 4 == 0 else "m" for u in np.asarray(inputs)[:, 0]]
    result = evenfed.train(torch.nn.Linear(1, 3), clients, rounds=1, lr=1e-6, device="cpu")
    assert set(result.groups(clients)["group"]) == {"f", "m", "difference"}


def test_small_clients_keep_a_row_for_training_and_one_for_testing():
    for count, expected in ((0, 0), (1, 0), (2, 1), (3, 1), (10, 2)):
        train, test = held_out(np.arange(count), None, 0.2, seed=0)
        assert (len(train), len(test)) == (count - expected, expected)


@pytest.mark.slow
def test_partitions_of_flwr_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    table = datasets.Dataset.from_dict(
        {"x": X.tolist(), "label": Y.tolist(), "site": [f"s{k % 4}" for k in range(300)]}
    )
    dirichlet = partitioners.DirichletPartitioner(5, partition_by="label", alpha=1.0, seed=0, min_partition_size=2)
    with pytest.raises(InputError, match=r"set partitioner\.dataset"):
        from_flwr(dirichlet)
    dirichlet.dataset = table.remove_columns("site")
    clients = from_flwr(dirichlet)
    assert [client.name for client in clients] == [f"partition-{k}" for k in range(5)]
    assert rows(clients) == list(range(300))
    assert all(len(client.test[1]) for client in clients)
    natural = partitioners.NaturalIdPartitioner(partition_by="site")
    natural.dataset = table
    by_site = from_flwr(natural, target="label")
    assert [client.name for client in by_site] == ["s0", "s1", "s2", "s3"]
    assert rows(by_site) == list(range(300))
    pd.DataFrame({"x": X[:, 0], "other": X[:, 1], "label": Y}).to_parquet(tmp_path / "table.parquet")
    downloaded = pytest.importorskip("flwr_datasets").FederatedDataset(
        dataset="parquet",
        data_files=str(tmp_path / "table.parquet"),
        cache_dir=str(tmp_path),
        partitioners={"train": 4},
    )
    assert rows(from_flwr(downloaded, "train")) == list(range(300))
    with pytest.raises(InputError, match="split='test': name one of the partitioned splits: train"):
        from_flwr(downloaded, "test")
    with pytest.raises(InputError, match="got a list; give a Partitioner"):
        from_flwr([table])
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    block = next(part for part in page.split("```python\n") if "import datasets" in part)
    namespace = {"evenfed": evenfed}
    exec(block.partition("```")[0], namespace)
    assert sum(len(client.train[1]) + len(client.test[1]) for client in namespace["clients"]) == 90
