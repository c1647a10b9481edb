"""rounds.jsonl: one line per round, each exactly once and in order; a digest tells whether they are those written."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DamageError
from ...core.files import plain_file
from ...core.server import Record
from . import record_json
from .columns_file import ColumnsFile, Place, end_of, places_in
from .schema import check_records

_ADVICE = "make the same comparison again to train that run anew"


@dataclass(frozen=True)
class RoundsFile:
    """The file of a run's rounds."""

    path: Path

    @property
    def columns(self) -> ColumnsFile:
        """What lines of very many clients refer to."""
        return ColumnsFile(self.path.with_name("columns.bin"))

    def texts(self) -> list[str]:
        """The lines with their ends; the last one may be unfinished."""
        try:
            return plain_file(self.path).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except UnicodeDecodeError:
            raise DamageError(f"{self.path} is damaged: it is no text; {_ADVICE}") from None

    def whole(self) -> list[str]:
        """The lines that a process which died has written to their ends."""
        return [text for text in self.texts() if text.endswith("\n")]

    def append(self, texts: Iterable[str]) -> None:
        """Add lines, on disk when this returns."""
        with self.path.open("a") as file:
            file.writelines(texts)
            file.flush()
            os.fsync(file.fileno())

    def kept(self, rounds: int, digests: Collection[str]) -> list[str]:
        """The lines of the first rounds. Raises if none of the `digests` is theirs, or if they are not all there.

        `digests`: empty where an older version kept none; then every round must be there once, in order.
        """
        texts = self.texts()[:rounds]
        if len(texts) < rounds:
            raise DamageError(f"{self.path} is damaged: it holds {len(texts)} of {rounds} rounds; {_ADVICE}")
        if digests and chained("", texts) in digests:
            self._check_columns(texts)
            return texts
        for line, text in enumerate(texts):
            self._check_round(line, _index(text))
        if digests:
            raise DamageError(f"{self.path} is damaged: its checksum is not that of what was written; {_ADVICE}")
        self._check_columns(texts)
        return texts

    def _check_columns(self, texts: Iterable[str]) -> None:
        for text in texts:
            for place in _places(text):
                self.columns.read(place)

    def end_of_columns(self, texts: Iterable[str]) -> int:
        """Where the columns of these lines end."""
        end = 0
        for text in texts:
            for place in _places(text):
                end = max(end, end_of(place))
        return end

    def written(self, records: Iterable[Record]) -> list[str]:
        """A line for each record; long columns are on disk when this returns, the lines not yet."""
        lines = []
        for record in records:
            text = json.dumps(record_json.to_json(record, self.columns))
            lines.append(text + "\n")
        return lines

    def all(self, rounds: int | None, digest: str | None) -> list[str]:
        """The lines of a run that has ended; `rounds`: how many there must be, if that is known."""
        number = len(self.texts())
        if rounds is not None and number > rounds:
            raise DamageError(f"{self.path} is damaged: it holds {number} rounds instead of {rounds}; {_ADVICE}")
        digests = [] if digest is None else [digest]
        return self.kept(rounds or number, digests)

    def records(self, texts: Sequence[str], first: int = 0) -> list[Record]:
        """What lines say, from line `first` on: every round once and in order, or they are refused."""
        records = []
        for line, text in enumerate(texts, start=first):
            try:
                record = record_json.from_json(json.loads(text), self.columns)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                raise DamageError(f"{self.path} is damaged: line {line + 1} cannot be read; {_ADVICE}") from None
            self._check_round(line, record.index)
            records.append(record)
        return records

    def check(self, records: Sequence[Record], clients: int, classes: int | None) -> None:
        """Refuse rounds that are not of so many clients and classes, where these are known."""
        try:
            check_records(records, clients, classes)
        except ValueError as error:
            raise DamageError(f"{self.path} is damaged: {error}; {_ADVICE}") from None

    def _check_round(self, line: int, index: int | None) -> None:
        """Refuse a line that is not of its round: rounds are missing, or two processes have written here."""
        if index != line:
            shown = "cannot be read" if index is None else f"is of round {index + 1}"
            raise DamageError(f"{self.path} is damaged: line {line + 1} {shown}; {_ADVICE}")


def _places(text: str) -> list[Place]:
    """Of the columns that a line refers to."""
    if '"sha256"' not in text:
        return []
    line = json.loads(text)
    return list(places_in(line))


def chained(digest: str, texts: Iterable[str]) -> str:
    """The digest of lines, given that of all lines before them."""
    for text in texts:
        linked = digest + text
        digest = hashlib.sha256(linked.encode()).hexdigest()
    return digest


def _index(text: str) -> int | None:
    try:
        return int(json.loads(text)["index"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
