"""What can be audited: a file, a folder, a data frame, rows, columns, or a result of Flower."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from . import flower, json_shapes, trackers
from .files import read_file
from .sheet import InputTable, Row
from .tags import one_row_per_client

IN_MEMORY = "table"  # the name of what no file holds
_CHUNK = 50_000


def sheet_of(source: Any) -> InputTable:
    """The table in a source, one row per client (and round, seed, algorithm)."""
    if isinstance(source, str | Path):
        return one_row_per_client(_of_path(Path(source)))
    if not isinstance(source, Mapping):
        exported = flower.sheet("Flower's result", source)
        if exported is not None:
            return exported
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return one_row_per_client(_of_frame(source))
    if hasattr(source, "to_pydict"):  # pyarrow
        source = source.to_pydict()
    if hasattr(source, "to_dicts"):  # polars
        source = source.to_dicts()
    if isinstance(source, Mapping | list | tuple) and len(source):
        content = dict(source) if isinstance(source, Mapping) else list(source)
        return one_row_per_client(json_shapes.sheet(IN_MEMORY, _plain(content)))
    raise InputError(
        f"audit({type(source).__name__}): give a pandas table, a list of rows, columns in a dict, the path of a table "
        "or a folder, or a result of Flower"
    )


def _of_path(path: Path) -> InputTable:
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; give a table (.csv, .json, .jsonl, .parquet) or a folder")
    if trackers.is_tensorboard(path):
        return trackers.tensorboard(path)
    if trackers.is_mlflow(path):
        return trackers.mlflow(path)
    if path.is_dir():
        raise InputError(
            f"{path} holds no results to read: no evenfed runs, no TensorBoard event files, no MLflow store (mlruns). "
            "Give a table: .csv, .json, .jsonl or .parquet"
        )
    return read_file(path)


def _of_frame(frame: Any) -> InputTable:
    """A pandas table; a named index is a column."""
    names = [name for name in frame.index.names if name is not None]
    if names:
        frame = frame.reset_index()
    columns = list(map(str, frame.columns))

    def rows() -> Iterator[Row]:
        for first in range(0, len(frame), _CHUNK):
            part = frame.iloc[first : first + _CHUNK]
            cells = []
            for k in range(len(columns)):
                column = part.iloc[:, k]
                cells.append(column.tolist())
            yield from zip(*cells, strict=True)

    return InputTable(IN_MEMORY, columns, rows)


def _plain(content: Any) -> Any:
    """Arrays as lists."""
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if hasattr(content, "tolist"):
        return content.tolist()
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_plain(value) for value in content]
    return content
