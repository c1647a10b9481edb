"""Workers that are processes of this machine, one per device."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from .dispatcher import WorkerSlot
from .options import visible_gpu
from .remote_call import LENGTH_BYTES, JobResult

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from evenfed.spread.remote_call import work; work()"


def local_places(devices: Sequence[str]) -> list[WorkerSlot]:
    """One worker per device, with its share of the cores."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // len(devices))
    places: list[WorkerSlot] = []
    for number, device in enumerate(devices, start=1):
        place = LocalSlot(f"worker {number} on {device}", device, threads)
        places.append(place)
    return places


@dataclass(frozen=True)
class LocalSlot:
    """A new process for every task."""

    name: str
    device: str
    threads: int

    def start(self, package: bytes) -> "LocalJob":
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", str(self.threads))
        if self.device.startswith("cuda:"):
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpu(self.device)
        paths = [os.path.abspath(folder) for folder in sys.path]
        outcome = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the job)
        words = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(paths), *sys.argv],
            stdin=subprocess.PIPE,
            stdout=outcome,
            stderr=words,
            env=environment,
            start_new_session=True,  # a Ctrl-C reaches this process alone, which asks its workers to stop
        )
        assert process.stdin is not None
        job = LocalJob(process, outcome, words)
        with suppress(BrokenPipeError):  # it has died already, which its outcome says
            process.stdin.write(len(package).to_bytes(LENGTH_BYTES, "big"))
            process.stdin.write(package)
            process.stdin.flush()
        return job


@dataclass(frozen=True)
class LocalJob:
    """Its input stays open: a worker that finds it closed knows that this process is gone, and stops."""

    process: subprocess.Popen[bytes]
    written: IO[str]
    words: IO[str]

    def outcome(self) -> JobResult | None:
        code = self.process.poll()
        if code is None:
            return None
        self.written.seek(0)
        text = self.written.read()
        self.words.seek(0)
        last_words = self.words.read().strip().splitlines()[-1:]
        self._close()
        if text:
            return JobResult.from_json(text)
        reason = f"it ended with exit code {code}"
        if code < 0:
            reason = f"it was killed by {_signal_name(-code)}"
        quoted = f" ({last_words[0]})" if last_words else ""
        return JobResult("lost", reason + quoted)

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.written, self.words):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
