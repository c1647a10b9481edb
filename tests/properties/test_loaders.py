"""Files of data, damaged or of another layout: read, or refused in words."""

import contextlib
import functools
import gzip
import io
import lzma
import os
import pickle
import tarfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from torch import nn

import evenfed
from evenfed.data import archive, hdf5, images, store
from evenfed.data.dataset import Dataset
from evenfed.data.fetch import CONVERTERS
from evenfed.data.folder import read_folder
from evenfed.data.stackoverflow import read_stackexchange, read_stackoverflow
from evenfed.data.text import read_shakespeare
from seeking import IS_USUAL, damage, folder, is_answered, odd_text, seek

ROWS = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
KINDS = ["<f4", "<f8", "<i8", "u1", "?", "<c8", "S3", "<U2", "<M8[s]", "<f2", ">f4", "O"]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def pickled(protocol: int, names: list[str]) -> bytes:
    batch = {b"labels": [1, 2], b"data": ROWS, b"fine_labels": [5, 99], b"coarse_labels": [0, 19]}
    return pickle.dumps({name.encode(): batch[name.encode()] for name in names}, protocol)


PICKLES = st.one_of(
    *(damage(pickled(protocol, ["labels", "data"])) for protocol in (0, 2, 4)),
    damage(pickled(2, ["fine_labels", "coarse_labels", "data"])),
    st.recursive(
        st.one_of(st.integers(), st.binary(max_size=4), odd_text, st.just(ROWS), st.none(), st.floats()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=3)),
        max_leaves=5,
    ).map(lambda tree: pickle.dumps(tree, 2)),
)


@seek(PICKLES, st.sampled_from(["cifar10", "cifar100"]))
def test_cifars_pickles(content, name):
    names = [f"data_batch_{k}" for k in range(1, 6)] if name == "cifar10" else ["train"]
    with folder() as source:
        for each in names:
            (source / each).write_bytes(content)
        convert = images.convert_cifar10 if name == "cifar10" else images.convert_cifar100
        assert is_answered(convert, source, source / "out")


RECORDS = np.concatenate([np.array([[3], [4]], np.uint8), ROWS], axis=1).tobytes()
IDX_IMAGES = bytes([0, 0, 8, 3]) + np.array([2, 28, 28], ">u4").tobytes() + ROWS.tobytes()[: 2 * 784]
IDX_LABELS = bytes([0, 0, 8, 1]) + np.array([2], ">u4").tobytes() + b"\x01\x02"


@seek(damage(RECORDS), damage(IDX_IMAGES), damage(IDX_LABELS), st.booleans())
def test_binary_images(records, grey, labels, zipped):
    with folder() as source:
        for k in range(1, 6):
            (source / f"data_batch_{k}.bin").write_bytes(records)
        assert is_answered(images.convert_cifar10, source, source / "cifar")
        ending = ".gz" if zipped else ""
        for name, content in (("images-idx3", grey), ("labels-idx1", labels)):
            content = gzip.compress(content, mtime=0) if zipped else content
            (source / f"train-{name}-ubyte{ending}").write_bytes(content)
        assert is_answered(CONVERTERS["mnist"], source, source / "mnist")


@functools.cache
def png() -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.fromarray(ROWS[0].reshape(32, 32, 3)).save(buffer, "PNG")
    return buffer.getvalue()


@seek(st.data())
def test_pictures(data):
    with folder() as source:
        path = source / "one.png"
        path.write_bytes(data.draw(damage(png())))
        assert is_answered(a_picture, path)


def a_picture(path: Path) -> None:
    picture = images._rgb(path)
    assert picture is None or (picture.shape, picture.dtype) == ((3, 32, 32), np.uint8)


@functools.cache
def stackoverflow_file() -> bytes:
    h5py = pytest.importorskip("h5py")
    with folder() as place:
        with h5py.File(place / "x.h5", "w") as file:
            for user in ("ann", "bob"):
                tokens = [b"the cat sat", b"on a mat ."]
                rows = np.array(tokens, dtype=object)
                file.create_dataset(f"examples/{user}/tokens", data=rows, dtype=h5py.string_dtype())
        return (place / "x.h5").read_bytes()


@seek(st.data())
def test_hdf5(data):
    with folder() as source:
        path = source / "stackoverflow_train.h5"
        path.write_bytes(data.draw(damage(stackoverflow_file())))
        if IS_USUAL:  # always the same cases, which do not hang: none needs a process of its own
            assert is_answered(lambda: list(hdf5.messages(path, hdf5.Choice(0, 9, 4))))
        else:
            assert is_answered(read_stackoverflow, source, min_examples=0, max_examples=9, first_users=4)


