"""Fixtures shared by all tests."""

import subprocess
import sys

import pytest

import evenfed as package
from command import Command, Done
from evenfed.cli import main
from evenfed.core.algorithm import Algorithm


@pytest.fixture(params=package.algorithms.names())
def algorithm(request) -> Algorithm:
    """Every algorithm at its defaults."""
    return package.algorithms.get(request.param)


@pytest.fixture
def evenfed(capsys, monkeypatch, tmp_path) -> Command:
    """The command as typed in `tmp_path`, run in this process; `command.run` gives it one of its own."""

    def call(*arguments: object) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["evenfed", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, told.out, told.err)

    return call
