"""Tables inside one's own Markdown: the text between two comments is replaced by what the results say.

    <!-- evenfed cifar10 overview-late -->
    <!-- /evenfed -->

The words are folders of comparisons, relative to the file, followed by one of these:

* the name of a table of their report, as in tables.csv and the JSON format;
* `facts` for what was run;
* a figure of their report, such as `differences.svg`.

Folders that do not exist are named; the others are shown. Options come before the table's name:

* `min_test=50` leaves out clients judged on fewer examples;
* `last_rounds=60` averages over so many rounds;
* `columns=mean,worst10` shows these columns alone, of the entries and the noise floor, without notes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..comparison.choose import Choice, choose
from ..comparison.federations import expanded
from ..comparison.reading import read
from ..comparison.runs import FLOOR_NAMES
from ..core.errors import InputError, unknown
from . import choice
from .document import Report
from .table import Table
from .write import markdown_table

_OPENING = re.compile(r"^<!-- evenfed .*", re.MULTILINE)
_BLOCK = re.compile(
    r"(?P<opening><!-- evenfed (?P<words>[^>]+?) -->\n)((?!<!-- evenfed ).)*?(?P<closing><!-- /evenfed -->)", re.DOTALL
)
_OPTION = re.compile(r"(?P<key>min_test|last_rounds|columns)=(?P<value>[\w,]+)")
_TABLES_OF_THE_PAPER = ("paper", "claims")
_TABLES_OF_A_CHOICE = ("chosen", "candidates", "grid")
_FIGURE_ENDINGS = (".svg", ".png")
_DRAWN_BY = {
    "differences": "report",
    "mean-and-worst10": "report",
    "worst20": "report",
    "dials": "choose",
}

# Report.of with a memory: many blocks show tables of the same folders
Folders = tuple[Path, ...]
Reports = Callable[[Folders, bool, int, int | None], Report]


def filled(path: Path) -> str:
    """The file's text with every block as the results have it now."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a Markdown file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; give a Markdown file") from None
    closed = [match.start() for match in _BLOCK.finditer(text)]
    for opening in _OPENING.finditer(text):
        if opening.start() not in closed:
            line = opening[0]
            raise InputError(f"{path}: {line} has no end; write <!-- /evenfed --> after the text it holds")
    if not closed:
        raise InputError(
            f"{path} has no block to fill; write <!-- evenfed DIR TABLE --> and <!-- /evenfed --> around it"
        )
    reports = cache(Report.of)

    def fill(match: re.Match[str]) -> str:
        block = _Block.parse(path, match["words"])
        content = _content(block, reports)
        opening = match["opening"]
        closing = match["closing"]
        return f"{opening}{content}\n{closing}"

    return _BLOCK.sub(fill, text)


def missing(path: Path) -> list[str]:
    """Folders that the file's blocks name and that do not exist."""
    places: dict[str, None] = {}
    for match in _BLOCK.finditer(path.read_text()):
        block = _Block.parse(path, match["words"])
        places |= dict.fromkeys(block.missing)
    return list(places)


@dataclass(frozen=True)
class _Block:
    """What the opening comment of a block asks for."""

    where: str  # the file and the comment, for errors
    page: Path
    places: Sequence[str]  # folders as written, relative to the page
    folders: Folders  # those that exist
    missing: Sequence[str]  # those that do not
    name: str  # of a table or figure
    min_test: int
    last_rounds: int | None  # as many as the runs say
    columns: Sequence[str]  # keys of those to show; none: all

    @classmethod
    def parse(cls, page: Path, words: str) -> "_Block":
        where = f"{page}: <!-- evenfed {words} -->"
        *before, name = words.split()
        places: list[str] = []
        options = {"min_test": "0", "last_rounds": "0", "columns": ""}
        for word in before:
            option = _OPTION.fullmatch(word)
            if option is None:
                places.append(word)
            else:
                options[option["key"]] = option["value"]
        for key in ("min_test", "last_rounds"):
            if not options[key].isdigit():
                places.append(f"{key}={options[key]}")
        for word in (*places, name):
            if "=" in word:
                raise InputError(
                    f"{where}: unknown word {word!r}; write folders, min_test=N, last_rounds=N or columns=A,B if "
                    "wanted, then a table"
                )
        folders = []
        missing = []
        for place in dict.fromkeys(places):
            folder = page.parent / place
            if folder.is_dir():
                folders.append(folder)
            else:
                missing.append(place)
        return cls(
            where=where,
            page=page,
            places=places,
            folders=tuple(folders),
            missing=missing,
            name=name,
            min_test=int(options["min_test"]),
            last_rounds=int(options["last_rounds"]) or None,
            columns=options["columns"].split(",") if options["columns"] else (),
        )

    @property
    def is_figure(self) -> bool:
        return self.name.endswith(_FIGURE_ENDINGS)

    @property
    def is_of_a_choice(self) -> bool:
        return self.name.startswith(_TABLES_OF_A_CHOICE)


