"""`evenfed compare` from run to table: options, experiment files, entries and seeds."""

import json

import numpy as np
import pytest

from command import SMALL, rounds_of


def test_compare_prints_a_table_and_leaves_results_with_provenance(tmp_path, evenfed):
    done = evenfed(
        "compare",
        "--algorithms",
        "fedavg,semi_vred,semi_vred[beta=1,smooth=0.25]",
        "--rounds",
        4,
        "--seeds",
        2,
        "--set",
        "semi_vred.beta=0.5",
        *SMALL,
    )
    assert done.returncode == 0, done.stderr
    for shown in (
        "average of the last 4 rounds",
        "semi_vred[beta=1,smooth=0.25]",
        "other batches",
        "worst-served clients",
        "Figures:",
    ):
        assert shown in done.stdout
    assert "round 4 of 4, 8 runs" in done.stderr
    run = tmp_path / "runs" / "demo" / "semi_vred" / "seed-1"
    header = json.loads((run / "header.json").read_text())
    assert header["config"]["hyper_parameters"] == {"beta": 0.5, "safe": None}
    assert header["config"]["train"]["rounds"] == 4 and header["finished"] and header["seconds"] > 0
    assert set(header["versions"]) == {"evenfed", "torch", "numpy", "python"} and header["hardware"]["cores"]
    assert "stacked" in header["engine"] and header["commit"]
    clients = header["clients"]
    assert len(clients["names"]) == 6 and clients["split_seed"] == 0
    assert [sum(row) for row in clients["classes"]] == [
        a + b for a, b in zip(clients["train"], clients["test"], strict=True)
    ]
    lines = rounds_of(run)
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert len(lines[0]["losses"]) == len(lines[0]["weights"]) == len(lines[0]["accuracy"]) == 6
    assert (run / "model.safetensors").exists()
    assert len(list(run.glob("checkpoint*"))) == 1  # the last, so that more rounds can extend the run
    smoothed = json.loads((run.parents[1] / "semi_vred[beta=1,smooth=0.25]" / "seed-0" / "header.json").read_text())
    assert smoothed["config"]["train"]["smooth"] == 0.25 and smoothed["config"]["hyper_parameters"]["beta"] == 1.0
    figures = {p.name for p in (tmp_path / "runs" / "demo" / "figures").iterdir()}
    assert {"clients.svg", "clients.png", "trade-off.svg", "learning-curves.png"} <= figures


def test_json_is_the_table_and_nothing_else_and_a_finished_run_is_not_run_again(tmp_path, evenfed):
    call = ["compare", "--algorithms", "vred", "--rounds", 3, "--seeds", 1, "--format", "json", *SMALL]
    first = evenfed(*call)
    table = json.loads(first.stdout)
    assert [row["label"] for row in table["rows"]] == ["fedavg", "vred"]  # the baseline is always there
    figures = {"mean", "std", "worst", "worst10", "worst20", "best10", "improved", "degraded"}
    assert figures <= set(table["rows"][1]["last"]) and figures <= set(table["rows"][1]["late"])
    assert {"mean", "spread"} == set(table["rows"][1]["last"]["mean"])
    assert table["noise_floor"]["label"] == "fedavg, other batches" and table["last_rounds"] == 3
    assert {"negative_rounds", "oscillation"} <= set(table["rows"][0])
    header = tmp_path / "runs" / "demo" / "vred" / "seed-0" / "header.json"
    before = header.stat().st_mtime_ns
    again = evenfed(*call)
    assert again.stdout == first.stdout and header.stat().st_mtime_ns == before and "round" not in again.stderr


def test_a_toml_file_with_labels_and_the_engines_agree(tmp_path, evenfed):
    toml = tmp_path / "mine.toml"
    toml.write_text("""
        seeds = [3]
        [data]
        clients = 5
        concentration = 1.0
        [model]
        name = "cnn"
        width = 4
        [train]
        rounds = 2
        batch_size = 64
        [algorithms.gentle]
        algorithm = "semi_vred"
        beta = 0.05
        lr = 0.02
        [algorithms.damped]
        algorithm = "vred"
        smooth = 0.25
        server_lr = 0.5
        server_optimizer = {name = "SGD", momentum = 0.5}
    """)
    found = {}
    for engine in ("parallel", "reference"):
        call = ("compare", toml, "--engine", engine, "--out", tmp_path / engine, "--set", "noise_floor=false")
        done = evenfed(*call, "--format", "json")
        assert done.returncode == 0, done.stderr
        found[engine] = rounds_of(tmp_path / engine / "mine" / "damped" / "seed-3")[-1]
        assert json.loads(done.stdout)["noise_floor"] is None
    assert found["parallel"]["weights"] == pytest.approx(found["reference"]["weights"], rel=1e-4)
    header = json.loads((tmp_path / "parallel" / "mine" / "gentle" / "seed-3" / "header.json").read_text())
    assert header["config"]["train"]["lr"] == 0.02


