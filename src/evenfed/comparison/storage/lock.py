"""One process at a time writes to a folder. The system lifts the lock when its process ends, however it ends."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from ...core.errors import InputError
from ...core.files import made

LOCK = ".lock"
ANOTHER_FOLDER = "choose another folder (--out; in Python out=...)"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC  # a link is not followed, nothing is emptied
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 200  # characters read of what a holder wrote of itself


@contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """One process at a time writes to a comparison's folder; `shared`: as others do that each lock their own run.

    A new folder in which nothing was written before an error is removed again.
    """
    with ExitStack() as stack:
        try:
            is_new = stack.enter_context(made(folder))
            file = _locked_file(folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise InputError(f"{folder} cannot be written to ({error.strerror}); {ANOTHER_FOLDER}") from None
        stack.callback(os.close, file)
        os.ftruncate(file, 0)  # of a process that died
        if not shared:
            began = datetime.now().strftime("%Y-%m-%d %H:%M")
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {began}"
            os.pwrite(file, holder.encode(), 0)
        try:
            yield
        except BaseException:
            if is_new and not shared:
                _remove_if_alone(folder)
            raise


def _remove_if_alone(folder: Path) -> None:
    with suppress(OSError):  # the folder may be gone
        if os.listdir(folder) == [LOCK]:
            (folder / LOCK).unlink()


def _locked_file(folder: Path, kind: int) -> int:
    """The folder's lock file, open and locked."""
    while True:
        file = os.open(folder / LOCK, _FLAGS)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            who = _holder(folder)
            raise InputError(f"another evenfed{who} is writing to {folder}; wait for it, or {ANOTHER_FOLDER}") from None
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # its holder removed it meanwhile: nobody else would see this lock


def hold_run(folder: Path, within: Path | None = None) -> ExitStack:
    """Lock the folder of one run until the stack is closed, and `within` for all who would write to more of it."""
    with ExitStack() as locks:
        if within is not None:
            locks.enter_context(locked(within, shared=True))
        locks.enter_context(locked(folder))
        return locks.pop_all()


def _holder(folder: Path) -> str:
    """Who holds the folder, or a run in it, in parentheses; nothing if that is not known."""
    own = folder / LOCK
    for path in (own, *sorted(folder.glob(f"*/seed-*/{LOCK}"))):
        text = _written_by_holder(path)
        if text:
            return f" ({text})"
    return ""


def _written_by_holder(path: Path) -> str:
    """What the process that holds this lock wrote of itself; nothing if none does."""
    try:
        file = os.open(path, _TO_READ)
    except OSError:
        return ""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(file, _MOST, 0).decode(errors="replace").strip()
    finally:
        os.close(file)
    return ""
