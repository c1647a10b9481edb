"""The command in a process of its own, for what the `evenfed` fixture's call in this process cannot show."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 600.0  # seconds: against hanging alone, since other jobs may hold every core
Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]
SMALL = ["--set", "data.clients=6", "--set", "data.concentration=1.0"]


def start(
    *arguments: object,
    cwd: Path,
    stderr: int = subprocess.PIPE,
    through: Callable[..., list[str]] = lambda *words: list(words),
    **environment: str,
) -> subprocess.Popen[str]:
    """`evenfed ...` begun, its output caught, to be killed or interrupted; `through` may put a command before it."""
    return subprocess.Popen(
        through(sys.executable, "-m", "evenfed", *map(str, arguments)),
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "COLUMNS": "160", **environment},
    )


def ended(process: subprocess.Popen[str]) -> Done:
    """What a process has said once it is over."""
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*arguments: object, **options: object) -> Done:
    """`evenfed ...` from its beginning to its end; the options are those of `start`."""
    return ended(start(*arguments, **options))


def rounds_of(folder: Path) -> list[dict]:
    """Every line of a run's journal, without what a clock says."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def wait_for(condition: Callable[[], object], every: float = 0.05, told: Callable[[], str] = str) -> None:
    """Until `condition` holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {told()}"
        time.sleep(every)
