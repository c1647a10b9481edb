"""Terminal pages: results on stdout, messages on stderr."""

import os
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


def console() -> Console:
    """The terminal, or a wide page where output goes to a file and COLUMNS does not say how wide."""
    page = Page(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    if page.is_terminal or columns.isdigit():
        return page
    return Page(highlight=False, width=_FILE_WIDTH)


def say(message: str) -> None:
    """One message on stderr, not broken into lines."""
    Page(
        stderr=True,
        highlight=False,
        soft_wrap=True,
    ).print(message, markup=False)
