"""Tables and numbers inside one's own Markdown: the text between two comments is replaced by what the results say.

    <!-- evenfed cifar10 overview-late -->
    <!-- /evenfed -->

The words are folders of comparisons, relative to the file, then options, then the name of a table, a figure, or `facts`
for what was run: docs/report.md has them all. Folders that do not exist are named; the others are shown.
"""

import re
from functools import cache
from pathlib import Path

from ..core.errors import InputError
from . import numbers
from .blocks import Block, content, report

_OPENING = re.compile(r"^<!-- evenfed (?!numbers ).*", re.MULTILINE)
_BLOCK = re.compile(
    r"(?P<opening><!-- evenfed (?!numbers )(?P<words>[^>]+?) -->\n)"
    r"((?!<!-- evenfed ).)*?"
    r"(?P<closing><!-- /evenfed -->)",
    re.DOTALL,
)


def filled(path: Path) -> str:
    """The file's text with every block as the results have it now."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a Markdown file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; give a Markdown file") from None
    closed = [match.start() for match in _BLOCK.finditer(text)]
    reports = cache(report)
    for opening in _OPENING.finditer(text):
        if opening.start() not in closed:
            line = opening[0]
            raise InputError(f"{path}: {line} has no end; write <!-- /evenfed --> after the text it holds")
    quoted = numbers.filled(path, text, reports)
    if not closed and quoted is None:
        raise InputError(
            f"{path} has no block to fill; write <!-- evenfed DIR TABLE --> and <!-- /evenfed --> around it"
        )

    def fill(match: re.Match[str]) -> str:
        block = Block.parse(path, match["words"])
        opening = match["opening"]
        closing = match["closing"]
        return f"{opening}{content(block, reports)}\n{closing}"

    return _BLOCK.sub(fill, text if quoted is None else quoted)


def missing(path: Path) -> list[str]:
    """Folders that the file's blocks name and that do not exist."""
    places: dict[str, None] = {}
    for match in _BLOCK.finditer(path.read_text()):
        block = Block.parse(path, match["words"])
        places |= dict.fromkeys(block.missing)
    return list(places)
