"""From official files, on the web or on disk, to arrays in the store: checked, unpacked safely, converted."""

import http.client
import lzma
import os
import re
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from ..core.errors import InputError
from . import store
from .catalogue import OfficialFile, Source, find

MIRROR = "EVENFED_MIRROR"  # a base URL that replaces the official folder of every file
TIMEOUT = 30  # seconds without a byte before a connection counts as broken
BLOCK = 1 << 18
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

Progress = Callable[[int, int], object]  # told (bytes there, bytes in all) as they arrive


def fetch(name: str) -> None:
    """Download the official files of a data set, going on where an earlier call stopped, and add them."""
    source = find(name)
    if not source.files:
        raise InputError(f"data set '{name}' cannot be downloaded: {source.how_to_get}")
    downloads = store.root() / "downloads" / name
    downloads.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        _download_shown(source, file, downloads / file.name)
    add(name, downloads / source.files[0].name if len(source.files) == 1 else downloads)
    shutil.rmtree(downloads)  # the arrays hold all of it


def add(name: str, path: Path) -> None:
    """Add a data set from its official archive or from the folder that unpacks to."""
    source = find(name)
    if source.bundled:
        raise InputError(f"data set '{name}' cannot be added: {source.how_to_get}")
    if not path.exists():
        raise InputError(f"{path} does not exist; to get '{name}': {source.how_to_get}")
    with store.workplace(f"adding-{name}") as workplace:
        files = _unpacked(source, path, workplace / "unpacked")
        fresh = workplace / name
        source.convert(files, fresh)
        _check_rows(source, path, fresh)
        store.place(fresh, store.folder(name))


def download(url: str, target: Path, digest: str, progress: Progress = lambda *_: None) -> None:
    """Bring `url` to `target`, whole and with that digest; what arrived stays in a .part file if the line breaks."""
    part = target.with_name(f"{target.name}.part")
    if target.is_file() and _has(target, digest):
        return
    resumed = part.exists()
    _receive_all(url, part, progress)
    if resumed and not _has(part, digest):  # the old piece may be of another version: once more, from the start
        part.unlink()
        _receive_all(url, part, progress)
    if not _has(part, digest):
        found = f"{digest.partition(':')[0]}:{_digest_like(part, digest)}"
        part.unlink()
        raise InputError(
            f"{url} has {found}, the official file has {digest}: the download was damaged or the server gives "
            "something else, and it was thrown away; try again, or get the file elsewhere"
        )
    part.replace(target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file into `folder`; one that reaches outside it, or holds links or devices, is refused."""
    folder.mkdir(parents=True)
    # Python 3.11.4 brought the filter; the check before it refuses aloud what the filter would quietly mend.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _refuse_escape(archive, member)
                tar.extract(member, folder, **options)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{archive}: not a whole tar archive ({error}); get the official file again") from error


def _refuse_escape(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or re.match("[A-Za-z]:", member.name):
        why = "its path leads outside the folder it is unpacked to"
    elif not (member.isfile() or member.isdir()):
        why = "it is a link or a device"
    else:
        return
    raise InputError(
        f"{archive}: refused to unpack {member.name!r}: {why}; an official archive holds plain files and folders only: "
        "get the official file"
    )


def _unpacked(source: Source, path: Path, folder: Path) -> Path:
    """The folder or file to convert: an archive is checked and unpacked, what is unpacked already stays."""
    if path.is_dir():
        for file in (*source.files, *source.also):
            if (path / file.name).is_file():
                _check_official(source, path / file.name, [file])
        return path
    if not (path.name.endswith(ARCHIVE_ENDINGS) or tarfile.is_tarfile(path)):
        return path
    _check_official(source, path, [*source.files, *source.also])
    unpack(path, folder)
    return folder


def _check_official(source: Source, path: Path, candidates: list[OfficialFile]) -> None:
    if not candidates or any(_has(path, file.digest) for file in candidates):
        return
    known = " or ".join(f"{file.name} ({file.digest})" for file in candidates)
    found = " and ".join(
        sorted({f"{d.partition(':')[0]}:{_digest_like(path, d)}" for d in (file.digest for file in candidates)})
    )
    raise InputError(
        f"{path} has {found}, which is not the official {known}: it is damaged, cut short or something else; "
        f"{source.how_to_get}"
    )


def _check_rows(source: Source, path: Path, fresh: Path) -> None:
    found = len(np.load(fresh / "inputs.npy", mmap_mode="r"))
    if source.rows is not None and found != source.rows:
        raise InputError(
            f"{path}: {found:,} training examples, {source.name} has {source.rows:,}; files are missing or cut short: "
            f"unpack the archive again, or {source.how_to_get}"
        )


def _digest_like(path: Path, digest: str) -> str:
    return store.file_digest(path, digest.partition(":")[0])


def _has(path: Path, digest: str) -> bool:
    return _digest_like(path, digest) == digest.partition(":")[2]


def _address(file: OfficialFile) -> str:
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return file.url
    if not mirror.startswith(("http://", "https://")):
        raise InputError(f"{MIRROR}={mirror!r}: it must begin with http:// or https://; give a base URL or unset it")
    return f"{mirror.rstrip('/')}/{file.name}"


def _download_shown(source: Source, file: OfficialFile, target: Path) -> None:
    """Download with a progress bar on stderr; without a network, say how to do it by hand."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    url = _address(file)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(file.name, total=None)
        try:
            download(url, target, file.digest, lambda there, total: bar.update(task, completed=there, total=total))
        except (OSError, http.client.HTTPException) as error:
            raise InputError(
                f"cannot download {url} ({getattr(error, 'reason', error)}); the same command goes on where this one "
                f"stopped; or {source.by_hand}"
            ) from error


def _receive_all(url: str, part: Path, progress: Progress) -> None:
    """Fill the .part file; a line that breaks is taken up again as long as each try brings something."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        total = _receive(url, part, before, progress)
        after = part.stat().st_size
        if total is None or after >= total:
            return
        if after <= before:
            raise ConnectionError(f"the connection broke at {after:,} of {total:,} bytes")


def _receive(url: str, part: Path, offset: int, progress: Progress) -> int | None:
    """Append what the server has beyond `offset`; return the file's whole size, None where it is not told."""
    request = urllib.request.Request(url, headers={"User-Agent": "evenfed", "Accept-Encoding": "identity"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
            return offset  # nothing beyond: it is whole, or of another version, which its digest will tell
        raise
    with response, part.open("ab", buffering=0) as file:
        told = re.match(rf"bytes {offset}-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if response.status != http.client.PARTIAL_CONTENT or not told:
            file.truncate(0)  # the server sends it from the start
        length = response.headers.get("Content-Length")
        total = int(told[1]) if told else int(length) if length else None
        try:
            _copy(response, file, progress, total)
        except (http.client.IncompleteRead, ConnectionError, TimeoutError):
            if total is None:  # else the caller sees that some is missing, and asks for the rest
                raise
    return total


def _copy(response: http.client.HTTPResponse, file: IO[bytes], progress: Progress, total: int | None) -> None:
    there = file.seek(0, os.SEEK_END)
    while block := response.read1(BLOCK):  # what is there, not a whole block: a killed process loses nothing
        file.write(block)
        there += len(block)
        progress(there, total or there)
