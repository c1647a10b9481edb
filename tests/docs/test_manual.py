"""The manual: it builds without a warning, links lead somewhere, its commands exist, every public name is in it."""

import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from click import ClickException

import evenfed
from evenfed.cli.commands import app
from evenfed.comparison.experiment import Experiment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "api").glob("*.md"))]
LINKED = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "examples" / "README.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The names of a Markdown page's headings, as GitHub and MyST make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in address:
            continue
        path, _, anchor = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or target.parent == DOCS / "gallery", address
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), address


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_on_a_page_are_taken_by_the_command_line(page):
    """Each line is parsed by the command itself: a command or option that is not there is an error."""
    root = typer.main.get_command(app)
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("evenfed "):
                words = shlex.split(line, comments=True)
                assert is_taken(root, words[1:]), line


def is_taken(command, words: list[str]) -> bool:
    if words[-1:] in (["--version"], ["--help"], ["--install-completion"]):  # would be carried out
        options = command.get_params(command.context_class(command))
        return any(words[-1] in option.opts for option in options)
    try:
        command.make_context("evenfed", list(words)).close()
    except ClickException:
        return False
    if not hasattr(command, "commands"):
        return True
    return words[0] in command.commands and is_taken(command.commands[words[0]], words[1:])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tables_on_a_page_are_those_of_an_experiment(page):
    for block in blocks(page, "toml"):
        tables = tomllib.loads(block)
        if "project" not in tables:
            experiment = Experiment.of({"algorithms": {"semi_vred": {}}, **tables}, "page")
            assert experiment.name in ("page", tables.get("name"))


def documented() -> set[str]:
    """Full names that the reference describes."""
    names = set()
    for page in (DOCS / "api").glob("*.md"):
        text = page.read_text()
        names |= set(re.findall(r"^\.\. auto(?:class|function|exception|data|module):: (\S+)", text, re.MULTILINE))
        for module, members in re.findall(r"automodule:: (\S+)\n   :members: (.+)", text):
            names |= {f"{module}.{member.strip()}" for member in members.split(",")}
    return names


def test_every_public_name_is_in_the_reference():
    names = documented()
    public = {f"evenfed.{each}" for each in evenfed.__all__ if each not in ("__version__", "algorithms")}
    for module in (evenfed.data, evenfed.callbacks, evenfed.flower):
        public |= {f"{module.__name__}.{each}" for each in module.__all__}
    for algorithm in evenfed.algorithms.BUILT_IN.values():
        public.add(f"evenfed.algorithms.{algorithm.__name__}")
    at_top = {f"evenfed.{each}" for each in evenfed.__all__}
    missing = {each for each in public - names if f"evenfed.{each.rpartition('.')[2]}" not in names & at_top}
    assert missing == set()


def test_the_reference_names_nothing_that_is_not_there():
    for each in documented():
        value = evenfed
        for part in each.split(".")[1:]:
            value = getattr(value, part)
        assert inspect.getdoc(value), each


def test_the_guide_to_choosing_speaks_of_every_algorithm():
    guide = (DOCS / "choosing.md").read_text()
    for each in evenfed.algorithms.BUILT_IN:
        assert f"`{each}`" in guide, each


def test_the_picture_of_weights_shows_what_the_algorithms_say():
    pytest.importorskip("vl_convert")
    spec = importlib.util.spec_from_file_location("weights", DOCS / "pictures" / "weights.py")
    weights = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(weights)
    assert {name for name, _ in weights.ENTRIES} == set(evenfed.algorithms.BUILT_IN)
    assert weights.drawn() == weights.PICTURE.read_text(), "python docs/pictures/weights.py"


def test_reports_that_the_results_page_links_are_pages_of_the_site():
    matching = pytest.importorskip("sphinx.util.matching")
    is_page = matching.Matcher(re.findall(r'"(results/[^"]+)"', (DOCS / "conf.py").read_text()))
    is_listed = matching.Matcher(re.findall(r"^\.\./(results/\S+)$", (DOCS / "reports.md").read_text(), re.MULTILINE))
    links = re.findall(r"\]\(([\w-][\w./-]*)\.md\b", (ROOT / "results" / "README.md").read_text())
    reports = {f"results/{link}" for link in links if link != "PLAN"}
    assert len(reports) > 20 and all(is_page(f"{report}.md") and is_listed(report) for report in reports)


def test_the_gallery_has_an_order():
    scripts = {path.name for path in (ROOT / "examples" / "gallery").glob("*.py")}
    listed = re.findall(r'"(\w+\.py)"', (DOCS / "_ext" / "gallery.py").read_text())
    assert set(listed) == scripts


@pytest.mark.slow
def test_the_tutorial_runs_and_results_show_themselves():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(DOCS / "tutorial.ipynb", 4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [output.data["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert len(tables) == 2 and all("worst 10 %" in table for table in tables)
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-t", "quick", "-b", "dummy"]
    built = subprocess.run([*command, "-c", DOCS, ROOT, tmp_path], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
