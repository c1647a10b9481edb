"""The command line's manners: examples in the help, completion, colours, how much is said."""

import re
import shlex

import pytest
import typer

from command import SMALL
from evenfed._version import __version__
from evenfed.cli.commands import app
from evenfed.cli.examples import EXAMPLES
from evenfed.cli.training import tuning_progress
from evenfed.comparison.progress import live
from evenfed.comparison.tuning.search import Candidate
from evenfed.core.verbosity import Verbosity

ROOT = typer.main.get_command(app)
TINY = ["--rounds", 2, "--seeds", 1, "--algorithms", "fedavg,term", "--format", "json", *SMALL]


def every_command(command=ROOT, path=()):
    if not hasattr(command, "commands"):
        yield " ".join(path)
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*path, name))


@pytest.mark.parametrize("path", list(every_command()))
def test_every_help_ends_with_examples(path, evenfed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = evenfed(*path.split(), "--help").stdout
    for example, meaning in EXAMPLES[path].items():
        assert f"{example}  # {meaning}" in shown


EVERY_EXAMPLE = [(path, example) for path, examples in EXAMPLES.items() for example in examples]


@pytest.mark.parametrize(("path", "example"), EVERY_EXAMPLE, ids=lambda value: value)
def test_every_example_is_taken_by_its_command(path, example):
    words = shlex.split(example)
    if ">" in words:
        words = words[: words.index(">")]
    assert words[: 1 + len(path.split())] == ["evenfed", *path.split()]
    command = ROOT
    for name in path.split():
        command = command.commands[name]
    command.make_context(path, words[1 + len(path.split()) :])  # raises for an option or a value it does not take


def test_examples_that_need_nothing_run(evenfed, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "data"))
    for path in ("new", "experiments", "algorithms", "data list", "data verify", "flower new"):
        example = next(iter(EXAMPLES[path]))
        done = evenfed(*shlex.split(example)[1:])
        assert done.returncode == 0 and done.stdout + done.stderr, example


def test_a_wrong_example_would_be_noticed():
    with pytest.raises(Exception, match="--sped"):
        ROOT.commands["compare"].make_context("compare", ["--sped", "3"])


def test_the_version(evenfed):
    assert evenfed("--version").stdout == f"evenfed {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("evenfed comp", "compare"),
        ("evenfed compare --alg", "--algorithms"),
        ("evenfed compare @paper-cifar1", "@paper-cifar100"),
        ("evenfed data fetch cin", "cinic10"),
        ("evenfed compare --data dig", "digits"),
    ],
)
def test_the_shell_completes(typed, offered, evenfed, monkeypatch):
    monkeypatch.setenv("_EVENFED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert offered in evenfed().stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell, evenfed, monkeypatch):
    monkeypatch.setenv("_EVENFED_COMPLETE", f"source_{shell}")
    shown = evenfed()
    assert shown.returncode == 0 and "_EVENFED_COMPLETE" in shown.stdout


COLOUR = re.compile(r"\x1b\[(?:\d;)*(?:3|4|9|10)[0-9]")


def test_no_color(evenfed, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", True)  # as FORCE_COLOR sets it when typer is loaded
    assert COLOUR.search(evenfed("compare", "--help").stdout)
    with live() as progress:
        progress.page.print("[yellow]a warning[/]")
    assert COLOUR.search(capsys.readouterr().err)
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["compare", *TINY], ["compare", "--help"]):
        plain = evenfed(*words)
        assert plain.stdout + plain.stderr
        assert not COLOUR.search(plain.stdout + plain.stderr)


@pytest.fixture
def said(evenfed):
    """What a small comparison writes to stderr."""

    def call(*options):
        done = evenfed("compare", *TINY, *options)
        assert done.returncode == 0 and "worst10" in done.stdout
        return done.stderr

    return call


def test_compare_says_how_far_it_is(said):
    shown = said()
    assert "6 clients" in shown and "engine: " in shown and "round 2 of 2" in shown
    assert "fedavg seed 0: round" not in shown


def test_quiet_shows_results_and_warnings_alone(said):
    assert said("--quiet") == ""
    warned = said("-q", "--set", "train.participation=1", "--out", "another")
    assert re.fullmatch(r"evenfed: participation=1 is one client.*\n", warned)


def test_verbose_shows_every_round_of_every_run(said):
    shown = said("--verbose")
    assert "engine: " in shown and "round 2 of 2" in shown
    for label in ("fedavg", "term"):
        for index in (1, 2):
            line = rf"{label}\S* seed 0: round {index} of 2, loss [\d.]+ \(clients: [\d.]+ to [\d.]+\)"
            assert re.search(line, shown), line
    assert re.search(r"round 2 of 2.*, score 0\.\d+ \(clients: 0\.\d+ to [01]\.\d+\)", shown)


def test_quiet_and_verbose_exclude_each_other(evenfed):
    for command in (["compare"], ["tune"], ["data", "fetch", "cifar10"]):
        refused = evenfed(*command, "-q", "-v")
        assert refused.returncode == 2 and "--quiet and --verbose" in refused.stderr


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (Verbosity.QUIET, ""),
        (Verbosity.NORMAL, "1 of 2 candidates\n"),
        (Verbosity.VERBOSE, "fedavg with lr=0.1: mean 0.8000, worst 10 % 0.5000\n1 of 2 candidates\n"),
    ],
)
def test_how_much_tune_says(detail, said, capsys):
    show_progress, show_each = tuning_progress(detail)
    show_each(Candidate("fedavg", {"lr": 0.1}, {"mean": 0.8, "worst10": 0.5}))
    show_progress(1, 2)
    assert capsys.readouterr().err == said
