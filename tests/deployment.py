"""A real deployment on this machine: a SuperLink and three SuperNodes, by the very commands of docs/deploy.md."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from command import PATIENCE, wait_for
from network import Watch
from preloaded import Preloaded

ROOT = Path(__file__).parents[1]
SITES = range(3)


def commands() -> list[str]:
    """The page's commands, block by block."""
    return re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), flags=re.DOTALL)


def at_site(block: str, site: int) -> str:
    return block.replace("K=0", f"K={site}")


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for first in range(20000 + 64 * (os.getpid() % 300), 60000, count):  # away from another process's
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError("no free ports")


class Running:
    """One long-lived command with all that it starts."""

    def __init__(self, words: list[str], log: Path, cwd: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                words, cwd=cwd, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, words: str) -> None:
        self.reaches(lambda: words in self.told())

    def reaches(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds, but not for a command that has ended without it."""
        wait_for(lambda: condition() or self.process.poll() is not None, told=self.told)
        assert condition(), self.told()

    def ended(self) -> int:
        wait_for(lambda: self.process.poll() is not None, told=self.told)
        return int(self.process.returncode)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """The whole group, at once."""
        try:
            os.killpg(self.process.pid, how)
        except ProcessLookupError:
            return
        self.process.wait(PATIENCE)


class Deployment:
    """`at(block)` runs a block of the page; blocks that start a server go on in the background, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, dict[str, Running]()
        names = ("superlink", "site-0", "others", "preloaded")
        self.watches = {name: Watch(folder / f"watch-{name}") for name in names}
        self.preloaded = Preloaded(folder / "preloaded", self.watches["preloaded"])
        self.ports = free_ports(6)
        self.prelude = ""
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds, instead of one
            "PATH": f"{self.preloaded.path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def begin(self) -> None:
        """All that the page says before it trains."""
        for block in commands():
            if "flwr run" in block:
                return
            if block.startswith("set -a"):
                self.prelude = block  # "in every terminal"
            for site in SITES if "K=0" in block else [0]:
                server = re.search(r"flower-super(link|node)", block)
                if server is None:
                    self.done(at_site(block, site))
                else:
                    name = "superlink" if server[1] == "link" else f"site-{site}"
                    self.start(name, at_site(block, site)).says("Uvicorn running")
        raise AssertionError("the page does not train")

    def text(self, block: str) -> str:
        """As typed after the page's second block, at ports that are free here; `exec` so that it can be ended."""
        block = block.replace("8000", str(self.ports)).replace("9094", str(self.ports + 1))
        return f"set -eu\n{self.prelude}\n" + re.sub(r"(flower-super)", r"exec \1", block, count=1)

    def start(self, name: str, block: str) -> Running:
        watch = self.watches.get(name, self.watches["others"])
        words = ["bash", "-c", self.text(block)]
        if name in self.watches:
            words = watch.command(*words)
        log = self.folder / f"{name}.log"
        self.running[name] = Running(words, log, self.folder, {**self.environment, **watch.environment})
        return self.running[name]

    def done(self, block: str) -> str:
        """The output of a block that ends by itself, and well."""
        watch = self.watches["others"]
        done = subprocess.run(
            ["bash", "-c", self.text(block)],
            cwd=self.folder,
            env={**self.environment, **watch.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def server_app(self) -> int:
        """The process id of the server app that is running; Flower starts it, away from our own processes."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(w.endswith(b"flwr-serverapp") for w in words) and f"127.0.0.1:{self.ports}".encode() in words:
                return int(process.name)
        raise AssertionError("no server app is running")

    def end(self) -> None:
        for name in sorted(self.running):  # the sites first, then the SuperLink, which ends what it has started
            self.running[name].kill(signal.SIGTERM)
        self.preloaded.end()
