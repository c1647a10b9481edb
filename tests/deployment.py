"""A real deployment on this machine: proxy, SuperLink and three sites, by the very commands of docs/deploy.md."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from command import PATIENCE, wait_for
from machines import PATH, Machine
from network import Watch
from preloaded import Preloaded

ROOT = Path(__file__).parents[1]
SITES = range(3)


def commands() -> list[str]:
    """The page's commands, block by block."""
    return re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), flags=re.DOTALL)


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
    """The page's machines: the server, and a machine per site. Services go on in the background, by name."""

    def __init__(self, folder: Path, sites: int = len(SITES), traced: bool = True) -> None:
        self.folder, self.running = folder, dict[str, Running]()
        self.sites = sites
        self.traced = traced  # compiled code too is watched for connections, which takes time
        names = ("superlink", "others", "preloaded")
        self.watches = {name: Watch(folder / f"watch-{name}") for name in names}
        self.preloaded = Preloaded(folder / "preloaded", self.watches["preloaded"] if traced else None)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for commands_at in (Path(sys.executable).parent, self.preloaded.path):
            for command in (*commands_at.glob("fl*"), *commands_at.glob("evenfed")):
                link = self.bin / command.name
                link.unlink(missing_ok=True)
                link.symlink_to(command)
        self.ports = free_ports(5 + sites)
        self.fleet_port = self.ports + 1
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
            "HOME": str(folder),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds, instead of one
            "PATH": f"{self.bin}:{PATH}",
        }
        self.server = self.machine("server")

    def machine(self, name: str, number: int = 0) -> Machine:
        ports = {"8000": self.ports, "9092": self.fleet_port, "9094": self.ports + 2 + number}
        return Machine(self.folder / name, self.bin, ports)

    def begin(self) -> None:
        """All that the page says before it trains."""
        for block in commands():
            if "flwr run" in block:
                return
            if "server/install.sh" in block:
                self.install_server()
            elif "sites/ward-0/install.sh" in block:
                for number in range(self.sites):
                    self.install_site(number, self.folder / "deploy" / "sites" / f"ward-{number}")
            elif "flower sign" not in block:  # which comes when the app is as it will be
                self.done(block)
        raise AssertionError("the page does not train")

    def install_server(self) -> None:
        files = self.folder / "deploy" / "server"
        self.server.install(files)
        config = files / "config.toml"
        config.write_text(self.server.moved(config.read_text()))
        self.start("proxy", self.server.nginx())
        self.start("superlink", ["bash", "-c", self.server.service("flower-superlink")]).says("Uvicorn running")

    def install_site(self, number: int, files: Path) -> Running:
        site = self.machine(f"ward-{number}", number)
        site.install(files)
        node = self.start_node(number)
        node.says("Uvicorn running")
        self.start(f"apps-{number}", ["bash", "-c", site.service("flower-superexec")])
        return node

    def start_node(self, number: int) -> Running:
        """The SuperNode of a site that is installed."""
        site = self.machine(f"ward-{number}", number)
        return self.start(f"node-{number}", ["bash", "-c", site.service("flower-supernode")])

    def start(self, name: str, words: list[str]) -> Running:
        watch = self.watches.get(name, self.watches["others"])
        if self.traced and name in self.watches:
            words = watch.command(*words)
        log = self.folder / f"{name}.log"
        self.running[name] = Running(words, log, self.folder, {**self.environment, **watch.environment})
        return self.running[name]

    def typed(self, name: str, block: str) -> Running:
        """A block of the page, begun."""
        return self.start(name, ["bash", "-c", self._quiet(block)])

    def done(self, block: str, succeeds: bool = True) -> str:
        """The output of a block that ends by itself, and well unless said otherwise."""
        watch = self.watches["others"]
        done = subprocess.run(
            ["bash", "-c", self._quiet(block)],
            cwd=self.folder,
            env={**self.environment, **watch.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode == 0) == succeeds, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _quiet(self, block: str) -> str:
        """On the server, by its owner, in a terminal where the page's variables are set already."""
        quiet = self.folder / "deploy" / "server" / "quiet.env"
        prelude = f"set -a && . {quiet} && set +a\n" if quiet.exists() else ""
        wards = ",".join(f"ward-{number}" for number in range(self.sites))
        block = block.replace("ward-0,ward-1,ward-2", wards)
        return f"set -eu\n{prelude}{self.server.moved(block.replace('sudo ', ''))}"

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
        for name in sorted(self.running):  # sites, proxy, and the SuperLink, which ends what it has started
            self.running[name].kill(signal.SIGTERM)
        self.preloaded.end()
