"""The tables of a report kept next to it, so that pages show them without reading the runs again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..comparison.storage.pack import PACKED
from ..core.files import replace_text
from ..core.tables import changed_fields
from .table import Cell, Column, Line, Table

NAME = "tables.json"
Source = Mapping[str, str | None]  # a folder's name, and a hash of its packed file


@dataclass(frozen=True)
class CachedReport:
    """What a report says, without the runs it was made from."""

    facts: Sequence[str]
    tables: Sequence[Table]
    sources: Sequence[Source] = ()

    def is_of(self, folders: Sequence[Path]) -> bool:
        """Whether it was made from just these folders; packed files must not have changed since."""
        return list(self.sources) == _sources(folders)

    def is_of_packed(self, folders: Sequence[Path]) -> bool:
        """The same, of packed files alone: folders of runs have no hash that a change would show in."""
        return self.is_of(folders) and all(source["sha256"] for source in self.sources)


def save(
    facts: Sequence[str],
    tables: Sequence[Table],
    folders: Sequence[Path],
    target: Path,
    name: str = NAME,
) -> Path:
    """Write them to a file in `target`; read again they are the same."""
    sources = json.dumps(_sources(folders))
    listed_facts = json.dumps(list(facts))
    described = []
    for table in tables:  # what a cell, column or line has by default is left out
        lines = []
        for line in table.lines:
            cells = [changed_fields(cell) for cell in line.cells]
            lines.append({**changed_fields(line), "cells": cells})
        description = {
            **changed_fields(table),
            "columns": [changed_fields(column) for column in table.columns],
            "lines": lines,
            "notes": list(table.notes),
        }
        described.append(json.dumps(description))
    one_per_line = ",\n".join(described)
    text = f'{{"sources": {sources},\n"facts": {listed_facts},\n"tables": [\n{one_per_line}\n]}}\n'
    path = target / name
    replace_text(path, text)
    return path


def load(target: Path, name: str = NAME) -> CachedReport | None:
    """What was kept there; None if there is nothing, or nothing that this version can read."""
    path = target / name
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        tables = []
        for description in content["tables"]:
            lines = []
            for line in description["lines"]:
                cells = [Cell(**cell) for cell in line["cells"]]
                lines.append(Line(**{**line, "cells": cells}))
            columns = [Column(**column) for column in description["columns"]]
            tables.append(Table(**{**description, "columns": columns, "lines": lines}))
        return CachedReport(content["facts"], tables, content["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sources(folders: Sequence[Path]) -> list[Source]:
    sources: list[Source] = []
    for folder in folders:
        packed = folder / PACKED
        digest = None
        if packed.exists():
            digest = hashlib.sha256(packed.read_bytes()).hexdigest()
        sources.append({"folder": folder.resolve().name, "sha256": digest})
    return sources
