"""Small tables in HTML, for notebooks. All text is escaped: names may come from anywhere."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from .printable import printable

_NUMBERS = 'style="text-align: right; padding: 0.2em 0.6em; font-variant-numeric: tabular-nums"'
_NAMES = 'style="text-align: left; padding: 0.2em 0.6em"'


@dataclass(frozen=True)
class MarkedText:
    """The text of a cell, and whether it stands out or stands back."""

    text: str
    bold: bool = False
    italic: bool = False

    @property
    def html(self) -> str:
        content = escaped(self.text)
        if self.bold:
            content = f"<b>{content}</b>"
        if self.italic:
            content = f"<i>{content}</i>"
        return content


def escaped(text: str) -> str:
    """Text of unknown origin as a page may hold it.

    >>> escaped("<script>")
    '&lt;script&gt;'
    """
    return html.escape(printable(text))


def table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[MarkedText | str]],
    notes: Sequence[str] = (),
) -> str:
    """A table whose first column holds names, the others numbers.

    >>> print(table("two", ["", "mean"], [["a", "0.5"]]).count("<td"))
    2
    """
    parts = [f"<p>{escaped(title)}</p>", "<table>"]
    parts.append(_row("th", heads))
    for row in rows:
        parts.append(_row("td", row))
    parts.append("</table>")
    for note in notes:
        parts.append(f"<p><small>{escaped(note)}</small></p>")
    return "\n".join(parts)


def _row(tag: str, cells: Sequence[MarkedText | str]) -> str:
    written = ""
    for position, cell in enumerate(cells):
        shown = MarkedText(cell) if isinstance(cell, str) else cell
        style = _NUMBERS if position else _NAMES
        written += f"<{tag} {style}>{shown.html}</{tag}>"
    return f"<tr>{written}</tr>"
