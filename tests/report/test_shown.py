"""Names from anywhere, shown as text in every format."""

import io
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from evenfed.cli import console as cli_console
from evenfed.cli.console import Page
from evenfed.core.errors import InputError
from evenfed.core.printable import in_markdown, in_sheet, name_in_markdown, printable
from evenfed.data import DataSettings, federate
from evenfed.report import brief, terminal, write
from evenfed.report.charts.chart import Chart
from evenfed.report.charts.saving import save
from evenfed.report.document import Report
from evenfed.report.federation import render
from evenfed.report.table import Cell, Column, Line, Table

NASTY = "=cmd|'x'!A0<script>\x1b]0;gone\x07[a](javascript:1)*b*`c`\u202e\ud800\x00"
HIDDEN = "\x1b\x07\u202e\ud800\x00"


def is_clean(text: str) -> bool:
    return not set(HIDDEN) & set(text)


def printed(renderable) -> str:
    page = Page(file=io.StringIO(), width=300, force_terminal=False)
    page.print(renderable)
    return page.file.getvalue()


@pytest.fixture(scope="module")
def table() -> Table:
    line = Line(NASTY, [Cell(1.0)], part=NASTY)
    return Table("nasty", f"of {NASTY}", [Column("mean", f"mean {NASTY}")], [line], notes=[f"note: {NASTY}"])


@pytest.fixture(scope="module")
def report(table) -> Report:
    return Report(NASTY, [f"data: {NASTY}"], [table], {"folder": NASTY}, [], None)


def test_hidden_characters_become_escapes_and_others_stay():
    assert printable("a\nb\x1b") == r"a\nb\x1b" and printable("a\nb\x1b", lines=True) == "a\nb\\x1b"
    for kept in ("Übung 3", "病院", "مستشفى", "semi_vred[beta=1]", "👩\u200d⚕️", "10 % ± 2"):
        assert printable(kept) == kept
    for hidden in HIDDEN + "\x7f\x85\u2028\u2066\ufeff\uffff\U000e0041":
        assert printable(hidden).isascii() and printable(hidden).isprintable()


def test_every_format_shows_names_as_text(report, table):
    for in_format in (write.markdown, write.comma_separated, write.latex, write.as_json):
        assert is_clean(in_format(report)), in_format
    markdown = write.markdown(report)
    assert "<script" not in markdown.replace("\\<script", "") and "](" not in markdown.replace("\\](", "")
    assert "*b*" not in markdown_of_cells(markdown)
    csv_rows = write.comma_separated(report).splitlines()[1:]
    assert all("'=cmd" in row for row in csv_rows)
    latex = write.latex(report)
    assert "<script>" not in latex and "\\x1b" not in latex and r"\textbackslash{}x1b" in latex
    html = brief.as_html(table)
    assert is_clean(html) and "<script" not in html
    for text in (printed(terminal.terminal(report, Page(width=300))), brief.text(table)):
        assert is_clean(text) and "\\x1b]0;gone" in text
    assert json.loads(write.as_json(report))["tables"][0]["lines"][0]["entry"] == NASTY  # programs get the name


def markdown_of_cells(markdown: str) -> str:
    return "".join(line for line in markdown.splitlines() if line.startswith("| =cmd"))


def test_ordinary_names_and_notes_stay_as_they_are():
    for name in ("fedavg", "semi_vred[beta=1,smooth=0.25]", "fedavg-other-batches", "q=0.1", "ward 3"):
        assert name_in_markdown(name) == in_markdown(name) == in_sheet(name) == name
    assert in_markdown("[x]: javascript:alert(1)").startswith("\\[x]: javascript\\:")
    for note in (
        "Better: p < 0.05.",
        "fedavg[lr=0.5]: lifted (+0.1 [-1, 2]).",
        "`evenfed tune` on *chance alone*, 1 & 2; see [docs] (there).",
    ):
        assert in_markdown(note) == note


def test_messages_and_errors_show_names_as_text(capsys):
    cli_console.say(f"evenfed: {NASTY}")
    assert is_clean(capsys.readouterr().err)
    assert is_clean(str(InputError(f"client {NASTY}: missing"))) and str(InputError("two\nlines")) == "two\nlines"


def test_clients_of_any_name_are_listed(tmp_path):
    for name in ("=1+1\x1b[31m", "[bold]b\udcff"):  # the second is no UTF-8
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((4, 2), np.float32), y=np.array([0, 1, 0, 1]))
    federation = federate(DataSettings(name="folder", path=str(tmp_path)))
    listed = printed(render(federation))
    assert is_clean(listed) and "=1+1\\x1b[31m" in listed and "[bold]b\\udcff" in listed


def test_figures_are_drawn_whatever_names_hold(tmp_path):
    """The renderer ended the process at the first of these."""
    pytest.importorskip("vl_convert")
    names = [NASTY, "a\x00", "x" * 100_000, "\ufffe", "<svg onload=alert(1)>"]
    spec = {
        "mark": "bar",
        "encoding": {
            "y": {"field": "client", "type": "nominal", "scale": {"domain": names}, "axis": {"labelLimit": 100}},
            "x": {"field": "x", "type": "quantitative"},
        },
    }
    rows = [{"client": name, "x": 1} for name in names]
    svg, png = save(Chart("nasty", NASTY, NASTY, spec, rows), tmp_path)
    drawn = svg.read_text()
    assert is_clean(drawn) and "<script" not in drawn and "<svg onload" not in drawn and png.stat().st_size
    ET.fromstring(drawn)
