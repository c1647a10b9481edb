"""Tables from files: CSV, JSON, JSON lines and parquet, read row by row where the format allows it."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.errors import InputError, first_line
from ..core.files import plain_file
from . import json_shapes
from .sheet import InputTable, Row

MOST_JSON = 1 << 29  # bytes; JSON has to be read whole
_LONGEST = 1 << 20  # characters of a CSV file's cell
_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_KINDS = "CSV (.csv, .tsv), JSON (.json), JSON lines (.jsonl) or parquet (.parquet)"


def read_file(path: Path) -> InputTable:
    """The table in a file, by its ending."""
    if not path.exists():
        raise InputError(f"there is no file {path}; give a table of clients' results: {_KINDS}")
    plain_file(path)
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; give a table with one row per client")
    ending = path.suffix.lower()
    if ending in _READERS:
        return _READERS[ending](path)
    if ending in _COMPRESSED:
        raise InputError(f"{path} is compressed; unpack it first")
    raise InputError(f"{path}: files ending in '{path.suffix}' are not read; give {_KINDS}")


def _csv(path: Path) -> InputTable:
    """Comma, semicolon or tab between cells, as the first line has it."""
    headers = {delimiter: next(_lines(path, delimiter), []) for delimiter in ",\t;"}
    delimiter = max(headers, key=lambda each: len(headers[each]))
    columns = []
    for k, name in enumerate(headers[delimiter], start=1):
        columns.append(name.strip() or f"column {k}")  # pandas writes its index without a name

    def rows() -> Iterator[Row]:
        content = _lines(path, delimiter)
        next(content, None)
        for row in content:
            if row:
                yield _with_points(row) if delimiter == ";" else row

    return InputTable(path.name, columns, rows)


def _with_points(row: list[str]) -> list[str]:
    """Numbers with a decimal comma, as spreadsheets write them where semicolons part cells, with a point."""
    cells = []
    for cell in row:
        if _DECIMAL_COMMA.fullmatch(cell):
            cell = cell.replace(",", ".")
        cells.append(cell)
    return cells


def _lines(path: Path, delimiter: str) -> Iterator[list[str]]:
    before = csv.field_size_limit(_LONGEST)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.reader(file, delimiter=delimiter, strict=True)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path} is broken CSV ({error}); write it again, one row per client") from None
    finally:
        csv.field_size_limit(before)


def _json(path: Path) -> InputTable:
    size = path.stat().st_size
    if size > MOST_JSON:
        raise InputError(
            f"{path} has {size / 1e6:,.0f} MB, and JSON has to be read whole; write JSON lines (.jsonl), CSV or parquet"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it again") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply for a table; give a list of rows") from None
    except ValueError as error:
        if _is_json_lines(path):
            return _json_lines(path)
        raise InputError(f"{path} is broken JSON ({first_line(error)}); is the file cut off? Write it again") from None
    return json_shapes.sheet(path.name, content)


def _is_json_lines(path: Path) -> bool:
    with path.open(encoding="utf-8-sig") as file:
        lines = [file.readline(), file.readline()]
    try:
        return all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _json_lines(path: Path) -> InputTable:
    columns: dict[str, None] = {}
    for record in _records(path):
        columns.update(dict.fromkeys(record))
    names = list(columns)

    def rows() -> Iterator[Row]:
        for record in _records(path):
            yield [record.get(name) for name in names]

    return InputTable(path.name, names, rows)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _record(path, number, line)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it again") from None


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}: broken JSON ({first_line(error)}); is the file cut off?") from None
    if not isinstance(record, dict):
        raise InputError(f"{path}, line {number}: give an object with one value per column")
    return record


def _parquet(path: Path) -> InputTable:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError("parquet needs pyarrow; install it with: pip install 'evenfed[data]'") from None
    try:
        names = list(ParquetFile(path).schema_arrow.names)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} is not a parquet file, or is damaged ({first_line(error)}); write it again") from None

    def rows() -> Iterator[Row]:
        try:
            for batch in ParquetFile(path).iter_batches(batch_size=20_000):
                columns = [column.to_pylist() for column in batch.columns]
                yield from zip(*columns, strict=True)
        except (ArrowException, OSError) as error:
            raise InputError(f"{path} is a broken parquet file ({first_line(error)}); write it again") from None

    return InputTable(path.name, names, rows)


_READERS: dict[str, Callable[[Path], InputTable]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".pq": _parquet,
}
