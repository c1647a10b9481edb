"""Tables and figures put into Markdown."""

import re
import shutil
from pathlib import Path

import pytest

from evenfed.comparison.storage.pack import pack
from evenfed.comparison.storage.reading import read
from evenfed.core.errors import InputError
from evenfed.report import cached_report
from evenfed.report.files import ReportRequest
from evenfed.report.fill import filled
from evenfed.report.write import markdown_table

ROOT = Path(__file__).parents[2]


def test_a_block_without_its_end_is_refused_and_missing_folders_are_told(small, evenfed, tmp_path):
    pack(small, tmp_path / "kept")
    page = tmp_path / "page.md"
    block = "<!-- evenfed kept detailed-last -->\n<!-- /evenfed -->\n"
    page.write_text(f"<!-- evenfed kept facts -->\nmine\n{block}")
    done = evenfed("fill", page)
    assert (
        done.returncode == 2 and "<!-- evenfed kept facts --> has no end" in done.stderr and "mine" in page.read_text()
    )
    page.write_text("<!-- evenfed gone kept chosen -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `gone`.\n<!--" in filled(page)  # the noise floor's folder alone chooses nothing
    page.write_text(block.replace("kept", "gone"))
    done = evenfed("fill", page)
    assert done.returncode == 0 and "not run yet: gone (paths are relative to this file)" in " ".join(
        done.stderr.split()
    )


def test_blocks_are_filled_from_results_and_checked(small, evenfed, tmp_path):
    page = tmp_path / "page.md"
    pack(small, tmp_path / "kept")
    page.write_text(
        "before\n<!-- evenfed kept detailed-last -->\nlast year\n<!-- /evenfed -->\nbetween\n"
        "<!-- evenfed kept facts -->\n<!-- /evenfed -->\n<!-- evenfed other paper -->\n<!-- /evenfed -->\nafter\n"
    )
    stale = evenfed("fill", page, "--check")
    assert stale.returncode == 2 and "evenfed fill" in stale.stderr and "last year" in page.read_text()
    assert evenfed("fill", page).returncode == 0
    text, mean = page.read_text(), 100 * read(small).rows["vred"].last["mean"][0]
    assert (
        f"| vred | {mean:.2f} ± " in text.replace("**", "") and "digits: 6 clients" in text and "last year" not in text
    )
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "Not run yet: `other`." in text
    assert evenfed("fill", page, "--check").returncode == 0 and filled(page) == text


def test_a_block_may_show_some_columns_alone(small, tmp_path):
    pack(small, tmp_path / "kept")
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed kept columns=worst10,mean overview-late -->\n<!-- /evenfed -->\n")
    table = filled(page).splitlines()[1:-1]
    assert table[0] == "| algorithm | worst 10 % | mean |"
    figures = read(small).rows["vred"].late
    shown = next(line for line in table if line.startswith("| vred |")).replace("**", "")
    assert shown.startswith(f"| vred | {100 * figures['worst10'][0]:.2f} ± ")
    assert f"| {100 * figures['mean'][0]:.2f} ± " in shown
    assert table[-1].startswith("| *fedavg, other seeds* |")  # and no note under it


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("<!-- evenfed kept detaild-last -->\n<!-- /evenfed -->", "detailed-last"),
        ("<!-- evenfed facts -->\n<!-- /evenfed -->", "names no folder"),
        ("<!-- evenfed kept min_test=few facts -->\n<!-- /evenfed -->", "unknown word 'min_test=few'"),
        ("<!-- evenfed kept columns=best runs -->\n<!-- /evenfed -->", "column of runs 'best'"),
        ("<!-- evenfed kept facts min_test=5 -->\n<!-- /evenfed -->", "unknown word 'min_test=5'"),
        ("nothing", "no block to fill"),
    ],
)
def test_bad_blocks_are_told(small, evenfed, tmp_path, block, told):
    shutil.copytree(small, tmp_path / "kept")
    (tmp_path / "page.md").write_text(block)
    done = evenfed("fill", tmp_path / "page.md")
    assert done.returncode == 2 and told in done.stderr and (tmp_path / "page.md").read_text() == block


