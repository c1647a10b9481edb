"""Readers of the image sets in their official layouts: idx files, CIFAR's binary and pickled batches, CINIC's PNGs."""

import codecs
import gzip
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from . import store

Images = NDArray[np.uint8]  # [n, channels, height, width]
Batch = tuple[Images, NDArray[np.int64]]
CINIC_PARTS = ("train", "valid", "test")
CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHUNK = 5_000  # images in memory at once


def convert_mnist(source: Path, destination: Path) -> None:
    """The four idx files of MNIST, gzipped or not; those of the test part may be missing."""
    _convert_idx("mnist", source, destination)


def convert_fashion_mnist(source: Path, destination: Path) -> None:
    """The four idx files of Fashion-MNIST, which has MNIST's layout."""
    _convert_idx("fashion_mnist", source, destination)


def convert_cifar10(source: Path, destination: Path) -> None:
    """CIFAR-10's five training batches, binary or pickled, and the test batch if it is there."""
    layouts = [
        ("data_batch_{}.bin", "test_batch.bin", lambda path: _binary(path, label_bytes=1)),
        ("data_batch_{}", "test_batch", lambda path: _pickled(path, "labels")),
    ]
    for train, test, read in layouts:
        batches = [_find(source, train.format(i)) for i in range(1, 6)]
        present = [path for path in batches if path]
        if len(present) == len(batches):
            return _write_cifar("cifar10", 10, present, _find(source, test), read, destination)
        if present:
            raise InputError(
                f"{source}: {len(present)} of CIFAR-10's five training batches ({train.format('1..5')}); "
                "all five are needed: unpack the archive again"
            )
    raise InputError(
        f"{source}: no CIFAR-10 here; give cifar-10-binary.tar.gz, cifar-10-python.tar.gz or the folder one of them "
        "unpacks to, with data_batch_1 to data_batch_5"
    )


def convert_cifar100(source: Path, destination: Path) -> None:
    """CIFAR-100's training file, binary or pickled, with the fine labels, and the test file if it is there."""
    layouts = [
        ("train.bin", "test.bin", lambda path: _binary(path, label_bytes=2)),
        ("train", "test", lambda path: _pickled(path, "fine_labels")),
    ]
    for train, test, read in layouts:
        if path := _find(source, train):
            return _write_cifar("cifar100", 100, [path], _find(source, test), read, destination)
    raise InputError(
        f"{source}: no CIFAR-100 here; give cifar-100-binary.tar.gz, cifar-100-python.tar.gz or the folder one of "
        "them unpacks to, with train.bin or train"
    )


def convert_cinic10(source: Path, destination: Path) -> None:
    """CINIC-10's PNGs, pooled in the order train, valid, test; images that are not RGB are skipped and counted."""
    files = _cinic_files(source)
    targets: list[int] = []
    notes: list[str] = []
    store.write(
        destination, name="cinic10", inputs=_rgb_chunks(files, targets, notes), targets=targets, classes=10, notes=notes
    )


