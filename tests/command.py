"""The command in a process of its own, for what the `evenfed` fixture's call in this process cannot show.

`start` and `run` begin a new Python, which takes 3 seconds of processor time until it has loaded torch. `fork` begins
a copy of a process that has, for what is killed or left alone.
"""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
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


LOADED = [
    "evenfed.cli.commands",
    "evenfed.cli.training",
    "evenfed.comparison.tuning.tune",
    "evenfed.simulate.engines.slots",
    "optuna",
    "sympy",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(LOADED)


def _called(words: list[str], cwd: Path, environment: dict[str, str], out: Path, err: Path | Connection) -> None:
    """In the new process: `evenfed` as typed there."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for stream, place in ((1, out), (2, err)):
        file = place.fileno() if isinstance(place, Connection) else os.open(place, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    sys.argv = ["evenfed", *words]
    import torch

    from evenfed.cli import main

    if "OMP_NUM_THREADS" in environment:  # which torch has read long ago
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    main()


class Forked:
    """`evenfed ...` begun in a process that has loaded torch already; as far as tests need it a `Popen`."""

    def __init__(self, *arguments: object, cwd: Path, stderr: int | None = None, **environment: str) -> None:
        self.args = list(map(str, arguments))
        self._folder = tempfile.mkdtemp()
        self._streams = [Path(self._folder, name) for name in ("out", "err")]
        own = {**os.environ, "COLUMNS": "160", **environment}
        out, err = self._streams
        if stderr is not None:
            err = Connection(os.dup(stderr), readable=False)
        self._process = FORKS.Process(target=_called, args=(self.args, cwd, own, out, err))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def stay_on_one_core(self) -> None:
        os.sched_setaffinity(self._process.pid, one_core())

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, how: signal.Signals) -> None:
        os.kill(self._process.pid, how)

    def communicate(self, timeout: float) -> tuple[str, str]:
        self._process.join(timeout)
        assert self.returncode is not None, "it does not end"
        out, err = (place.read_text() if place.exists() else "" for place in self._streams)
        shutil.rmtree(self._folder)
        return out, err


def one_core() -> set[int]:
    """For what starts Ray: one worker per core, each of which takes 8 seconds of processor time to load torch."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[os.getpid() % len(cores)]}


@contextmanager
def on_one_core() -> Iterator[None]:
    """What is started meanwhile has one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, one_core())
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def ended(process: subprocess.Popen[str] | Forked) -> Done:
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
