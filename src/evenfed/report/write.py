"""A report in every format: terminal, Markdown, CSV, LaTeX and JSON, all from the same tables."""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table as Page
from rich.text import Text

from ..comparison.folder import replace_text
from ..core.errors import InputError
from .document import Report
from .tables import Cell, Column, Table, title

_STYLES = {"better": "green", "holds": "green", "worse": "red", "fails": "red"}
_DOCUMENT_DIGITS = 2
_LABEL_WIDTH = 12
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",  # a row that begins with a bracket would be an option of the line break before it
    "]": "{]}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def terminal(report: Report, page: Console) -> RenderableType:
    """Tables as wide as the page allows; those that do not fit are cut into blocks of columns."""
    return Group(*(Text(fact) for fact in report.facts), pages(report.tables, page))


def pages(tables: Sequence[Table], page: Console) -> RenderableType:
    """Tables one under the other."""
    parts: list[RenderableType] = []
    for table in tables:
        for columns in _blocks(table, page.width):
            room = page.width - _taken(table, columns)
            parts += ["", Text(table.title, style="bold"), _page(table, columns, room)]
        parts += [Text(note, style="dim") for note in table.notes]
    return Group(*parts)


def _blocks(table: Table, width: int) -> list[Sequence[int]]:
    """All columns where they fit beside a label of the least width, else two halves."""
    everything = range(len(table.columns))
    half = (len(everything) + 1) // 2
    return [everything] if _LABEL_WIDTH + _taken(table, everything) <= width else [everything[:half], everything[half:]]


def _taken(table: Table, columns: Sequence[int]) -> int:
    """How wide all but the label is."""
    parts = 2 + max(len(title(line.part)) for line in table.lines) if table.has_parts else 0
    return parts + sum(2 + _width(table, k) for k in columns)


def _width(table: Table, column: int) -> int:
    words = [line.cells[column].text(table.digits) for line in table.lines]
    return max(map(len, [*words, *_headline(table.columns[column]).split("\n")]))


