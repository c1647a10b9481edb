"""Get official files, check them, unpack them safely and convert them to arrays in the store."""

import gzip
import http.client
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from ..core.errors import InputError
from ..core.files import plain_file
from ..core.printable import printable
from ..core.verbosity import Verbosity
from . import archive, images, stackoverflow, store, text
from .catalogue import OfficialFile, Source, find
from .dataset import Dataset

MIRROR = "EVENFED_MIRROR"  # a base URL that replaces the official folder of every file
TIMEOUT = 30  # seconds without a byte before a connection counts as broken
BLOCK = 1 << 18
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

Progress = Callable[[int, int], object]  # called with (bytes received, bytes in all) as they arrive

Converter = Callable[[Path, Path], None]  # turns the unpacked folder, or the one file, into a stored data set


def _saved(read: Callable[[Path], Dataset]) -> Converter:
    """Of a reader that holds the whole data set in memory."""
    return lambda source, destination: store.save(read(source), destination)


CONVERTERS: dict[str, Converter] = {
    "mnist": partial(images.convert_idx, "mnist"),
    "fashion_mnist": partial(images.convert_idx, "fashion_mnist"),
    "cifar10": images.convert_cifar10,
    "cifar100": images.convert_cifar100,
    "cinic10": images.convert_cinic10,
    "shakespeare": _saved(text.read_shakespeare),
    "shakespeare_chars": _saved(partial(text.read_shakespeare, task="chars")),
    "stackexchange": _saved(stackoverflow.read_stackexchange),
    "stackoverflow": _saved(stackoverflow.read_stackoverflow),
}


def fetch(name: str, detail: Verbosity = Verbosity.NORMAL) -> None:
    """Download the official files of a data set and add them; a stopped download is resumed."""
    source = find(name)
    if not source.files:
        raise InputError(f"data set '{name}' cannot be downloaded: {source.how_to_get}")
    downloads = store.root() / "downloads" / name
    downloads.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        target = downloads / file.name
        _download_with_bar(source, file, target, detail)
    path = downloads
    if len(source.files) == 1:
        path = target
    if detail is Verbosity.VERBOSE:
        _tell(f"unpacking and converting {path}")
    add(name, path)
    shutil.rmtree(downloads)  # the arrays hold all of it


def add(name: str, path: Path) -> None:
    """Add a data set from its official archive, or from the unpacked folder."""
    source = find(name)
    if source.bundled:
        raise InputError(f"data set '{name}' cannot be added: {source.how_to_get}")
    if not path.exists():
        raise InputError(f"{path} does not exist; to get '{name}': {source.how_to_get}")
    if not path.is_dir():
        plain_file(path)
    with store.workplace(f"adding-{name}") as workplace:
        files = _unpacked(source, path, workplace / "unpacked")
        fresh = workplace / name
        CONVERTERS[name](files, fresh)
        _check_rows(source, path, fresh)
        store.place(fresh, store.folder(name))


def download(url: str, target: Path, digest: str, progress: Progress) -> None:
    """Download `url` to `target` and check its digest. A .part file keeps what has arrived, to resume from."""
    part = target.with_name(f"{target.name}.part")
    if target.is_file() and _digest(target, digest) == digest:
        return
    resumed = part.exists()
    _receive_all(url, part, progress)
    received = _digest(part, digest)
    if resumed and received != digest:  # the old piece may be of another version: once more, from the start
        part.unlink()
        _receive_all(url, part, progress)
        received = _digest(part, digest)
    if received != digest:
        part.unlink()
        raise InputError(
            f"{url} has {received}, the official file has {digest}: the download was damaged or the server gives "
            "something else, and it was thrown away; try again, or get the file elsewhere"
        )
    part.replace(target)


def _unpacked(source: Source, path: Path, folder: Path) -> Path:
    """The folder or file to convert: an archive is checked and unpacked first."""
    official = [*source.files, *source.also]
    if path.is_dir():
        for file in official:
            inside = path / file.name
            if inside.is_file():
                _check_official(source, inside, [file])
        return path
    is_archive = path.name.endswith(ARCHIVE_ENDINGS) or archive.is_tar(path)
    if not is_archive:
        return path
    if official:
        _check_official(source, path, official)
    folder.mkdir(parents=True)
    try:
        archive.unpack(path, folder)
    except archive.DAMAGES as error:
        raise InputError(f"{path}: not a whole tar archive ({error}); get the official file again") from error
    return folder


