"""Numbers in the sentences of a page, taken from results.

A TOML file gives each number a name, and the words of a block that shows one cell; folders are relative to that file:

    gain = "study entries=vred parts=worst10 columns=difference same-average-late"

A page names the file once, and quotes numbers in its sentences. After a colon, it says how: docs/report.md.

    <!-- evenfed numbers numbers.toml -->
    The worst 10 % gain <!--gain-->2.8<!--/--> points <!--gain:interval-->[+1.4, +4.3]<!--/-->.

No line may begin with a quote: Markdown would end the paragraph there.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import InputError, unknown
from .blocks import Block, Reports, table
from .table import Cell

_FILE = re.compile(r"<!-- evenfed numbers (?P<place>\S+) -->")
_FILE_LINE = re.compile(r"^.*<!-- *evenfed +numbers\b.*", re.MULTILINE)
_OPENING = re.compile(r"<!--(?P<name>[\w-]+)(:(?P<form>[^\s>]*))?-->")
_QUOTE = re.compile(rf"{_OPENING.pattern}(?P<text>[^<]*)<!--/-->")
_END = re.compile(r".*<!-- */ *-->")
_MARKER = r"(?:[*+>-]|\d+[.)])"  # of an item or a citation, whose text begins anew
_AT_LINE_START = re.compile(rf"^\s*(?:{_MARKER}\s+)*{_OPENING.pattern}.*", re.MULTILINE)
_FORM = re.compile(r"(?P<kind>\+|interval|)(?P<digits>\d?)")

Definitions = Mapping[str, str]  # for each name, the words that say where its number is


def filled(page: Path, text: str, reports: Reports) -> str | None:
    """The page's text with every number as the results have it now; None if it names no file of numbers."""
    source = _source(page, text)
    if source is None:
        return None
    _check_quotes(page, text)
    definitions = _read(source)
    known: dict[str, Cell] = {}

    def quoted(quote: re.Match[str]) -> str:
        name = quote["name"]
        if name not in known:
            known[name] = _cell(source, definitions, name, reports)
        opening = _OPENING.match(quote[0])
        assert opening is not None  # a quote begins with it
        written = _written(known[name], quote["form"] or "", f"{page}: {quote[0]}")
        return f"{opening[0]}{written}<!--/-->"

    return _QUOTE.sub(quoted, text)


def _source(page: Path, text: str) -> Path | None:
    """The file of numbers that the page names; None if it names none and quotes none."""
    named = _FILE_LINE.findall(text)
    if not named:
        quote = _QUOTE.search(text)
        if quote is not None:
            raise InputError(f"{page}: {quote[0]} has no source; name the file: <!-- evenfed numbers FILE -->")
        return None
    line = _FILE.fullmatch(named[0])
    if line is None or len(named) > 1:
        raise InputError(
            f"{page}: {named[-1].strip()!r}; write <!-- evenfed numbers FILE --> once, on a line of its own, without "
            "blanks in the file's name"
        )
    return page.parent / line["place"]


def _check_quotes(page: Path, text: str) -> None:
    """Refuse a quote that is not closed, not opened, or at the beginning of a line."""
    closed = [quote.start() for quote in _QUOTE.finditer(text)]
    for opening in _OPENING.finditer(text):
        if opening.start() not in closed:
            raise InputError(f"{page}: {opening[0]} has no end; write <!--/--> after the number")
    unopened = _END.search(_QUOTE.sub("", text))
    if unopened is not None:
        raise InputError(f"{page}: {unopened[0].strip()!r} ends no number; write <!--NAME--> before it, without blanks")
    misplaced = _AT_LINE_START.search(text)
    if misplaced is not None:  # a comment there begins a block of HTML and ends the paragraph
        raise InputError(f"{page}: {misplaced[0].strip()!r} begins a line; write a word before the comment")


def _read(source: Path) -> Definitions:
    try:
        definitions = tomllib.loads(source.read_text())
    except OSError as error:
        raise InputError(
            f"{source} cannot be read ({error.strerror}); give the TOML file that defines the page's numbers"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not valid TOML: {error}") from None
    for name, words in definitions.items():
        if not isinstance(words, str):
            raise InputError(f'{source}: {name} = {words!r}; write in quotes where it stands: {name} = "DIR TABLE"')
    return definitions


def _cell(source: Path, definitions: Definitions, name: str, reports: Reports) -> Cell:
    """The only cell of the block that shows this number."""
    if name not in definitions:
        raise unknown(f"number of {source}", name, definitions)
    where = f"{source}: {name}"
    block = Block.parse(source, definitions[name])
    if not block.places:
        raise InputError(f"{where} names no folder; write a folder, then a table's name")
    if block.missing:
        raise InputError(f"{where}: {', '.join(block.missing)} is not there; name a folder beside that file")
    if block.is_figure or block.name == "facts":
        raise InputError(f"{where}: {block.name} holds no number; name a table")
    shown = table(block, reports)
    assert shown is not None  # since no folder is missing
    cells: list[Cell] = []
    for line in shown.lines:
        cells += line.cells
    if len(cells) != 1:
        raise InputError(
            f"{where} shows {len(cells)} cells; choose one by entries=A (not the noise floor), columns=A and, "
            "if lines of an entry have parts, parts=A"
        )
    return cells[0]


def _written(cell: Cell, form: str, where: str) -> str:
    """A cell in a sentence.

    >>> gain = Cell(-0.27, low=-0.9, high=0.36)
    >>> [_written(gain, form, "") for form in ("", "+2", "interval")], _written(Cell(verdict="8 of 10"), "", "")
    (['0.3', '-0.27', '[-0.9, +0.4]'], '8 of 10')
    """
    asked = _FORM.fullmatch(form)
    if asked is None:
        raise InputError(f"{where}: unknown form '{form}'; write +, interval, a number of digits, or nothing")
    if cell.value is None:
        return cell.verdict or "-"
    digits = int(asked["digits"] or 1)
    if asked["kind"] == "interval":
        if cell.low is None or cell.high is None:
            raise InputError(f"{where}: this number has no interval; leave the form out, or write +")
        return f"[{cell.low:+.{digits}f}, {cell.high:+.{digits}f}]"
    if asked["kind"] == "+":
        return f"{cell.value:+.{digits}f}"
    return f"{abs(cell.value):.{digits}f}"
