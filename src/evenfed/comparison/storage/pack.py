"""A comparison's finished runs, without their models, in one file that can be committed."""

import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.errors import InputError
from ...core.files import replacing
from ...data import archive
from ..analysis.configuration import differences
from . import record_json
from .client_table import inline
from .columns_file import places_in
from .folder import RunFolder
from .header import as_rows
from .rounds_file import chained

PACKED = "runs.tar.xz"
_DIGITS = 6  # significant digits of a packed number
# Shares of examples: rounding would turn "the same as before" into a change.
_EXACT = ("accuracy", "current", "unpadded", "unseen", "global_accuracy")


def holds_runs(folder: Path) -> bool:
    """Whether runs have begun in a comparison's folder, or lie there packed."""
    return bool(RunFolder.all_in(folder)) or (folder / PACKED).exists()


def pack(folder: Path, target: Path) -> tuple[Path, list[Path]]:
    """Pack the finished runs of a comparison into one file in `target`: headers exact, losses and weights to 6 digits.

    The same runs give the same bytes, and `tar xf` restores folders as `evenfed compare` writes them. Returns the
    file, and the folders of unfinished runs, which are not in it.
    """
    if (folder / PACKED).exists():
        raise InputError(f"{folder} is packed already; give the comparison's folder that `evenfed compare` has written")
    finished = []
    unfinished = []
    for run in RunFolder.all_in(folder):
        if run.finished:
            finished.append(run)
        else:
            unfinished.append(run.path)
    if not finished:
        raise InputError(
            f"{folder} holds no finished run; give a comparison's folder that `evenfed compare` has written, such as "
            "runs/demo"
        )
    _refuse_another(finished, folder, target)
    try:
        packed = _write(finished, folder, target)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{folder} cannot be packed into {target} ({reason}); give a folder to write to") from None
    return packed, unfinished


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """The folder itself or, if it holds a packed file, a temporary folder with the file's content."""
    packed = folder / PACKED
    if not packed.exists():
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        try:
            archive.unpack(packed, Path(place))
        except archive.DAMAGES as error:
            raise InputError(
                f"{packed} cannot be unpacked ({error}); remove it, and pack its runs again with `evenfed pack`"
            ) from None
        yield Path(place)


def _refuse_another(runs: Sequence[RunFolder], folder: Path, target: Path) -> None:
    """A packed file may be replaced by the same runs and more, on the same data and model; none may be lost."""
    if not (target / PACKED).exists():
        return
    with unpacked(target) as place:
        packed_runs = RunFolder.all_in(place)
        old = packed_runs[0].header() if packed_runs else None
        packed_names = [str(run.path.relative_to(place)) for run in packed_runs]
    new = runs[0].header()
    if old is None or new is None:
        return
    changes = []
    for part in ("data", "model"):
        stored = {part: old.config.get(part, {})}
        current = {part: new.config.get(part, {})}
        changes += differences(stored, current)
    if changes:
        raise InputError(
            f"{target} holds another comparison ({'; '.join(changes)}); give another folder, or remove "
            f"{target / PACKED}"
        )
    names = {str(run.path.relative_to(folder)) for run in runs}
    lost = [name for name in packed_names if name not in names]
    if lost:
        raise InputError(
            f"{target} holds runs that {folder} has not finished ({', '.join(lost)}); give another folder, or remove "
            f"{target / PACKED}"
        )


def _write(runs: list[RunFolder], folder: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    packed = target / PACKED
    with (
        replacing(packed) as unfinished,
        lzma.open(unfinished, "wb", preset=9) as out,
        tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for run in runs:
            run.history()  # raises if the run is damaged
            rounds = _shortened(run)
            header = _packed_header(run, rounds)
            _add(tar, run.header_path.relative_to(folder), header)
            _add(tar, run.rounds_path.relative_to(folder), rounds)
    return packed


def _add(tar: tarfile.TarFile, path: Path, text: str) -> None:
    content = text.encode()
    info = tarfile.TarInfo(path.as_posix())  # no time, no owner: the bytes depend on the content alone
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _packed_header(run: RunFolder, rounds: str) -> str:
    """The header's text with the digest of the packed lines in place of that of the run's, and all clients in it."""
    text = run.header_path.read_text()
    data = json.loads(text)
    if "lines_digest" not in data:
        return text
    data["lines_digest"] = chained("", rounds.splitlines(keepends=True))
    header = run.header()
    assert header is not None
    data["clients"] = inline(header.clients)
    if header.label_counts is not None:
        data["judged_classes"] = as_rows(header.label_counts)
    return json.dumps(data, indent=1) + "\n"


def _shortened(run: RunFolder) -> str:
    """The lines of rounds.jsonl with losses and weights rounded, and all columns in them."""
    short_lines = []
    for line in run.rounds_path.read_text().splitlines():
        record = json.loads(line)
        if any(places_in(record)):
            record = record_json.to_json(record_json.from_json(record, run.lines.columns))
        for key, value in record.items():
            if key not in _EXACT:
                record[key] = _rounded(value)
        short = json.dumps(record, separators=(",", ":"))
        short_lines.append(short + "\n")
    return "".join(short_lines)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict) and "values" in value:  # of some of many clients
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value
