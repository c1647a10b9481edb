"""One errand: packed for another process, carried out there, and what came of it."""

import json
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..core.errors import DamageWarning, InputError, Interruption, first_line

LENGTH_BYTES = 8  # of the number that tells a worker how long its package is

Errand = Callable[[], None]
Kind = Literal["done", "refused", "failed", "stopped", "lost"]


@dataclass(frozen=True)
class JobResult:
    """What came of an errand: "refused" with the sentence of an InputError, "lost" with its worker."""

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


def packed(errand: Errand) -> bytes:
    """The errand, with the folders its modules are found in. cloudpickle takes functions of scripts and notebooks."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        content = pickler.dumps(errand)
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
    """Carry out a packed errand in this process."""
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
