"""A report's files: tables and figures in a folder, the same from Python and the command line."""

from dataclasses import dataclass
from pathlib import Path

from . import write
from .document import Report
from .figures import report as figures


@dataclass(frozen=True)
class Written:
    """What was written where."""

    folder: Path
    tables: list[Path]
    drawn: list[Path]  # each figure in several formats; empty without the package that draws

    @property
    def paths(self) -> list[Path]:
        return [*self.tables, *self.drawn]


def write_report(document: Report, target: Path) -> Written:
    """report.md, tables.csv, tables.tex and the figures."""
    write.prepare(target)
    drawn = figures.draw(document, target)
    tables = write.save(document, target, drawn)
    return Written(target, tables, drawn)
