"""Downloads from a real server on this machine, and archives on disk: good, cut short, wrong, killed, evil."""

import dataclasses
import gzip
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from command import wait_for
from evenfed.core.errors import InputError
from evenfed.core.verbosity import Verbosity
from evenfed.data import catalogue, fetch, store

ARCHIVE = "cifar-10-binary.tar.gz"
PER_BATCH = 40


class Handler(BaseHTTPRequestHandler):
    """One file with ranges; the server's attributes say how it misbehaves."""

    def do_GET(self):
        content, site = self.server.content, self.server
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) if site.ranges else None
        start = int(asked[1]) if asked else 0
        site.starts.append(start)
        if self.path != f"/{ARCHIVE}":
            return self.send_error(404)
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        for at in range(start, min(start + site.at_most, len(content)), 32_768):
            try:
                self.wfile.write(content[at : min(at + 32_768, start + site.at_most)])
            except ConnectionError:
                return None
            time.sleep(site.pause)
        return None

    def log_message(self, *_):
        pass


def batches(per_batch=PER_BATCH):
    """CIFAR-10's binary layout: five files of records, a label and 3,072 pixels each."""
    rng = np.random.default_rng(0)
    for i in range(1, 6):
        records = rng.integers(0, 256, (per_batch, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        yield f"cifar-10-batches-bin/data_batch_{i}.bin", records.tobytes()


def tar_gz(*members):
    """An archive of (name, content) or of ready-made headers."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            content = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


GOOD = tar_gz(*batches())


def md5(content):
    return f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    official(monkeypatch, GOOD)
    return tmp_path / "cache"


def official(monkeypatch, content):
    """Let `content` be CIFAR-10's official archive."""
    known = catalogue.SOURCES["cifar10"]
    file = dataclasses.replace(known.files[0], digest=md5(content))
    monkeypatch.setitem(catalogue.SOURCES, "cifar10", dataclasses.replace(known, files=(file,), rows=5 * PER_BATCH))


@pytest.fixture
def site(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content, server.ranges, server.at_most, server.pause, server.starts = GOOD, True, 1 << 30, 0.0, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("EVENFED_MIRROR", f"http://127.0.0.1:{server.server_port}/")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def part_of(cache):
    return cache / "downloads" / "cifar10" / f"{ARCHIVE}.part"


def leave_part(cache, content):
    part_of(cache).parent.mkdir(parents=True)
    part_of(cache).write_bytes(content)


def assert_all_there(cache):
    expected = np.concatenate([np.frombuffer(c, np.uint8).reshape(-1, 3073) for _, c in batches()])
    found = store.read("cifar10")
    np.testing.assert_array_equal(found.inputs.reshape(-1, 3072), expected[:, 1:])
    np.testing.assert_array_equal(found.targets, expected[:, 0])
    assert not part_of(cache).parent.exists(), "what was downloaded is not kept twice"
    assert sorted(p.name for p in cache.iterdir()) == ["cifar10", "downloads"]


@pytest.mark.parametrize(
    ("detail", "shown", "hidden"),
    [
        (Verbosity.QUIET, [], [ARCHIVE, "official"]),
        (Verbosity.NORMAL, [ARCHIVE], ["official", "converting"]),
        (Verbosity.VERBOSE, ["downloading http", ARCHIVE, "is the official file: md5:", "converting"], []),
    ],
)
def test_how_much_fetch_says(detail, shown, hidden, site, cache, capsys):
    fetch.fetch("cifar10", detail)
    told = capsys.readouterr().err
    for text in shown:
        assert text in told
    for text in hidden:
        assert text not in told


def test_fetch_downloads_checks_and_adds(site, cache):
    fetch.fetch("cifar10")
    assert_all_there(cache)
    assert site.starts == [0]


def test_lines_that_break_are_taken_up_again(site, cache):
    site.at_most = 250_000
    fetch.fetch("cifar10")
    assert_all_there(cache)
    assert site.starts == [*range(0, len(GOOD), 250_000)]


def test_a_server_that_ignores_ranges_is_read_from_the_start(site, cache):
    leave_part(cache, GOOD[:1000])
    site.ranges = False
    fetch.fetch("cifar10")
    assert_all_there(cache)


def test_a_download_cut_short_for_good_keeps_its_piece_and_says_how_to_go_on(site, cache):
    site.ranges, site.at_most = False, 100_000
    with pytest.raises(InputError, match=r"broke at 100,000 of .*rerun the command to resume") as told:
        fetch.fetch("cifar10")
    assert f"evenfed data add cifar10 {ARCHIVE}" in str(told.value)
    assert part_of(cache).read_bytes() == GOOD[:100_000] and store.names() == []
    site.ranges, site.at_most = True, 1 << 30
    fetch.fetch("cifar10")
    assert_all_there(cache)
    assert site.starts[-1] == 100_000


def test_a_piece_of_another_version_is_thrown_away(site, cache):
    leave_part(cache, b"x" * 5000)
    fetch.fetch("cifar10")
    assert_all_there(cache)
    assert site.starts == [5000, 0]


@pytest.mark.parametrize("piece", [GOOD, GOOD + b"more"])
def test_a_piece_with_nothing_missing(site, cache, piece):
    leave_part(cache, piece)
    fetch.fetch("cifar10")
    assert_all_there(cache)


def test_the_wrong_hash_is_an_error_and_nothing_stays(site, cache):
    site.content = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    with pytest.raises(InputError, match=f"{md5(site.content)}, the official file has {md5(GOOD)}"):
        fetch.fetch("cifar10")
    assert list(part_of(cache).parent.iterdir()) == [] and store.names() == []


@pytest.mark.slow
def test_killed_and_resumed(site, cache):
    site.pause = 0.1
    script = f"""
import dataclasses
from evenfed.data import catalogue, fetch
known = catalogue.SOURCES["cifar10"]
file = dataclasses.replace(known.files[0], digest={md5(GOOD)!r})
catalogue.SOURCES["cifar10"] = dataclasses.replace(known, files=(file,), rows={5 * PER_BATCH})
fetch.fetch("cifar10")
"""
    process = subprocess.Popen([sys.executable, "-c", script], env=dict(os.environ), stderr=subprocess.DEVNULL)

    def much_is_here() -> bool:
        assert process.poll() is None
        return part_of(cache).exists() and part_of(cache).stat().st_size > 60_000

    wait_for(much_is_here, every=0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = part_of(cache).stat().st_size
    assert 60_000 < left < len(GOOD) and store.names() == []
    site.pause = 0.0
    fetch.fetch("cifar10")
    assert_all_there(cache)
    assert site.starts[-1] == left


def test_without_a_network_the_message_says_what_to_do_by_hand(site, monkeypatch):
    monkeypatch.setenv("EVENFED_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(InputError, match=r"cannot download .*refused") as told:
        fetch.fetch("cifar10")
    for wanted in (ARCHIVE, "https://www.cs.toronto.edu/~kriz/", f"`evenfed data add cifar10 {ARCHIVE}`"):
        assert wanted in str(told.value)


def test_a_file_that_is_not_there(site):
    with pytest.raises(InputError, match=r"cannot download .*train-images.*Not Found.*evenfed data add mnist FOLDER"):
        fetch.fetch("mnist")


@pytest.mark.parametrize("name", ["digits", "shakespeare", "stackexchange"])
def test_what_cannot_be_downloaded_says_so(name):
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch.fetch(name)


def test_a_mirror_must_be_a_web_address(monkeypatch):
    monkeypatch.setenv("EVENFED_MIRROR", "/etc")
    with pytest.raises(InputError, match="must begin with http"):
        fetch.fetch("cifar10")


def test_add_takes_the_archive_or_its_folder(tmp_path):
    (tmp_path / "renamed.bin").write_bytes(GOOD)
    fetch.add("cifar10", tmp_path / "renamed.bin")
    first = store.read("cifar10").inputs.tobytes()
    for name, content in batches():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    fetch.add("cifar10", tmp_path / "cifar-10-batches-bin")
    assert store.read("cifar10").inputs.tobytes() == first


def test_add_refuses_an_archive_that_is_not_the_official_one(tmp_path, cache):
    (tmp_path / ARCHIVE).write_bytes(GOOD[:5000])
    with pytest.raises(InputError, match=r"is not the official cifar-10-binary.tar.gz .*evenfed data fetch cifar10"):
        fetch.add("cifar10", tmp_path / ARCHIVE)
    assert list(cache.iterdir()) == []


def test_add_counts_what_a_folder_holds(tmp_path):
    for name, content in batches(per_batch=3):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="15 training examples, cifar10 has 200"):
        fetch.add("cifar10", tmp_path)
    assert store.names() == []


def test_add_checks_official_files_inside_a_folder(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(InputError, match="is not the official train-images"):
        fetch.add("mnist", tmp_path)


def write_fashion(folder, monkeypatch, level=9):
    """Four idx files of three images, which count as the official ones when compressed at level 9."""
    source = catalogue.SOURCES["fashion_mnist"]
    folder.mkdir()
    official = []
    for file in (*source.files, *source.also):
        values = np.arange(3 * 28 * 28) % 10 if "images" in file.name else np.arange(3)
        shape = (3, 28, 28) if "images" in file.name else (3,)
        content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()
        (folder / file.name).write_bytes(gzip.compress(content, level, mtime=0))
        digest = md5(gzip.compress(content, 9, mtime=0))
        official.append(dataclasses.replace(file, digest=digest, content=md5(content)))
    small = dataclasses.replace(source, files=tuple(official[:2]), also=tuple(official[2:]), rows=3)
    monkeypatch.setitem(catalogue.SOURCES, "fashion_mnist", small)


@pytest.mark.parametrize("level", [9, 1, 0])
def test_add_takes_the_same_content_however_it_is_compressed(tmp_path, monkeypatch, level):
    write_fashion(tmp_path / "files", monkeypatch, level)
    archive = tmp_path / "files" / "train-images-idx3-ubyte.gz"
    same_archive = md5(archive.read_bytes()) == catalogue.SOURCES["fashion_mnist"].files[0].digest
    assert same_archive == (level == 9)
    fetch.add("fashion_mnist", tmp_path / "files")
    found = store.read("fashion_mnist")
    assert found.targets.tolist() == [0, 1, 2] and found.inputs.shape == (3, 1, 28, 28)
    assert found.inputs.ravel().tolist() == [k % 10 for k in range(3 * 28 * 28)]


def test_an_archive_of_known_bytes_is_taken_without_a_known_content(tmp_path, monkeypatch):
    write_fashion(tmp_path / "files", monkeypatch)
    source = catalogue.SOURCES["fashion_mnist"]
    bare = tuple(dataclasses.replace(file, content=None) for file in source.files)
    monkeypatch.setitem(catalogue.SOURCES, "fashion_mnist", dataclasses.replace(source, files=bare, also=()))
    fetch.add("fashion_mnist", tmp_path / "files")
    assert store.names() == ["fashion_mnist"]


@pytest.mark.parametrize("name", ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3"])
def test_add_refuses_altered_content(tmp_path, monkeypatch, name):
    write_fashion(tmp_path / "files", monkeypatch, level=1)
    archive = tmp_path / "files" / f"{name}-ubyte.gz"
    content = bytearray(gzip.decompress(archive.read_bytes()))
    official = md5(content)
    content[-1] ^= 1
    archive.write_bytes(gzip.compress(content))
    with pytest.raises(InputError) as told:
        fetch.add("fashion_mnist", tmp_path / "files")
    wanted = [f"{archive} has md5:", f"content {md5(content)}, which is not the official {archive.name}"]
    wanted += [f"content {official})", "it is damaged, cut short or something else", "evenfed data fetch fashion_mnist"]
    for words in wanted:
        assert words in str(told.value)
    assert store.names() == []


def test_every_gzip_file_of_the_catalogue_has_a_known_content():
    for source in catalogue.SOURCES.values():
        for file in (*source.files, *source.also):
            plain_gzip = file.name.endswith(".gz") and not file.name.endswith(".tar.gz")
            assert (file.content is not None) == plain_gzip, file.name


@pytest.mark.parametrize(("name", "told"), [("digits", "always there"), ("cifar10", "does not exist")])
def test_add_of_nothing(tmp_path, name, told):
    with pytest.raises(InputError, match=told):
        fetch.add(name, tmp_path / "nothing")


def header(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


EVIL = {
    "upwards": ("cifar-10-batches-bin/../../../escaped", b"x"),
    "absolute": ("/tmp/evenfed-escaped", b"x"),
    "symbolic link": header("cifar-10-batches-bin/link", tarfile.SYMTYPE, "../../.."),
    "inner link": header("cifar-10-batches-bin/data_batch_6.bin", tarfile.SYMTYPE, "data_batch_1.bin"),
    "hard link": header("cifar-10-batches-bin/hard", tarfile.LNKTYPE, "/etc/passwd"),
    "device": header("cifar-10-batches-bin/null", tarfile.CHRTYPE),
    "pipe": header("cifar-10-batches-bin/pipe", tarfile.FIFOTYPE),
    "windows": ("C:\\escaped", b"x"),
}


@pytest.mark.parametrize("member", EVIL.values(), ids=EVIL)
def test_an_archive_that_reaches_outside_is_refused(site, cache, tmp_path, monkeypatch, member):
    """Even one with the right hash, as a publisher who was broken into would offer it."""
    site.content = tar_gz(*batches(), member)
    official(monkeypatch, site.content)
    with pytest.raises(InputError, match=r"refused to unpack .*(leads outside|link or a device)"):
        fetch.fetch("cifar10")
    assert store.names() == [] and [p.name for p in cache.iterdir()] == ["downloads"]
    assert not list(tmp_path.rglob("*escaped*")) and not os.path.exists("/tmp/evenfed-escaped")


def test_a_damaged_archive_with_no_known_hash(tmp_path):
    (tmp_path / "posts.tar.gz").write_bytes(GOOD[:50_000])
    with pytest.raises(InputError, match="not a whole tar archive"):
        fetch.add("stackexchange", tmp_path / "posts.tar.gz")
