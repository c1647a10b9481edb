"""Tables inside one's own Markdown: what stands between two comments is replaced by what results say.

    <!-- evenfed cifar10 overview-average -->
    <!-- /evenfed -->

The words are folders of comparisons, relative to the file, then the name of one of their report's tables (as in
tables.csv and the JSON format), `facts` for what was run, or a figure of the first folder's report: `differences.svg`.
Of several folders those that are there are shown, if two are, and the others named.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..core.errors import InputError, unknown
from . import choice
from .document import Report
from .write import markdown_table

_BLOCK = re.compile(r"(<!-- evenfed (?P<asked>[^>]+?) -->\n).*?(<!-- /evenfed -->)", re.DOTALL)
_OF_THE_PAPER = ("paper", "claims")  # tables that stand beside the paper's
_OF_A_CHOICE = ("chosen", "grid")
_FIGURES = (".svg", ".png")


def filled(path: Path) -> str:
    """The file's text with every block as the results have it now."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give a Markdown file") from None
    if not _BLOCK.search(text):
        raise InputError(
            f"{path} has no block to fill; write <!-- evenfed DIR TABLE --> and <!-- /evenfed --> around it"
        )
    reports = cache(Report.of)
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(path, found['asked'], reports)}\n{found[3]}", text)


def _block(path: Path, asked: str, reports: Callable[[tuple[Path, ...], bool], Report]) -> str:
    *places, name = asked.split()
    folders = tuple(path.parent / place for place in places)
    if not folders:
        raise InputError(f"{path}: <!-- evenfed {asked} --> names no folder; write a folder, then a table's name")
    missing = [place for place, folder in zip(places, folders, strict=True) if not folder.is_dir()]
    if missing:
        told = f"Not run yet: {', '.join(f'`{m}`' for m in missing)}."
        there = [place for place in places if place not in missing]
        return f"{told}\n\n{_block(path, ' '.join([*there, name]), reports)}" if len(there) > 1 else told
    if name.endswith(_FIGURES):
        picture = Path(places[0], "report", name)
        drawn = (path.parent / picture).exists()
        return f"![{picture.stem}]({picture.as_posix()})" if drawn else f"Not drawn yet: `evenfed report {places[0]}`."
    if name == "facts":
        return "\n".join(f"* {fact}" for fact in reports(folders, False).facts)
    if name.startswith(_OF_A_CHOICE):
        made = choice.tables(choice.choose(*folders[:2]))
    else:
        made = list(reports(folders, name.startswith(_OF_THE_PAPER)).tables)
    tables = {table.name: table for table in made}
    if name not in tables:
        raise unknown(f"table of {path}", name, [*tables, "facts"])
    return markdown_table(tables[name])
