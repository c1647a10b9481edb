"""Terminal pages: results on stdout, messages on stderr."""

import os

from rich.console import Console

from ..comparison.progress import progress_page
from ..data import Federation

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


def introduce_clients(federation: Federation) -> None:
    """Who takes part, and what was noted about their data."""
    page = progress_page()
    page.print(federation.summary(), markup=False, soft_wrap=True)
    for note in federation.notes:
        page.print(f"! {note}", markup=False, soft_wrap=True)
