"""Fixtures shared by all tests, how tests are spread over processes, and `--cpu N`, which shows what costs."""

import ctypes
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import evenfed as package
from command import Command, Done
from evenfed.cli import main
from evenfed.core.algorithm import Algorithm

CPU = pytest.StashKey[float]()
FLOWERS_SIMULATIONS = ["tests/flower/test_commands.py", "tests/flower/test_example.py"]
LONGEST = [
    "tests/flower/test_deployment.py",
    *FLOWERS_SIMULATIONS,
    "tests/report/test_page_in_chromium.py",
    "tests/docs/test_manual.py",
    "tests/simulate/test_slots.py",
    "tests/flower/test_private.py",
    "tests/flower/test_strategy.py",
    "tests/simulate/test_engines.py",
    "tests/e2e/test_tune.py",
    "tests/e2e/test_resume.py",
    "tests/simulate/test_huggingface.py",
    "tests/simulate/test_local_training.py",
    "tests/simulate/test_random_layers.py",
    "tests/flower/test_parity.py",
    "tests/report/test_report.py",
    "tests/test_benchmarks.py",
    "tests/e2e/test_compare.py",
    "tests/simulate/test_kernels.py",
    "tests/e2e/test_new_algorithm.py",
    "tests/theory/test_oscillation.py",
    "tests/theory/test_objectives.py",
    "tests/algorithms/test_limits.py",
]


@pytest.fixture(params=package.algorithms.names())
def algorithm(request) -> Algorithm:
    """Every algorithm at its defaults."""
    return package.algorithms.get(request.param)


@pytest.fixture
def evenfed(capsys, monkeypatch, tmp_path) -> Command:
    """The command as typed in `tmp_path`, run in this process; `command.run` gives it one of its own."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: object) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["evenfed", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, told.out, told.err)

    return call


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(items) -> None:
    """The longest files first, so that all processes end at about the same time."""
    items.sort(key=lambda item: LONGEST.index(file) if (file := file_of(item.nodeid)) in LONGEST else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests share a process, and with it what they compute once.

    Deployments have a process to themselves, since they mostly wait; the other tests that start Flower share one.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = file_of(nodeid)
            return FLOWERS_SIMULATIONS[0] if file in FLOWERS_SIMULATIONS else file

    config.option.loadscopereorder = False  # not those with most tests first: those above
    return ByFile(config, log)


def pytest_addoption(parser) -> None:
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="show the N tests that take most processor time")


def pytest_configure(config) -> None:
    """With `--cpu` what daemons leave behind becomes this process's child, so that nothing escapes the count."""
    if config.getoption("--cpu") and sys.platform == "linux":
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """Of this process and all that it has started; unlike wall-clock much the same on a busy machine."""
    ticks = dict[int, int]()
    children = defaultdict[int, list[int]](list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks[int(process.name)] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(int(process.name))
    total = 0
    counted = [os.getpid()]
    for process in counted:
        total += ticks.get(process, 0)
        counted.extend(children[process])
    return total / os.sysconf("SC_CLK_TCK")


def pytest_collection_finish(session) -> None:
    session.stash[CPU] = 0.0  # what loading the tests has taken is counted with the first one


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if item.config.getoption("--cpu"):
        before = item.session.stash[CPU]
        item.session.stash[CPU] = cpu_seconds()
        report.user_properties.append(("cpu", item.session.stash[CPU] - before))
    return report


def pytest_terminal_summary(terminalreporter, config) -> None:
    count = config.getoption("--cpu")
    if not count:
        return
    seconds = dict[str, float]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "user_properties"):
                spent = sum(value for name, value in report.user_properties if name == "cpu")
                seconds[report.nodeid] = seconds.get(report.nodeid, 0) + spent
    terminalreporter.section("processor time")
    for nodeid in sorted(seconds, key=seconds.get, reverse=True)[:count]:
        terminalreporter.line(f"{seconds[nodeid]:8.2f} s  {nodeid}")
    terminalreporter.line(f"{sum(seconds.values()):8.2f} s  in all")
