"""Trackers' files: TensorBoard's event files and MLflow's stores, clients named in tags or in folders."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ..core.errors import InputError, first_line
from ..core.files import plain_file
from .roles import SYNONYMS, normal
from .sheet import Sheet
from .tags import Tag

_EVENTS = "events.out.tfevents."
_MOST_FILES = 100_000
Record = dict[str, Any]
_NAMED = "write scalars such as `client_3/accuracy`, or a folder per client"


def is_tensorboard(path: Path) -> bool:
    """Whether a file or folder holds event files."""
    if path.is_file():
        return _EVENTS in path.name
    return next(_event_files(path), None) is not None


def tensorboard(path: Path) -> Sheet:
    """Scalars of clients in event files."""
    loader = _loader()
    files = [path] if path.is_file() else list(_event_files(path))
    rows: dict[tuple[str, str, str, int], Record] = {}
    tags = set()
    for file in sorted(files):
        run = "" if path.is_file() else file.parent.relative_to(path).as_posix()
        for name, step, value in _scalars(loader, file):
            tags.add(name)
            tag = Tag.of(f"{run}/{name}" if run not in ("", ".") else name)
            if tag is None:
                continue
            row = rows.setdefault((tag.algorithm, tag.seed, tag.client, step), {})
            row[tag.metric or name] = value
    if not rows:
        known = ", ".join(sorted(tags)[:10]) or "none"
        raise InputError(f"{path}: no scalar is of a client (tags: {known}); {_NAMED}")
    return _sheet(path.name, rows, f"TensorBoard: {len(files)} event files.")


def _event_files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > _MOST_FILES:
                return
            if _EVENTS in name:
                yield plain_file(Path(place) / name)


def _loader() -> Any:
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        raise InputError("event files need tensorboard; install it with: pip install 'evenfed[track]'") from None
    return event_accumulator


def _scalars(loader: Any, file: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of every scalar in a file."""
    kept = {loader.SCALARS: 0, loader.TENSORS: 0, loader.HISTOGRAMS: 1, loader.IMAGES: 1, loader.AUDIO: 1}
    try:
        events = loader.EventAccumulator(str(file), size_guidance=kept)
        events.Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                yield tag, int(event.step), float(event.value)
        for tag in events.Tags()["tensors"]:
            for event in events.Tensors(tag):
                if event.tensor_proto.float_val:
                    yield tag, int(event.step), float(event.tensor_proto.float_val[0])
    except Exception as error:
        raise InputError(f"{file} is a broken event file ({type(error).__name__}: {first_line(error)})") from None


def is_mlflow(path: Path) -> bool:
    """Whether it is a database or a folder of MLflow's."""
    if path.is_dir():
        return next(path.glob("*/*/metrics"), None) is not None
    if path.suffix not in (".db", ".sqlite", ".sqlite3"):
        return False
    return plain_file(path).exists()


def mlflow(path: Path) -> Sheet:
    """Metrics of clients in all runs of an MLflow store."""
    rows: dict[tuple[str, str, str, int], Record] = {}
    names = set()
    entries = _of_database(path) if path.is_file() else _of_folder(path)
    for run, key, step, value in entries:
        names.add(key)
        tag = Tag.of(key)
        if tag is not None:
            algorithm, seed = run
            row = rows.setdefault((algorithm or tag.algorithm, seed or tag.seed, tag.client, step), {})
            row[tag.metric or "score"] = value
    if not rows:
        known = ", ".join(sorted(names)[:10]) or "none"
        raise InputError(f"{path}: no metric is of a client (metrics: {known}); log metrics such as client_3_accuracy")
    return _sheet(path.name, rows, "An MLflow store.")


_Entry = tuple[tuple[str, str], str, int, float]  # algorithm and seed of a run; metric, step, value


def _of_database(path: Path) -> Iterator[_Entry]:
    question = "select key, value, step, run_uuid from metrics where not coalesce(is_nan, 0) order by timestamp"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as store:
            params: dict[str, dict[str, str]] = {}
            for run, key, value in store.execute("select run_uuid, key, value from params"):
                params.setdefault(run, {})[key] = value
            runs = dict(store.execute("select run_uuid, name from runs where lifecycle_stage = 'active'"))
            for key, value, step, run in store.execute(question):
                if run in runs:
                    yield _named(params.get(run, {}), runs[run], run), str(key), int(step), float(value)
    except sqlite3.Error as error:
        raise InputError(f"{path} is no database of MLflow, or a broken one ({error})") from None


def _of_folder(path: Path) -> Iterator[_Entry]:
    """A folder `mlruns`: experiment/run/metrics/NAME, a line `timestamp value step` per value."""
    for folder in sorted(path.glob("*/*/metrics")):
        run = folder.parent
        params = {file.name: _text(file).strip() for file in sorted((run / "params").glob("*"))}
        name_file = run / "tags" / "mlflow.runName"
        name = _text(name_file).strip() if name_file.exists() else ""
        for file in sorted(folder.rglob("*")):
            if file.is_dir():
                continue
            for line in _text(file).splitlines():
                parts = line.split()
                if len(parts) < 2:
                    raise InputError(f"{file} is broken: lines `timestamp value step` are expected")
                step = int(parts[2]) if len(parts) > 2 else 0
                key = file.relative_to(folder).as_posix()
                yield _named(params, name, run.name), key, step, float(parts[1])


def _text(file: Path) -> str:
    return plain_file(file).read_text(errors="replace")


def _named(params: dict[str, str], name: str | None, run: str) -> tuple[str, str]:
    """Algorithm and seed of a run, from its parameters; a run without them is known by its name, or by its number."""
    by_name = {normal(key): value for key, value in params.items()}
    algorithm = _first(by_name, SYNONYMS["algorithm"])
    seed = _first(by_name, ["seed", "random_seed"])
    return algorithm or name or run, seed if algorithm else seed or ""


def _first(values: dict[str, str], names: Sequence[str]) -> str:
    for name in names:
        if values.get(name):
            return values[name]
    return ""


def _sheet(name: str, rows: dict[tuple[str, str, str, int], Record], fact: str) -> Sheet:
    """Columns that hold one value everywhere and say nothing are left out."""
    keys = list(rows)
    has_algorithms = len({algorithm for algorithm, _, _, _ in keys}) > 1
    has_seeds = len({seed for _, seed, _, _ in keys}) > 1
    records = []
    for (algorithm, seed, client, step), metrics in rows.items():
        record: Record = {"client": client, "round": step}
        if has_algorithms or algorithm:
            record["algorithm"] = algorithm or "results"
        if has_seeds or seed:
            record["seed"] = seed or "0"
        records.append({**record, **metrics})
    return Sheet.of_records(name, records, (fact,))
