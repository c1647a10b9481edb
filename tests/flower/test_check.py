"""`evenfed flower check`: an app that works, and one sentence for each thing that can be wrong with one."""

import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TASK = """
import torch
from evenfed import Client

def model():
    return torch.nn.Linear(4, 3)

def data(context):
    site = context.node_config["partition-id"]
    draw = torch.Generator().manual_seed(site)
    inputs = torch.randn(12, 4, generator=draw)
    targets = torch.arange(12) % 3
    if site == 1:
        pass  # SITE 1
    return Client(train=(inputs[:8], targets[:8]), test=(inputs[8:], targets[8:]), name=f"ward-{site}")
"""


@pytest.fixture
def app(evenfed, tmp_path) -> Path:
    """A new app with small data."""
    assert evenfed("flower", "new", "wards").returncode == 0
    (tmp_path / "wards" / "wards" / "task.py").write_text(TASK)
    return tmp_path / "wards"


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_new_app_passes_and_nothing_is_written(evenfed, tmp_path):
    assert evenfed("flower", "new", "clinics").returncode == 0
    before = sorted(tmp_path.rglob("*"))
    done = evenfed("flower", "check", "clinics", "--sites", 3)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert re.split(r"  +", lines[0].strip()) == ["site", "name", "train", "test", "loss before", "accuracy", "seconds"]
    assert [line.split()[:2] for line in lines[1:4]] == [[str(k), f"digits-{k}"] for k in range(3)]
    assert sorted(tmp_path.rglob("*")) == before and "clinics.task" not in sys.modules
    assert str(tmp_path) not in "".join(path.read_text() for path in before if path.is_file())  # no absolute path


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "pass  # SITE 1",
            "open('/no/such.csv')",
            r"site 1: FileNotFoundError: .*such.csv' \(wards/task.py, line 14\)",
        ),
        ("pass  # SITE 1", "targets = targets + 1", r"site 1: .*class"),
        ("pass  # SITE 1", "targets = targets - 1", r"site 1: .*-1"),
        ("pass  # SITE 1", "targets = targets.float()", r"site 1: targets are float32"),
        ("pass  # SITE 1", "inputs = inputs[:, :2]", r"site 1: "),
        ("pass  # SITE 1", "inputs[0, 0] = float('nan')", r"site 1: .*(NaN|finite)"),
        ("pass  # SITE 1", "targets = targets[:5]", r"site 1: "),
        ("pass  # SITE 1", "return inputs", r"site 1: data\(context\) gave a Tensor"),
        ('name=f"ward-{site}"', 'name="ward"', r"site 1: it is called 'ward', as site 0 is"),
        ("import torch\n", "import torch\nimport no_such_module\n", r"No module named .*line 3"),
        ("return torch.nn.Linear(4, 3)", "return 3", r"sites 0, 1: .*torch.nn.Module"),
    ],
)
def test_what_is_wrong_with_a_site_is_one_sentence(evenfed, app, before, after, told):
    change(app / "wards" / "task.py", before, after)
    done = evenfed("flower", "check", "wards")
    assert done.returncode in (1, 2) and re.search(told, done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("place", "before", "after", "told"),
    [
        ("pyproject.toml", "lr = 0.1", "lrate = 0.1", r"the server app: .*lrate"),
        ("pyproject.toml", 'clients = ""', "clients = 9", r"waits for more than 2 sites|of 9 clients"),
        ("pyproject.toml", "lr = 0.1", "lr = 0.1\nlr = 0.2", r"pyproject.toml cannot be read"),
        ("pyproject.toml", "clientapp = ", "clientap = ", r"clientapp"),
        ("pyproject.toml", "client_app:app", "client_app:nobody", r"clientapp = .*nobody"),
        ("pyproject.toml", "client_app:app", "server_app:app", r"is a ServerApp; it must be a ClientApp"),
        ("wards/server_app.py", "server_app(model)", "server_app(lambda: model()[0])", r"the server app: .*line"),
        (
            "wards/server_app.py",
            "app = server_app(model)",
            "import torch\napp = server_app(torch.nn.Linear(5, 3))",
            r"weight is \[3, 4\] in the sites' model and \[3, 5\] in the server's",
        ),
    ],
)
def test_what_is_wrong_with_an_app_is_one_sentence(evenfed, app, place, before, after, told):
    change(app / place, before, after)
    done = evenfed("flower", "check", "wards")
    assert done.returncode in (1, 2) and re.search(told, done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def test_options_of_the_command(evenfed, app):
    assert evenfed("flower", "check", "wards", "--run-config", "evenfed.lr=0.01").returncode == 0
    for words, told in (
        (("wards", "--run-config", "evenfed.nothing=1"), "--run-config"),
        (("wards", "--run-config", "garbage"), "'garbage' is no key=value pair"),
        (("wards", "--run-config", "evenfed.lr="), "'evenfed.lr=' is no key=value pair"),
        (("wards", "--run-config", "evenfed.lrr=1"), "did you mean 'evenfed.lr'?"),
        (("nowhere",), "pyproject.toml is missing"),
        (("wards", "--sites", 0), "--sites"),
    ):
        done = evenfed("flower", "check", *words)
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("private=true algorithm='afl'", "afl cannot run with private=True"),
        ("private='true'", "private='true': give true or false"),
        ("private=true trips=2", "trips=2 with private=True"),
        ("private=true", "private=True with 2 clients per round"),
        ("out=true", "evenfed.out=True: give a folder"),
        ("ordered=1", "ordered=1: give true or false"),
        ("ordered='false'", "ordered='false'"),
        ("resume='1'", None),
        ("sites='nope.toml'", None),
    ],
)
def test_options_that_the_run_would_refuse_are_faults_and_what_only_the_server_has_is_noted(app, pairs, message):
    from evenfed.flower.deployment.app_check import check_app

    report = check_app(app, 2, " ".join(f"evenfed.{pair}" for pair in pairs.split()))
    if message is None:
        assert not report.faults and "on the server" in " ".join(report.notes)
    else:
        assert [message in fault for fault in report.faults] == [True], report.faults
