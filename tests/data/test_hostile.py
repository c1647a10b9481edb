"""Files that mean harm: they name other files, expand without end, or never answer."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile

import numpy as np
import pytest

from evenfed.clients.examples import _mapped
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.storage.folder import RunFolder
from evenfed.comparison.storage.pack import PACKED, unpacked
from evenfed.core.errors import InputError
from evenfed.core.files import plain_file
from evenfed.data import archive, fetch, hdf5, images
from evenfed.data.folder import read_folder
from evenfed.data.stackoverflow import read_stackexchange, read_stackoverflow
from evenfed.data.text import read_shakespeare

FREE = 1 << 20  # instead of 64 of these: bombs take time to make
ALL = hdf5.Choice(min_examples=0, max_examples=1000, first_users=9)
HUGE = 16 * FREE


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(archive, "FREE", FREE)


def external_storage(h5py, file, secret):
    user = file.create_group("examples/u")
    size = secret.stat().st_size
    user.create_dataset("tokens", shape=(1,), dtype=f"S{size}", external=[(str(secret), 0, size)])


def external_link(h5py, file, secret):
    file.create_group("examples/u")["tokens"] = h5py.ExternalLink(str(secret), "/x")


def external_group(h5py, file, secret):
    file["examples"] = h5py.ExternalLink(str(secret), "/x")


def soft_link(h5py, file, secret):
    file.create_dataset("x", data=np.array([b"a"]))
    file.create_group("examples/u")["tokens"] = h5py.SoftLink("/x")


def virtual(h5py, file, secret):
    layout = h5py.VirtualLayout(shape=(1,), dtype="S5")
    layout[:] = h5py.VirtualSource(str(secret), "x", shape=(1,), dtype="S5")
    file.create_group("examples/u").create_virtual_dataset("tokens", layout)


def never_written(h5py, file, secret):
    """No byte of it is stored: all of it is the fill value."""
    file.create_group("examples/u").create_dataset("tokens", shape=(100,), dtype="S9999999", chunks=(1,))


def numbers(h5py, file, secret):
    kind = h5py.vlen_dtype(np.int32)
    file.create_group("examples/u").create_dataset("tokens", shape=(1,), dtype=kind)


def no_group(h5py, file, secret):
    file["examples"] = 5


@pytest.mark.parametrize(
    ("fill", "told"),
    [
        (external_storage, "lies in other files"),
        (external_link, "link to elsewhere"),
        (external_group, "link to elsewhere"),
        (soft_link, "link to elsewhere"),
        (virtual, "lies in other files"),
        (never_written, "expands to"),
        (numbers, "expected is a list of byte strings"),
        (no_group, "cannot be read"),
    ],
)
def test_hdf5_that_leads_elsewhere_is_refused(tmp_path, fill, told):
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    secret.write_bytes(b"password")
    path = tmp_path / "stackoverflow_train.h5"
    with h5py.File(path, "w") as file:
        fill(h5py, file, secret)
    with pytest.raises(InputError, match=told):
        list(hdf5.messages(path, ALL))


@pytest.fixture
def two_sentences(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "stackoverflow_train.h5"
    with h5py.File(path, "w") as file:
        rows = np.array([b"the cat sat on the mat", b"and no dog was there ."], dtype=object)
        file.create_dataset("examples/u/tokens", data=rows, dtype=h5py.string_dtype())
    return path


def test_hdf5_that_keeps_the_library_busy_without_end_is_refused(two_sentences):
    """The rest of its heap has no size, so that the library looks for the heap's end without moving on."""
    content = two_sentences.read_bytes()
    rest = (4000).to_bytes(8, "little")
    assert content.count(rest) == 1
    two_sentences.write_bytes(content.replace(rest, bytes(8)))
    with pytest.raises(InputError, match=r"makes no progress with it.*get the file again"):
        list(hdf5.read(two_sentences, ALL, patience=1))


