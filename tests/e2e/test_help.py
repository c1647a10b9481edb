"""The help of every command: complete, and in the order a newcomer needs."""

import os
import subprocess
import sys

import pytest
import typer

from command import PATIENCE
from evenfed.cli.commands import app

ROOT = typer.main.get_command(app)


def commands(command, path=()):
    """Every command that runs something, with the words that call it."""
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


EVERY = dict(commands(ROOT))


def declared_help(function):
    """The help text of every parameter, as the code declares it."""
    for name, annotation in function.__annotations__.items():
        for declared in getattr(annotation, "__metadata__", ()):
            yield name, declared.help


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_argument_and_option_is_explained(path, evenfed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # a text stays on one line
    shown = evenfed(*path, "--help").stdout
    function = EVERY[path].callback.__wrapped__
    texts = dict(declared_help(function))
    assert set(texts) == set(function.__annotations__) - {"return", "context"}
    for name, text in texts.items():
        assert text and text.replace("\\[", "[") in shown, (
            f"the help of {name} is not shown by typer {typer.__version__}"
        )
    for line in function.__doc__.splitlines():
        assert line.strip() in shown


def test_commands_stand_in_the_order_a_newcomer_needs(evenfed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = evenfed("--help").stdout
    order = [shown.index(f"│ {name} ") for name in ("compare", "algorithms", "report", "tune", "data", "flower")]
    publishing = shown.index("Publishing results")
    order.append(publishing)
    assert order == sorted(order)
    for name in ("pack", "choose", "fill"):
        assert shown.index(f"│ {name} ") > publishing


LOADED = """
import sys
from evenfed.cli import main
for words in ("--version", "--help", "compare --help", "data list", "experiments"):
    sys.argv = ["evenfed", *words.split()]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0
assert "torch" not in sys.modules and "scipy" not in sys.modules
"""


def test_what_computes_nothing_does_not_wait_for_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={**os.environ, "EVENFED_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "evenfed " in done.stdout and "--quick" in done.stdout and "digits" in done.stdout
