"""Readers of the image sets in their official layouts: idx files, CIFAR's binary and pickled batches, CINIC's PNGs.

Only the training part of MNIST and CIFAR is read: each client's test examples are split from its own rows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from . import store
from .archive import DAMAGES, BoundedReader
from .pickled import read_batch

Images = NDArray[np.uint8]  # [n, channels, height, width]
Labels = NDArray[np.int64]
Batch = tuple[Images, Labels]
Labelled = tuple[Path, int]  # an image's file and class
CINIC_PARTS = ("train", "valid", "test")
CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHUNK = 5_000  # images in memory at once
PIXELS = 3 * 32 * 32  # bytes of one CIFAR image


@dataclass(frozen=True)
class _Cifar:
    """Where CIFAR-10 and CIFAR-100 differ in their layouts."""

    name: str
    classes: int
    label_bytes: int  # before each image of a binary file; the last of them is the class
    label_key: str  # of a pickled batch


CifarReader = Callable[[Path, _Cifar], Batch]

_CIFAR10 = _Cifar("cifar10", classes=10, label_bytes=1, label_key="labels")
_CIFAR100 = _Cifar("cifar100", classes=100, label_bytes=2, label_key="fine_labels")


def convert_idx(name: str, source: Path, destination: Path) -> None:
    """The training files of MNIST or of Fashion-MNIST in idx format, gzipped or not."""
    images = _find_idx(source, "train-images-idx3-ubyte")
    labels = _find_idx(source, "train-labels-idx1-ubyte")
    if images is None or labels is None:
        raise InputError(
            f"{source}: no train-images-idx3-ubyte and train-labels-idx1-ubyte (.gz or not) here; "
            f"give the folder that holds both files of {name}"
        )
    inputs = _read_idx(images, axes=3)[:, None]
    targets = _read_idx(labels, axes=1).astype(np.int64)
    _check_labels(targets, 10, source)
    store.write(destination, name=name, inputs=inputs, targets=targets, classes=10)


def convert_cifar10(source: Path, destination: Path) -> None:
    """CIFAR-10's five training batches, binary or pickled."""
    for ending, read in _CIFAR_LAYOUTS:
        batches = []
        for number in range(1, 6):
            path = _find(source, f"data_batch_{number}{ending}")
            if path:
                batches.append(path)
        if len(batches) == 5:
            _write_cifar(_CIFAR10, batches, read, destination)
            return
        if batches:
            raise InputError(
                f"{source}: {len(batches)} of CIFAR-10's five training batches (data_batch_1..5{ending}); "
                "all five are needed: unpack the archive again"
            )
    raise InputError(
        f"{source}: no CIFAR-10 here; give cifar-10-binary.tar.gz, cifar-10-python.tar.gz or the folder one of them "
        "unpacks to, with data_batch_1 to data_batch_5"
    )


def convert_cifar100(source: Path, destination: Path) -> None:
    """CIFAR-100's training file, binary or pickled, with the fine labels."""
    for ending, read in _CIFAR_LAYOUTS:
        path = _find(source, f"train{ending}")
        if path:
            _write_cifar(_CIFAR100, [path], read, destination)
            return
    raise InputError(
        f"{source}: no CIFAR-100 here; give cifar-100-binary.tar.gz, cifar-100-python.tar.gz or the folder one of "
        "them unpacks to, with train.bin or train"
    )


def convert_cinic10(source: Path, destination: Path) -> None:
    """CINIC-10's PNGs, pooled in the order train, valid, test; images that are not RGB are skipped and counted."""
    files = _cinic_files(source)
    targets: list[int] = []
    notes: list[str] = []
    images = _rgb_chunks(files, targets, notes)
    store.write(destination, name="cinic10", inputs=images, targets=targets, classes=10, notes=notes)


def _find(source: Path, name: str) -> Path | None:
    """A file of that name in the folder or in one just below it, as archives unpack."""
    below = sorted(source.glob(f"*/{name}"))
    for path in (source / name, *below):
        if path.is_file():
            return path
    return None


def _find_idx(source: Path, name: str) -> Path | None:
    return _find(source, name) or _find(source, f"{name}.gz")


