"""Files that are safe to open, and files that are whole or absent: written next to their place, then renamed."""

import os
import stat
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError

ARRAY_DAMAGES = (
    OSError,
    ValueError,
    EOFError,
    SyntaxError,
    tokenize.TokenError,
)  # what numpy raises of half a file
BESIDE = ".new"  # what a file's name ends in until it is whole
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def plain_file(path: Path, or_pipe: bool = False) -> Path:
    """The path itself, unless something other than a file is there: a pipe may never answer, a device never end.

    A path where nothing is passes: opening it says so. `or_pipe` allows what a shell puts in place of `<(command)`.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return path
    kind = stat.S_IFMT(mode)
    is_allowed = kind == stat.S_IFREG or (or_pipe and kind == stat.S_IFIFO)
    if not is_allowed:
        what = _KINDS.get(kind, "no file")
        raise InputError(f"{path} is {what}, which is not opened; a file is expected there: remove or replace it")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write the new file. Neither a reader nor a crash ever sees half of it at `path`."""
    unfinished = path.with_name(path.name + BESIDE)
    unfinished.unlink(missing_ok=True)  # of a process that died; or a link, which must not be followed
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            error.filename = str(path)
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with replacing(path) as unfinished, unfinished.open("x") as file:
        file.write(text)


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a whole binary file."""
    with replacing(path) as unfinished, unfinished.open("xb") as file:
        file.write(content)


@contextmanager
def made(folder: Path) -> Iterator[bool]:
    """Make a folder and those above it, and say whether it is new. What an error leaves empty is removed again."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield bool(missing)
    except BaseException:
        with suppress(OSError):  # not empty, or another process works there too
            for path in missing:
                path.rmdir()
        raise
