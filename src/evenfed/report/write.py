"""A report in every format but the terminal's: Markdown, CSV, LaTeX and JSON, all from the same tables."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..core.files import replace_text
from ..core.printable import in_markdown, in_sheet, name_in_markdown
from ..core.tables import without_none
from .document import Report
from .table import STYLES, Cell, Table
from .tables import title

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
        for cell in line.cells:
            text = cell.text(table.document_digits)
            text = text.replace("±", " ± ")
            cells.append(f"**{text}**" if _is_bold(cell) else text)
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


def _is_bold(cell: Cell) -> bool:
    return cell.best or cell.verdict in STYLES


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
    alignment = "ll" if table.has_parts else "l"
    for column in table.columns:
        alignment += "l" if column.holds_words else "r"
    yield f"\\begin{{tabular}}{{{alignment}}}"
    yield "\\toprule"
    yield _latex_row(heads)
    yield "\\midrule"
    for entry, lines in table.by_entry():
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
        lines = []
        for line in table.lines:
            figures = {}
            for column, cell in zip(table.columns, line.cells, strict=True):
                figure = {**cell.numbers(), "verdict": cell.verdict or None}
                figures[column.key] = without_none(figure)
            description = {
                "entry": line.entry,
                "part": line.part or None,
                "figures": figures,
            }
            lines.append(description)
        content = {
            "name": table.name,
            "title": table.title,
            "lines": lines,
            "notes": table.notes,
        }
        tables.append(content)
    text = json.dumps({**report.about, "tables": tables}, indent=1)
    return f"{text}\n"


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