def _read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type (8: bytes), the number of axes, their lengths, the values."""
    try:
        with BoundedReader(path) as stream:
            content = stream.read()
    except DAMAGES as error:
        raise InputError(f"{path}: not a whole gzip file ({error}); get the official one again") from error
    start = 4 + 4 * axes
    magic = bytes([0, 0, 8, axes])
    lengths = []
    for place in range(4, start, 4):
        digits = content[place : place + 4]
        lengths.append(int.from_bytes(digits, "big"))
    size = start + math.prod(lengths)
    is_idx = content.startswith(magic)
    if not is_idx or len(content) != size:
        raise InputError(f"{path}: not an idx file of bytes with {axes} axes, or cut short; get the official one again")
    values = np.frombuffer(content, np.uint8, offset=start)
    return values.reshape(lengths)


def _write_cifar(
    kind: _Cifar,
    batches: Sequence[Path],
    read: CifarReader,
    destination: Path,
) -> None:
    targets: list[int] = []

    def chunks() -> Iterator[Images]:
        for path in batches:
            images, labels = read(path, kind)
            _check_labels(labels, kind.classes, path)
            targets.extend(labels.tolist())
            for start in range(0, len(images), CHUNK):
                yield images[start : start + CHUNK]

    store.write(destination, name=kind.name, inputs=chunks(), targets=targets, classes=kind.classes)


def _read_binary(path: Path, kind: _Cifar) -> Batch:
    """Records of the label bytes and 3,072 pixels, channel first; mapped, not read."""
    record = kind.label_bytes + PIXELS
    size = path.stat().st_size
    if size == 0 or size % record:
        raise InputError(
            f"{path}: {size:,} bytes, which is not a whole number of records of {record:,}; "
            "the file is cut short or not CIFAR's: unpack the archive again"
        )
    content = np.memmap(path, np.uint8, mode="r")
    records = content.reshape(-1, record)
    labels = records[:, kind.label_bytes - 1]
    images = records[:, kind.label_bytes :]
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _read_pickled(path: Path, kind: _Cifar) -> Batch:
    batch = read_batch(path)
    images: Any = batch.get("data")
    labels: Any = batch.get(kind.label_key)
    is_array = isinstance(images, np.ndarray)
    are_images = is_array and images.shape[1:] == (PIXELS,)
    are_labels = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not are_images or not are_labels or len(images) != len(labels):
        raise InputError(
            f"{path}: a pickled CIFAR batch holds 'data' of [n, 3072] bytes and '{kind.label_key}', n whole numbers; "
            "this one does not: unpack the official archive again"
        )
    _check_labels(labels, kind.classes, path)  # before numpy, which takes 64 bits of each
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


_CIFAR_LAYOUTS = ((".bin", _read_binary), ("", _read_pickled))  # ending of the files' names, and their reader


def _check_labels(labels: Sequence[int] | Labels, classes: int, path: Path) -> None:
    lowest = min(labels, default=0)
    highest = max(labels, default=0)
    if lowest < 0 or highest >= classes:
        raise InputError(
            f"{path}: labels from {lowest} to {highest}, allowed are 0 to {classes - 1}; "
            "the file is damaged or of another data set: get the official one again"
        )


def _cinic_files(source: Path) -> list[Labelled]:
    """Every PNG with its class, in the official order; all class folders must have equally many."""
    top = source
    below = sorted(source.glob("*/"))
    for folder in (source, *below):
        if (folder / "train" / CINIC_CLASSES[0]).is_dir():
            top = folder
            break
    files = []
    counts = {}
    for part in CINIC_PARTS:
        for label, name in enumerate(CINIC_CLASSES):
            folder = top / part / name
            pngs = sorted(path for path in folder.glob("*.png") if path.is_file())
            counts[folder] = len(pngs)
            files += [(path, label) for path in pngs]
    smallest = min(counts, key=counts.__getitem__)
    fewest = counts[smallest]
    most = max(counts.values())
    if fewest != most or most == 0:
        raise InputError(
            f"{source}: {fewest} to {most} PNG files per class folder, {fewest} in {smallest}; "
            "CINIC-10 has equally many in each class of train, valid and test: give CINIC-10.tar.gz or unpack it again"
        )
    return files


def _rgb_chunks(files: list[Labelled], targets: list[int], notes: list[str]) -> Iterator[Images]:
    """The RGB images in chunks; appends their classes to `targets` and a count of the skipped ones to `notes`."""
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
        total = len(files)
        notes.append(f"{skipped:,} of {total:,} images are not RGB and were skipped")


def _rgb(path: Path) -> Images | None:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            "reading PNG files needs the package Pillow, which is not installed: pip install 'evenfed[data]'"
        ) from error
    try:
        with Image.open(path) as image:
            if image.mode != "RGB":
                return None
            return np.asarray(image).transpose(2, 0, 1)
    except OSError as error:
        raise InputError(f"{path}: not a readable PNG ({error}); unpack the official archive again") from error
