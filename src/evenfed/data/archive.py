"""Safe reading of untrusted archives: nothing is written outside the folder, and expansion is limited."""

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from ..core.errors import InputError
from ..core.files import plain_file

FREE = 1 << 26  # bytes that any file may expand to
MOST = 100  # beyond these, times its size; text reaches 10
LEAST_MEMBER = 1 << 12  # bytes that a member counts for at least, as on disk
_FORMATS: dict[bytes, tuple[str, Any]] = {
    b"\x1f\x8b": (".gz", gzip.open),
    b"BZh": (".bz2", bz2.open),
    b"\xfd7zXZ\x00": (".xz", lzma.open),
}  # how a file begins -> how its name ends, and what opens it
_USTAR = slice(257, 262)  # where a tar file says that it is one
DAMAGES = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)  # what reading half an archive raises


def room(path: Path) -> int:
    return FREE + MOST * path.stat().st_size


def check_room(path: Path, expanded: int) -> None:
    """Refuse a file that expands too far for its size."""
    if expanded > room(path):
        size = path.stat().st_size
        raise InputError(
            f"{path} has {size:,} bytes and expands to {expanded:,} or more; at most {room(path):,} are taken from a "
            "file of that size: get the official file, or write it again without compression"
        )


class BoundedReader:
    """A file's content, decompressed while it is read; refused if it expands too far for the file's size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._room = room(path)
        self._read = 0
        self._stream = _decompressed(path)

    def read(self, size: int = -1) -> bytes:
        most = self._room - self._read + 1
        if size < 0 or size > most:
            size = most
        block = self._stream.read(size)
        self._read += len(block)
        check_room(self._path, self._read)
        return block

    def __enter__(self) -> "BoundedReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _decompressed(path: Path) -> IO[bytes]:
    with plain_file(path).open("rb") as file:
        start = file.read(8)
    for magic, (ending, open_format) in _FORMATS.items():
        if path.suffix == ending or start.startswith(magic):
            return cast(IO[bytes], open_format(path, "rb"))
    return path.open("rb")


def is_tar(path: Path) -> bool:
    try:
        with BoundedReader(path) as stream:
            start = stream.read(512)
    except DAMAGES:
        return False
    return start[_USTAR] == b"ustar"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file into `folder`. Refuse paths outside it, links, devices, and too much data."""
    # The filter exists since Python 3.11.4; the check before it refuses what the filter would silently repair.
    options: dict[str, Any] = {}
    if hasattr(tarfile, "data_filter"):
        options["filter"] = "data"
    unpacked = 0
    with BoundedReader(archive) as stream, tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar:
        for member in tar:
            _refuse_escape(archive, member)
            unpacked += max(member.size, LEAST_MEMBER)  # a sparse file's size is not what is stored
            check_room(archive, unpacked)
            tar.extract(member, folder, **options)


def _refuse_escape(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    drive = re.match("[A-Za-z]:", member.name)
    is_windows_path = drive or "\\" in member.name
    if path.is_absolute() or ".." in path.parts or is_windows_path:
        why = "its path leads outside the folder it is unpacked to"
    elif not (member.isfile() or member.isdir()):
        why = "it is a link or a device"
    else:
        return
    raise InputError(
        f"{archive}: refused to unpack {member.name!r}: {why}; an official archive holds plain files and folders only: "
        "get the official file"
    )