def test_tables_of_packed_runs_are_taken_from_their_report_until_the_runs_change(small, evenfed, tmp_path):
    kept_runs = tmp_path / "kept"
    pack(small, kept_runs)
    assert evenfed("report", kept_runs, "--no-figures", "--format", "json").returncode == 0
    table = kept_runs / "report" / "tables.json"
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed kept overview-late -->\n<!-- /evenfed -->\n")
    before = filled(page)
    table.write_text(table.read_text().replace("best in bold", "from the report"))
    assert filled(page) == before.replace("best in bold", "from the report") != before
    whole = table.read_text()
    for broken in (whole[:100], whole.replace('"digits"', '"unheard of"'), "[]"):
        table.write_text(broken)
        assert filled(page) == before
    table.write_text(whole)
    packed = kept_runs / "runs.tar.xz"
    packed.write_bytes(packed.read_bytes() + bytes(4))  # padding that xz ignores: other bytes, the same runs
    assert filled(page) == before


def test_a_report_without_its_runs_still_fills_pages(small, evenfed, tmp_path):
    only_report = tmp_path / "kept"
    assert evenfed("report", small, "--out", only_report / "report", "--format", "json").returncode == 0
    page = tmp_path / "page.md"
    blocks = [f"<!-- evenfed kept {name} -->\n<!-- /evenfed -->\n" for name in ("overview-late", "differences.svg")]
    page.write_text("".join(blocks))
    text = filled(page)
    mean = 100 * read(small).rows["vred"].late["mean"][0]
    assert f"| vred | {mean:.2f} ± " in text.replace("**", "")
    assert "difference from FedAvg with its 95 % interval](kept/report/differences.svg)" in text
    pack(small, only_report)  # now the runs are there, and the report was not made from this file
    assert "Not drawn yet" in filled(page)


def test_a_report_of_several_folders_does_not_stand_for_others(splits, evenfed, tmp_path):
    one, two, three = (splits(split, 0.02 * split) for split in range(3))
    assert evenfed("report", one, two, "--no-figures", "--format", "json").returncode == 0
    for folder in (one, two, three):
        folder.rename(tmp_path / folder.name)
    emptied = tmp_path / one.name
    for run in emptied.glob("*/seed-*"):
        shutil.rmtree(run)
    other = tmp_path / "other"
    other.mkdir()
    page = tmp_path / "page.md"
    page.write_text(f"<!-- evenfed {emptied.name} other glance-late -->\n<!-- /evenfed -->\n")
    with pytest.raises(InputError):
        filled(page)


def test_some_lines_of_a_table_can_be_shown_alone(small, tmp_path):
    pack(small, tmp_path / "kept")
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed kept parts=mean entries=vred,semi_vred paired-late -->\n<!-- /evenfed -->\n")
    _, _, *lines = filled(page).splitlines()[1:-1]
    assert [line.split(" | ")[:2] for line in lines] == [["| vred", "mean"], ["| semi_vred", "mean"]]
    page.write_text("<!-- evenfed kept parts=men paired-late -->\n<!-- /evenfed -->\n")
    with pytest.raises(InputError, match="part of paired-late 'men'"):
        filled(page)


RESULTS = ROOT / "results"
with_results = pytest.mark.skipif(not RESULTS.is_dir(), reason="the package's sources have no results")


@with_results
@pytest.mark.parametrize("page", ["README.md", "results/README.md", "docs/choosing.md"])
def test_pages_say_what_the_committed_reports_say(page):
    assert filled(ROOT / page) == (ROOT / page).read_text(), "make readme"


@with_results
def test_the_results_page_is_short_and_links_what_is_there():
    text = (RESULTS / "README.md").read_text()
    assert len(text.splitlines()) < 300
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links and all((RESULTS / link).exists() for link in links)


@with_results
@pytest.mark.slow
@pytest.mark.parametrize("folders", [["cifar10-stem"], ["cifar10-split-1"], ["cifar10-stem", "cifar10"]])
def test_committed_reports_say_what_their_runs_say(folders):
    """A sample of those that experiments/report.sh makes."""
    question = ReportRequest(tuple(RESULTS / folder for folder in folders))
    committed = cached_report.load(question.target)
    assert committed.is_of(question.comparisons)
    has_paper = any(table.name == "paper" for table in committed.tables)
    now = question.report(has_paper)
    shown = [markdown_table(table) for table in committed.tables]
    assert shown == [markdown_table(table) for table in now.tables], "make readme"
