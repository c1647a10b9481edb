"""Terminal pages: results on stdout, messages on stderr."""

import os
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.printable import printable

NOT_DRAWN = "none; to draw them: pip install 'evenfed[report]'"
_FILE_WIDTH = 160


class Page(Console):
    """A terminal that shows escape codes in names and messages instead of obeying them."""

    def print(self, *objects: Any, **options: Any) -> None:
        shown = []
        for item in objects:
            shown.append(printable(item, lines=True) if isinstance(item, str) else item)
        super().print(*shown, **options)

    def put(self, text: str, style: str | None = None) -> None:
        """A text in which brackets are brackets."""
        self.print(text, style=style, markup=False)

    def where_page_is(self, path: Path | None, is_wanted: bool = False) -> None:
        """The page of a report; if it was wanted and is not there, how to get it."""
        if path is not None:
            self.put(f"Page: {path}")
        elif is_wanted:
            self.put(f"Figures and page: {NOT_DRAWN}")


def console() -> Page:
    """The terminal, or a wide page where output goes to a file and COLUMNS does not say how wide."""
    page = Page(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    if page.is_terminal or columns.isdigit():
        return page
    return Page(highlight=False, width=_FILE_WIDTH)


def put(message: str) -> None:
    """One message on stdout, not broken into lines."""
    Page(highlight=False, soft_wrap=True).put(message)


def say(message: str) -> None:
    """The same on stderr."""
    Page(
        stderr=True,
        highlight=False,
        soft_wrap=True,
    ).put(message)
