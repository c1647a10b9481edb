"""An algorithm is one file: dropped into the package, or outside it behind an entry point, it is found everywhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import evenfed
from command import PATIENCE

pytestmark = pytest.mark.slow
TOP_HALF = '''"""Top half: only the worse served half trains."""

from dataclasses import dataclass

from torch import Tensor

from evenfed.core.algorithm import Algorithm, hyper


@dataclass(frozen=True)
class TopHalf(Algorithm):
    """Mean loss of the clients above the median, mixed with the mean of all.

    F = (1 - s) f̄ + s mean of f_i >= median
    """

    strength: float = hyper(0.5, "how much the upper half counts", least=0, most=1, reason="it is a mixture", fedavg=0)

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        upper = (losses >= losses.median()).to(shares) * shares
        return (1 - self.strength) * shares @ losses + self.strength * upper @ losses / upper.sum()
'''

USED = """
import sys, torch, evenfed
from evenfed.cli import main
from evenfed.testing import check_algorithm
assert "top_half" in evenfed.algorithms.names()
algorithm = evenfed.algorithms.get("top_half", strength=0.25)
assert algorithm.name == "top_half"
check_algorithm(algorithm)
clients = [evenfed.Client((torch.randn(n, 4), torch.randint(0, 3, (n,)))) for n in (5, 9, 3)]
for engine in ("reference", "parallel"):
    evenfed.train(torch.nn.Linear(4, 3), clients, "top_half", rounds=2, engine=engine)
small = ["--rounds", "2", "--seeds", "1", "--set", "data.clients=5"]
for words in (["algorithms"], ["compare", "--algorithms", "top_half[strength=1]", *small]):
    sys.argv = ["evenfed", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
    print("used by", words[0])
"""


def python(*arguments: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path), "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment,
    )


def check_found_everywhere(path: Path, cwd: Path) -> str:
    """Returns what was said on stderr."""
    done = python("-c", USED, path=path, cwd=cwd)
    assert done.returncode == 0, done.stderr
    listed, compared = done.stdout.split("used by algorithms")
    assert "top_half" in listed and "strength=0.5" in listed
    assert "top_half[strength=1]" in compared and compared.endswith("used by compare\n")
    return done.stderr


def test_a_file_dropped_into_the_package(tmp_path):
    package = tmp_path / "src" / "evenfed"
    shutil.copytree(Path(evenfed.__file__).parent, package)  # with what Python has compiled
    (package / "algorithms" / "top_half.py").write_text(TOP_HALF)
    check_found_everywhere(tmp_path / "src", tmp_path)


@pytest.fixture
def installed_elsewhere(tmp_path) -> Path:
    """Another distribution on the path, as pip leaves it."""
    site = tmp_path / "site"
    info = site / "outside-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "outside.py").write_text(TOP_HALF)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[evenfed.algorithms]\ntop_half = outside:TopHalf\nmissing_half = nowhere:Missing\n"
    )
    return site


def test_entry_points_of_another_package_are_found_and_a_broken_one_is_named_and_does_no_harm(
    installed_elsewhere, tmp_path
):
    said = check_found_everywhere(installed_elsewhere, tmp_path)
    assert "missing_half" in said and "Traceback" not in said
