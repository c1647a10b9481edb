"""What is published: the wheel works in an environment of its own, and the source archive is small."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The source archive, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    how = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    done = subprocess.run(
        [sys.executable, "-m", "build", *how, "--outdir", folder, ROOT], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def python(dist, tmp_path_factory) -> Path:
    """The interpreter of a new environment that has the wheel's files, and this one's packages behind them."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": folder, "platbase": folder}))
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)
    behind = sysconfig.get_path("purelib")
    # torch and the others; an evenfed installed there comes after the wheel's
    (packages / "behind.pth").write_text(f"{behind}\n")
    return folder / "bin" / "python"


SEVERAL_COMMANDS = """
import sys
import evenfed
from evenfed.cli import main
print(evenfed.__file__)
for line in sys.stdin:
    sys.argv = ["evenfed", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code, flush=True)
"""


def test_the_wheel_works_by_itself(python, tmp_path):
    commands = [
        "experiments",
        "compare @paper-cifar10 --help",
        "compare @paper-cifar10 --set train.speed=1",
        "new mine.toml",
        "compare --rounds 2 --seeds 1 --algorithms fedavg,semi_vred",
    ]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", SEVERAL_COMMANDS],
        input="\n".join(commands),
        cwd=tmp_path,
        env={**clean, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    place, _, shown = done.stdout.partition("\n")
    assert Path(place).is_relative_to(python.parents[1])  # the wheel's files, not this repository's
    listed, helped, _, made, trained, _ = re.split(r"ended with ", shown)
    assert "@paper-cifar10" in listed and "--quick" in helped and "mine.toml" in made and "semi_vred" in trained
    assert re.findall(r"ended with (\d+)", shown) == ["0", "0", "2", "0", "0"]
    assert "speed" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "runs" / "demo" / "semi_vred" / "seed-0" / "header.json").exists()
    assert (tmp_path / "mine.toml").exists()
    page = (tmp_path / "runs" / "demo" / "report" / "report.html").read_text()
    assert "vegaEmbed" in page and "function showVerdict" in page and ".sentence" in page


def test_the_source_archive_has_what_builds_and_explains_the_package_and_no_results(dist):
    (archive,) = dist.glob("*.tar.gz")
    assert archive.stat().st_size < 1_500_000
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "src/evenfed/experiments/paper-cifar10.toml"} <= names
    assert not [name for name in names if name.startswith(("results/", "benchmarks/results/", ".venv"))]
