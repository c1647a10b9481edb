"""What the documentation promises: its code runs, its limits hold, every public name is explained."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evenfed

ROOT = Path(__file__).parents[2]


def lines(name: str) -> int:
    return len((ROOT / name).read_text().splitlines())


def test_lengths():
    assert lines("README.md") < 120 and lines("CONTRIBUTING.md") < 60


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_at_most_120_columns_wide(page):
    text = re.sub(r"<!-- evenfed.*?<!-- /evenfed -->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    too_long = [line for line in text.splitlines() if len(line) > 120]
    assert too_long == []


def test_the_readme_names_the_two_commands_and_ci_runs_them():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "make demo" in readme and "make test" in readme
    assert "make test" in ci and "make lint" in ci


def code_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


RUN_ELSEWHERE = {
    "flwr_datasets": "tests/data/test_federate.py",
    "transformers": "tests/simulate/test_huggingface.py",
}  # packages that take seconds to import -> the tests that run the blocks with them


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_python_blocks_of_a_page_run_in_order(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in code_blocks(name):
        if ">>>" not in block and not any(package in block for package in RUN_ELSEWHERE):
            exec(compile(block, name, "exec"), namespace)
    assert ROOT.exists()


def test_the_first_page_shows_what_its_code_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in code_blocks("docs/start.md"):
        exec(compile(block, "start.md", "exec"), namespace)
    (shown,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/start.md").read_text(), flags=re.DOTALL)
    printed = str(namespace["comparison"])
    number = r"\d+\.\d"
    assert re.sub(number, "", printed).split() == re.sub(number, "", shown).split()
    figures = [list(map(float, re.findall(number, text))) for text in (printed, shown)]
    assert figures[0] == pytest.approx(figures[1], abs=1.0)  # other processors round otherwise


def own_lines(source: str) -> int:
    """Lines of code: without blank lines and docstrings."""
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return sum(bool(line.strip()) and k not in documented for k, line in enumerate(source.splitlines(), 1))


@pytest.mark.parametrize("file", sorted((ROOT / "src/evenfed/algorithms").glob("[a-z]*.py")), ids=lambda p: p.stem)
def test_an_algorithm_is_a_file_of_at_most_fifty_lines(file):
    assert own_lines(file.read_text()) <= 50


def test_functions_and_modules_stay_short():
    for file in (ROOT / "src").rglob("*.py"):
        source = file.read_text()
        assert source.count("\n") <= 400, file
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                length = node.end_lineno - node.lineno + 1 - len((ast.get_docstring(node) or "").splitlines())
                assert length <= 60, f"{file}: {node.name} has {length} lines"


def test_every_public_name_is_documented():
    for name in evenfed.__all__:
        value = getattr(evenfed, name)
        assert inspect.getdoc(value), name
    for name, cls in evenfed.algorithms.BUILT_IN.items():
        about = inspect.getdoc(cls) or ""
        assert len(about.splitlines()) >= 3 and cls.reference, name
        for spec in dataclasses.fields(cls):
            assert spec.metadata["help"], f"{name}.{spec.name}"


def test_importing_is_light():
    """Optional and heavy packages load only where they are used."""
    heavy = (
        "flwr",
        "ray",
        "evenfed.flower",
        "optuna",
        "vl_convert",
        "tensorboard",
        "sklearn",
        "scipy",
        "rich",
        "typer",
        "safetensors",
    )
    code = f"import sys, evenfed; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def test_the_command_line_does_without_flower_until_it_is_asked_for():
    code = "import sys, evenfed.cli, evenfed.cli.flower; print([m for m in ('flwr', 'ray') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"
