"""StackOverflow's HDF5 file, read in a process of its own.

A damaged file can keep the HDF5 library busy without end, make it allocate without end or crash it. So another process
reads the file, within bounds of processor time and memory, and hands over a few sentences at a time as JSON.
"""

import importlib.util
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from ..core.errors import InputError, first_line
from ..core.printable import printable
from .archive import check_room

PATIENCE = 10  # seconds of processor time for the next sentences; the list of 340,000 users takes less than one
_MEMORY = 4 << 30  # bytes of addresses
_AT_ONCE = 64  # sentences of a user in memory
_LONGEST = 1 << 20  # bytes of a sentence
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from evenfed.data.hdf5 import main; main()"
_REMEDY = "give stackoverflow_train.h5 of TensorFlow Federated"


@dataclass(frozen=True)
class Choice:
    """Of the first users, by name, those with more than `min_examples` and fewer than `max_examples` sentences."""

    min_examples: int
    max_examples: int
    first_users: int


@dataclass(frozen=True)
class Counts:
    """What a file holds."""

    users: int  # that were looked at
    largest: int  # sentences of the user who has most


Said = tuple[str, list[str]]  # a user and some sentences


def check_installed() -> None:
    """Whether HDF5 can be read at all."""
    if importlib.util.find_spec("h5py") is None:
        raise InputError(
            "stackoverflow comes as HDF5, which needs the package h5py, and it is not installed; "
            "run `pip install 'evenfed[data]'`"
        )


def read(path: Path, choice: Choice, patience: int = PATIENCE) -> Iterator[Said | Counts]:
    """The sentences of the chosen users, a few at a time; at the end, counts."""
    paths = [os.path.abspath(folder) for folder in sys.path]
    request = {"path": str(path), "choice": asdict(choice), "patience": patience}
    command = [sys.executable, "-P", "-c", _START, json.dumps(paths), json.dumps(request)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # more threads take more addresses
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as errors:
        reader = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=errors, env=environment)
        with reader:
            try:
                yield from _handed_over(cast(IO[bytes], reader.stdout))
            except EOFError:
                why = _reason(reader.wait(), errors)
                raise InputError(f"{path} cannot be read ({why}); get the file again") from None
            finally:
                reader.kill()


def _handed_over(stream: IO[bytes]) -> Iterator[Said | Counts]:
    """The messages of the other process; EOFError if it ends before its last message."""
    for line in stream:
        if not line.endswith(b"\n"):
            break
        kind, content = json.loads(line)
        if kind == "refused":
            raise InputError(content)
        if kind == "counts":
            yield Counts(**content)
            return
        if kind == "said":
            user, sentences = content
            yield user, sentences
    raise EOFError


def _reason(code: int, errors: IO[str]) -> str:
    if code == -signal.SIGXCPU:
        return "the HDF5 library makes no progress with it"
    if code < 0:
        return f"the HDF5 library was ended by {signal.Signals(-code).name}"
    errors.seek(0)
    last_words = errors.read().strip().splitlines()[-1:]
    return printable(" ".join([f"its reader ended with exit code {code}", *last_words]))


def main() -> None:
    """Runs in the other process: prints one line of JSON per message."""
    request = json.loads(sys.argv[2])
    patience = request["patience"]
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_AS, _MEMORY)
    _bound(resource.RLIMIT_CPU, patience)
    try:
        for message in messages(Path(request["path"]), Choice(**request["choice"])):
            print(json.dumps(message), flush=True)
            _bound(resource.RLIMIT_CPU, int(time.process_time()) + patience)
    except InputError as error:
        print(json.dumps(["refused", str(error)]), flush=True)


def _bound(kind: int, amount: int) -> None:
    """Set limits on memory and CPU time, as far as the system supports them."""
    _, highest = resource.getrlimit(kind)
    if highest != resource.RLIM_INFINITY:
        amount = min(amount, highest)
    with suppress(ValueError, OSError):
        resource.setrlimit(kind, (amount, highest))


def messages(path: Path, choice: Choice) -> Iterator[tuple[str, Any]]:
    """What the file holds, as read in this process."""
    import h5py

    largest = 0
    total = 0
    try:
        with h5py.File(path) as file:
            users = _users(path, file)[: choice.first_users]
            for user in users:
                tokens = _tokens(path, file, user)
                largest = max(largest, len(tokens))
                if not choice.min_examples < len(tokens) < choice.max_examples:
                    yield "passed", user
                    continue
                for sentences in _pieces(path, user, tokens):
                    total += sum(map(len, sentences))
                    check_room(path, total)
                    yield "said", (user, sentences)
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{path} cannot be read in {_MEMORY:,} bytes of memory; get the file again") from None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # h5py's, of a damaged file
        raise InputError(f"{path} cannot be read ({first_line(error)}); get the file again") from error
    yield "counts", asdict(Counts(len(users), largest))


def _pieces(path: Path, user: str, tokens: Any) -> Iterator[list[str]]:
    """Yield a few sentences at a time: many may refer to the same long one."""
    for start in range(0, len(tokens), _AT_ONCE):
        sentences: list[str] = []
        for sentence in tokens[start : start + _AT_ONCE]:
            if len(sentence) > _LONGEST:
                raise InputError(
                    f"{path}: user {user!r} has a sentence of {len(sentence):,} bytes, at most {_LONGEST:,} are taken; "
                    f"{_REMEDY}"
                )
            sentences.append(sentence.decode("utf-8", errors="replace"))
        yield sentences


def _users(path: Path, file: Any) -> list[str]:
    if "examples" not in file:
        raise InputError(
            f"{path} has no group /examples (it has: {', '.join(file) or 'nothing'}); expected is the layout "
            f"/examples/USER/tokens; {_REMEDY}"
        )
    return sorted(_inside(path, file, "examples"))


def _inside(path: Path, group: Any, name: str) -> Any:
    """An object inside the file; links are refused, since they may lead to other files or in circles."""
    link = group.get(name, getlink=True)
    if type(link).__name__ != "HardLink":
        raise InputError(
            f"{path}: {group.name.rstrip('/')}/{name} is a link to elsewhere, which is not followed; {_REMEDY}"
        )
    return group[name]


def _tokens(path: Path, file: Any, user: str) -> Any:
    import h5py

    group = _inside(path, _inside(path, file, "examples"), user)
    actual = "no such array"
    if "tokens" in group:
        tokens = _inside(path, group, "tokens")
        if tokens.external or tokens.is_virtual:
            raise InputError(f"{path}: /examples/{user}/tokens lies in other files, which are not opened; {_REMEDY}")
        is_text = h5py.check_string_dtype(tokens.dtype) is not None
        if is_text and tokens.ndim == 1:
            in_chunk = math.prod(tokens.chunks or ()) * tokens.dtype.itemsize
            check_room(path, max(tokens.nbytes, in_chunk))
            return tokens
        actual = f"{tokens.dtype} of shape {tokens.shape}"
    raise InputError(
        f"{path}: /examples/{user}/tokens is {actual}; expected is a list of byte strings, one per sentence; {_REMEDY}"
    )
