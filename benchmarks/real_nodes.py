"""A SuperLink and SuperNodes as processes of this machine, on loopback; they end with the benchmark."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from evenfed.flower.no_telemetry import QUIET

BIN = Path(sys.executable).parent
PATIENCE = 120.0  # seconds for processes to begin or to end
_LIBC = ctypes.CDLL(None)
_PARENT_DIED = 1  # PR_SET_PDEATHSIG


class RealNodes:
    """Begun on entering, ended on leaving, with all that Flower started; files and logs are in `folder`."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.folder = folder
        self.sites = sites
        self.port = _free_ports(1 + sites)
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(folder / "flower"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        self._stack = ExitStack()

    def __enter__(self) -> "RealNodes":
        self._stack.callback(self._end_all)
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, app: Path, config: str, seconds: float) -> str:
        """`flwr run`, and what it printed; raises where it takes longer."""
        log = self.folder / "run.log"
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", config]
        with log.open("w") as output:
            subprocess.run(command, env=self.environment, stdout=output, stderr=output, timeout=seconds, check=False)
        return log.read_text(errors="replace")

    def _begin(self) -> None:
        (self.folder / "flower").mkdir(exist_ok=True)
        address = f"127.0.0.1:{self.port}"
        config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        (self.folder / "flower" / "config.toml").write_text(config)
        on_loopback = ["--insecure", "--host", "127.0.0.1"]
        quiet = "--disable-runtime-dependency-installation"
        self._start("server", ["flower-superlink", *on_loopback, quiet, "--port", str(self.port)])
        self._await(f"http://{address}/health")
        for site in range(self.sites):
            place = ["--superlink", address, "--port", str(self.port + 1 + site)]
            number = f"partition-id={site} num-partitions={self.sites}"
            self._start(f"site-{site}", ["flower-supernode", *on_loopback, *place, "--node-config", number])
        for site in range(self.sites):
            self._await(f"http://127.0.0.1:{self.port + 1 + site}/health")

    def _start(self, name: str, command: list[str]) -> None:
        log = self._stack.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            preexec_fn=_end_with_parent,
        )
        self._stack.callback(_ended, process)

    def _await(self, address: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(address, timeout=2)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{address} does not answer; logs are in {self.folder}") from None
                time.sleep(0.3)

    def _end_all(self) -> None:
        """What is left of these processes: Flower starts some away from its own group."""
        mark = f"FLWR_HOME={self.folder / 'flower'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


def _end_with_parent() -> None:
    _LIBC.prctl(_PARENT_DIED, signal.SIGTERM)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(20000 + 64 * (os.getpid() % 300), 60000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise SystemExit("no free ports")