def plain_pickle(path: Path) -> Any:
    """Unpickle containers, numbers, strings and NumPy arrays; a file that asks for anything else is refused."""
    with path.open("rb") as file:
        try:
            return _PlainUnpickler(file, encoding="bytes").load()
        except InputError:
            raise
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise InputError(
                f"{path}: not a pickle of plain arrays ({error}); an official CIFAR batch is one: unpack the official "
                "archive again"
            ) from error


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, which could be asked for any codec."""
    if encoding != "latin1":
        raise ValueError(f"codec {encoding!r}")
    return codecs.latin_1_encode(text)[0]


class _PlainUnpickler(pickle.Unpickler):
    """A pickle can name any function to call; this one knows just those that build NumPy arrays and bytes."""

    _RECONSTRUCT: Any = np.empty(0).__reduce__()[0]  # public name differs between NumPy 1 and 2
    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self.ALLOWED:
            raise InputError(
                f"refused to unpickle {module}.{name}: a batch of CIFAR holds plain containers and NumPy arrays only, "
                "and this file would run code; get the official archive"
            )
        return self.ALLOWED[module, name]


def _find(source: Path, name: str) -> Path | None:
    """A file of that name in the folder given or in one just below it, as archives unpack."""
    return next((path for path in [source / name, *sorted(source.glob(f"*/{name}"))] if path.is_file()), None)


def _convert_idx(name: str, source: Path, destination: Path) -> None:
    train = _idx_part(source, "train")
    if train is None:
        raise InputError(
            f"{source}: no train-images-idx3-ubyte and train-labels-idx1-ubyte (.gz or not) here; "
            f"give the folder that holds {name}'s four files"
        )
    test = _idx_part(source, "t10k")
    store.write(
        destination, name=name, inputs=train[0], targets=train[1], classes=10, splits={"test": test} if test else {}
    )


def _idx_part(source: Path, part: str) -> Batch | None:
    found = []
    for what, axes in (("images", 3), ("labels", 1)):
        name = f"{part}-{what}-idx{axes}-ubyte"
        path = _find(source, name) or _find(source, f"{name}.gz")
        if path is None:
            return None
        found.append(_idx(path, axes))
    return found[0][:, None], _in_range(found[1].astype(np.int64), 10, source)


def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type (8: bytes), the number of axes, their lengths, the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file ({error}); get the official one again") from error
    start = 4 + 4 * axes
    lengths = np.frombuffer(content[4:start], ">u4").astype(int)
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) != start + lengths.prod():
        raise InputError(f"{path}: not an idx file of bytes with {axes} axes, or cut short; get the official one again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(lengths)


def _write_cifar(
    name: str, classes: int, train: Sequence[Path], test: Path | None, read: Callable[[Path], Batch], destination: Path
) -> None:
    targets: list[int] = []

    def chunks() -> Iterator[Images]:
        for path in train:
            images, labels = read(path)
            targets.extend(_in_range(labels, classes, path).tolist())
            for start in range(0, len(images), CHUNK):
                yield images[start : start + CHUNK]

    splits = {}
    if test:
        images, labels = read(test)
        splits["test"] = (images, _in_range(labels, classes, test))
    store.write(destination, name=name, inputs=chunks(), targets=targets, classes=classes, splits=splits)


def _binary(path: Path, label_bytes: int) -> Batch:
    """Records of label byte(s), the last of them the class, and 3,072 pixels, channel first; mapped, not read."""
    record = label_bytes + 3072
    size = path.stat().st_size
    if size == 0 or size % record:
        raise InputError(
            f"{path}: {size:,} bytes, which is not a whole number of records of {record:,}; "
            "the file is cut short or not CIFAR's: unpack the archive again"
        )
    records = np.memmap(path, np.uint8, mode="r").reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


def _pickled(path: Path, labels: str) -> Batch:
    batch = plain_pickle(path)
    data, found = (
        (batch.get(key.encode(), batch.get(key)) for key in ("data", labels))
        if isinstance(batch, dict)
        else (None, None)
    )
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,) or found is None:
        raise InputError(
            f"{path}: a pickled CIFAR batch holds 'data' of [n, 3072] bytes and '{labels}'; this one does not: "
            "unpack the official archive again"
        )
    return data.reshape(-1, 3, 32, 32), np.asarray(found, dtype=np.int64)


def _in_range(labels: NDArray[np.int64], classes: int, path: Path) -> NDArray[np.int64]:
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise InputError(
            f"{path}: labels from {labels.min()} to {labels.max()}, allowed are 0 to {classes - 1}; "
            "the file is damaged or of another data set: get the official one again"
        )
    return labels


def _cinic_files(source: Path) -> list[tuple[Path, int]]:
    """Every PNG with its class, in the official order; each class folder must have as many as the others."""
    top = next((p for p in [source, *sorted(source.glob("*/"))] if (p / "train" / CINIC_CLASSES[0]).is_dir()), source)
    folders = [(top / part / name, label) for part in CINIC_PARTS for label, name in enumerate(CINIC_CLASSES)]
    files = [(sorted(folder.glob("*.png")), label) for folder, label in folders]
    counts = {len(found) for found, _ in files}
    if len(counts) != 1 or counts == {0}:
        few, _ = min(zip(folders, files, strict=True), key=lambda pair: len(pair[1][0]))
        raise InputError(
            f"{source}: {min(counts)} to {max(counts)} PNG files in a class folder, {min(counts)} in {few[0]}; "
            "CINIC-10 has equally many in each class of train, valid and test: give CINIC-10.tar.gz or unpack it again"
        )
    return [(path, label) for found, label in files for path in found]


def _rgb_chunks(files: Sequence[tuple[Path, int]], targets: list[int], notes: list[str]) -> Iterator[Images]:
    """The RGB images in chunks, their classes put into `targets` and what was skipped into `notes`."""
    skipped = 0
    for start in range(0, len(files), CHUNK):
        chunk = []
        for path, label in files[start : start + CHUNK]:
            image = _rgb(path)
            if image is None:
                skipped += 1
            else:
                chunk.append(image)
                targets.append(label)
        if chunk:
            yield np.stack(chunk)
    if skipped:
        notes.append(f"{skipped:,} of {len(files):,} images are not RGB and were skipped")


def _rgb(path: Path) -> Images | None:
    """[3, height, width] of an RGB image, None of any other."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            "reading PNG files needs the package Pillow, which is not installed: pip install 'evenfed[data]'"
        ) from error
    try:
        with Image.open(path) as image:
            return np.asarray(image).transpose(2, 0, 1) if image.mode == "RGB" else None
    except OSError as error:
        raise InputError(f"{path}: not a readable PNG ({error}); unpack the official archive again") from error
