"""A run on disk: a header that says where it came from, and one JSON line a round.

header.json      resolved configuration, versions, hardware, commit, how clients were visited, seconds
rounds.jsonl     losses, weights, accuracies of every client, round by round
model.safetensors   the trained model, once the run has ended

A whole comparison without its models fits into one file that can be committed: `pack` and `unpacked`.
"""

import dataclasses
import io
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import InputError
from ..core.server import Record
from ..settings import Settings
from .history import History

PACKED = "runs.tar.xz"
_PARTS, _CONFIG = {"config", "clients", "versions", "started"}, {"data", "train"}  # of a header
_DIGITS = 6  # significant ones of a packed number
_ENTIRE = ("accuracy", "unpadded")  # shares of examples: a rounded one would turn "the same as before" into a change


class RunFolder:
    """Where one run is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header_path, self.rounds_path = path / "header.json", path / "rounds.jsonl"

    def header(self) -> dict[str, Any] | None:
        """The header, or None where no run has begun; options that did not exist then had their defaults."""
        if not self.header_path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self.header_path.read_text())
            if missing := _PARTS - found.keys() | _CONFIG - found["config"].keys():
                raise KeyError(", ".join(sorted(missing)))
            found["config"]["train"] = {**Settings().describe(), **found["config"]["train"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.header_path} is not a run's header ({type(error).__name__}: {error}); remove the folder or "
                "choose another"
            ) from None
        return found

    @property
    def finished(self) -> bool:
        return bool((self.header() or {}).get("finished"))

    def write_header(self, header: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.header_path, json.dumps(header, indent=1) + "\n")

    def append(self, records: Iterable[Record]) -> None:
        with self.rounds_path.open("a") as lines:
            lines.writelines(json.dumps(to_json(record)) + "\n" for record in records)
            lines.flush()
            os.fsync(lines.fileno())

    def keep_before(self, index: int) -> None:
        """Drop the lines of rounds that will be run again, and a line that was cut off."""
        if self.rounds_path.exists():
            lines = self.rounds_path.read_text().splitlines(keepends=True)[:index]
            replace_text(self.rounds_path, "".join(lines))

    def rounded(self) -> str:
        """The rounds' lines with losses and weights cut to the digits that say something."""
        lines = [json.loads(line) for line in self.rounds_path.read_text().splitlines()]
        short = [{k: v if k in _ENTIRE else _rounded(v) for k, v in line.items()} for line in lines]
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in short)

    def refuse_other(self, config: Mapping[str, Any]) -> None:
        """A folder goes on with the configuration it was made with, or not at all."""
        header = self.header()
        if header and (found := differences(header["config"], config)):
            raise InputError(
                f"{self.path} was made with another configuration ({'; '.join(found)}); "
                "choose another --out, or give the same configuration to go on"
            )

    def take_over(self, other: "RunFolder", **told: Any) -> None:
        """Another folder's run, as it was made there; the header, which says that it is whole, comes last."""
        self.path.mkdir(parents=True, exist_ok=True)
        for file in other.path.iterdir():
            if file.is_file() and file != other.header_path:
                shutil.copyfile(file, self.path / file.name)
        self.write_header({**(other.header() or {}), **told})

    def history(self) -> History:
        """What the rounds add up to."""
        header = self.header()
        if header is None:
            raise InputError(f"{self.path} holds no run; give a folder that `evenfed compare` has written")
        records = [from_json(json.loads(line)) for line in self.rounds_path.read_text().splitlines()]
        sizes = np.asarray(header["clients"]["train"], dtype=np.float64)
        return History(records, sizes / sizes.sum(), header["config"]["train"]["last_rounds"])


def to_json(record: Record) -> dict[str, Any]:
    """Arrays as lists, NaN as null: every reader of JSON takes it."""
    plain = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return {name: _plain(value) for name, value in plain.items() if name != "scores" or value is not None}


def from_json(line: Mapping[str, Any]) -> Record:
    def array(values: Any) -> Any:
        return None if values is None else np.array([np.nan if v is None else v for v in values], dtype=np.float64)

    number: dict[str, Any] = {k: float("nan") if line[k] is None else line[k] for k in ("objective", "seconds")}
    arrays: dict[str, Any] = {k: array(line.get(k)) for k in ("losses", "weights", "accuracy", "unpadded")}
    rest: dict[str, Any] = {k: line[k] for k in ("index", "negative_weights", "skipped")}
    return Record(**arrays, **number, **rest, dropped=tuple(line["dropped"]), scores=line.get("scores"))


def without(config: Mapping[str, Any], *options: str) -> dict[str, Any]:
    """A run's configuration but for some of its options."""
    return {**config, "train": {k: v for k, v in config["train"].items() if k not in options}}