PLAY = "ACT I\n\nSCENE I. A room.\n\nHAMLET.\nTo be, or not to be: that is.\n\nKING.\nWhat? [Exit.]\n\nHAMLET.\nAy.\n"
POSTS = (
    '<?xml version="1.0" encoding="utf-8"?>\n<posts>\n'
    '<row Id="1" PostTypeId="1" OwnerUserId="7" Body="&lt;p&gt;How are you today?&lt;/p&gt;" />\n'
    '<row Id="2" PostTypeId="2" OwnerUserId="8" Body="&lt;p&gt;I am well.&lt;code&gt;x&lt;/code&gt;&lt;/p&gt;" />\n'
    "</posts>\n"
)


@seek(damage(PLAY.encode()), damage(POSTS.encode()), st.sampled_from(["words", "chars"]), st.booleans())
def test_text(play, posts, task, packed):
    with folder() as source:
        (source / "one_gut.txt").write_bytes(play)
        assert is_answered(read_shakespeare, source, task)
        name = "Posts.xml.xz" if packed else "Posts.xml"
        (source / name).write_bytes(lzma.compress(posts) if packed else posts)
        assert is_answered(read_stackexchange, source)


def an_array(kind: str, shape: tuple[int, ...], fill: int) -> np.ndarray:
    array = np.empty(shape, dtype=np.dtype(kind))
    array.fill(None if kind == "O" else fill)
    return array


arrays = st.builds(an_array, st.sampled_from(KINDS), shapes, st.integers(0, 3))


@functools.cache
def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones((2, 3), np.float32), y=np.array([0, 1]), x_test=np.ones((1, 3)), y_test=np.array([1]))
    return buffer.getvalue()


@functools.cache
def parquet() -> bytes:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [0.5, 0.1], "y": [0, 1]}), buffer)
    return buffer.getvalue()


@seek(st.data(), st.sampled_from(["npz", "parquet", "arrays"]))
def test_folders_of_clients(data, kind):
    with folder() as source:
        if kind == "npz":
            (source / "a.npz").write_bytes(data.draw(damage(npz())))
        elif kind == "parquet":
            (source / "a.parquet").write_bytes(data.draw(damage(parquet())))
        else:
            named = data.draw(st.dictionaries(st.sampled_from(["x", "y", "x_test", "y_test", "z"]), arrays, max_size=4))
            np.savez(source / "a.npz", **named)
        ending = ".parquet" if kind == "parquet" else ".npz"
        (source / f"b{ending}").write_bytes(parquet() if kind == "parquet" else npz())
        assert is_answered(read_folder, source)


@seek(st.data())
def test_arrays_of_one_client_on_disk(data):
    with folder() as source:
        for name in ("x.npy", "y.npy"):
            buffer = io.BytesIO()
            np.save(buffer, data.draw(arrays), allow_pickle=True)
            content = buffer.getvalue()
            (source / name).write_bytes(data.draw(damage(content)) if data.draw(st.booleans()) else content)
        assert is_answered(read_client, source)


def read_client(source: Path) -> None:
    client = evenfed.Client(source, test=source)
    evenfed.train(nn.Linear(3, 4), [client, client], rounds=1, batch_size=2, device="cpu", progress=False)


@functools.cache
def tar(kind: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{kind}") as file:
        member = tarfile.TarInfo("a/data_batch_1.bin")
        member.size = len(RECORDS)
        file.addfile(member, io.BytesIO(RECORDS))
    return buffer.getvalue()


@seek(st.data(), st.sampled_from(["", "gz", "xz", "bz2"]), odd_text)
def test_archives_and_the_store(data, kind, name):
    with folder() as source, mock.patch.dict(os.environ, {"EVENFED_DATA": str(source / "cache")}):
        path = source / "archive"
        path.write_bytes(data.draw(damage(tar(kind))))
        (source / "out").mkdir()
        if archive.is_tar(path):
            with contextlib.suppress(*archive.DAMAGES):  # which its caller tells
                assert is_answered(archive.unpack, path, source / "out")
        assert {each.name for each in source.iterdir()} <= {"archive", "out"}
        made = Dataset("mine", np.ones((2, 3), np.float32), np.array([0, 1]), classes=2)
        store.save(made, store.folder("mine"))
        for file in sorted((source / "cache" / "mine").iterdir()):
            if data.draw(st.booleans()):
                file.write_bytes(data.draw(damage(file.read_bytes())))
        assert is_answered(store.read, "mine")
        assert is_answered(store.damage, "mine")
        assert is_answered(store.read, name)
