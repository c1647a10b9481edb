"""A finished comparison asked for again: printed at once, and made anew as soon as anything has changed."""

import json
import os
from pathlib import Path

import pytest

import command
import evenfed as package
from command import SMALL
from evenfed.cli import printed_output

EXPERIMENT = """
seeds = 1
noise_floor = false
[train]
rounds = 2
[algorithms.fedavg]
[algorithms.vred]
"""


@pytest.fixture
def call(tmp_path, monkeypatch) -> list[str]:
    """A comparison in a folder of its own, to be run there."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(EXPERIMENT)
    return ["compare", "mine.toml", "--out", "here", *SMALL]


def test_it_is_printed_again_without_torch(call, tmp_path, evenfed):
    first = evenfed(*call)
    again = command.run(*call, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert again.stdout == first.stdout and "vred" in first.stdout
    assert "rich.console" in again.stderr and "torch" not in again.stderr
    assert printed_output.printed([*call, "--full"]) is None
    assert printed_output.printed(["report", *call[1:]]) is None
    figure = Path("here/mine/figures/clients.png")
    figure.unlink()
    assert evenfed(*call).stdout == first.stdout and figure.exists()


def test_a_narrower_page_is_not_answered_with_a_wide_one(call, evenfed, monkeypatch):
    call += ["--format", "json"]
    evenfed(*call)
    assert printed_output.printed(call) is not None
    monkeypatch.setenv("COLUMNS", "60")
    assert printed_output.printed(call) is None


def test_it_is_made_anew_when_a_file_has_changed(call, evenfed, monkeypatch, tmp_path):
    call += ["--format", "json"]
    first = evenfed(*call).stdout
    assert printed_output.printed(call) == first
    rounds = Path("here/mine/vred/seed-0/rounds.jsonl")
    status = rounds.stat()
    text = rounds.read_text()
    last = json.loads(text.splitlines()[-1])
    better = [1.0 for _ in last["accuracy"]]
    changed = text.replace(json.dumps(last["accuracy"]), json.dumps(better))
    rounds.write_text(changed)
    os.utime(rounds, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert printed_output.printed(call) is None
    again = evenfed(*call)  # the run is trained again, as its lines are not those written
    assert again.returncode == 0 and "rounds.jsonl is damaged" in again.stderr
    assert json.loads(rounds.read_text().splitlines()[-1])["accuracy"] == last["accuracy"]
    first = again.stdout
    assert printed_output.printed(call) == first
    Path("mine.toml").write_text(EXPERIMENT.replace("rounds = 2", "rounds = 3"))
    longer = evenfed(*call)
    assert longer.stdout != first and printed_output.printed(call) == longer.stdout
    monkeypatch.setattr(printed_output, "_PACKAGE", tmp_path)  # another version's files
    assert printed_output.printed(call) is None


def test_what_else_decides_about_the_output_is_asked_each_time(call, evenfed):
    call += ["--format", "json"]
    evenfed(*call)
    reusing = [*call, "--reuse", "here/mine"]
    assert "taken from" in evenfed(*reusing).stderr
    assert printed_output.printed(reusing) is None
    stopping = ["compare", "mine.toml", "--out", "there", *SMALL, "--format", "json", "--track", "early_stopping"]
    assert evenfed(*stopping).returncode == 0
    assert printed_output.printed(stopping) is None
    kept = Path("here/.printed")
    for file in kept.iterdir():
        file.write_text("[1]")
    assert printed_output.printed(call) is None


def test_every_public_name_is_there():
    for name in package.__all__:
        assert getattr(package, name) is not None and name in dir(package)
    assert package.Result.__name__ == "Result" and package.fairness.Fairness is package.Fairness
    with pytest.raises(AttributeError, match="compares"):
        package.compares  # noqa: B018
