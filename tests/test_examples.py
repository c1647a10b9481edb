"""Every script under examples/ runs, with few rounds."""

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


ELSEWHERE = ["huggingface_adapters", "audit_flower"]  # simulate/test_huggingface.py, audit/test_exports.py
OTHERS = [path for path in SCRIPTS if path.stem not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_each_example_runs(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    few = {"rounds": 2, "seeds": 1}
    known = inspect.signature(module.main).parameters
    result = module.main(**{name: value for name, value in few.items() if name in known})
    assert capsys.readouterr().out.strip()
    if hasattr(result, "results"):
        for runs in result.results.values():
            for run in runs:
                assert len(run.records) == 2 and np.isfinite(run.records[-1].objective)


def test_the_index_names_every_example():
    index = (EXAMPLES / "README.md").read_text()
    folders = [folder for folder in EXAMPLES.iterdir() if folder.is_dir() and any(folder.glob("*.toml"))]
    for path in [*SCRIPTS, *folders]:
        assert f"({path.name})" in index or f"({path.name}/" in index, path.name
