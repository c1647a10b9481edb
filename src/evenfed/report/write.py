"""A report in every format: terminal, Markdown, CSV, LaTeX and JSON, all from the same tables."""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from ..core.files import replace_text
from ..core.printable import in_markdown, in_sheet, name_in_markdown, printable
from ..core.tables import without_none
from .document import Report
from .table import Cell, Column, Line, Table
from .tables import BEST_IN_BOLD, title

_STYLES = {"better": "green", "holds": "green", "worse": "red", "fails": "red"}
_LABEL_WIDTH = 12
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",  # LaTeX would read a bracket at the start of a row as an option of the line break before it
    "]": "{]}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
}


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


def _blocks(table: Table, width: int) -> list[Sequence[int]]:
    """The columns in as few equal parts as fit beside a label of the least width; at least one column each."""
    columns = range(len(table.columns))
    room = width - _LABEL_WIDTH
    blocks: list[Sequence[int]] = [columns]
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
        side: JustifyMethod = "left" if _holds_words(column) else "right"
        width = _column_width(table, k)
        block.add_column(
            heading,
            justify=side,
            no_wrap=True,
            min_width=width,
        )
    for entry, lines in _by_entry(table):
        label = title(entry)
        labels = _in_lines(label, label_room)
        if len(labels) > len(lines):
            labels = ["\n".join(labels)]
        blank = len(lines) - len(labels)
        labels += [""] * blank
        for label, line in zip(labels, lines, strict=True):
            _add_row(block, table, columns, label, line)
    return block


def _by_entry(table: Table) -> Iterator[tuple[str, list[Line]]]:
    """Lines that follow each other and belong to the same entry."""
    groups = itertools.groupby(table.lines, key=lambda line: line.entry)
    for entry, lines in groups:
        yield entry, list(lines)


def _holds_words(column: Column) -> bool:
    return column.key == "verdict"


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
        style = _STYLES.get(cell.verdict, "")
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


def markdown(report: Report, figures: Sequence[Path] = ()) -> str:
    """A document to read, or to paste into one's own."""
    return markdown_of(report.title, report.facts, report.tables, figures)


def markdown_of(
    heading: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    figures: Sequence[Path] = (),
) -> str:
    """The same of tables that belong to no report."""
    heading = name_in_markdown(heading)
    paragraphs = [f"# {heading}", *map(in_markdown, facts)]
    for table in tables:
        paragraphs.append(f"## {in_markdown(table.title)}")
        paragraphs.append(markdown_table(table))
    drawings = [path for path in figures if path.suffix == ".svg"]
    paragraphs += [f"![{path.stem}]({path.name})" for path in drawings]
    text = "\n\n".join(paragraphs)
    return text.rstrip() + "\n"


def markdown_table(table: Table) -> str:
    """One table, followed by its notes."""
    table = table.shown(name_in_markdown, in_markdown)
    heads = _heads(table)
    rule = ["---"] * len(heads)
    rows = [_markdown_row(heads), _markdown_row(rule)]
    for line in table.lines:
        name = title(line.entry)
        if line.control:
            name = f"*{name}*"
        cells = [name]
        if table.has_parts:
            cells.append(title(line.part))
        cells += [_markdown_cell(cell, table.document_digits) for cell in line.cells]
        rows.append(_markdown_row(cells))
    body = "\n".join(rows)
    return "\n\n".join([body, *table.notes])


def _heads(table: Table) -> list[str]:
    titles = [column.title for column in table.columns]
    if table.has_parts:
        return [table.head, "", *titles]
    return [table.head, *titles]


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    row = " | ".join(escaped)
    return f"| {row} |"


def _markdown_cell(cell: Cell, digits: int) -> str:
    text = cell.text(digits)
    text = text.replace("±", " ± ")
    if _is_bold(cell):
        return f"**{text}**"
    return text


def _is_bold(cell: Cell) -> bool:
    return cell.best or cell.verdict in _STYLES


