"""Where a result came from: versions, hardware, source commit, command and time."""

import functools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..._version import __version__
from ...core.printable import words_without_passwords

KEYS = ("versions", "hardware", "commit", "command", "started")
GIT_SECONDS = 30.0  # for a question to git


def provenance() -> dict[str, Any]:
    """Where a result made by this process comes from, as far as this machine can tell."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {
            "evenfed": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "gpu": gpu, "system": platform.platform()},
        "commit": os.environ.get("EVENFED_COMMIT") or _commit_here(),  # a copy has no history
        "command": _command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command() -> str:
    """As a shell takes it, without tokens and passwords."""
    program = Path(sys.argv[0]).name
    words = words_without_passwords([program, *sys.argv[1:]])
    return shlex.join(words)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@functools.cache
def _commit_here() -> str | None:
    """Of the source tree this package runs from, asked once per process: its code is what was loaded then."""
    return commit_of(Path(__file__).resolve().parents[4])


def commit_of(tree: Path, except_in: Sequence[str] = ()) -> str | None:
    """The commit of a source tree, "-dirty" if files differ from it; None where there is no history.

    `except_in`: paths whose files may differ, such as those of results. Files are compared within `GIT_SECONDS`. On a
    machine that is too busy for that the commit is "-unchecked".
    """
    if not (tree / ".git").exists():
        return None
    try:
        commit = _git(tree, "rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
    try:
        others = [f":!{path}" for path in except_in]
        changes = _git(tree, "status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    except (OSError, subprocess.SubprocessError):
        return f"{commit}-unchecked"
    return f"{commit}-dirty" if changes else commit


def _git(tree: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(tree), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    return done.stdout.strip()
