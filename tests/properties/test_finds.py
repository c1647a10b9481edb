"""What the properties have found, one by one: each is refused in words now."""

import json
import os
import shutil
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.comparison.storage.reading import read
from evenfed.core.errors import InputError
from evenfed.data import images, store
from evenfed.data.dataset import Dataset
from evenfed.report.document import Report
from reports import put_rounds

X = torch.ones(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
TABLE = {"client": ["a", "b"], "fedavg": [0.9, 0.8]}


@pytest.mark.parametrize(
    ("x", "y", "options", "told"),
    [
        (X, Y, {"partition": "natural", "owners": 5}, "owners: a single int"),
        (X, Y, {"partition": "natural", "owners": [[1]] * 6}, r"owners has the shape \(6, 1\)"),
        (X, Y, {"concentration": "a"}, "concentration='a': it must be a number"),
        (X, Y, {"clients": 2, "concentration": float("inf")}, "nothing can be drawn from it"),
        (X, Y, {"clients": 2, "seed": 2**40}, "at most 4294967295"),
        (X, Y, {"partition": "shards", "clients": 2, "shards_per_client": 10**9}, "at most one shard per example"),
        (X, torch.tensor(1.0), {}, "y: a single number"),
        (torch.tensor(1.0), Y, {}, "x: a single number"),
        (X, [[1], [1, 2]], {}, "y: cannot become an array"),
        (X.to("meta"), Y, {"clients": 2}, "meta device"),
        ({}, Y, {}, "no array at all"),
    ],
)
def test_federate(x, y, options, told):
    with pytest.raises(InputError, match=told):
        evenfed.federate(x, y, **options)


@pytest.mark.parametrize("seeds", [2**63, 10_001, [0] * 10_001])
def test_seeds_that_nobody_waits_for(seeds):
    with pytest.raises(InputError, match="give a number of seeds, 1 to 10,000"):
        evenfed.compare(lambda: nn.Linear(4, 3), [evenfed.Client((X, Y), test=(X, Y))], ["fedavg"], seeds=seeds)


def test_figures_of_clients():
    for figures in (["a"], [[1.0]], 5, None):
        with pytest.raises(InputError, match="one number per client"):
            evenfed.Fairness.of(figures)
    with pytest.raises(InputError, match="2 figures and 1 of FedAvg"):
        evenfed.Suppression.of([1, 2], [1])
    with np.errstate(invalid="ignore"):
        assert np.isnan(evenfed.Inequality.of([np.inf]).gini)


@pytest.mark.parametrize(
    "options", [{"baseline": 5}, {"metric": 5}, {"metric": [[]]}, {"client": 3}, {"lower_is_better": "a"}]
)
def test_audits(options):
    with pytest.raises(InputError, match=f"{next(iter(options))}="):
        evenfed.audit(TABLE, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    clients = [evenfed.Client(train=(X, Y), test=(X, Y))] * 3
    options = {"rounds": 1, "lr": 0.1, "device": "cpu", "progress": False}
    evenfed.compare(lambda: nn.Linear(4, 3), clients, ["fedavg"], seeds=1, noise_floor=False, out=out, **options)
    return out


HEADERS = {
    "versions": None,
    "commit": ["a"],
    "command": 5,
    "hardware": {"cpu": None},
    "judged_classes": [["1"]],
    "clients": {"names": ["a"], "train": [1], "test": [1, 2]},
    "resumed_at": "a",
    "metric": {"name": 3, "higher_is_better": True},
}
LINES = {
    "index": [0],
    "losses": [1.0],
    "accuracy": [[1.0]],
    "weights": None,
    "recalls": [1.0],
    "clipped": [[0, "nonsense", 1.0, 0.5]],
    "dropped": [9],
    "seconds": {"a": 1},
}


@pytest.mark.parametrize(("where", "key"), [*[("header", key) for key in HEADERS], *[("line", key) for key in LINES]])
def test_runs_of_another_layout(made, tmp_path, where, key):
    shutil.copytree(made, tmp_path / "runs")
    (run,) = (tmp_path / "runs").glob("*/seed-*")
    header = json.loads((run / "header.json").read_text())
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    if where == "header":
        header[key] = HEADERS[key]
    else:
        rounds[0][key] = LINES[key]
    put_rounds(run, rounds, header)
    for reader in (read, evenfed.load):
        with pytest.raises(InputError, match=r"is not a run's header|is damaged"):
            reader(tmp_path / "runs")


def test_runs_that_do_not_say_where_they_were_made(made, tmp_path):
    shutil.copytree(made, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob("*/seed-*/header.json")
    header = json.loads(path.read_text())
    del header["hardware"]
    header |= {"commit": None, "earlier": [{**header, "from_round": 0, "commit": "a"}]}
    path.write_text(json.dumps(header))
    (facts, *_) = Report.of([tmp_path / "runs"], beside_paper=False).facts
    assert "unknown hardware" in facts


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("meta.json", b"{", "is damaged"),
        ("meta.json", b"\xff", "is damaged"),
        ("meta.json", b"[]", "is damaged"),
        ("meta.json", b'{"format": 1}', "is damaged"),
        ("targets.npy", b"\x93NUMPY\x01\x00\x08\x00{'descr'", "is damaged"),
    ],
)
def test_the_store(tmp_path, file, content, told):
    with mock.patch.dict(os.environ, {"EVENFED_DATA": str(tmp_path)}):
        store.save(Dataset("mine", np.ones((2, 3), np.float32), np.array([0, 1]), classes=2), store.folder("mine"))
        assert (tmp_path / "mine" / file).exists()
        (tmp_path / "mine" / file).write_bytes(content)
        with pytest.raises(InputError, match=told):
            store.read("mine")


def test_a_table_without_columns():
    with pytest.raises(InputError, match="a table without columns"):
        evenfed.train(nn.Linear(4, 3), [evenfed.Client({})], rounds=1, device="cpu")


def test_a_folder_with_single_numbers(tmp_path):
    for name in ("x.npy", "y.npy"):
        np.save(tmp_path / name, np.array(1.0))
    with pytest.raises(InputError, match="holds a single number"):
        evenfed.train(nn.Linear(4, 3), [evenfed.Client(tmp_path)], rounds=1, device="cpu")


class Deaf(nn.Linear):
    """Its outputs depend on no parameter."""

    def forward(self, x):
        return super().forward(x).detach()


class Whole(nn.Linear):
    """Its outputs are whole numbers, so that no gradient reaches a parameter."""

    def forward(self, x):
        return super().forward(x).long()


@pytest.mark.parametrize("kind", [Deaf, Whole])
def test_a_model_whose_outputs_depend_on_no_parameter(kind):
    clients = [evenfed.Client(train=(X, Y), test=(X, Y))] * 2
    with pytest.raises(InputError, match="depend on none of its trainable parameters"):
        evenfed.train(kind(4, 3), clients, "fedavg", rounds=1, lr=0.1, loss=lambda outputs, targets: outputs.sum(1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr": 1e300}, "lr=1e[+]300: give a finite number above 0, at most 1e[+]12"),
        ({"prox": 1e300}, "at most 1e[+]12"),
        ({"lr_schedule": lambda index: 1e300}, "at most 1e[+]12"),
        ({"server_optimizer": {"name": "adam", "betas": [0.9]}}, "see torch.optim.Adam"),
    ],
)
def test_options_that_torch_would_fall_over(options, told):
    with pytest.raises(InputError, match=told):
        evenfed.Settings.of(options)


@pytest.mark.parametrize("content", [b"\0\0\x08\x01\0\0", b"\0\0\x08\x03" + b"\x80\0\0\0" * 3])
def test_idx_files_cut_in_a_length_or_with_lengths_beyond_all_bounds(tmp_path, content):
    for name in ("images-idx3", "labels-idx1"):
        (tmp_path / f"train-{name}-ubyte").write_bytes(content)
    with pytest.raises(InputError, match="not an idx file of bytes"):
        images.convert_idx("mnist", tmp_path, tmp_path / "out")


def test_words_of_a_wrong_command_line_are_shown_as_text(evenfed):
    done = evenfed("data", "show", "digits", "\x1f\a\x1b[31m")
    assert done.returncode == 2
    assert r"unexpected extra argument (\x1f\x07)" in done.stderr
    assert "\x1f" not in done.stderr and "\x1b" not in done.stderr