def _page(table: Table, columns: Sequence[int], room: int) -> Page:
    page = Page(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    page.padding = (0, 1, 0, 0)
    page.add_column(table.head, overflow="fold", min_width=_LABEL_WIDTH)
    if table.has_parts:
        page.add_column("", no_wrap=True)
    for k in columns:
        side: JustifyMethod = "left" if table.columns[k].key == "verdict" else "right"
        page.add_column(escape(_headline(table.columns[k])), justify=side, no_wrap=True, min_width=_width(table, k))
    for entry, lines in itertools.groupby(table.lines, key=lambda line: line.entry):
        rows, labels = list(lines), _in_lines(title(entry), room)
        labels = labels if len(labels) <= len(rows) else ["\n".join(labels)]
        for k, line in enumerate(rows):
            cells = [_styled(line.cells[c], table.digits) for c in columns]
            part = [Text(title(line.part), style="dim")] if table.has_parts else []
            label = labels[k] if k < len(labels) else ""
            page.add_row(Text(label), *part, *cells, style="dim" if line.control else None)
    return page


def _in_lines(label: str, room: int) -> list[str]:
    """A label broken where its options begin, and between them, if it has to be.

    >>> _in_lines("vred[beta=0.5,smooth=0.1]", 30), _in_lines("vred[beta=0.5,smooth=0.1]", 12)
    (['vred[beta=0.5,smooth=0.1]'], ['vred', '[beta=0.5,', 'smooth=0.1]'])
    """
    for broken in (label, label.replace("[", "\n["), label.replace("[", "\n[").replace(",", ",\n")):
        if max(map(len, broken.split("\n"))) <= room:
            break
    return broken.split("\n")


def _headline(column: Column) -> str:
    """A long title over two lines, broken at its first blank."""
    return column.title.replace(" ", "\n", 1) if len(column.title) > 8 else column.title


def _styled(cell: Cell, digits: int) -> Text:
    return Text(cell.text(digits), style="bold" if cell.best else _STYLES.get(cell.verdict, ""))


def markdown(report: Report, figures: Sequence[Path] = ()) -> str:
    """A document to read or to put into one's own."""
    parts = [f"# {report.title}", "", *(f"{fact}\n" for fact in report.facts)]
    for table in report.tables:
        parts += [f"## {table.title}", "", markdown_table(table), ""]
    parts += [f"![{path.stem}]({path.name})\n" for path in figures if path.suffix == ".svg"]
    return "\n".join(parts).rstrip() + "\n"


def markdown_table(table: Table) -> str:
    """One table with its notes under it."""
    heads = [table.head, *([""] if table.has_parts else []), *(c.title for c in table.columns)]
    parts = [_bars(heads), _bars(["---"] * len(heads))]
    for line in table.lines:
        name = f"*{title(line.entry)}*" if line.control else title(line.entry)
        cells = [_markdown(cell) for cell in line.cells]
        parts.append(_bars([name, *([title(line.part)] if table.has_parts else []), *cells]))
    return "\n\n".join(["\n".join(parts), *table.notes])


def _bars(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown(cell: Cell) -> str:
    text = cell.text(_DOCUMENT_DIGITS).replace("±", " ± ")
    return f"**{text}**" if cell.best or cell.verdict in _STYLES else text


def comma_separated(report: Report) -> str:
    """One line a cell, every number plain and at full precision, in per cent or points."""
    out = io.StringIO()
    numbers = list(Cell().numbers())
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["table", "entry", "part", "figure", *numbers, "verdict"])
    for table in report.tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                plain = ["" if v is None else v for v in cell.numbers().values()]
                lines.writerow([table.name, line.entry, line.part, column.key, *plain, cell.verdict])
    return out.getvalue()


def latex(report: Report) -> str:
    """Tables to \\input; the best in bold, as in the paper."""
    parts = ["% \\usepackage{booktabs}"]
    for table in report.tables:
        parts += ["", *_latex_table(table)]
    return "\n".join(parts) + "\n"


def _latex_table(table: Table) -> Iterator[str]:
    texts = [column.key == "verdict" for column in table.columns]
    columns = "l" + "l" * table.has_parts + "".join("l" if text else "r" for text in texts)
    heads = [table.head, *([""] if table.has_parts else []), *(c.title for c in table.columns)]
    yield from ("\\begin{table}", "\\centering", "\\small")
    yield f"\\caption{{{latex_escape('. '.join([table.title, *table.notes[:1]]))}}}"
    yield f"\\label{{tab:{table.name}}}"
    yield from (f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _latex_row(map(latex_escape, heads)), "\\midrule")
    before = table.lines[0].entry if table.lines else ""
    for line in table.lines:
        first = line is table.lines[0] or line.entry != before
        if first and table.has_parts and line is not table.lines[0]:
            yield "\\addlinespace"
        label = latex_escape(title(line.entry)) if first else ""
        part = [latex_escape(title(line.part))] if table.has_parts else []
        yield _latex_row([label, *part, *map(_latex_cell, line.cells)])
        before = line.entry
    yield from ("\\bottomrule", "\\end{tabular}", "\\end{table}")


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = re.sub(r"(?<![\d.])-(?=\d)", "$-$", latex_escape(cell.text(_DOCUMENT_DIGITS)))
    return f"\\textbf{{{text}}}" if cell.best or cell.verdict in _STYLES else text


def latex_escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(latex_escape("semi_vred[beta=1] 10 % ± 2"))
    semi\_vred{[}beta=1{]} 10 \% $\pm$ 2
    """
    return "".join(_LATEX.get(c, c) for c in text)


def as_json(report: Report) -> str:
    """Everything, for programs; numbers in per cent or points, null where unknown."""
    tables = [
        {
            "name": table.name,
            "title": table.title,
            "lines": [
                {
                    "entry": line.entry,
                    "part": line.part or None,
                    "figures": {
                        column.key: {k: v for k, v in cell.numbers().items() if v is not None}
                        | ({"verdict": cell.verdict} if cell.verdict else {})
                        for column, cell in zip(table.columns, line.cells, strict=True)
                    },
                }
                for line in table.lines
            ],
            "notes": table.notes,
        }
        for table in report.tables
    ]
    return json.dumps({**report.about, "tables": tables}, indent=1) + "\n"


FORMATS: dict[str, Callable[[Report], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
    "json": as_json,
}


def save(report: Report, folder: Path, figures: Sequence[Path]) -> list[Path]:
    """report.md, tables.csv and tables.tex in `folder`."""
    texts = {"report.md": markdown(report, figures), "tables.csv": comma_separated(report), "tables.tex": latex(report)}
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [folder / name for name in texts]


def prepare(folder: Path) -> None:
    """The folder a report goes to, made and checked before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); choose another --out") from None
