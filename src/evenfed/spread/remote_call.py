"""One task: packed for another process, carried out there, and what came of it."""

import json
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..core.errors import DamageWarning, InputError, Interruption, first_line

LENGTH_BYTES = 8  # of the number that tells a worker how long its package is

Task = Callable[[], None]
Kind = Literal["done", "refused", "failed", "stopped", "lost"]


@dataclass(frozen=True)
class JobResult:
    """What came of a task: "refused" with the sentence of an InputError, "lost" with its worker."""

    kind: Kind
    message: str = ""
    damage: tuple[str, ...] = ()  # damaged files that the worker has left out, in sentences
    trace: str = ""  # of an error that is no fault of the input

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> "JobResult":
        content = json.loads(text)
        return cls(content["kind"], content["message"], tuple(content["damage"]), content["trace"])


def packed(task: Task) -> bytes:
    """The task, with the folders its modules are found in. cloudpickle takes functions of scripts and notebooks."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        content = pickler.dumps(task)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        advice = "define it at the top of a module"
        if pickler is pickle:
            advice += ", or pip install cloudpickle"
        raise InputError(
            f"this cannot be sent to a worker: {first_line(error)}; {advice}, or train in one process"
        ) from None
    paths = [os.path.abspath(folder) for folder in sys.path]
    return pickle.dumps((paths, content))


def perform(package: bytes) -> JobResult:
    damage: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamageWarning)
        outcome = _performed(package)
        for warning in caught:
            if issubclass(warning.category, DamageWarning):
                damage.append(str(warning.message))
    return JobResult(outcome.kind, outcome.message, tuple(damage), outcome.trace)


def _performed(package: bytes) -> JobResult:
    try:
        paths, content = pickle.loads(package)
        for folder in paths:
            if folder not in sys.path:
                sys.path.append(folder)
        pickle.loads(content)()
    except InputError as error:
        return JobResult("refused", str(error))
    except (Interruption, KeyboardInterrupt):
        return JobResult("stopped")
    except Exception as error:
        return JobResult("failed", f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    return JobResult("done")


def work() -> None:
    """A worker on this machine: a task on stdin, its outcome on stdout; it ends with whoever started it."""
    sys.argv = sys.argv[2:] or ["evenfed"]  # the command that is noted as the origin of results
    outcome_stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no outcome
    source = sys.stdin.buffer
    length = int.from_bytes(source.read(LENGTH_BYTES), "big")
    package = source.read(length)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    watching = threading.Thread(target=_end_with_the_other, daemon=True)
    watching.start()
    outcome = perform(package)
    with outcome_stream:
        outcome_stream.write(outcome.to_json())
    sys.stderr.flush()
    os._exit(0)  # not through the threads of others


def _end_with_the_other() -> None:
    """Stop, saving what there is, once whoever started this has closed the input or is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
