"""Tables inside one's own Markdown: what stands between two comments is replaced by what results say.

    <!-- evenfed cifar10 overview-late -->
    <!-- /evenfed -->

The words are folders of comparisons, relative to the file, then the name of one of their report's tables (as in
tables.csv and the JSON format), `facts` for what was run, or a figure of their report: `differences.svg`.
Of several folders those that are there are shown and the others named. `min_test=50` before the table's name leaves
out clients judged on fewer examples.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from ..comparison.choose import choose
from ..core.errors import InputError, unknown
from . import choice
from .document import Report
from .tables import Table
from .write import markdown_table

_OPEN = "<!-- evenfed "
_BLOCK = re.compile(
    r"(<!-- evenfed (?P<asked>[^>]+?) -->\n)((?!<!-- evenfed ).)*?(?P<end><!-- /evenfed -->)", re.DOTALL
)
_MIN_TEST = re.compile(r"min_test=(\d+)")
_OF_THE_PAPER = ("paper", "claims")  # tables that stand beside the paper's
_OF_A_CHOICE = ("chosen", "grid")
_FIGURES = (".svg", ".png")
_DRAWN_BY = {"differences": "report", "mean-and-worst10": "report", "worst20": "report", "dials": "choose"}


def filled(path: Path) -> str:
    """The file's text with every block as the results have it now."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give a Markdown file") from None
    whole = [found.start() for found in _BLOCK.finditer(text)]
    for opened in re.finditer(f"^{_OPEN}.*", text, re.MULTILINE):
        if opened.start() not in whole:
            raise InputError(f"{path}: {opened[0]} has no end; write <!-- /evenfed --> after what it holds")
    if not whole:
        raise InputError(
            f"{path} has no block to fill; write <!-- evenfed DIR TABLE --> and <!-- /evenfed --> around it"
        )
    reports = cache(Report.of)
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(path, found['asked'], reports)}\n{found['end']}", text)


def missing(path: Path) -> list[str]:
    """The folders that the file's blocks name and that are not there."""
    asked = [place for found in _BLOCK.finditer(path.read_text()) for place in _words(found["asked"])[0]]
    return [place for place in dict.fromkeys(asked) if not (path.parent / place).is_dir()]


def _words(asked: str) -> tuple[list[str], str, int]:
    """Folders, table, and the fewest examples that a client is judged on."""
    *before, name = asked.split()
    fewest = [_MIN_TEST.fullmatch(word) for word in before]
    places = [word for word, option in zip(before, fewest, strict=True) if option is None]
    if wrong := [word for word in (*places, name) if "=" in word]:
        raise InputError(
            f"<!-- evenfed {asked} -->: unknown word {wrong[0]!r}; write folders, min_test=N if wanted, then a table"
        )
    return places, name, max((int(option[1]) for option in fewest if option), default=0)


def _block(path: Path, asked: str, reports: Callable[[tuple[Path, ...], bool, int], Report]) -> str:
    places, name, min_test = _words(asked)
    folders = {place: path.parent / place for place in places}
    if not folders:
        raise InputError(f"{path}: <!-- evenfed {asked} --> names no folder; write a folder, then a table's name")
    absent = [place for place, folder in folders.items() if not folder.is_dir()]
    there = tuple(folder for place, folder in folders.items() if place not in absent)
    if min_test and (name.endswith(_FIGURES) or name.startswith(_OF_A_CHOICE)):
        raise InputError(f"{path}: <!-- evenfed {asked} -->: min_test goes with a report's tables, not with {name}")
    told = [f"Not run yet: {', '.join(f'`{place}`' for place in absent)}."] if absent else []
    if absent and (name.endswith(_FIGURES) or name.startswith(_OF_A_CHOICE)):
        return told[0]  # what is made of these folders needs them all
    if name.endswith(_FIGURES):
        told.append(_figure(path, places, name))
    elif name == "facts":
        told += ["\n".join(f"* {fact}" for fact in reports(there, False, min_test).facts)] if there else []
    elif there:
        tables = {table.name: table for table in _tables(there, name, min_test, reports)}
        if name not in tables and not absent:
            raise unknown(f"table of {path}", name, [*tables, "facts"])
        told += [markdown_table(tables[name])] if name in tables else []
    return "\n\n".join(told)


def _figure(path: Path, places: Sequence[str], name: str) -> str:
    picture = Path(places[0], "report", name)
    if picture.stem not in _DRAWN_BY:
        raise unknown(f"figure of {path}", name, [f"{stem}{picture.suffix}" for stem in _DRAWN_BY])
    command = f"{_DRAWN_BY[picture.stem]} {places[0]}"
    drawn = (path.parent / picture).exists()
    if len(places) > 1 and picture.stem == "differences":  # pooled; the first folder keeps that of one company alone
        picture, command = Path(places[0], "beside", name), f"report {' '.join(places)}"
        told, company = path.parent / picture.with_name("report.md"), ", ".join(Path(place).name for place in places)
        drawn = told.exists() and told.read_text().startswith(f"# {company}\n") and (path.parent / picture).exists()
    if not drawn:
        return f"Not drawn yet: `evenfed {command}`."
    return f"![{picture.stem}]({picture.as_posix()})"


def _tables(
    folders: tuple[Path, ...], name: str, min_test: int, reports: Callable[[tuple[Path, ...], bool, int], Report]
) -> Sequence[Table]:
    if name.startswith(_OF_A_CHOICE):
        return choice.tables(choose(*folders[:2]))
    return reports(folders, name.startswith(_OF_THE_PAPER), min_test).tables
