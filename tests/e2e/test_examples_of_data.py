"""The examples that bring their own data, run as their readers run them."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_table_of_clinics(capsys):
    tabular = runpy.run_path(str(EXAMPLES / "tabular.py"))
    comparison = tabular["main"](rounds=10)
    printed = capsys.readouterr().out
    assert list(comparison.results) == tabular["ALGORITHMS"]
    for (result,) in comparison.results.values():
        assert result.client_names == sorted(tabular["CLINICS"])
        assert np.mean(result.accuracy) > 0.85
    assert "fedavg: city " in printed


def test_the_folder_with_its_own_model(tmp_path, evenfed):
    shutil.copytree(EXAMPLES / "own-folder", tmp_path / "own-folder", ignore=shutil.ignore_patterns("clients"))
    runpy.run_path(str(tmp_path / "own-folder" / "write_files.py"))["main"]()
    quickly = ["--rounds", 2, "--seeds", 1, "--set", "noise_floor=false", "--format", "json"]
    done = evenfed("compare", "own-folder/own.toml", *quickly)
    assert done.returncode == 0, done.stderr
    assert "6 clients: anna, ben, chloe, david, emma, felix; 1,557 training examples, 240 test" in done.stderr
    assert "every client is tested on its own test data" in done.stderr
    header = json.loads((tmp_path / "runs" / "own-folder" / "fedavg" / "seed-0" / "header.json").read_text())
    assert header["clients"]["test"] == [40] * 6
    assert "semi_vred" in done.stdout
