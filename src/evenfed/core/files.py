"""Files that are safe to open."""

import stat
from pathlib import Path

from .errors import InputError

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