def test_a_crash_of_the_hdf5_library_is_told(two_sentences, monkeypatch):
    monkeypatch.setattr(hdf5, "_START", "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(InputError, match=r"ended by SIGSEGV.*get the file again"):
        read_stackoverflow(two_sentences)


def test_many_sentences_that_refer_to_one_are_bounded(two_sentences, monkeypatch):
    monkeypatch.setattr(archive, "FREE", 32)  # two references of 16 bytes
    monkeypatch.setattr(archive, "MOST", 0)
    with pytest.raises(InputError, match="expands to 44 or more"):
        list(hdf5.messages(two_sentences, ALL))


class Zeros(io.RawIOBase):
    """A file of zeros that nobody holds in memory."""

    def read(self, size=-1):
        return bytes(size)


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """A tar file of a few kilobytes that unpacks to far more."""
    path = tmp_path_factory.mktemp("bomb") / PACKED
    info = tarfile.TarInfo("a_gut.txt")
    info.size = HUGE
    with lzma.open(path, "wb", preset=0) as out, tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(info, Zeros())
    return path


def test_archives_that_expand_without_end_are_refused(tmp_path, bomb):
    assert bomb.stat().st_size < 100_000
    with pytest.raises(InputError, match="expands to"):
        fetch.add("shakespeare", bomb)
    with pytest.raises(InputError, match="expands to"), unpacked(bomb.parent):
        pass


def test_a_few_hundred_bytes_that_unpack_to_400_megabytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "FREE", 64 * FREE)  # as it is
    info = tarfile.TarInfo("a_gut.txt")
    info.size = 400_000_000
    zeros = bz2.compress(bytes(40_000_000))
    path = tmp_path / "plays.tar.bz2"
    path.write_bytes(bz2.compress(info.tobuf()) + 10 * zeros)
    assert path.stat().st_size < 1000
    with pytest.raises(InputError, match="expands to"):
        fetch.add("shakespeare", path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < 100_000  # nothing of it is left


def test_an_archives_own_notes_may_not_be_huge_either(tmp_path):
    """A tar file's extended header is read into memory at once."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type = tarfile.XHDTYPE
    info.size = HUGE
    path = tmp_path / "posts.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(info.tobuf())
        for _ in range(HUGE >> 20):
            out.write(bytes(1 << 20))
    with pytest.raises(InputError, match="expands to"):
        fetch.add("shakespeare", path)


def test_compressed_files_that_expand_without_end_are_refused(tmp_path):
    zeros = gzip.compress(bytes(1 << 20), 1)
    idx = gzip.compress(bytes([0, 0, 8, 3]) + np.array([HUGE, 1, 1], ">u4").tobytes())
    mnist = tmp_path / "train-images-idx3-ubyte.gz"
    mnist.write_bytes(idx + zeros * (FREE >> 16))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"")
    with pytest.raises(InputError, match="expands to"):
        images.convert_idx("mnist", tmp_path, tmp_path / "out")
    posts = tmp_path / "Posts.xml.xz"
    blanks = lzma.compress(b"<a>" + b" " * (1 << 22), preset=0)
    posts.write_bytes(blanks + lzma.compress(b" " * (1 << 22), preset=0) * (FREE >> 18))
    with pytest.raises(InputError, match="expands to"):
        read_stackexchange(posts)


def test_client_files_that_expand_without_end_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name in ("x.npy", "y.npy"):
            with out.open(name, "w") as file:
                for _ in range(HUGE >> 20):
                    file.write(bytes(1 << 20))
    with pytest.raises(InputError, match="expands to"):
        read_folder(tmp_path)
    path.unlink()
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    ones = pa.array(np.zeros(2_000_000, np.int8))
    pq.write_table(pa.table({"x": ones, "y": ones}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="expands to"):
        read_folder(tmp_path)


def pipe(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def test_pipes_and_devices_are_not_opened(tmp_path):
    """Each of these waited for ever."""
    for name in (
        "npz/a.npz",
        "parquet/a.parquet",
        "plays/a_gut.txt",
        "mapped/x.npy",
        "run/header.json",
        "packed/" + PACKED,
    ):
        pipe(tmp_path / name)
    readers = {
        "npz": read_folder,
        "parquet": read_folder,
        "plays": read_shakespeare,
        "mapped": lambda folder: _mapped(folder, "train"),
        "run": lambda folder: RunFolder(folder).header(),
        "packed": lambda folder: unpacked(folder).__enter__(),
        f"packed/{PACKED}": lambda path: fetch.add("shakespeare", path),
    }
    for name, read in readers.items():
        with pytest.raises(InputError, match="is a named pipe, which is not opened"):
            read(tmp_path / name)
    (tmp_path / "a.toml").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is a device, which is not opened"):
        Experiment.read(tmp_path / "a.toml")
    assert plain_file(tmp_path / "run/header.json", or_pipe=True)  # compare <(command)
    assert plain_file(tmp_path / "nothing")
