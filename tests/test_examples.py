"""Every script under examples/ runs, with few rounds."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
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


RESOLVING = """
import operator
import os
import sys

import torch  # loaded once; of evenfed, each name's process loads what that name asks for

for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        import evenfed

        operator.attrgetter(name.removeprefix("evenfed."))(evenfed)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(name)
"""


def test_names_that_examples_use_are_there_in_a_fresh_process():
    """`evenfed.core.streams.Draw` was there only where another module had been loaded before."""
    names = set()
    for path in [*EXAMPLES.rglob("*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        code = path.read_text()
        if path.suffix == ".md":
            code = "\n".join(re.findall(r"```python\n(.*?)```", code, re.DOTALL))
        for line in code.splitlines():
            if not line.lstrip().startswith(("from ", "import ")):
                names.update(re.findall(r"\bevenfed(?:\.[a-zA-Z_]\w*){2,}", line))
    assert len(names) > 3
    command = [sys.executable, "-c", RESOLVING, *sorted(names)]
    resolving = subprocess.run(command, capture_output=True, text=True)
    assert resolving.returncode == 0, resolving.stderr


def test_the_index_names_every_example():
    index = (EXAMPLES / "README.md").read_text()
    folders = [folder for folder in EXAMPLES.iterdir() if folder.is_dir() and any(folder.glob("*.toml"))]
    for path in [*SCRIPTS, *folders]:
        assert f"({path.name})" in index or f"({path.name}/" in index, path.name
