"""Flower's commands without their imports: real processes, copies of one that has loaded torch, Flower and evenfed.

A SuperNode starts a new Python for every message, which takes 4 seconds of processor time until it has loaded torch:
far more than all else that a test does. `Preloaded` puts stand-ins for commands first in the `PATH`. A stand-in hands
its words, folder, environment and streams to a loaded process, which forks a copy that calls the command's function.
When a stand-in ends, as by a signal, its copy is killed; it ends with the copy's exit status otherwise.
"""

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from command import wait_for
from network import Watch

COMMANDS = ["evenfed", "flwr", "flower-superexec", "flower-supernode", "flwr-clientapp", "flwr-serverapp"]
MODULES = [
    "evenfed.flower.client",
    "evenfed.flower.server",
    "evenfed.simulate.engines.reference",
    "httpcore",
    "safetensors.torch",
    "sklearn.datasets",  # which the example's hospitals load
    "sympy",
]
LENGTH = struct.Struct("!I")
STAND_IN = """#!{python} -IS
import json, os, socket, struct, sys
place = socket.socket(socket.AF_UNIX)
place.connect({place!r})
call = dict(words=sys.argv, cwd=os.getcwd(), environment=dict(os.environ))
told = json.dumps(call).encode()
socket.send_fds(place, [struct.pack("!I", len(told))], [0, 1, 2])
place.sendall(told)
status = place.recv(1)
sys.exit(status[0] if status else 137)
"""


class Preloaded:
    """`path` goes before `PATH`; where there is a `watch`, it sees all that runs there."""

    def __init__(self, folder: Path, watch: Watch | None = None) -> None:
        self.path = folder / "bin"
        self.path.mkdir(parents=True)
        place = folder / "place"
        for name in COMMANDS:
            stand_in = self.path / name
            stand_in.write_text(STAND_IN.format(python=sys.executable, place=str(place)))
            stand_in.chmod(0o755)
        words = [sys.executable, __file__, str(place)]
        environment = {**os.environ}
        if watch is not None:
            words = watch.command(*words)
            environment |= watch.environment
        searched = [environment.get("PYTHONPATH"), str(Path(__file__).parent)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, searched))
        self._log = folder / "preloaded.log"
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        wait_for(lambda: place.exists() or self._process.poll() is not None)
        assert place.exists(), self._log.read_text()

    def end(self) -> None:
        """With all copies, which are of its group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Copy(NamedTuple):
    pid: int
    ended: int  # a file descriptor that tells
    stand_in: socket.socket


def _exactly(place: socket.socket, count: int) -> bytes:
    told = b""
    while len(told) < count:
        told += place.recv(count - len(told))
    return told


def _begin(stand_in: socket.socket, functions: dict[str, Callable[[], object]]) -> Copy | Callable[[], object]:
    """Fork: here the copy, and in the copy what it is to call."""
    header, streams, _, _ = socket.recv_fds(stand_in, LENGTH.size, 3)
    call = json.loads(_exactly(stand_in, LENGTH.unpack(header)[0]))
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        return Copy(pid, os.pidfd_open(pid), stand_in)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.argv = call["words"]
    return functions[Path(sys.argv[0]).name]


def _end(copy: Copy, kill: bool) -> None:
    if kill:
        os.kill(copy.pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(copy.pid, 0)[1])
    os.close(copy.ended)
    if not kill:
        copy.stand_in.send(bytes([status % 256]))
    copy.stand_in.close()


def _serve(place: str) -> Callable[[], object]:
    """Until it is killed; in a copy, the function that the copy is to call."""
    for module in MODULES:  # evenfed first, which tells Flower to be quiet
        importlib.import_module(module)
    scripts = entry_points(group="console_scripts")
    functions = {name: scripts[name].load() for name in COMMANDS}
    gc.collect()
    gc.freeze()  # copies share what is loaded: no collection touches it
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place + ".new")
    listener.listen(64)
    os.rename(place + ".new", place)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                begun = _begin(listener.accept()[0], functions)
                if not isinstance(begun, Copy):
                    waiting.close()
                    listener.close()
                    return begun
                waiting.register(begun.stand_in, selectors.EVENT_READ, begun)
                waiting.register(begun.ended, selectors.EVENT_READ, begun)
            elif key.data.stand_in in waiting.get_map():  # not ended by another event of this turn
                waiting.unregister(key.data.stand_in)
                waiting.unregister(key.data.ended)
                _end(key.data, kill=key.fileobj is key.data.stand_in)


def _called(function: Callable[[], object]) -> None:
    """In a copy: as a script does, but without taking apart all that is loaded."""
    status = 1

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)  # after all that the function registers
    try:
        status = int(function() or 0)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise


if __name__ == "__main__":
    _called(_serve(sys.argv[1]))
