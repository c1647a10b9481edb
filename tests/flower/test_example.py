"""The example as a new user tries it, in a copy of its folder."""

import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from command import PATIENCE, on_one_core
from deployment import ROOT, free_ports
from evenfed.flower.no_telemetry import QUIET
from preloaded import Preloaded

pytestmark = pytest.mark.slow
HOSPITALS = ["city", "county", "island"]


@pytest.fixture
def example(tmp_path) -> Path:
    made = tmp_path / "flower-hospitals"
    shutil.copytree(ROOT / "examples" / "flower-hospitals", made, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    return made


def run(folder: Path, *words: str, **environment: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def preloaded(tmp_path):
    made = Preloaded(tmp_path / "preloaded")
    yield made.path
    made.end()


def test_deployed_as_processes(example, preloaded):
    port = free_ports(4)
    path = f"{preloaded}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(example, "./deploy.sh", "evenfed.rounds=1", PORT=str(port), PATH=path)
    folder = example / "runs" / "semi_vred[beta=5]" / "seed-0"
    header = json.loads((folder / "header.json").read_text())
    assert header["finished"] and header["clients"]["names"] == HOSPITALS
    line = json.loads((folder / "rounds.jsonl").read_text())
    assert line["dropped"] == [] and len(line["accuracy"]) == 3
    assert not listening(port)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_is_as_quiet_as_a_new_app(example):
    assert dict(line.split("=") for line in (example / "quiet.env").read_text().split()) == QUIET


def test_simulated_by_flower(example):
    with on_one_core():
        lines = run(example, "python", "simulate.py", "1").splitlines()
    assert lines[0].split() == HOSPITALS
    assert [line.split()[0] for line in lines[1:]] == ["fedavg", "semi_vred[beta=5]"]


@pytest.fixture
def measure(example, monkeypatch):
    """The example's measure.py, loaded here."""
    monkeypatch.syspath_prepend(example)
    for name in ("measure", "hospitals", "hospitals.task"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    return importlib.import_module("measure")


def test_fedavg_fails_the_smallest_and_semi_vred_serves_it(measure):
    algorithms = ("fedavg", measure.METHODS["Semi-VRed, beta = 5"])
    plain, fair = (measure.accuracies(algorithm, range(3), 0) for algorithm in algorithms)
    assert plain[2] < 60 and fair[2] > 65
    assert min(f - p for f, p in zip(fair, plain, strict=True)) > -4