def test_another_configuration_is_refused_with_the_difference_named(tmp_path, evenfed):
    call = ["compare", "--algorithms", "fedavg,vred", "--rounds", 2, "--seeds", 1, *SMALL]
    assert evenfed(*call).returncode == 0
    for changed, told in [
        (["--set", "vred.beta=0.9"], "hyper_parameters.beta: 0.2 there, 0.9 here"),
        (["--set", "train.lr=0.3"], "train.lr: 0.1 there, 0.3 here"),
        (["--set", "data.seed=4"], "data.seed: 0 there, 4 here"),
        (["--rounds", "1"], "has 2 rounds and is not cut to 1"),
    ]:
        refused = evenfed(*call, *changed)
        assert refused.returncode == 2 and told in refused.stderr and "Traceback" not in refused.stderr
    header = tmp_path / "runs" / "demo" / "vred" / "seed-0" / "header.json"
    older = json.loads(header.read_text())
    del older["config"]["train"]["start"]  # written before there was such an option: it had the default
    header.write_text(json.dumps(older))
    more = evenfed("compare", "--algorithms", "fedavg,vred,term", "--rounds", 2, "--seeds", 2, *SMALL)
    assert more.returncode == 0 and "term" in more.stdout  # entries and seeds may be added


def test_entries_of_a_file_are_chosen_by_label_with_their_options_and_seeds_can_be_added(tmp_path, evenfed):
    toml = tmp_path / "mine.toml"
    toml.write_text("""
        [data]
        clients = 4
        concentration = 1.0
        [train]
        rounds = 1
        [algorithms.fedavg]
        lr = 0.03
        [algorithms.gentle]
        algorithm = "semi_vred"
        beta = 0.05
        lr = 0.02
        [algorithms.term]
    """)
    for seeds in ("0", "1", "2"):
        assert evenfed("compare", toml, "--algorithms", "gentle", "--seeds", f"[{seeds}]").returncode == 0
    root = tmp_path / "runs" / "mine"
    assert {p.name for p in root.iterdir() if p.is_dir()} >= {"fedavg", "gentle", "fedavg-other-seeds"}
    assert not (root / "term").exists()
    trained = json.loads((root / "gentle" / "seed-1" / "header.json").read_text())["config"]
    assert trained["train"]["lr"] == 0.02 and trained["hyper_parameters"]["beta"] == 0.05
    before = {p: p.stat().st_mtime_ns for p in root.rglob("rounds.jsonl")}
    assert len(before) == 9
    assert evenfed("compare", toml, "--algorithms", "gentle", "--seeds", "3").returncode == 0
    assert {p: p.stat().st_mtime_ns for p in root.rglob("rounds.jsonl")} == before  # nothing was left to do


def test_one_participant_is_not_everyone(tmp_path, evenfed):
    asked = [
        "compare",
        "--algorithms",
        "fedavg",
        "--rounds",
        2,
        "--seeds",
        1,
        *SMALL,
        "--out",
        "runs",
        "--format",
        "json",
    ]
    warned = evenfed(*asked, "--set", "train.participation=1")
    assert warned.returncode == 0 and "participation=1 is one client per round; everyone is 1.0" in warned.stderr
    refused = evenfed(*asked, "--set", "train.participation=1.0")
    assert refused.returncode == 2 and "train.participation: 1 there, 1.0 here" in refused.stderr


def test_own_files_by_options_alone(tmp_path, evenfed):
    (tmp_path / "mine").mkdir()
    draw = np.random.default_rng(0)
    for k in range(3):
        np.savez(tmp_path / "mine" / f"site-{k}.npz", x=draw.normal(size=(20, 4)), y=draw.integers(0, 2, size=20))
    asked = "compare --algorithms fedavg --rounds 1 --seeds 1 --data folder --set data.path=mine --format json"
    done = evenfed(*asked.split(), "--set", "data.partition=natural", "--set", "data.clients=3")
    assert done.returncode == 0, done.stderr
    np.savez(tmp_path / "mine" / "site-0.npz", x=np.full((20, 4), np.nan), y=draw.integers(0, 2, size=20))
    refused = evenfed(*asked.split(), "--set", "data.partition=natural", "--set", "data.clients=3", "--out", "new")
    assert refused.returncode == 2 and "not finite" in refused.stderr


def test_algorithms_command(evenfed):
    every = evenfed("algorithms")
    for name in ("fedavg", "semi_vred", "fedmgda", "beta=0.2"):
        assert name in every.stdout
    one = evenfed("algorithms", "vred")
    for told in ("β Σ p_i (f_i − f̄)²", "FedAvg at: 0", "danger: a weight turns negative", "Algorithm 1"):
        assert told in one.stdout
    unknown = evenfed("algorithms", "vrde")
    assert unknown.returncode == 2 and "did you mean 'vred'" in unknown.stderr


def test_version_and_help(evenfed):
    assert evenfed("--version").stdout.startswith("evenfed ")
    assert "worst" in evenfed("compare", "--help").stdout
