"""Readers of image sets, each on small files in the exact official layout."""

import gzip
import pickle

import numpy as np
import pytest

from evenfed.core.errors import InputError
from evenfed.data import images, store
from evenfed.data.dataset import digits
from evenfed.data.images import CINIC_CLASSES, CINIC_PARTS
from evenfed.data.pickled import read_batch

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pixels(count):
    return RNG.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def idx(values):
    """The idx format: magic number with type and axes, big-endian lengths, bytes."""
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write_mnist(folder, zipped=True, parts=("train", "t10k")):
    folder.mkdir(parents=True)
    made = {}
    for count, part in enumerate(parts, start=3):
        grey, labels = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8)
        for name, values in (("images-idx3", grey), ("labels-idx1", labels)):
            content = gzip.compress(idx(values)) if zipped else idx(values)
            (folder / f"{part}-{name}-ubyte{'.gz' * zipped}").write_bytes(content)
        made[part] = grey
    return made


def write_cifar10(folder, pickled=False, test=True, protocol=2):
    """Five batches of two images each and a test batch of one, as the archive unpacks."""
    folder.mkdir(parents=True)
    made = pixels(11)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] * test
    for i, name in enumerate(names):
        rows = made[2 * i : 2 * i + 2]
        labels = [(2 * i + k) % 10 for k in range(len(rows))]
        if pickled:
            batch = {b"batch_label": name.encode(), b"labels": labels, b"data": rows.reshape(-1, 3072)}
            (folder / name).write_bytes(pickle.dumps({**batch, b"filenames": [b"a.png"] * len(rows)}, protocol))
        else:
            records = np.concatenate([np.array(labels, np.uint8)[:, None], rows.reshape(-1, 3072)], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("airplane\n")
    return made


def write_cifar100(folder, pickled=False, test=True):
    folder.mkdir(parents=True)
    made, fine, coarse = pixels(5), [99, 0, 42, 7, 8], [3, 19, 1, 2, 0]
    for name, part in (("train", slice(0, 3)), ("test", slice(3, 5)))[: 1 + test]:
        rows = made[part].reshape(-1, 3072)
        if pickled:
            batch = {b"fine_labels": fine[part], b"coarse_labels": coarse[part], b"data": rows}
            (folder / name).write_bytes(pickle.dumps(batch, 2))
        else:
            labels = np.array([coarse[part], fine[part]], np.uint8).T
            (folder / f"{name}.bin").write_bytes(np.concatenate([labels, rows], axis=1).tobytes())
    return made


def write_cinic(folder, each=2, grey=()):
    """Class folders of PNGs; those in `grey`, (part, class, number), are grayscale as some official ones are."""
    from PIL import Image

    made = []
    for part in CINIC_PARTS:
        for label, name in enumerate(CINIC_CLASSES):
            (folder / part / name).mkdir(parents=True)
            for k in range(each):
                image = pixels(1)[0].transpose(1, 2, 0)
                is_grey = (part, name, k) in grey
                Image.fromarray(image[..., 0] if is_grey else image).save(folder / part / name / f"n{k}.png")
                made += [] if is_grey else [(label, image.transpose(2, 0, 1))]
    return made


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_from_its_four_files(tmp_path, zipped):
    made = write_mnist(tmp_path / "raw", zipped)
    images.convert_idx("mnist", tmp_path / "raw", store.folder("mnist"))
    found = store.read("mnist")
    assert (found.classes, found.targets.tolist()) == (10, [0, 1, 2])
    np.testing.assert_array_equal(found.inputs, made["train"][:, None])


def test_fashion_mnist_without_its_test_part(tmp_path):
    write_mnist(tmp_path / "raw", parts=("train",))
    images.convert_idx("fashion_mnist", tmp_path, store.folder("fashion_mnist"))
    assert store.read("fashion_mnist").inputs.shape == (3, 1, 28, 28)


def test_idx_files_that_are_broken_are_told_apart(tmp_path):
    folder = tmp_path / "raw"
    write_mnist(folder)
    name = folder / "train-images-idx3-ubyte.gz"
    whole = name.read_bytes()
    for content, told in (
        (whole[:-30], "not a whole gzip file"),
        (b"<html>", "not a whole gzip file"),
        (gzip.compress(gzip.decompress(whole)[:-5]), "cut short"),
        (gzip.compress(b"\0\0"), "not an idx file"),
    ):
        name.write_bytes(content)
        with pytest.raises(InputError, match=told):
            images.convert_idx("mnist", folder, store.folder("mnist"))
    name.unlink()
    with pytest.raises(InputError, match="both files of mnist"):
        images.convert_idx("mnist", folder, store.folder("mnist"))
    assert store.names() == []


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("test", [True, False])
def test_cifar10_binary_and_pickled(tmp_path, pickled, test):
    made = write_cifar10(tmp_path / "cifar-10-batches", pickled, test)
    images.convert_cifar10(tmp_path, store.folder("cifar10"))  # the folder above, as an archive unpacks
    found = store.read("cifar10")
    np.testing.assert_array_equal(found.inputs, made[:10])
    assert found.targets.tolist() == list(range(10)) and found.classes == 10


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("test", [True, False])
def test_cifar100_has_the_fine_labels(tmp_path, pickled, test):
    made = write_cifar100(tmp_path / "cifar-100", pickled, test)
    images.convert_cifar100(tmp_path / "cifar-100", store.folder("cifar100"))
    found = store.read("cifar100")
    np.testing.assert_array_equal(found.inputs, made[:3])
    assert found.targets.tolist() == [99, 0, 42] and found.classes == 100


def test_cifar_files_that_are_not_whole_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10(folder)
    batch = folder / "data_batch_3.bin"
    whole = batch.read_bytes()
    for content, told in ((whole[:-1], "cut short"), (b"", "cut short"), (b"\xff" + whole[1:], "allowed are 0 to 9")):
        batch.write_bytes(content)
        with pytest.raises(InputError, match=told):
            images.convert_cifar10(folder, store.folder("cifar10"))
    batch.unlink()
    with pytest.raises(InputError, match="4 of CIFAR-10's five training batches"):
        images.convert_cifar10(folder, store.folder("cifar10"))
    with pytest.raises(InputError, match="no CIFAR-100 here"):
        images.convert_cifar100(folder, store.folder("cifar100"))
    with pytest.raises(InputError, match="no CIFAR-10 here"):
        images.convert_cifar10(tmp_path / "nowhere", store.folder("cifar10"))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_pickled_batches_of_every_protocol_are_read(tmp_path, protocol):
    made = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], b"name": b"\xe9", "text": "é"}
    made[b"columns"] = np.asfortranarray(made[b"data"])
    (tmp_path / "batch").write_bytes(pickle.dumps(made, protocol))
    found = read_batch(tmp_path / "batch")
    np.testing.assert_array_equal(found["data"], made[b"data"])
    np.testing.assert_array_equal(found["columns"], made[b"data"])
    assert found["labels"] == [1, 2] and found["name"] == b"\xe9" and found["text"] == "é"


