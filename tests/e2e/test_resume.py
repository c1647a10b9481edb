"""A comparison that is killed, interrupted, left by its watchers or started twice ends as if nothing had been."""

import fcntl
import json
import os
import pty
import signal
from pathlib import Path

import pytest

import command
from command import SMALL, rounds_of

pytestmark = pytest.mark.slow
ENTRIES = ["fedavg", "afl", "drfa", "fcfl", "ditto", "fedfv[tau=3]", "semi_vred[beta=1,smooth=0.25]"]
RESUMED = ["compare", "--algorithms", ",".join(ENTRIES), "--rounds", 14, "--seeds", 2, "--format", "json", *SMALL]


def interrupted(cwd: Path, how: signal.Signals, after_lines: int) -> command.Done:
    """The comparison, sent `how` once so many rounds of the last entry are on disk, and it could be resumed."""
    process = command.Forked(*RESUMED, cwd=cwd, EVENFED_CHECKPOINT_SECONDS="0.05")
    folder = cwd / "runs" / "demo"
    journal = folder / ENTRIES[-1] / "seed-1" / "rounds.jsonl"

    def far_enough() -> bool:
        return lines_in(journal) >= after_lines and saved_in_all(folder) > 0

    command.wait_for(lambda: process.poll() is not None or far_enough(), 0.005)
    process.send_signal(how)
    return command.ended(process)


def lines_in(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def saved_in_all(folder: Path) -> int:
    """The newest round of which every run has a checkpoint; 0 if there is none."""
    common = set(range(1, 15))
    for run in folder.glob("*/seed-*"):
        common &= {int(file.stem.removeprefix("checkpoint-")) for file in run.glob("checkpoint-*.safetensors")}
    return max(common, default=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert command.ended(command.Forked(*RESUMED, cwd=folder)).returncode == 0
    return folder / "runs" / "demo"


def same_results(one: Path, two: Path) -> None:
    runs = sorted(p.parent.relative_to(one) for p in one.rglob("header.json"))
    assert len(runs) == 2 * (len(ENTRIES) + 1)  # and the noise floor
    for run in runs:
        assert rounds_of(one / run) == rounds_of(two / run), run
        assert (one / run / "model.safetensors").read_bytes() == (two / run / "model.safetensors").read_bytes(), run


def test_killed_and_resumed_ends_bit_identical(tmp_path, undisturbed, evenfed, monkeypatch):
    for lines in (2, 6):
        killed = interrupted(tmp_path, signal.SIGKILL, lines)
        assert killed.returncode == -signal.SIGKILL
        with (tmp_path / "runs" / "demo" / "afl" / "seed-0" / "rounds.jsonl").open("a") as half:
            half.write('{"index": 99, "los')  # a line cut off by the kill
    saved = saved_in_all(tmp_path / "runs" / "demo")
    monkeypatch.setenv("EVENFED_COMMIT", "the-last-one")
    assert evenfed(*RESUMED).returncode == 0
    header = json.loads((tmp_path / "runs" / "demo" / "ditto" / "seed-0" / "header.json").read_text())
    assert header["resumed_at"][0] == 0 and header["resumed_at"][-1] == saved > 0
    assert header["commit"] == "the-last-one" and header["earlier"][0]["from_round"] == 0
    assert "the-last-one" not in [each["commit"] for each in header["earlier"]]
    same_results(undisturbed, tmp_path / "runs" / "demo")


def test_ctrl_c_ends_cleanly_and_prints_the_command_that_resumes(tmp_path, undisturbed, evenfed):
    stopped = interrupted(tmp_path, signal.SIGINT, 3)
    assert stopped.returncode == 130 and "Traceback" not in stopped.stderr and "after this round" in stopped.stderr
    assert (
        "evenfed compare --algorithms" in stopped.stderr
        and "--rounds 14 --seeds 2" in stopped.stderr
        and "data.clients=6" in stopped.stderr
    )
    assert evenfed(*RESUMED).returncode == 0
    same_results(undisturbed, tmp_path / "runs" / "demo")


def test_who_watches_may_go_and_the_comparison_ends_all_the_same(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    call = ["compare", "--algorithms", "fedavg", "--rounds", 5, "--seeds", 1, "--format", "json", *SMALL]
    process = command.Forked(*call, cwd=tmp_path, stderr=writing)
    os.close(writing)
    done = command.ended(process)
    assert done.returncode == 0 and "fedavg" in done.stdout
    assert len(rounds_of(tmp_path / "runs" / "demo" / "fedavg" / "seed-0")) == 5


def test_a_terminal_may_be_closed_too(tmp_path):
    here, there = pty.openpty()
    call = ["compare", "--algorithms", "fedavg", "--rounds", 10, "--seeds", 1, "--format", "json", *SMALL]
    process = command.Forked(*call, cwd=tmp_path, stderr=there)
    os.close(there)
    told = b""
    while b"rounds each" not in told:
        told += os.read(here, 1024)
    os.close(here)
    done = command.ended(process)
    assert done.returncode == 0 and "fedavg" in done.stdout


def test_two_writers_in_one_folder_are_refused(tmp_path, evenfed):
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = evenfed("compare", "--rounds", 1, *SMALL)
    assert refused.returncode == 2 and "another evenfed is writing" in refused.stderr
