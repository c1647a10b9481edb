"""A folder of one's own: one file a client."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenfed.core.errors import InputError
from evenfed.data import DataSettings, federate
from evenfed.data.folder import read_folder

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 2, 1, 2])


def test_each_npz_is_a_client(tmp_path: Path) -> None:
    np.savez(tmp_path / "north.npz", x=X[:1], y=Y[:1].astype(np.uint8))
    np.savez_compressed(tmp_path / "south.npz", x=X[1:], y=Y[1:].astype(np.uint8))
    (tmp_path / "README.txt").write_text("other files are left alone")
    data = read_folder(tmp_path)
    np.testing.assert_array_equal(data.inputs, X)
    np.testing.assert_array_equal(data.targets, Y)
    assert data.targets.dtype == np.int64
    assert (data.name, data.classes, data.owner_names) == (tmp_path.name, 3, ("north", "south"))
    assert data.owners is not None
    assert list(data.owners) == [0, 1, 1, 1]


def test_each_parquet_is_a_client_whatever_the_order_of_its_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"age": [1.5, 2.5], "y": [0, 1], "smokes": [True, False]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"smokes": [True], "age": [3.5], "y": [4]}), tmp_path / "b.parquet")
    data = read_folder(tmp_path)
    np.testing.assert_array_equal(data.inputs, np.array([[1.5, 1], [2.5, 0], [3.5, 1]], np.float32))
    assert (list(data.targets), data.classes, data.owner_names) == ([0, 1, 4], 5, ("a", "b"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": [0], "age": ["old"]}, "column 'age' is object"),
        ({"y": [0], "height": [1.0]}, r"b\.parquet has the columns .*a\.parquet has"),
        ({"age": [1.0]}, "must have y"),
        ({"y": [0, None], "age": [1.0, 2.0]}, "without gaps"),
    ],
)
def test_a_parquet_that_does_not_fit_is_named(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"y": [0], "age": [1.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=message) as caught:
        read_folder(tmp_path)
    assert str(tmp_path / "b.parquet") in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[:, :2], "y": Y}, r"rows of x are float32 of shape \(2,\), in a\.npz they are float32 of shape \(3,\)"),
        ({"x": X.astype(np.float16), "y": Y}, "rows of x are float16"),
        ({"x": X, "y": Y.astype(np.int32)}, "rows of y are int32"),
        ({"x": X, "y": Y[:, None]}, r"rows of y are int64 of shape \(1,\)"),
        ({"x": X, "y": Y[:3]}, r"x has shape \(4, 3\), y has \(3,\)"),
        ({"x": X[:0], "y": Y[:0]}, "at least one"),
        ({"x": X, "y": Y - 1}, "y has -1 in it"),
        ({"x": X, "y": Y + 0.5}, "rows of y are float32"),
        ({"x": X, "y": Y.astype(str)}, "y is <U"),
        ({"x": X, "y": np.full(4, np.nan)}, "y holds values that are not finite"),
        ({"x": X.astype(str), "y": Y}, "x is <U"),
        ({"images": X, "y": Y}, "has the arrays images, y; it must have x and y"),
        ({"x": X.astype(object), "y": Y}, "cannot be read .*plain arrays"),
    ],
)
def test_an_npz_that_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        read_folder(tmp_path)
    assert str(tmp_path / "b.npz") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"something else"])
@pytest.mark.parametrize("kind", [".npz", ".parquet"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, kind: str) -> None:
    if kind == ".parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / f"a{kind}").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\{kind} (cannot be read|is not a whole)"):
        read_folder(tmp_path)


def test_a_bare_array_and_damaged_data_are_named(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(InputError, match=r"a\.npz cannot be read"):
        read_folder(tmp_path)
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random((100, 3)), y=np.zeros(100, int))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[200:400] = bytes(200)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz cannot be read"):
        read_folder(tmp_path)


def test_a_folder_holds_one_kind_of_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_folder(tmp_path / "missing")
    with pytest.raises(InputError, match=r"no \.npz or \.parquet file in this folder"):
        read_folder(tmp_path)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    (tmp_path / "b.parquet").touch()
    with pytest.raises(InputError, match="files of both kinds"):
        read_folder(tmp_path)


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pyarrow.*pip install 'evenfed\[data\]'"):
        read_folder(tmp_path)


def test_a_file_may_bring_its_test_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X[:3], y=Y[:3], x_test=X[3:], y_test=Y[3:])
    np.savez(tmp_path / "b.npz", x=X, y=Y)
    settings = DataSettings("folder", str(tmp_path))
    found = federate(settings)
    assert found.names == ["a", "b"]
    assert (found.train_sizes[0], found.judged_sizes[0], found.train_sizes[1] + found.judged_sizes[1]) == (3, 1, 4)
    np.testing.assert_array_equal(found.judged.of(0)[0], X[3:])
    assert found.notes[0].startswith("1 of 2 clients are tested on their own test data; of the other 1, 50%")
    np.savez(tmp_path / "b.npz", x=X, y=Y, x_test=X[:2], y_test=Y[:2])
    with_validation = federate(replace(settings, validation_fraction=0.4))
    assert with_validation.notes[0] == "every client is tested on its own test data"
    assert list(with_validation.judged_sizes) == [1, 2]
    pooled = federate(replace(settings, partition="iid", clients=2))
    assert "pooled with the rest, because partition = iid" in pooled.notes[0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_test": X}, "it must have x_test and y_test"),
        ({"x_test": X[:, :2], "y_test": Y}, "rows of x_test are float32 of shape"),
        ({"x_test": X, "y_test": Y - 1}, "y_test has -1 in it"),
        ({"x_test": X[:0], "y_test": Y[:0]}, r"x_test has shape \(0, 3\)"),
    ],
)
def test_test_data_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, **arrays)
    with pytest.raises(InputError, match=message):
        read_folder(tmp_path)


def test_a_folder_is_natural_and_whole_unless_said() -> None:
    own = DataSettings("folder", "mine")
    assert (own.partition, own.clients) == ("natural", 0)
    usual = DataSettings()
    assert (usual.partition, usual.clients) == ("dirichlet", 30)
    assert usual.changed({"name": "folder", "path": "mine"}) == own
    assert own.changed({"name": "digits"}) == usual
    said = DataSettings("folder", "mine", partition="dirichlet")
    assert (said.partition, said.clients) == ("dirichlet", 30)


def test_floats_are_numbers_to_predict(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y + 0.5)
    np.savez(tmp_path / "b.npz", x=X, y=(Y - 7.5).astype(np.float32))
    data = read_folder(tmp_path)
    assert data.targets.dtype == np.float32
    np.testing.assert_array_equal(data.targets, np.concatenate([Y + 0.5, Y - 7.5]))
    federation = federate(DataSettings(name="folder", path=str(tmp_path)))
    assert (federation.classes, federation.class_counts) == (1, None)
    assert federation.train_sizes.tolist() == [2, 2]
    with pytest.raises(InputError, match=r"needs classes; .* numbers to predict: use natural or iid"):
        federate(DataSettings(name="folder", path=str(tmp_path), partition="dirichlet"))
