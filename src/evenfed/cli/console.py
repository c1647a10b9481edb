"""Terminal pages: results on stdout, messages on stderr."""

import os

from rich.console import Console

NOT_DRAWN = "none; to draw them: pip install 'evenfed[report]'"
_FILE_WIDTH = 160


def console() -> Console:
    """The terminal, or a wide page where output goes to a file and COLUMNS does not say how wide."""
    page = Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    if page.is_terminal or columns.isdigit():
        return page
    return Console(highlight=False, width=_FILE_WIDTH)


def say(message: str) -> None:
    """One message on stderr, not broken into lines."""
    Console(
        stderr=True,
        highlight=False,
        soft_wrap=True,
    ).print(message, markup=False)