def repetitions(configs: Mapping[str, Mapping[str, Any]], usual: str) -> dict[str, str]:
    """Of labelled configurations those that are another one in another precision than the `usual`, and which."""
    plain = {label: without(config, "precision", "seed") for label, config in configs.items()}
    as_usual = [label for label, config in configs.items() if config["train"]["precision"] == usual]
    others = [label for label in configs if label not in as_usual]
    found = {label: [twin for twin in as_usual if plain[twin] == plain[label]] for label in others}
    return {label: twins[0] for label, twins in found.items() if twins}


def undamped(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Of labelled configurations with smoothed losses those that stand there without, too, and as which."""
    plain = {label: without(config, "smooth", "seed") for label, config in configs.items()}
    off = [label for label, config in configs.items() if config["train"].get("smooth") is None]
    return {on: label for on in configs if on not in off for label in off if plain[on] == plain[label]}


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two configurations have otherwise, in words."""

    def other(place: str, old: Any, new: Any) -> bool:
        counts = place == "train.participation"  # where 1 is one client, and 1.0 everyone
        return old != new or (counts and isinstance(old, int) != isinstance(new, int))

    return [
        f"{place}: {old!r} there, {new!r} here"
        for place, old, new in _differences(there, here)
        if other(place, old, new)
    ]


def _differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{place}.{key}" if place else key)
    else:
        yield place, old, list(new) if isinstance(new, tuple) else new


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(float(v)) for v in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return list(value) if isinstance(value, tuple) else value


def pack(folder: Path, target: Path) -> tuple[Path, list[Path]]:
    """The finished runs of a comparison as one file in `target`: headers entire, losses and weights to 6 digits.

    The same runs give the same bytes, and `tar xf` gives folders as `evenfed compare` writes them. Also says
    which runs are not finished, and so not in it.
    """
    if (folder / PACKED).exists():
        raise InputError(f"{folder} is packed already; give the comparison's folder that `evenfed compare` has written")
    begun = [RunFolder(path.parent) for path in sorted(folder.glob("*/seed-*/header.json"))]
    runs = [run for run in begun if run.finished]
    if not runs:
        raise InputError(
            f"{folder} holds no finished run; give a comparison's folder that `evenfed compare` has written, such as "
            "runs/demo"
        )
    _refuse_another(runs[0], target)
    beside = target / f"{PACKED}.new"
    try:
        target.mkdir(parents=True, exist_ok=True)
        with (
            lzma.open(beside, "wb", preset=9) as out,
            tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            for run in runs:
                _add(tar, run.header_path.relative_to(folder), run.header_path.read_text())
                _add(tar, run.rounds_path.relative_to(folder), run.rounded())
    except OSError as error:
        raise InputError(f"{folder} cannot be packed into {target} ({error}); give a folder to write to") from None
    return beside.replace(target / PACKED), [run.path for run in begun if run not in runs]


def _refuse_another(run: RunFolder, target: Path) -> None:
    """A packed file is replaced by more runs of the same task, not by another comparison."""
    if not (target / PACKED).exists():
        return
    with unpacked(target) as place:
        held = next((RunFolder(path.parent).header() for path in place.glob("*/seed-*/header.json")), None)
    there, here = ((header or {"config": {}})["config"] for header in (held, run.header()))
    found = [told for part in ("data", "model") for told in differences(there.get(part, {}), here.get(part, {}))]
    if held and found:
        raise InputError(
            f"{target} holds another comparison ({'; '.join(found)}); give another folder, or remove {target / PACKED}"
        )


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """The folder itself, or what its packed file holds, for as long as it is read."""
    packed = folder / PACKED
    if not packed.exists():
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        try:
            with tarfile.open(packed) as tar:
                tar.extractall(place, filter="data")
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise InputError(
                f"{packed} cannot be unpacked ({error}); pack its runs again with `evenfed pack`"
            ) from None
        yield Path(place)


def _add(tar: tarfile.TarFile, path: Path, text: str) -> None:
    content = text.encode()
    about = tarfile.TarInfo(path.as_posix())  # no time, no owner: the bytes depend on the content alone
    about.size = len(content)
    tar.addfile(about, io.BytesIO(content))


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def provenance() -> dict[str, Any]:
    """What a result came from, as far as this machine can tell."""
    from .. import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {
            "evenfed": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "gpu": gpu, "system": platform.platform()},
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def replace_text(path: Path, text: str) -> None:
    """Written whole and renamed into place: a reader or a crash never sees half a file."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """The commit of the source tree this package runs from; a copy without its history is told by EVENFED_COMMIT."""
    told, here = os.environ.get("EVENFED_COMMIT"), Path(__file__).resolve().parents[3]
    if told or not (here / ".git").exists():
        return told
    try:
        asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
