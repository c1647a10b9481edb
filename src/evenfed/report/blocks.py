"""What a page asks for in one comment: a table, a figure or the facts of a report, and which part of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..comparison.runs import FLOOR_NAMES
from ..comparison.storage.reading import read
from ..comparison.tuning.choose import choose
from ..core.errors import InputError, unknown
from . import cached_report, choice
from .cached_report import CachedReport
from .files import CHOICE, ReportRequest
from .table import Line, Table
from .write import markdown_table

_OPTION = re.compile(r"(?P<key>min_test|last_rounds|columns|parts|entries)=(?P<value>\S+)")
_LISTS = ("columns", "parts", "entries")  # may be given several times: the values add up
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_TABLES_OF_THE_PAPER = ("paper", "claims")
_OF_A_CHOICE = ("chosen", "candidates", "grid", "dials")
_FIGURE_ENDINGS = (".svg", ".png")
_DRAWN_BY = {
    "averaging": "report",
    "turns": "report",
    "learning-curves": "report",
    "differences": "report",
    "mean-and-worst10": "report",
    "worst20": "report",
    "dials": "choose",
}
_SHOWS = {  # for those who do not see it
    "averaging": "Difference from FedAvg before and after averaging",
    "turns": "Who is among the worst 10 % in each of the last rounds",
    "learning-curves": "Mean, worst 10 % and spread over the rounds",
    "differences": "Every entry's difference from FedAvg with its 95 % interval",
    "mean-and-worst10": "Mean and worst 10 % of every entry",
    "worst20": "Worst 20 % of every entry",
    "dials": "The candidates of a choice over two hyper-parameters",
}

Reports = Callable[[ReportRequest, bool], CachedReport]  # with a memory: many blocks show tables of the same folders


@dataclass(frozen=True)
class Block:
    """What the opening comment of a block asks for."""

    where: str  # the file and the comment, for errors
    page: Path
    places: Sequence[str]  # folders as written, relative to the page
    question: ReportRequest  # about those folders that exist
    missing: Sequence[str]  # those that do not
    name: str  # of a table or figure
    columns: Sequence[str]  # keys of those to show; none: all
    parts: Sequence[str]  # of each entry, likewise
    entries: Sequence[str]  # labels, likewise

    @classmethod
    def parse(cls, page: Path, words: str) -> "Block":
        where = f"{page}: <!-- evenfed {words} -->"
        if not words.split():
            raise InputError(f"{where} names nothing; write a folder, then a table's name")
        *before, name = words.split()
        places: list[str] = []
        options = dict.fromkeys(_LISTS, "")
        options |= {"min_test": "0", "last_rounds": "0"}
        for word in before:
            option = _OPTION.fullmatch(word)
            if option is None:
                places.append(word)
            elif option["key"] in _LISTS and options[option["key"]]:
                options[option["key"]] += "," + option["value"]  # a long list goes on in another line of the comment
            else:
                options[option["key"]] = option["value"]
        for key in ("min_test", "last_rounds"):
            if not options[key].isdigit():
                places.append(f"{key}={options[key]}")
        for word in (*places, name):
            if "=" in word:
                raise InputError(
                    f"{where}: unknown word {word!r}; write folders, min_test=N, last_rounds=N, columns=A,B, "
                    "parts=A,B or entries=A,B if wanted, then a table"
                )
        folders = []
        missing = []
        for place in dict.fromkeys(places):
            folder = page.parent / place
            if folder.is_dir():
                folders.append(folder)
            else:
                missing.append(place)
        min_test = int(options["min_test"])
        last_rounds = int(options["last_rounds"]) or None
        if (min_test or last_rounds) and name.startswith(_OF_A_CHOICE):
            raise InputError(f"{where}: min_test and last_rounds go with reports, not with {name}")
        return cls(
            where=where,
            page=page,
            places=places,
            question=ReportRequest(tuple(folders), min_test, last_rounds),
            missing=missing,
            name=name,
            columns=_listed(options["columns"]),
            parts=_listed(options["parts"]),
            entries=_listed(options["entries"]),
        )

    @property
    def is_figure(self) -> bool:
        return self.name.endswith(_FIGURE_ENDINGS)

    @property
    def is_of_a_choice(self) -> bool:
        return self.name.startswith(_OF_A_CHOICE)


def _listed(words: str) -> list[str]:
    """Words between commas; commas within brackets are part of a label.

    >>> _listed("vred,vred[beta=1,smooth=0.1]")
    ['vred', 'vred[beta=1,smooth=0.1]']
    """
    return _COMMA_OUTSIDE_BRACKETS.split(words) if words else []


def content(block: Block, reports: Reports) -> str:
    if not block.places:
        raise InputError(f"{block.where} names no folder; write a folder, then a table's name")
    needs_all_folders = block.is_figure or block.is_of_a_choice
    paragraphs = []
    if block.missing:
        names = "`, `".join(block.missing)
        paragraphs.append(f"Not run yet: `{names}`.")
        if needs_all_folders:
            return paragraphs[0]
    if block.is_figure:
        paragraphs.append(_figure(block))
    elif block.question.folders and block.name == "facts":
        facts = [f"* {fact}" for fact in _kept(block, reports).facts]
        paragraphs.append("\n".join(facts))
    elif block.question.folders:
        shown = table(block, reports)
        if shown is not None:
            paragraphs.append(markdown_table(shown))
    return "\n\n".join(paragraphs)


def table(block: Block, reports: Reports) -> Table | None:
    """The part of a table that the block asks for; None where it may be one of a folder that does not exist yet."""
    by_name = {table.name: table for table in _kept(block, reports).tables}
    if block.name in by_name:
        return _shortened(by_name[block.name], block)
    if block.missing:
        return None
    known = [*by_name, "facts"]
    raise unknown(f"table of {block.page}", block.name, known)


def _kept(block: Block, reports: Reports) -> CachedReport:
    if block.is_of_a_choice:
        return _choice(block)
    beside_paper = block.name.startswith(_TABLES_OF_THE_PAPER)
    return reports(block.question, beside_paper)


def report(question: ReportRequest, beside_paper: bool) -> CachedReport:
    """What was kept beside the runs, if it is of these runs or they are not there, else a new one."""
    report = cached_report.load(question.target)
    if report is not None and (question.is_report_alone or report.is_of_packed(question.comparisons)):
        has_paper = any(table.name.startswith(_TABLES_OF_THE_PAPER) for table in report.tables)
        if has_paper or not beside_paper:
            return report
    new = question.report(beside_paper)
    return CachedReport(new.facts, new.tables)


def _choice(block: Block) -> CachedReport:
    """What was kept beside the runs chosen from, if it is of these runs, else a new choice.

    It is among the folders judged on validation data; one judged on test data gives the margin.
    """
    folders = block.question.comparisons
    known = cached_report.load(block.question.folders[0] / "report", CHOICE)
    if known is not None and known.is_of_packed(folders):
        return known
    judged = []
    repetitions = None
    for folder in folders:
        findings = read(folder)
        if findings.judge == "validation":
            judged.append(findings)
        else:
            repetitions = findings
    if not judged:
        raise InputError(f"{block.where}: no folder was judged on validation data; name the one that was chosen from")
    chosen = choose(judged, repetitions)
    return CachedReport([], choice.tables(chosen))


def _shortened(table: Table, block: Block) -> Table:
    """The columns and lines that the block names, without notes where it names any."""
    if block.entries:
        labels = list(map(_label, table.lines))
        _check_known(f"entry of {block.name}", block.entries, labels)
        lines = [line for line in table.lines if _label(line) in block.entries]
        table = replace(table, lines=lines)
    if block.parts:
        parts = [line.part for line in table.lines]
        _check_known(f"part of {block.name}", block.parts, parts)
        lines = [line for line in table.lines if line.part in block.parts]
        table = replace(table, lines=lines, notes=())
    if block.columns:
        table = _with_columns(table, block)
    return table


def _label(line: Line) -> str:
    label, _, _ = line.entry.partition(" minus ")
    return label


def _with_columns(table: Table, block: Block) -> Table:
    keys = [column.key for column in table.columns]
    _check_known(f"column of {block.name}", block.columns, keys)
    positions = list(map(keys.index, block.columns))
    lines: list[Line] = []
    for line in table.lines:
        if not line.control or line.entry in FLOOR_NAMES:
            cells = [line.cells[k] for k in positions]
            lines.append(replace(line, cells=cells))
    columns = [table.columns[k] for k in positions]
    return replace(table, columns=columns, lines=lines, notes=())


def _check_known(what: str, asked: Sequence[str], known: Sequence[str]) -> None:
    for word in asked:
        if word not in known:
            raise unknown(what, word, list(dict.fromkeys(known)))


def _figure(block: Block) -> str:
    """A figure that was drawn beside the runs, if it is of these runs."""
    question = block.question
    stem, ending = block.name.rsplit(".", 1)
    if stem not in _DRAWN_BY:
        known = [f"{name}.{ending}" for name in _DRAWN_BY]
        raise unknown(f"figure of {block.page}", block.name, known)
    command = _DRAWN_BY[stem]
    target = question.target
    name = cached_report.NAME
    if command == "choose":
        target = question.folders[0] / "report"
        name = CHOICE
    drawing = target / block.name
    of_these = cached_report.load(target, name)
    needs_its_runs = command == "report" and not question.is_report_alone
    is_current = of_these is not None and (not needs_its_runs or of_these.is_of(question.comparisons))
    if drawing.exists() and is_current:
        return f"![{_SHOWS[stem]}]({drawing.relative_to(block.page.parent).as_posix()})"
    words = [command, *block.places]
    if question.min_test:
        words.append(f"--min-test {question.min_test}")
    if question.last_rounds:
        words.append(f"--last-rounds {question.last_rounds}")
    return f"Not drawn yet: `evenfed {' '.join(words)}`."
