"""The example: a usual Flower app, made fair by its diff, its client unmodified."""

import importlib
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from flwr.serverapp.strategy import QFedAvg

from deployment import ROOT
from evenfed.flower import Fair
from local_grid import LocalGrid

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "flower-quickstart"
CONFIG = {
    "num-server-rounds": 1,
    "fraction-train": 1.0,
    "fraction-evaluate": 1.0,
    "local-epochs": 1,
    "learning-rate": 0.05,
    "batch-size": 64,
}


@pytest.fixture
def fair_app(tmp_path, monkeypatch):
    """A copy of the app with the diff applied; gives its modules."""
    shutil.copytree(EXAMPLE / "quickstart", tmp_path / "quickstart", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", EXAMPLE / "fair.diff"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("quickstart", "quickstart.task", "quickstart.client_app", "quickstart.server_app"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    return {name: importlib.import_module(f"quickstart.{name}") for name in ("task", "client_app", "server_app")}


def test_the_diff_makes_the_app_fair(fair_app, tmp_path, caplog):
    grid = LocalGrid(fair_app["client_app"].app, 3)
    for context in grid.contexts.values():
        context.run_config = CONFIG
    fair_app["server_app"].main(grid, SimpleNamespace(run_config=CONFIG))
    assert "SemiVRed" in caplog.text and "round 1/1: objective" in caplog.text
    assert caplog.text.count("does not say at which model") == 1
    net = fair_app["task"].Net()
    net.load_state_dict(torch.load(tmp_path / "final_model.pt"))
    server = (tmp_path / "quickstart" / "server_app.py").read_text()
    assert "FedAvg" not in server
    page = (ROOT / "docs" / "flower.md").read_text()
    assert (EXAMPLE / "fair.diff").read_text() in page


def test_the_comparison_runs_flowers_strategies_and_fair(fair_app, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setitem(sys.modules, "compare", None)
    del sys.modules["compare"]
    compare = importlib.import_module("compare")
    kinds = {type(make()) for make in compare.STRATEGIES.values()}
    assert {QFedAvg, Fair} <= kinds
    monkeypatch.setattr(compare, "CLIENTS", 3)
    grid = LocalGrid(compare.Configured(), 3)
    accuracy, _ = compare.run(compare.STRATEGIES["Fair, q-FFL, q = 0.1"](), grid, 1)
    assert len(accuracy) == 3 and min(accuracy) >= 0


def test_a_check_tries_it_as_far_as_it_can(evenfed, tmp_path):
    theirs = shutil.copytree(EXAMPLE, tmp_path / "theirs", ignore=shutil.ignore_patterns("__pycache__"))
    done = evenfed("flower", "check", "theirs", "--sites", 2, "--run-config", "local-epochs=1")
    assert done.returncode == 0 and "not evenfed's" in done.stderr and "training loss" in done.stdout, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:3]] == ["0", "1"]
    server = theirs / "quickstart" / "server_app.py"
    server.write_text(server.read_text().replace("FedAvg(\n", "FedAvg(\n        min_available_nodes=9,\n"))
    done = evenfed("flower", "check", "theirs", "--sites", 2)
    assert done.returncode == 1 and "waits for more than 2 sites" in done.stderr
