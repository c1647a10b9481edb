"""The command as a user types it: in a process of its own, from run to table, killed and resumed, misused."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SMALL = ["--set", "data.clients=6", "--set", "data.concentration=1.0"]


def evenfed(
    *arguments: object, cwd: Path, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evenfed", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "COLUMNS": "160", **environment},
    )


@pytest.fixture
def evenfed_here(capsys, monkeypatch, tmp_path):
    """The same command in this process, for what needs no process of its own."""
    from evenfed.cli import main

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["evenfed", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, told.out, told.err)

    return call


def rounds_of(folder: Path) -> list[dict]:
    """Every line, without what a clock says."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_compare_prints_a_table_and_leaves_results_with_provenance(tmp_path):
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
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for shown in (
        "last round",
        "average of the last 4 rounds",
        "semi_vred[beta=1,smooth=0.25]",
        "chance alone",
        "Pictures:",
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
    assert (run / "model.safetensors").exists() and not list(run.glob("checkpoint*"))
    smoothed = json.loads((run.parents[1] / "semi_vred[beta=1,smooth=0.25]" / "seed-0" / "header.json").read_text())
    assert smoothed["config"]["train"]["smooth"] == 0.25 and smoothed["config"]["hyper_parameters"]["beta"] == 1.0
    pictures = {p.name for p in (tmp_path / "runs" / "demo" / "pictures").iterdir()}
    assert {"clients.svg", "clients.png", "trade-off.svg", "worst-over-rounds.png"} <= pictures


def test_json_is_the_table_and_nothing_else_and_a_finished_run_is_not_run_again(tmp_path):
    call = ["compare", "--algorithms", "vred", "--rounds", 3, "--seeds", 1, "--format", "json", *SMALL]
    first = evenfed(*call, cwd=tmp_path)
    table = json.loads(first.stdout)
    assert [row["label"] for row in table["rows"]] == ["fedavg", "vred"]  # the baseline is always there
    figures = {"mean", "std", "worst", "worst10", "worst20", "best10", "improved", "degraded"}
    assert figures <= set(table["rows"][1]["last"]) and figures <= set(table["rows"][1]["late"])
    assert {"mean", "spread"} == set(table["rows"][1]["last"]["mean"])
    assert table["noise_floor"]["label"] == "fedavg, other seeds" and table["last_rounds"] == 3
    assert {"negative_rounds", "oscillation"} <= set(table["rows"][0])
    header = tmp_path / "runs" / "demo" / "vred" / "seed-0" / "header.json"
    before = header.stat().st_mtime_ns
    again = evenfed(*call, cwd=tmp_path)
    assert again.stdout == first.stdout and header.stat().st_mtime_ns == before and "round" not in again.stderr


def test_a_toml_file_with_labels_and_the_engines_agree(tmp_path, evenfed_here):
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
        rounds = 3
        batch_size = 16
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
        done = evenfed_here(*call, "--format", "json")
        assert done.returncode == 0, done.stderr
        found[engine] = rounds_of(tmp_path / engine / "mine" / "damped" / "seed-3")[-1]
        assert json.loads(done.stdout)["noise_floor"] is None
    assert found["parallel"]["weights"] == pytest.approx(found["reference"]["weights"], rel=1e-4)
    header = json.loads((tmp_path / "parallel" / "mine" / "gentle" / "seed-3" / "header.json").read_text())
    assert header["config"]["train"]["lr"] == 0.02


RESUMED = ["compare", "--rounds", 40, "--seeds", 2, *SMALL]


def interrupted(cwd: Path, how: signal.Signals, after_lines: int) -> subprocess.CompletedProcess[str]:
    """Start the comparison, and send `how` once some rounds are on disk or reported."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evenfed", *map(str, RESUMED)],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "EVENFED_CHECKPOINT_SECONDS": "0.05"},
    )
    deadline = time.monotonic() + 90
    watched = cwd / "runs" / "demo" / "afl" / "seed-1" / "rounds.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if watched.exists() and watched.read_text().count("\n") >= after_lines:
            break
        time.sleep(0.005)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert evenfed(*RESUMED, cwd=folder).returncode == 0
    return folder / "runs" / "demo"


def same_results(one: Path, two: Path) -> None:
    runs = sorted(p.parent.relative_to(one) for p in one.rglob("header.json"))
    assert len(runs) == 34  # 16 entries x 2 seeds, and the noise floor
    for run in runs:
        assert rounds_of(one / run) == rounds_of(two / run), run
        assert (one / run / "model.safetensors").read_bytes() == (two / run / "model.safetensors").read_bytes(), run


def test_killed_and_resumed_ends_bit_identical(tmp_path, undisturbed):
    for lines in (5, 20):
        killed = interrupted(tmp_path, signal.SIGKILL, lines)
        assert killed.returncode == -signal.SIGKILL
        with (tmp_path / "runs" / "demo" / "vred" / "seed-0" / "rounds.jsonl").open("a") as half:
            half.write('{"index": 99, "los')  # a line cut off by the kill
    assert evenfed(*RESUMED, cwd=tmp_path, EVENFED_COMMIT="the-last-one").returncode == 0
    header = json.loads((tmp_path / "runs" / "demo" / "ditto" / "seed-0" / "header.json").read_text())
    assert header["resumed_at"][0] == 0 and header["resumed_at"][-1] > 5
    assert header["commit"] == "the-last-one" and header["earlier"][0]["from_round"] == 0
    assert "the-last-one" not in [each["commit"] for each in header["earlier"]]
    same_results(undisturbed, tmp_path / "runs" / "demo")


def test_ctrl_c_ends_cleanly_and_prints_the_command_that_resumes(tmp_path, undisturbed):
    stopped = interrupted(tmp_path, signal.SIGINT, 3)
    assert stopped.returncode == 130 and "Traceback" not in stopped.stderr and "after this round" in stopped.stderr
    assert "evenfed compare --rounds 40 --seeds 2" in stopped.stderr and "data.clients=6" in stopped.stderr
    assert evenfed(*RESUMED, cwd=tmp_path).returncode == 0
    same_results(undisturbed, tmp_path / "runs" / "demo")


def test_who_watches_may_go_and_the_comparison_ends_all_the_same(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    call = [sys.executable, "-m", "evenfed", "compare", "--algorithms", "fedavg", "--rounds", 5, "--seeds", 1, *SMALL]
    done = subprocess.run(list(map(str, call)), cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    assert done.returncode == 0 and "fedavg" in done.stdout
    assert len(rounds_of(tmp_path / "runs" / "demo" / "fedavg" / "seed-0")) == 5


def test_a_terminal_may_be_closed_too(tmp_path):
    here, there = pty.openpty()
    call = [sys.executable, "-m", "evenfed", "compare", "--algorithms", "fedavg", "--rounds", 200, "--seeds", 1, *SMALL]
    process = subprocess.Popen(list(map(str, call)), cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=there)
    os.close(there)
    assert b"rounds each" in os.read(here, 1024)
    os.close(here)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "fedavg" in out


def test_another_configuration_is_refused_with_the_difference_named(tmp_path, evenfed_here):
    call = ["compare", "--algorithms", "fedavg,vred", "--rounds", 2, "--seeds", 1, *SMALL]
    assert evenfed_here(*call).returncode == 0
    for changed, told in [
        (["--set", "vred.beta=0.9"], "hyper_parameters.beta: 0.2 there, 0.9 here"),
        (["--set", "train.lr=0.3"], "train.lr: 0.1 there, 0.3 here"),
        (["--set", "data.seed=4"], "data.seed: 0 there, 4 here"),
        (["--rounds", "5"], "train.rounds: 2 there, 5 here"),
    ]:
        refused = evenfed_here(*call, *changed)
        assert refused.returncode == 2 and told in refused.stderr and "Traceback" not in refused.stderr
    header = tmp_path / "runs" / "demo" / "vred" / "seed-0" / "header.json"
    older = json.loads(header.read_text())
    del older["config"]["train"]["start"]  # written before there was such an option: it had the default
    header.write_text(json.dumps(older))
    more = evenfed_here("compare", "--algorithms", "fedavg,vred,term", "--rounds", 2, "--seeds", 2, *SMALL)
    assert more.returncode == 0 and "term" in more.stdout  # entries and seeds may be added


def test_entries_of_a_file_are_chosen_by_label_with_their_options_and_seeds_can_be_added(tmp_path, evenfed_here):
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
        assert evenfed_here("compare", toml, "--algorithms", "gentle", "--seeds", f"[{seeds}]").returncode == 0
    root = tmp_path / "runs" / "mine"
    assert {p.name for p in root.iterdir() if p.is_dir()} >= {"fedavg", "gentle", "fedavg-other-seeds"}
    assert not (root / "term").exists()
    trained = json.loads((root / "gentle" / "seed-1" / "header.json").read_text())["config"]
    assert trained["train"]["lr"] == 0.02 and trained["hyper_parameters"]["beta"] == 0.05
    before = {p: p.stat().st_mtime_ns for p in root.rglob("rounds.jsonl")}
    assert len(before) == 9
    assert evenfed_here("compare", toml, "--algorithms", "gentle", "--seeds", "3").returncode == 0
    assert {p: p.stat().st_mtime_ns for p in root.rglob("rounds.jsonl")} == before  # nothing was left to do


def test_two_writers_in_one_folder_are_refused(tmp_path):
    import fcntl

    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = evenfed("compare", "--rounds", 1, *SMALL, cwd=tmp_path)
    assert refused.returncode == 2 and "another evenfed is writing" in refused.stderr


def test_algorithms_command(evenfed_here):
    every = evenfed_here("algorithms")
    for name in ("fedavg", "semi_vred", "fedmgda", "beta=0.2"):
        assert name in every.stdout
    one = evenfed_here("algorithms", "vred")
    for told in ("β Σ p_i (f_i − f̄)²", "FedAvg at: 0", "danger: a weight turns negative", "Algorithm 1"):
        assert told in one.stdout
    unknown = evenfed_here("algorithms", "vrde")
    assert unknown.returncode == 2 and "did you mean 'vred'" in unknown.stderr


BAD_TOML = {
    "broken": ("[train\nrounds = 3", "is not valid TOML"),
    "unknown-key": ("[train]\nrouds = 3\n[algorithms.fedavg]", "did you mean 'rounds'"),
    "grid-beside-value": (
        "[algorithms.vred]\nbeta = 0.3\ngrid = { beta = [0.1, 0.2] }",
        "grid over 'beta', which is set beside it",
    ),
    "grid-of-lists": ("[algorithms.vred]\ngrid = { beta = [[0.1, 0.2]] }", "give lists of plain values"),
    "grid-of-algorithms": ('[algorithms.vred]\ngrid = { algorithm = ["vred", "afl"] }', "grid over 'algorithm'"),
    "unknown-table": ("[trian]\nrounds = 3\n[algorithms.fedavg]", "did you mean 'train'"),
    "unknown-option": ("[algorithms.vred]\nbeta_ = 1", "did you mean 'beta'"),
    "unknown-algorithm": ("[algorithms.verd]", "did you mean 'vred'"),
    "no-algorithm": ("[train]\nrounds = 3", "names no algorithm"),
    "not-a-table": ("data = 3\n[algorithms.fedavg]", "give a table"),
    "wrong-switch": ('noise_floor = "no"\n[algorithms.fedavg]', "noise_floor='no': give true or false"),
    "wrong-type": ('[train]\nrounds = "many"\n[algorithms.fedavg]', "rounds='many'"),
    "wrong-data": ('[data]\nname = "digts"\n[algorithms.fedavg]', "did you mean 'digits'"),
    "wrong-model": ('[model]\nname = "mpl"\n[algorithms.fedavg]', "did you mean 'mlp'"),
    "wrong-model-option": ("[model]\nhiden = [3]\n[algorithms.fedavg]", "hiden"),
    "bad-name": ('name = "a/b"\n[algorithms.fedavg]', "cannot name a folder"),
    "not-text": (b"\xff\xfe\x00", "is not valid TOML"),
}


@pytest.mark.parametrize("case", BAD_TOML)
def test_bad_experiment_files(case, tmp_path, evenfed_here):
    content, told = BAD_TOML[case]
    file = tmp_path / "bad.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused = evenfed_here("compare", file)
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr and refused.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["compare", "--algorithms", "fedavg,semi_vered"], "did you mean 'semi_vred'"),
        (["compare", "--algorithms", "semi_vred[beta=-1]"], "beta=-1.0 is out of range"),
        (["compare", "--algorithms", ""], "no algorithm"),
        (["compare", "--rounds", "0"], "rounds=0"),
        (["compare", "--rounds", "x"], "--rounds"),
        (["compare", "--seeds", "0"], "seeds=0"),
        (["compare", "--seeds", "a,b"], "seeds="),
        (["compare", "--data", "digitz"], "did you mean 'digits'"),
        (["compare", "--set", "semi_vred"], "write part.key=value"),
        (["compare", "--set", "semi_vrad.beta=1"], "did you mean 'semi_vred'"),
        (["compare", "--set", "train.participation=0"], "participation=0"),
        (["compare", "--set", "train.lr=fast"], "lr='fast'"),
        (["compare", "--engine", "fast"], "unknown engine 'fast'"),
        (["compare", "--device", "cuda"], "sees no GPU"),
        (["compare", "--out", "/proc/none"], "cannot be written to"),
        (["compare", "--set", "model.hidden=[-3]"], "model.hidden=-3"),
        (["compare", "--set", "model.hidden=32"], "give a list of widths"),
        (["compare", "--data", "folder"], "a path goes with name = 'folder' alone"),
        (["compare", "--data", "folder", "--set", "data.path=nowhere"], "no folder there"),
        (["data", "show", "digits", "--out", "/proc/none"], "cannot be written to"),
        (["compare", "--frmat", "json"], "--format"),
        (["compair"], "compare"),
    ],
)
def test_bad_arguments(arguments, told, evenfed_here):
    refused = evenfed_here(*arguments)
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr


def test_one_participant_is_not_everyone(tmp_path, evenfed_here):
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
    assert evenfed_here(*asked, "--set", "train.participation=1").returncode == 0
    refused = evenfed_here(*asked, "--set", "train.participation=1.0")
    assert refused.returncode == 2 and "train.participation: 1 there, 1.0 here" in refused.stderr


def test_own_files_by_options_alone(tmp_path, evenfed_here):
    (tmp_path / "mine").mkdir()
    draw = np.random.default_rng(0)
    for k in range(3):
        np.savez(tmp_path / "mine" / f"site-{k}.npz", x=draw.normal(size=(20, 4)), y=draw.integers(0, 2, size=20))
    asked = "compare --algorithms fedavg --rounds 1 --seeds 1 --data folder --set data.path=mine --format json"
    done = evenfed_here(*asked.split(), "--set", "data.partition=natural", "--set", "data.clients=3")
    assert done.returncode == 0, done.stderr
    np.savez(tmp_path / "mine" / "site-0.npz", x=np.full((20, 4), np.nan), y=draw.integers(0, 2, size=20))
    refused = evenfed_here(*asked.split(), "--set", "data.partition=natural", "--set", "data.clients=3", "--out", "new")
    assert refused.returncode == 2 and "not finite" in refused.stderr


def test_bad_input_from_a_real_process_has_no_traceback(tmp_path):
    refused = evenfed("compare", "--algorithms", "fedavg,semi_vered", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith(
        "evenfed: unknown algorithm 'semi_vered'; did you mean"
    )
    assert len(refused.stderr.splitlines()) == 1 and refused.stdout == ""


def test_an_unwritable_folder(tmp_path):
    taken = tmp_path / "runs"
    taken.write_text("a file stands here")
    refused = evenfed("compare", "--rounds", 1, cwd=tmp_path)
    assert refused.returncode == 2 and "cannot be written to" in refused.stderr


def test_a_damaged_checkpoint_is_told(tmp_path):
    interrupted(tmp_path, signal.SIGKILL, 3)
    run = tmp_path / "runs" / "demo" / "vred" / "seed-0"
    for file in run.glob("checkpoint-*"):
        file.write_bytes(b"not tensors")
    refused = evenfed(*RESUMED, cwd=tmp_path)
    assert refused.returncode == 2 and "cannot be read as a checkpoint" in refused.stderr


def test_version_and_help():
    assert evenfed("--version", cwd=Path.cwd()).stdout.startswith("evenfed ")
    assert "worst" in evenfed("compare", "--help", cwd=Path.cwd()).stdout