def _check_official(source: Source, path: Path, candidates: Sequence[OfficialFile]) -> None:
    """Refuse a file that is none of the candidates: neither byte for byte nor, as a gzip file, in its content."""
    actual = []
    expected = []
    for file in candidates:
        digest = _digest(path, file.digest)
        if digest == file.digest:
            return
        actual.append(digest)
        known = file.digest
        if file.content is not None:
            content = _content_digest(path, file.content)
            if content == file.content:
                return
            actual.append(f"content {content}")
            known += f", content {file.content}"
        expected.append(f"{file.name} ({known})")
    digests = " and ".join(dict.fromkeys(actual))  # two candidates may be hashed alike
    raise InputError(
        f"{path} has {digests}, which is not the official {' or '.join(expected)}: "
        f"it is damaged, cut short or something else; {source.how_to_get}"
    )


def _digest(path: Path, like: str) -> str:
    """The file's digest by the algorithm of another: "md5:..." or "sha256:..."."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{store.file_digest(path, algorithm)}"


def _content_digest(path: Path, like: str) -> str:
    """The digest of what a gzip file decompresses to, by the algorithm of another."""
    algorithm = like.partition(":")[0]
    try:
        with gzip.open(path) as stream:
            return f"{algorithm}:{store.digest(stream, algorithm)}"
    except (OSError, EOFError, zlib.error):
        return "that is not a whole gzip file"


def _check_rows(source: Source, path: Path, fresh: Path) -> None:
    inputs = np.load(fresh / "inputs.npy", mmap_mode="r")
    rows = len(inputs)
    if source.rows is not None and rows != source.rows:
        raise InputError(
            f"{path}: {rows:,} training examples, {source.name} has {source.rows:,}; files are missing or cut short: "
            f"unpack the archive again, or {source.how_to_get}"
        )


def _address(file: OfficialFile) -> str:
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return file.url
    if not mirror.startswith(("http://", "https://")):
        raise InputError(f"{MIRROR}={mirror!r}: it must begin with http:// or https://; give a base URL or unset it")
    return f"{mirror.rstrip('/')}/{file.name}"


def _tell(step: str) -> None:
    print(printable(step), file=sys.stderr)


def _download_with_bar(source: Source, file: OfficialFile, target: Path, detail: Verbosity) -> None:
    """Download with a progress bar on stderr; without a network, say how to do it by hand."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    url = _address(file)
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=detail is Verbosity.QUIET,
    )
    if detail is Verbosity.VERBOSE:
        _tell(f"downloading {url} to {target}")
    with bar:
        task = bar.add_task(file.name, total=None)

        def advance(received: int, total: int) -> None:
            bar.update(task, completed=received, total=total)

        try:
            download(url, target, file.digest, advance)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise InputError(
                f"cannot download {url} ({reason}); rerun the command to resume, or {source.by_hand}"
            ) from error
    if detail is Verbosity.VERBOSE:
        _tell(f"{target.name} is the official file: {file.digest}")


def _receive_all(url: str, part: Path, progress: Progress) -> None:
    """Fill the .part file; a broken connection is retried as long as each try receives something."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        total = _receive(url, part, before, progress)
        size = part.stat().st_size
        if total is None or size >= total:
            return
        if size <= before:
            raise ConnectionError(f"the connection broke at {size:,} of {total:,} bytes")


def _receive(url: str, part: Path, offset: int, progress: Progress) -> int | None:
    """Append the bytes from `offset` on; return the file's total size, None if the server does not send it."""
    headers = {"User-Agent": "evenfed", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        is_beyond_end = error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE
        if offset and is_beyond_end:
            return offset  # nothing beyond: it is complete, or of another version, which its digest will show
        raise
    with response, part.open("ab", buffering=0) as file:
        resumed = None
        total: int | None
        if response.status == http.client.PARTIAL_CONTENT:
            content_range = response.headers.get("Content-Range", "")
            resumed = re.match(rf"bytes {offset}-\d+/(\d+)", content_range)
        if resumed:
            total = int(resumed[1])
        else:
            file.truncate(0)  # the server sends it from the start
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
        try:
            _copy(response, file, progress, total)
        except (http.client.IncompleteRead, ConnectionError, TimeoutError):
            if total is None:  # else the caller sees that some is missing, and asks for the rest
                raise
    return total


def _copy(
    response: http.client.HTTPResponse,
    file: IO[bytes],
    progress: Progress,
    total: int | None,
) -> None:
    received = file.seek(0, os.SEEK_END)
    while block := response.read1(BLOCK):  # what has arrived, not a full block: a killed process loses nothing
        file.write(block)
        received += len(block)
        progress(received, total or received)
