"""The tools for whoever refactors: trajectories that show a changed bit."""

import importlib
import json
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def trajectories(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("trajectories")


def test_trajectories_repeat_and_the_first_changed_round_is_named(trajectories, tmp_path, capsys):
    file = tmp_path / "before.json"
    assert trajectories.main(["record", str(file), "--only", "mlp/semi_vred"]) == 0
    assert trajectories.main(["compare", str(file)]) == 0
    assert "all 2 trajectories are the same to the bit" in capsys.readouterr().out
    before = json.loads(file.read_text())
    assert {len(rounds) for rounds in before.values()} == {10}
    before["parallel/mlp/semi_vred"][4][1] = "other"
    file.write_text(json.dumps(before))
    assert trajectories.main(["compare", str(file)]) == 1
    assert capsys.readouterr().out == "parallel/mlp/semi_vred: round 4 is the first that differs, in weights\n"
    assert len(trajectories.every_trajectory()) == 44


def test_a_run_of_a_comparison_is_named_by_label_and_seed(trajectories):
    before = [[label, 0, *"abcde"] for label in ("afl", "vred")] * 3
    after = [list(line) for line in before]
    assert trajectories.difference("x", before, after) is None
    after[5][-1] = "other"
    assert trajectories.difference("x", before, after) == "x, vred, 0: round 2 is the first that differs, in model"
