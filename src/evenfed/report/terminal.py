"""Tables in a terminal: as wide as it allows, in blocks of columns where they are wider."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from ..core.printable import printable
from .document import Report
from .notes import BEST_IN_BOLD
from .table import STYLES, Column, Line, Table
from .tables import title

_LABEL_WIDTH = 12


def terminal(report: Report, page: Console, headlines: Sequence[str] = ()) -> RenderableType:
    """The report's facts and tables, as wide as the page allows; the headlines under the first table."""
    facts = [Text(printable(fact)) for fact in report.facts]
    tables = pages(report.tables, page, headlines)
    return Group(*facts, tables)


def pages(tables: Sequence[Table], page: Console, headlines: Sequence[str] = ()) -> RenderableType:
    """Tables one below the other, the headlines under the first.

    A table too wide for the page is split into blocks of columns.
    """
    parts: list[RenderableType] = []
    verdict = [Text(printable(sentence), style="bold") for sentence in headlines]
    for table in tables:
        table = table.shown()
        for columns in _blocks(table, page.width):
            other_width = _width_beside_label(table, columns)
            label_room = page.width - other_width
            heading = Text(table.title, style="bold")
            block = _block(table, columns, label_room)
            parts += ["", heading, block]
        if verdict:
            parts += ["", *verdict, ""]
            verdict = []
        for note in table.notes:
            if not page.is_terminal:  # which shows no bold
                note = note.replace(BEST_IN_BOLD, "")
            parts.append(Text(note, style="dim"))
    return Group(*parts)


def _blocks(table: Table, width: int) -> list[range]:
    """The columns in as few equal parts as fit beside a label of the least width; at least one column each."""
    columns = range(len(table.columns))
    room = width - _LABEL_WIDTH
    blocks = [columns]
    for parts in range(1, len(columns) + 1):
        size = math.ceil(len(columns) / parts)
        blocks = []
        for first in range(0, len(columns), size):
            blocks.append(columns[first : first + size])
        widest = max(_width_beside_label(table, block) for block in blocks)
        if widest <= room:
            break
    return blocks


def _width_beside_label(table: Table, columns: Sequence[int]) -> int:
    widths = [_column_width(table, k) for k in columns]
    if table.has_parts:
        part_width = 0
        for line in table.lines:
            part = title(line.part)
            part_width = max(part_width, len(part))
        widths.append(part_width)
    gaps = 2 * len(widths)
    return sum(widths) + gaps


def _column_width(table: Table, k: int) -> int:
    headline = _headline(table.columns[k])
    texts = headline.split("\n")
    for line in table.lines:
        cell = line.cells[k]
        texts.append(cell.text(table.digits))
    return max(map(len, texts))


def _block(table: Table, columns: Sequence[int], label_room: int) -> RichTable:
    """The chosen columns of a table, with the label of each entry on its left."""
    block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    block.padding = (0, 1, 0, 0)
    block.add_column(table.head, overflow="fold", min_width=_LABEL_WIDTH)
    if table.has_parts:
        block.add_column("", no_wrap=True)
    for k in columns:
        column = table.columns[k]
        heading = escape(_headline(column))
        side: JustifyMethod = "left" if column.holds_words else "right"
        width = _column_width(table, k)
        block.add_column(
            heading,
            justify=side,
            no_wrap=True,
            min_width=width,
        )
    for entry, lines in table.by_entry():
        label = title(entry)
        labels = _in_lines(label, label_room)
        if len(labels) > len(lines):
            labels = ["\n".join(labels)]
        blank = len(lines) - len(labels)
        labels += [""] * blank
        for label, line in zip(labels, lines, strict=True):
            _add_row(block, table, columns, label, line)
    return block


def _add_row(
    block: RichTable,
    table: Table,
    columns: Sequence[int],
    label: str,
    line: Line,
) -> None:
    cells = [Text(label)]
    if table.has_parts:
        part = title(line.part)
        cells.append(Text(part, style="dim"))
    for k in columns:
        cell = line.cells[k]
        text = cell.text(table.digits)
        style = STYLES.get(cell.verdict, "")
        if cell.best:
            style = "bold"
        cells.append(Text(text, style=style))
    row_style = "dim" if line.control else None
    block.add_row(*cells, style=row_style)


def _in_lines(label: str, room: int) -> list[str]:
    """A label that is too long, broken before its options and, if it must be, between them.

    >>> _in_lines("vred[beta=0.5,smooth=0.1]", 30), _in_lines("vred[beta=0.5,smooth=0.1]", 12)
    (['vred[beta=0.5,smooth=0.1]'], ['vred', '[beta=0.5,', 'smooth=0.1]'])
    """
    before_options = label.replace("[", "\n[")
    between_options = before_options.replace(",", ",\n")
    for broken in (label, before_options, between_options):
        lines = broken.split("\n")
        longest = max(map(len, lines))
        if longest <= room:
            break
    return lines


def _headline(column: Column) -> str:
    """A long title on two lines, broken at its first blank."""
    if len(column.title) <= 8:
        return column.title
    return column.title.replace(" ", "\n", 1)
