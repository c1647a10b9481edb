"""`evenfed data` as a user types it: list, add, verify, show, fetch, and every mistake in one message."""

import json
import re
from functools import partial

import numpy as np
import pytest

from evenfed.data import store

PER_CLASS = 60


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that holds CIFAR-10 in small, as `add` would have written it."""
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    targets = np.repeat(np.arange(10), PER_CLASS)
    images = np.zeros((len(targets), 3, 32, 32), np.uint8)
    store.write(
        store.folder("cifar10"), name="cifar10", inputs=images, targets=targets, classes=10, notes=["a small one"]
    )
    return tmp_path / "cache"


@pytest.fixture
def data(evenfed, monkeypatch, cache):
    """`evenfed data ...` on that cache."""
    monkeypatch.setenv("COLUMNS", "80")
    return partial(evenfed, "data")


def test_list_says_what_there_is_and_what_is_here(data, cache):
    done = data("list")
    assert done.returncode == 0 and str(cache) in done.stdout
    assert re.search(r"cifar10 .*600 rows", done.stdout) and re.search(r"digits .*bundled", done.stdout)
    assert re.search(r"mnist .* no ", done.stdout) and "CC BY-SA" in done.stdout


def test_show_as_json_lists_every_client(data):
    done = data("show", "cifar10", "--clients", 7, "--concentration", 0.3, "--seed", 4, "--format", "json")
    told = json.loads(done.stdout)
    assert told["name"] == "cifar10" and "a small one" in told["notes"]
    assert len(told["clients"]) == 7 and set(told["clients"][0]) == {"name", "train", "test", "classes"}
    counts = np.array([client["classes"] for client in told["clients"]])
    assert counts.sum(0).tolist() == [PER_CLASS] * 10
    for client, row in zip(told["clients"], counts, strict=True):
        assert client["train"] + client["test"] == row.sum()


def test_show_draws_in_the_terminal_and_as_a_figure(data, tmp_path):
    done = data("show", "cifar10", "--clients", 5, "--out", tmp_path / "figures")
    rows = [line for line in done.stdout.splitlines() if line.strip().startswith("cifar10-")]
    assert len(rows) == 5 and all(len(row.rstrip()) <= 80 for row in rows)
    assert "█" in done.stdout and "skew" in done.stdout and "5 clients, " in done.stdout
    names = ["federation-cifar10.png", "federation-cifar10.svg"]
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == names
    assert (tmp_path / "figures" / names[0]).read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "figures" / names[1]).read_text()
    assert "label skew" in svg and "5 clients" in svg


def test_show_of_sequences_has_sizes_alone(data, tmp_path):
    words = np.arange(40 * 4).reshape(40, 4) % 9
    owners = np.repeat(np.arange(4), [4, 6, 10, 20])
    store.write(
        store.folder("shakespeare"),
        name="shakespeare",
        inputs=words,
        targets=words,
        classes=9,
        owners=owners,
        owner_names=("Ham.", "Oph.", "Ber.", "Hel."),
    )
    options = ("shakespeare", "--partition", "natural", "--clients", 0)
    told = json.loads(data("show", *options, "--format", "json").stdout)
    assert sorted((c["name"], c["train"] + c["test"]) for c in told["clients"]) == [
        ("Ber.", 10),
        ("Ham.", 4),
        ("Hel.", 20),
        ("Oph.", 6),
    ]
    assert all(client["classes"] is None for client in told["clients"])
    done = data("show", *options, "--out", tmp_path / "figures")
    assert "Ham." in done.stdout and "skew" not in done.stdout
    assert "Oph." in (tmp_path / "figures/federation-shakespeare.svg").read_text()


def test_verify_finds_damage(data, cache):
    assert "cifar10: intact" in data("verify").stdout
    with (cache / "cifar10/inputs.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    done = data("verify", "cifar10")
    assert done.returncode == 2 and "inputs.npy is not what was written" in done.stderr


def test_add_tells_what_was_added(data, tmp_path, monkeypatch):
    import dataclasses

    from evenfed.data import catalogue

    small = dataclasses.replace(catalogue.SOURCES["cifar100"], rows=3)
    monkeypatch.setitem(catalogue.SOURCES, "cifar100", small)
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary/train.bin").write_bytes((b"\x05\x2a" + bytes(3072)) * 3)
    done = data("add", "cifar100", "cifar-100-binary")
    assert done.returncode == 0 and "cifar100: 3 examples" in done.stdout
    assert store.read("cifar100").targets.tolist() == [42, 42, 42]


def test_fetch_of_what_is_here_does_nothing(data, monkeypatch):
    monkeypatch.setenv("EVENFED_MIRROR", "http://127.0.0.1:9")
    assert "in the cache already" in data("fetch", "cifar10").stdout
    done = data("fetch", "cifar10", "--again")
    assert done.returncode == 2 and "evenfed data add cifar10 cifar-10-binary.tar.gz" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "cifar100"), "evenfed data fetch cifar100"),
        (("show", "cifar-10"), "did you mean 'cifar10'"),
        (("show", "cifar10", "--partition", "dirichlett"), "did you mean 'dirichlet'"),
        (("show", "cifar10", "--clients", "0"), "give the number of clients"),
        (("show", "cifar10", "--train-fraction", "2"), "above 0 and below 1"),
        (("add", "cifar10", "nowhere.tar.gz"), "nowhere.tar.gz does not exist"),
        (("add", "cifar11", "x"), "did you mean 'cifar10'"),
        (("add", "digits", "x"), "always there"),
        (("fetch", "shakespeare"), "evenfed data add shakespeare FOLDER"),
        (("fetch", "nothing"), "unknown data set 'nothing'"),
        (("verify", "mnist"), "evenfed data fetch mnist"),
    ],
)
def test_mistakes_end_in_one_message(data, arguments, told):
    done = data(*arguments)
    assert done.returncode == 2 and told in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1
