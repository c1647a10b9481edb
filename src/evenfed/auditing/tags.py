"""Names that hold a client, a metric, an algorithm and a seed: `client_3/accuracy`, `fedavg/seed-0/site-1/val_acc`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .column_roles import is_metric, is_scope
from .sheet import InputTable, Row

_KINDS = "client|cid|node|partition|site|user|device|hospital|silo|party|worker|participant|institution"
_NUMBERED = re.compile(rf"(?<![A-Za-z])((?:{_KINDS})s?(?:[_-]?id)?[\s_./:#=-]*[A-Za-z]{{0,3}}\d[A-Za-z0-9]*)", re.I)
_IN_PATH = re.compile(rf"(?<![^/])((?:{_KINDS})s?/[^/]+)", re.I)
_BARE = re.compile(rf"^(?:{_KINDS})s?(?:[_-]?id)?[\s_./:#=-]*", re.I)
_SEED = re.compile(r"(?<![A-Za-z])seed[\s_./:#=-]*(\d+)", re.I)
_EDGES = " _./|:-#="


@dataclass(frozen=True)
class Tag:
    """What a name says."""

    client: str
    metric: str  # empty if it names none
    algorithm: str = ""
    seed: str = ""

    @classmethod
    def of(cls, name: str) -> "Tag | None":
        """None if the name holds no client.

        >>> Tag.of("client_3/accuracy"), Tag.of("test_acc_client_12").client
        (Tag(client='client_3', metric='accuracy', algorithm='', seed=''), 'client_12')
        >>> Tag.of("fedavg/seed-1/site-2/val_loss")
        Tag(client='site-2', metric='val_loss', algorithm='fedavg', seed='1')
        >>> Tag.of("client_accuracy"), Tag.of("accuracy")
        (None, None)
        """
        seed = ""
        seeds = _SEED.search(name)
        if seeds is not None:
            seed = seeds[1]
            name = name.replace(seeds[0], "")
        match = _NUMBERED.search(name)
        if match is None:
            match = _IN_PATH.search(name)
        if match is None or is_metric(_BARE.sub("", match[1])):
            return None
        client = match[1].strip(_EDGES)
        before = name[: match.start()]
        behind = name[match.end() :]
        metrics = []
        rest = []
        for part in f"{before}/{behind}".split("/"):
            word = part.strip(_EDGES)
            if is_metric(word) or is_scope(word):
                metrics.append(word)
            elif word:
                rest.append(word)
        metric = "/".join(metrics)
        algorithm = "/".join(rest)
        return cls(client, metric, algorithm, seed)


def one_row_per_client(sheet: InputTable) -> InputTable:
    """A table with one column per client made long; the same table if its columns do not name clients."""
    places: dict[tuple[str, str], int] = {}  # client and metric -> column
    clients: dict[str, None] = {}
    metrics: dict[str, None] = {}
    rest = []
    for k, column in enumerate(sheet.columns):
        tag = Tag.of(column.removeprefix("metrics."))
        if tag is None:
            rest.append(k)
            continue
        metric = tag.metric or "score"
        places[tag.client, metric] = k
        clients[tag.client] = None
        metrics[metric] = None
    if len(clients) < 2:
        return sheet

    def rows() -> Iterator[Row]:
        for row in sheet.rows():
            kept = _cells(row, rest)
            for client in clients:
                columns = [places.get((client, metric)) for metric in metrics]
                yield [*kept, client, *_cells(row, columns)]

    names = _cells(sheet.columns, rest)
    listed = ", ".join(metrics)
    fact = f"One column per client: {len(clients)} clients, {listed}."
    return InputTable(
        sheet.name,
        [*names, "client", *metrics],
        rows,
        (*sheet.facts, fact),
    )


def _cells(row: Row, places: Sequence[int | None]) -> list[Any]:
    """The cells at these places; None where there is no such column."""
    cells = []
    for place in places:
        cell = None if place is None else row[place]
        cells.append(cell)
    return cells
