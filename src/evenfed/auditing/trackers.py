"""Trackers' files: TensorBoard's event files and MLflow's stores, clients named in tags or in folders."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError, first_line
from ..core.files import plain_file
from .column_roles import ALGORITHM, SYNONYMS, normal
from .gather import ONLY
from .sheet import InputTable
from .tags import Tag

_EVENTS = "events.out.tfevents."
_DATABASES = (".db", ".sqlite", ".sqlite3")
_MOST_FILES = 100_000
_METRICS = "select key, value, step, run_uuid from metrics where not coalesce(is_nan, 0) order by timestamp"
_RUNS = "select run_uuid, name from runs where lifecycle_stage = 'active'"
_PARAMS = "select run_uuid, key, value from params"


_Key = tuple[str, str, str, int]  # algorithm, seed, client, step


@dataclass(frozen=True)
class _Scalar:
    """One number that a tracker has."""

    name: str  # of the metric, as logged
    step: int
    value: float
    algorithm: str = ""  # of the run, where that says it
    seed: str = ""


def is_tensorboard(path: Path) -> bool:
    """Whether a file or folder holds event files."""
    if path.is_file():
        return _EVENTS in path.name
    first = next(_event_files(path), None)
    return first is not None


def tensorboard(path: Path) -> InputTable:
    """Scalars of clients in event files."""
    files = [path] if path.is_file() else sorted(_event_files(path))
    return _sheet(
        path,
        scalars=_logged(path, files),
        fact=f"TensorBoard: {len(files)} event files.",
        advice="write scalars such as `client_3/accuracy`, or a folder per client",
    )


def _event_files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > _MOST_FILES:
                return
            if _EVENTS in name:
                file = Path(place) / name
                yield plain_file(file)


def _logged(root: Path, files: Sequence[Path]) -> Iterator[_Scalar]:
    """The scalars of all files, each below the folder that its file is in."""
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        raise InputError("event files need tensorboard; install it with: pip install 'evenfed[track]'") from None
    for file in files:
        folder = "."
        if file != root:
            folder = file.parent.relative_to(root).as_posix()
        try:
            for tag, step, value in _events(event_accumulator, file):
                name = tag if folder == "." else f"{folder}/{tag}"
                yield _Scalar(name, step, value)
        except Exception as error:
            kind = type(error).__name__
            reason = f"{kind}: {first_line(error)}"
            raise InputError(f"{file} is a broken event file ({reason}); remove it, or log again") from None


def _events(loader: Any, file: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of every scalar in a file, as torch writes them and as TensorFlow does."""
    kept = {
        loader.SCALARS: 0,  # all of them
        loader.TENSORS: 0,
        loader.HISTOGRAMS: 1,
        loader.IMAGES: 1,
        loader.AUDIO: 1,
    }
    events = loader.EventAccumulator(str(file), size_guidance=kept)
    events.Reload()
    tags = events.Tags()
    for tag in tags["scalars"]:
        for event in events.Scalars(tag):
            yield tag, int(event.step), float(event.value)
    for tag in tags["tensors"]:
        for event in events.Tensors(tag):
            numbers = event.tensor_proto.float_val
            if numbers:
                yield tag, int(event.step), float(numbers[0])


def is_mlflow(path: Path) -> bool:
    """Whether it is a database or a folder of MLflow's."""
    if path.is_dir():
        first = next(path.glob("*/*/metrics"), None)
        return first is not None
    return path.suffix in _DATABASES


def mlflow(path: Path) -> InputTable:
    """Metrics of clients in all runs of an MLflow store."""
    scalars = _of_database(path) if path.is_file() else _of_folder(path)
    return _sheet(
        path,
        scalars=scalars,
        fact="An MLflow store.",
        advice="log metrics such as client_3_accuracy",
    )


def _of_database(path: Path) -> Iterator[_Scalar]:
    address = plain_file(path).resolve().as_uri()
    try:
        with closing(sqlite3.connect(f"{address}?mode=ro", uri=True)) as store:
            params: dict[str, dict[str, str]] = {}
            for run, key, value in store.execute(_PARAMS):
                of_run = params.setdefault(run, {})
                of_run[key] = value
            names = dict(store.execute(_RUNS))
            for key, value, step, run in store.execute(_METRICS):
                if run not in names:  # deleted
                    continue
                name = names[run] or run
                own_params = params.get(run, {})
                algorithm, seed = _run(own_params, name)
                yield _Scalar(
                    name=str(key),
                    step=int(step),
                    value=float(value),
                    algorithm=algorithm,
                    seed=seed,
                )
    except sqlite3.Error as error:
        raise InputError(f"{path} is not an MLflow database, or is damaged ({error}); give another") from None


def _of_folder(path: Path) -> Iterator[_Scalar]:
    """A folder `mlruns`: experiment/run/metrics/NAME, a line `timestamp value step` per value."""
    for folder in sorted(path.glob("*/*/metrics")):
        run = folder.parent
        params = {}
        for file in sorted(run.glob("params/*")):
            params[file.name] = _text(file).strip()
        named = run / "tags" / "mlflow.runName"
        name = _text(named).strip() if named.exists() else run.name
        algorithm, seed = _run(params, name)
        for file in sorted(folder.rglob("*")):
            if file.is_dir():
                continue
            metric = file.relative_to(folder).as_posix()
            for step, value in _lines(file):
                yield _Scalar(
                    name=metric,
                    step=step,
                    value=value,
                    algorithm=algorithm,
                    seed=seed,
                )


def _lines(file: Path) -> Iterator[tuple[int, float]]:
    for line in _text(file).splitlines():
        parts = line.split()
        try:
            value = float(parts[1])
            step = int(parts[2]) if len(parts) > 2 else 0
        except (IndexError, ValueError):
            raise InputError(f"{file} is damaged: its lines must be `timestamp value step`; remove that run") from None
        yield step, value


def _text(file: Path) -> str:
    return plain_file(file).read_text(errors="replace")


def _run(params: Mapping[str, str], name: str) -> tuple[str, str]:
    """Algorithm and seed of a run, from its parameters; a run without them goes by its name."""
    values = {}
    for key, value in params.items():
        values[normal(key)] = value
    algorithm = name
    for synonym in reversed(SYNONYMS[ALGORITHM]):
        algorithm = values.get(synonym) or algorithm
    seed = values.get("seed") or values.get("random_seed") or ""
    return algorithm, seed


def _sheet(path: Path, scalars: Iterable[_Scalar], fact: str, advice: str) -> InputTable:
    rows: dict[_Key, dict[str, Any]] = {}
    names = set()
    for scalar in scalars:
        names.add(scalar.name)
        tag = Tag.of(scalar.name)
        if tag is None:
            continue
        algorithm = scalar.algorithm or tag.algorithm or ONLY
        seed = scalar.seed or tag.seed or "0"
        key = (algorithm, seed, tag.client, scalar.step)
        own = {"algorithm": algorithm, "seed": seed, "client": tag.client, "round": scalar.step}
        row = rows.setdefault(key, own)
        row[tag.metric or "score"] = scalar.value
    if not rows:
        some = sorted(names)[:10]
        known = ", ".join(some) or "none"
        raise InputError(f"{path}: no scalar belongs to a client (scalars: {known}); {advice}")
    records = list(rows.values())
    return InputTable.of_records(path.name, records, (fact,))