def test_the_official_pickles_name_numpy_as_it_was_then(tmp_path):
    content = pickle.dumps({b"data": np.arange(3, dtype=np.uint8)}, 2).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core.multiarray" in content
    (tmp_path / "batch").write_bytes(content)
    assert read_batch(tmp_path / "batch")["data"].tolist() == [0, 1, 2]


def test_a_batch_as_python_2_wrote_it(tmp_path):
    """The opcodes of the official files: strings are bytes (U, T), and what comes twice is recalled (h)."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01bq\n\x87q\x0bRq\x0c(K\x01K\x01"
        b"M\x00\x0c\x86q\rcnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03U\x01|q\x12NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tq\x13b\x89T\x00\x0c\x00\x00" + bytes([200]) * 3072 + b"tq\x14b"
    )
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(b"\x80\x02}q\x01(U\x0bfine_labelsq\x02]q\x03K*aU\x04dataq\x04" + array + b"u.")
    images.convert_cifar100(folder, store.folder("cifar100"))
    found = store.read("cifar100")
    assert found.targets.tolist() == [42] and (found.inputs == 200).all()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, protocol):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder, pickled=True)
    trace = tmp_path / "was-here"
    (folder / "data_batch_4").write_bytes(pickle.dumps({b"data": Evil(trace)}, protocol))
    with pytest.raises(InputError, match=r"refused to unpickle \w+\.open"):
        images.convert_cifar10(folder, store.folder("cifar10"))
    assert not trace.exists() and store.names() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'zip'\ntR.",
        pickle.dumps([1, 2, 3]),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1]}, 2),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [1 << 70]}, 2),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [[1]]}, 2),
        pickle.dumps({b"data": "no array", b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.float64), b"labels": [1]}, 2),
    ],
)
def test_other_pickles_end_in_one_message(tmp_path, content):
    folder = tmp_path / "cifar-100-python"
    write_cifar100(folder, pickled=True)
    (folder / "train").write_bytes(content)
    with pytest.raises(InputError, match="official archive"):
        images.convert_cifar100(folder, store.folder("cifar100"))


def array_opcodes(dtype, content, shape=b"M\x00\x0c\x85"):
    start = b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    return b"cnumpy.core.multiarray\n_reconstruct\n" + start + shape + dtype + b"\x89" + content + b"tb"


BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
OBJECTS = BYTES.replace(b"U\x02u1", b"U\x02O8")


@pytest.mark.parametrize(
    "value",
    [
        array_opcodes(OBJECTS, b"U\x08AAAAAAAA", b"K\x01\x85"),  # an object at address 0x4141...: a crash
        array_opcodes(OBJECTS, b"]", b"K\x01\x85"),
        array_opcodes(BYTES.replace(b"|NNNJ", b"|U\x01xNNJ"), b"U\x01A", b"K\x01\x85"),  # a dtype with odd fields
        array_opcodes(
            BYTES.replace(b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f"), b"U\x01A", b"K\x02\x85"
        ),  # longer items
        array_opcodes(BYTES, b"U\x01A", b"J\xff\xff\xff\x7f\x85"),  # more than there is
        array_opcodes(BYTES, b"U\x01A", b"J\xff\xff\xff\xff\x85"),  # less than nothing
        b"cnumpy\nndarray\n(K\x01\x85U\x02O8K\x08tR",  # uninitialised memory
        b"cnumpy\nndarray\n\x81",
        b"]2a.",
        b"\x8d" + b"\xff" * 7 + b"\x0f",  # a text of 2^60 bytes
        b"\x8e" + b"\xff" * 7 + b"\x0f",
        b"0" * 9,
        b"}}s",
        b"h\xff",
        b"P1\n",
    ],
)
def test_pickles_that_reach_into_numpys_memory_are_refused(tmp_path, value):
    """With a general unpickler, however few names it knew, the first of these ended the process by a signal."""
    (tmp_path / "train").write_bytes(b"\x80\x02}(U\x04data" + value + b"U\x0bfine_labels](K\x01eu.")
    with pytest.raises(InputError, match="official archive"):
        images.convert_cifar100(tmp_path, store.folder("cifar100"))


def test_damaged_batches_are_refused_or_read(tmp_path):
    """Random bytes changed: a batch or our own message, nothing else."""
    made = {b"data": np.zeros((1, 30), np.uint8), b"fine_labels": [1], b"filenames": [b"a.png"]}
    contents = [pickle.dumps(made, protocol) for protocol in range(5)]
    damaged = tmp_path / "train"
    refused = 0
    for case in range(200):
        content = bytearray(contents[case % 5])
        for place in RNG.integers(0, len(content), 1 + case % 4):
            content[place] = RNG.integers(0, 256)
        damaged.write_bytes(content)
        try:
            read_batch(damaged)
        except InputError:
            refused += 1
    assert 50 < refused < 200


def test_cinic_is_pooled_in_order_and_says_what_it_skipped(tmp_path):
    made = write_cinic(tmp_path / "CINIC-10", grey=[("train", "bird", 1), ("test", "truck", 0)])
    images.convert_cinic10(tmp_path, store.folder("cinic10"))
    found = store.read("cinic10")
    assert found.targets.tolist() == [label for label, _ in made] and len(made) == 58
    np.testing.assert_array_equal(found.inputs, np.stack([image for _, image in made]))
    assert found.notes == ("2 of 60 images are not RGB and were skipped",)


def test_cinic_with_a_file_missing_or_broken_is_refused(tmp_path):
    write_cinic(tmp_path / "CINIC-10")
    victim = tmp_path / "CINIC-10/valid/frog/n1.png"
    victim.write_bytes(victim.read_bytes()[:60])
    with pytest.raises(InputError, match="not a readable PNG"):
        images.convert_cinic10(tmp_path, store.folder("cinic10"))
    victim.unlink()
    with pytest.raises(InputError, match=r"1 to 2 PNG files .*1 in .*valid.frog"):
        images.convert_cinic10(tmp_path, store.folder("cinic10"))
    with pytest.raises(InputError, match="0 to 0 PNG"):
        images.convert_cinic10(tmp_path / "nowhere", store.folder("cinic10"))


def test_digits_are_scikit_learns(monkeypatch):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    read = digits()
    assert np.array_equal(read.inputs[:, 0], (bunch.images / 16).astype(np.float32))
    assert np.array_equal(read.targets, bunch.target)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # a scikit-learn that keeps its file elsewhere
    assert np.array_equal(digits().inputs, read.inputs)