def _content(block: _Block, reports: Reports) -> str:
    if not block.places:
        raise InputError(f"{block.where} names no folder; write a folder, then a table's name")
    needs_all_folders = block.is_figure or block.is_of_a_choice
    has_options = block.min_test or block.last_rounds
    if has_options and needs_all_folders:
        raise InputError(f"{block.where}: min_test and last_rounds go with a report's tables, not with {block.name}")
    paragraphs = []
    if block.missing:
        names = "`, `".join(block.missing)
        paragraphs.append(f"Not run yet: `{names}`.")
        if needs_all_folders:
            return paragraphs[0]
    if block.is_figure:
        paragraphs.append(_figure(block))
    elif block.folders:
        paragraphs += _table(block, reports)
    return "\n\n".join(paragraphs)


def _table(block: _Block, reports: Reports) -> list[str]:
    """The table as Markdown; nothing where it may be one of a folder that does not exist yet."""
    if block.is_of_a_choice:
        tables: Sequence[Table] = choice.tables(_choice(block))
    else:
        beside_paper = block.name.startswith(_TABLES_OF_THE_PAPER)
        report = reports(tuple(expanded(block.folders)), beside_paper, block.min_test, block.last_rounds)
        tables = report.tables
        if block.name == "facts":
            facts = [f"* {fact}" for fact in report.facts]
            return ["\n".join(facts)]
    by_name = {table.name: table for table in tables}
    if block.name in by_name:
        table = by_name[block.name]
        if block.columns:
            table = _shortened(table, block)
        return [markdown_table(table)]
    if block.missing:
        return []
    known = [*by_name, "facts"]
    raise unknown(f"table of {block.page}", block.name, known)


def _choice(block: _Block) -> Choice:
    """Among the folders judged on validation data; one judged on test data gives the margin."""
    judged = []
    repetitions = None
    for folder in expanded(block.folders):
        findings = read(folder)
        if findings.judge == "validation":
            judged.append(findings)
        else:
            repetitions = findings
    if not judged:
        raise InputError(f"{block.where}: no folder was judged on validation data; name the one that was chosen from")
    return choose(judged, repetitions)


def _shortened(table: Table, block: _Block) -> Table:
    """The columns that the block names, of the entries and the noise floor."""
    keys = [column.key for column in table.columns]
    positions = []
    for key in block.columns:
        if key not in keys:
            raise unknown(f"column of {block.name}", key, keys)
        positions.append(keys.index(key))
    lines = []
    for line in table.lines:
        if not line.control or line.entry in FLOOR_NAMES:
            cells = [line.cells[k] for k in positions]
            lines.append(replace(line, cells=cells))
    columns = [table.columns[k] for k in positions]
    return replace(table, columns=columns, lines=lines, notes=())


def _figure(block: _Block) -> str:
    first = block.places[0]
    root = block.page.parent
    figure = Path(first, "report", block.name)
    if figure.stem not in _DRAWN_BY:
        known = [stem + figure.suffix for stem in _DRAWN_BY]
        raise unknown(f"figure of {block.page}", block.name, known)
    command = f"{_DRAWN_BY[figure.stem]} {first}"
    is_current = True
    is_pooled = figure.stem == "differences" and len(block.places) > 1
    if is_pooled:
        places = " ".join(block.places)
        figure = Path(first, "beside", block.name)
        command = f"report {places}"
        report = root / figure.with_name("report.md")
        is_current = _is_report_of(report, block.places)
    drawing = root / figure
    is_drawn = drawing.exists()
    if is_drawn and is_current:
        return f"![{figure.stem}]({figure.as_posix()})"
    return f"Not drawn yet: `evenfed {command}`."


def _is_report_of(report: Path, places: Sequence[str]) -> bool:
    """Whether a pooled report is of these folders: the first folder keeps one, whichever folders it pools."""
    if not report.exists():
        return False
    names = [Path(place).name for place in places]
    heading = "# " + ", ".join(names)
    return report.read_text().startswith(f"{heading}\n")
