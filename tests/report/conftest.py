"""A small real comparison, the command, and copies with changed numbers."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evenfed.cli import main

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A comparison of 6 clients, made once through the command."""
    out = tmp_path_factory.mktemp("report")
    asked = "compare --algorithms fedavg,vred,semi_vred --rounds 4 --seeds 2 --set data.clients=6 --format json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evenfed", *asked.split(), "--set", "train.last_rounds=2", "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return out / "demo"


@pytest.fixture
def evenfed(capsys, monkeypatch, tmp_path) -> Command:
    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["evenfed", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, told.out, told.err)

    return call


@pytest.fixture
def edited(small, tmp_path) -> Callable[[Callable[[str, int, dict, list], None]], Path]:
    """A copy of the small comparison, every run's header and rounds changed in place by a function."""

    def copy(change: Callable[[str, int, dict, list], None]) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(small, folder)
        for path in folder.glob("*/seed-*"):
            header = json.loads((path / "header.json").read_text())
            rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
            change(path.parent.name, int(path.name.removeprefix("seed-")), header, rounds)
            (path / "header.json").write_text(json.dumps(header))
            (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
        return folder

    return copy
