"""The terminal: what `evenfed compare` shows when its runs have ended, and the page it is written on."""

import os

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..comparison.findings import Findings
from .tables import summary
from .write import pages


def render(findings: Findings, page: Console) -> RenderableType:
    """Two tables, averages of the last rounds and the last round, then what to try."""
    advice = [Text(f"! {sentence}", style="yellow") for sentence in findings.advice]
    return Group(pages(summary(findings), page), *advice)


def console(stderr: bool = False) -> Console:
    """The terminal, or a wide page if output goes to a file and COLUMNS does not say how wide."""
    page = Console(stderr=stderr, highlight=False)
    if page.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return page
    return Console(stderr=stderr, highlight=False, width=160)