def comma_separated(report: Report) -> str:
    """One line per cell; numbers with ten digits, in per cent or points."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = Cell().numbers()
    writer.writerow(["table", "entry", "part", "figure", *names, "verdict"])
    for table in report.tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                numbers = cell.numbers().values()  # csv writes None as nothing
                row = [
                    table.name,
                    in_sheet(line.entry),
                    in_sheet(line.part),
                    in_sheet(column.key),
                    *numbers,
                    cell.verdict,
                ]
                writer.writerow(row)
    return out.getvalue()


def latex(report: Report) -> str:
    """Tables to \\input; the best in bold, as in the paper."""
    parts = ["% \\usepackage{booktabs}"]
    for table in report.tables:
        parts.append("")
        parts += _latex_table(table)
    return "\n".join(parts) + "\n"


def _latex_table(table: Table) -> Iterator[str]:
    table = table.shown()
    heads = map(latex_escape, _heads(table))
    first_note = table.notes[:1]
    caption = ". ".join([table.title, *first_note])
    yield "\\begin{table}"
    yield "\\centering"
    yield "\\small"
    yield f"\\caption{{{latex_escape(caption)}}}"
    yield f"\\label{{tab:{table.name}}}"
    yield f"\\begin{{tabular}}{{{_latex_alignment(table)}}}"
    yield "\\toprule"
    yield _latex_row(heads)
    yield "\\midrule"
    for entry, lines in _by_entry(table):
        is_first = lines[0] is table.lines[0]
        if table.has_parts and not is_first:
            yield "\\addlinespace"
        label = title(entry)
        for line in lines:
            cells = [latex_escape(label)]
            if table.has_parts:
                part = title(line.part)
                cells.append(latex_escape(part))
            cells += [_latex_cell(cell, table.document_digits) for cell in line.cells]
            yield _latex_row(cells)
            label = ""
    yield "\\bottomrule"
    yield "\\end{tabular}"
    yield "\\end{table}"


def _latex_alignment(table: Table) -> str:
    alignment = "ll" if table.has_parts else "l"
    for column in table.columns:
        alignment += "l" if _holds_words(column) else "r"
    return alignment


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell, digits: int) -> str:
    plain = cell.text(digits)
    escaped = latex_escape(plain)
    text = re.sub(r"(?<![\d.])-(?=\d)", "$-$", escaped)
    if _is_bold(cell):
        return f"\\textbf{{{text}}}"
    return text


def latex_escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(latex_escape("semi_vred[beta=1] 10 % ± 2"))
    semi\_vred{[}beta=1{]} 10 \% $\pm$ 2
    """
    escaped = [_LATEX.get(character, character) for character in text]
    return "".join(escaped)


def as_json(report: Report) -> str:
    """Everything, for programs; numbers in per cent or points, left out where unknown."""
    tables = []
    for table in report.tables:
        lines = [_describe_line(table, line) for line in table.lines]
        description = {
            "name": table.name,
            "title": table.title,
            "lines": lines,
            "notes": table.notes,
        }
        tables.append(description)
    content = {**report.about, "tables": tables}
    text = json.dumps(content, indent=1)
    return f"{text}\n"


def _describe_line(table: Table, line: Line) -> dict[str, Any]:
    figures = {}
    for column, cell in zip(table.columns, line.cells, strict=True):
        figure: dict[str, Any] = cell.numbers()
        figure["verdict"] = cell.verdict or None
        figures[column.key] = without_none(figure)
    return {
        "entry": line.entry,
        "part": line.part or None,
        "figures": figures,
    }


FORMATS: dict[str, Callable[[Report], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
    "json": as_json,
}


def save(report: Report, folder: Path, figures: Sequence[Path]) -> list[Path]:
    """Write report.md, tables.csv and tables.tex to `folder`."""
    texts = {
        folder / "report.md": markdown(report, figures),
        folder / "tables.csv": comma_separated(report),
        folder / "tables.tex": latex(report),
    }
    for path, text in texts.items():
        replace_text(path, text)
    return list(texts)
