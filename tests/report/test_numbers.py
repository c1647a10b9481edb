"""Numbers in the sentences of a page."""

import pytest

from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.pack import pack
from evenfed.comparison.storage.reading import read
from evenfed.core.errors import InputError
from evenfed.report.fill import filled

MEAN = "kept entries=vred columns=mean overview-late"
GAP = "kept entries=vred parts=worst10 columns=difference paired-late"


@pytest.fixture
def page(small, tmp_path):
    """A function of sentences and definitions that gives the page's path."""
    (tmp_path / "results").mkdir()
    pack(small, tmp_path / "results" / "kept")

    def written(sentences: str, **definitions: str):
        lines = [f'{name} = "{words}"\n' for name, words in definitions.items()]
        (tmp_path / "results" / "numbers.toml").write_text("".join(lines))
        path = tmp_path / "page.md"
        path.write_text(f"<!-- evenfed numbers results/numbers.toml -->\n{sentences}\n")
        return path

    return written


def test_numbers_are_written_as_the_sentence_needs_them(page, small):
    forms = ("", ":0", ":+", ":+2", ":interval", ":interval2")
    sentences = "\n".join(f"so <!--gap{form}-->?<!--/-->," for form in forms)
    text = filled(page(f"{sentences}\nand <!--mean-->\nold<!--/-->%.", gap=GAP, mean=MEAN))
    findings = read(small)
    gap = Differences([findings], True).between("vred", "fedavg", "worst10")
    points, low, high = gap.points, gap.low, gap.high
    assert low < high
    expected = [
        f"{abs(points):.1f}",
        f"{abs(points):.0f}",
        f"{points:+.1f}",
        f"{points:+.2f}",
        f"[{low:+.1f}, {high:+.1f}]",
        f"[{low:+.2f}, {high:+.2f}]",
    ]
    mean = 100 * findings.rows["vred"].late["mean"][0]
    lines = text.splitlines()
    for line, form, number in zip(lines[1:], forms, expected, strict=False):
        assert line == f"so <!--gap{form}-->{number}<!--/-->,"
    assert lines[-1] == f"and <!--mean-->{mean:.1f}<!--/-->%."


def test_a_stale_number_fails_the_check_and_fill_mends_it(page, evenfed):
    path = page("so <!--mean-->12.3<!--/-->", mean=MEAN)
    stale = evenfed("fill", path, "--check")
    assert stale.returncode == 2 and "12.3" in path.read_text()
    assert evenfed("fill", path).returncode == 0 and "12.3" not in path.read_text()
    assert evenfed("fill", path, "--check").returncode == 0


@pytest.mark.parametrize("line", ["<!-- evenfed numbers my numbers.toml -->", "<!-- evenfed numbers -->"])
def test_a_file_of_numbers_that_is_not_named_well_is_told(tmp_path, line):
    path = tmp_path / "page.md"
    path.write_text(f"{line}\nso <!--mean-->1<!--/-->\n")
    with pytest.raises(InputError, match="write <!-- evenfed numbers FILE --> once"):
        filled(path)


def test_numbers_of_a_page_that_names_no_file_are_told(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("so <!--mean-->1<!--/-->\n")
    with pytest.raises(InputError, match=r"<!--mean-->1<!--/--> has no source; name the file"):
        filled(path)


def test_names_may_have_hyphens(page):
    path = page("so <!--a-mean:0-->999<!--/--> %", **{"a-mean": MEAN})
    assert "999" not in filled(path)


def test_comments_that_quote_nothing_are_left_alone(page):
    path = page("<!-- a note --> and <!--mean-->0<!--/-->", mean=MEAN)
    assert "<!-- a note --> and <!--mean-->" in filled(path)


@pytest.mark.parametrize(
    ("sentence", "definition", "told"),
    [
        ("so <!--men-->1<!--/-->", MEAN, "unknown number of .*numbers.toml 'men'; did you mean 'mean'"),
        ("so <!-- mean -->1<!--/-->", MEAN, "ends no number; write <!--NAME--> before it, without blanks"),
        ("so 1<!--/-->", MEAN, "ends no number"),
        ("so <!--mean-->1<!--/-->\n<!-- evenfed numbers results/other.toml -->", MEAN, "FILE --> once"),
        ("so <!--mean-->1<!--/-->", "", "names nothing"),
        ("so <!--mean-->1<!--/-->", "overview-late", "mean names no folder"),
        ("so <!--mean-->1<!--/-->", "kept facts", "facts holds no number"),
        ("so <!--mean-->1<!--/-->", "kept differences.svg", "differences.svg holds no number"),
        ("so <!--mean-->1<!--/-->", "kept min_test=5 chosen", "min_test and last_rounds go with reports"),
        ("so\n<!--mean-->1<!--/-->", MEAN, "begins a line; write a word before"),
        ("* <!--mean-->1<!--/-->", MEAN, "begins a line; write a word before"),
        ("> 1. <!--mean-->1<!--/-->", MEAN, "begins a line; write a word before"),
        ("so <!--mean-->1", MEAN, "<!--mean--> has no end; write <!--/-->"),
        ("so <!--mean:round-->1<!--/-->", MEAN, "unknown form 'round'; write"),
        ("so <!--mean:interval-->1<!--/-->", MEAN, "has no interval"),
        (
            "so <!--mean-->1<!--/-->",
            "kept entries=vred overview-late",
            r"mean shows \d+ cells; choose one by entries=A",
        ),
        ("so <!--mean-->1<!--/-->", "gone entries=vred columns=mean overview-late", "gone is not there"),
        (
            "so <!--mean-->1<!--/-->",
            "kept entries=nobody columns=mean overview-late",
            "entry of overview-late 'nobody'",
        ),
        ("so <!--mean-->1<!--/-->", "kept columns=mean no-table", "table of .*numbers.toml 'no-table'"),
    ],
)
def test_what_cannot_be_quoted_is_told(page, sentence, definition, told):
    with pytest.raises(InputError, match=told):
        filled(page(sentence, mean=definition))


def test_a_file_of_numbers_that_cannot_be_read_is_told(page, tmp_path):
    path = page("so <!--mean-->1<!--/-->", mean=MEAN)
    source = tmp_path / "results" / "numbers.toml"
    for content, told in (("mean = 3", "write in quotes"), ("mean = ", "not valid TOML"), (None, "cannot be read")):
        if content is None:
            source.unlink()
        else:
            source.write_text(content)
        with pytest.raises(InputError, match=told):
            filled(path)
