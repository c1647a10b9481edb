"""The shapes that clients' results take in JSON: rows, columns, and objects inside objects."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.errors import InputError
from . import flower
from .column_roles import is_metric, normal
from .sheet import InputTable, Row
from .tags import Tag

_SHAPES = (
    'give a list of rows, [{"client": "a", "accuracy": 0.8}, ...]; columns, {"client": [...], "accuracy": [...]}; or '
    '{"a": {"accuracy": 0.8}, ...} by client'
)
_SCORE = "score"  # the name of a metric that has none
Record = dict[str, Any]
Records = Iterator[Record]
Objects = Mapping[str, Mapping[str, Any]]
Lists = Mapping[str, Sequence[Any]]


def sheet(name: str, content: Any) -> InputTable:
    """A table from a JSON file's content."""
    exported = flower.sheet(name, content)
    if exported is not None:
        return exported
    if content == [] or content == {}:
        raise InputError(f"{name} is empty; {_SHAPES}")
    if isinstance(content, list):
        return _of_rows(name, content)
    if isinstance(content, dict):
        return _of_object(name, content)
    kind = type(content).__name__
    raise InputError(f"{name} is a {kind}; {_SHAPES}")


def _of_rows(name: str, rows: Sequence[Any]) -> InputTable:
    if not _all_are(dict, rows):
        raise InputError(f"{name} is a list of things other than objects; {_SHAPES}")
    return InputTable.of_records(name, rows)


def _of_object(name: str, content: Mapping[str, Any]) -> InputTable:
    columns = content.get("columns")
    data = content.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        return _of_lists(name, columns, data)
    values = list(content.values())
    if _all_are(list, values):
        return _of_columns(name, content)
    if _all_are(dict, values):
        return _of_objects(name, content)
    if not all(map(_is_figure, values)):
        raise InputError(f"{name}: an object with mixed content; {_SHAPES}")
    records = []
    for client, figure in content.items():
        records.append({"client": client, _SCORE: figure})
    return InputTable.of_records(name, records)


def _of_lists(name: str, columns: Sequence[Any], data: Sequence[Any]) -> InputTable:
    """As pandas writes tables with orient="split"."""
    if not _all_are(list, data):
        raise InputError(f"{name}: `data` is not a list of rows; {_SHAPES}")
    names = list(map(str, columns))
    return InputTable(name, names, lambda: data)


def _of_columns(name: str, content: Lists) -> InputTable:
    """Columns, or lists of rows by algorithm."""
    cells: list[Any] = []
    lengths = set()
    for values in content.values():
        cells += values[:1]
        lengths.add(len(values))
    if cells and _all_are(dict, cells):
        named_rows = list(_rows_by_algorithm(content))
        return _of_rows(name, named_rows)
    if len(lengths) > 1:
        shortest = min(lengths)
        longest = max(lengths)
        raise InputError(
            f"{name}: columns of different lengths, from {shortest} to {longest}; give one value per row in each"
        )

    def rows() -> Iterator[Row]:
        return zip(*content.values(), strict=True)

    columns = list(content)
    return InputTable(name, columns, rows)


def _rows_by_algorithm(content: Lists) -> Iterator[Any]:
    for algorithm, rows in content.items():
        for row in rows:
            if isinstance(row, dict):
                yield {"algorithm": algorithm, **row}
            else:
                yield row


def _of_objects(name: str, content: Objects) -> InputTable:
    """By client, its metrics; by algorithm, its clients; by site, its models' metrics (NVFlare's cross-site table)."""
    keys: list[str] = []
    values: list[Any] = []
    for part in content.values():
        keys += part.keys()
        values += part.values()
    if not values:
        raise InputError(f"{name} holds no figures; {_SHAPES}")
    if _all_are(dict, values):
        records = list(_three_deep(content))
    elif not all(isinstance(value, str) or _is_figure(value) for value in values):
        raise InputError(f"{name}: objects with mixed content; {_SHAPES}")
    elif "client" in map(normal, content):
        index = list(dict.fromkeys(keys))
        return _of_pandas(name, content, index)
    elif any(map(is_metric, keys)):
        records = [{"client": client, **metrics} for client, metrics in content.items()]
    elif any(map(is_metric, content)):
        raise InputError(f"{name}: give metrics by client, {{'a': {{'accuracy': 0.8}}}}; {_SHAPES}")
    else:
        records = list(_by_algorithm(content))
    return InputTable.of_records(name, records)


def _three_deep(content: Objects) -> Records:
    """Two names above metrics: a client's and an algorithm's, in either order."""
    for outer, part in content.items():
        for middle, metrics in part.items():
            client = outer
            algorithm = middle
            if Tag.of(outer) is None and Tag.of(middle) is not None:
                client = middle
                algorithm = outer
            yield {
                "client": client,
                "algorithm": algorithm,
                **metrics,
            }


def _by_algorithm(content: Objects) -> Records:
    for algorithm, clients in content.items():
        for client, figure in clients.items():
            yield {
                "algorithm": algorithm,
                "client": client,
                _SCORE: figure,
            }


def _of_pandas(name: str, content: Objects, index: Sequence[str]) -> InputTable:
    """As pandas writes tables by default: by column, then by row."""
    columns = list(content)

    def rows() -> Iterator[Row]:
        for key in index:
            yield [content[column].get(key) for column in columns]

    return InputTable(name, columns, rows)


def _all_are(kind: type, values: Sequence[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _is_figure(value: Any) -> bool:
    return value is None or isinstance(value, int | float)
