"""The page in a real browser: it opens from disk, asks for nothing, and does what its switches say."""

import csv
import io
import json
import shutil
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from browser import Browser, chromium, needs_chromium
from evenfed.comparison.storage.reading import read
from evenfed.report.document import Report
from evenfed.report.files import write_page
from evenfed.report.live.page_versions import PageVersions
from evenfed.report.live.server import PageServer
from growing import Growing
from reports import put_rounds

pytestmark = [pytest.mark.slow, needs_chromium]

NAMES = ["<script>alert(1)</script>", "</script>", "javascript:alert(1)", "=1+1", "ward & <b>3</b>", "plain"]
HELD = {  # by the guard, in each of four rounds
    "vred": [[], [[0, "loss", 1e6, 2.5], [0, "update", 900.0, 0.0]], [[0, "loss", 1e6, 2.5]], []],
    "semi_vred": [[[1, "size", 900.0, 50.0]], [], [], [[0, "weight", 0.9, 0.3]]],
}
BASE = {"fedavg": 0.40, "fedavg-other-seeds": 0.41, "vred": 0.55, "semi_vred": 0.35}


def changed(label: str, seed: int, header: dict, rounds: list) -> None:
    header["clients"]["names"] = NAMES
    for number, line in enumerate(rounds):
        level = BASE[label] + (0.01 + 1e-5 * (label == "vred")) * (seed % 2) + 0.001 * number
        line["accuracy"] = (level + 0.0512345 * np.arange(6)).tolist()
        if label in HELD:
            line["clipped"] = HELD[label][number]


@pytest.fixture(scope="module")
def comparison(small, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "hostile"
    shutil.copytree(small, folder)
    for path in folder.glob("*/seed-*"):
        header = json.loads((path / "header.json").read_text())
        rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        changed(path.parent.name, int(path.name.removeprefix("seed-")), header, rounds)
        put_rounds(path, rounds, header)
    return folder


@pytest.fixture(scope="module")
def findings(comparison):
    return read(comparison)


@pytest.fixture(scope="module")
def page(findings, comparison) -> str:
    document = Report.of_findings([findings], beside_paper=False)
    return write_page(document, comparison / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def opened(browser, page) -> Browser:
    browser.requests()
    browser.open(page)
    return browser


def charts(browser: Browser) -> dict[str, str]:
    """What each chart looks like."""
    script = "return [...document.querySelectorAll('figure')].map(f => [f.id, f.querySelector('.plot svg').outerHTML])"
    return dict(browser.run(script))


def rows_of(browser: Browser, figure: str) -> list[dict[str, str]]:
    """A chart's data as its table shows them."""
    script = """
        const details = document.querySelector(`#${arguments[0]} details.data`);
        details.open = false; details.open = true;
        details.dispatchEvent(new Event("toggle"));
        const text = (cell) => cell.textContent;
        const heads = [...details.querySelectorAll("thead button")].map(text);
        const lines = [...details.querySelectorAll("tbody tr")].map((line) => [...line.children].map(text));
        return [heads, lines];
    """
    heads, lines = browser.run(script, figure)
    return [dict(zip(heads, line, strict=True)) for line in lines]


def lines_of(browser: Browser) -> list[list[str]]:
    return browser.run(
        "return [...document.querySelectorAll('table.glance tbody tr')].map(r => [...r.children].map(c => c.innerText))"
    )


def test_it_opens_without_errors_and_asks_for_nothing(opened, page):
    assert opened.console() == []
    addresses = opened.requests()
    assert addresses and {address for address in addresses if not address.startswith(("data:", "blob:"))} == {page}
    assert len(opened.all("figure .plot svg")) == len(opened.all("figure")) >= 4


def test_the_verdict_and_the_numbers_are_those_of_the_results(opened, findings):
    assert opened.one(".sentence").text.startswith("vred serves the worst-served clients best: the worst 10 %")
    by_name = {line[0]: line for line in lines_of(opened)}
    for label in ("fedavg", "vred", "semi_vred"):
        late = findings.rows[label].late
        assert by_name[label][1] == f"{100 * late['worst10'][0]:.1f}"
        assert by_name[label][3] == f"{100 * late['mean'][0]:.1f}"
    assert by_name["vred"][2].startswith("+15.0\n+") and by_name["vred"][2].endswith("better")
    assert len(opened.all("table.glance thead th")) == 5


def test_a_chart_has_every_number_of_the_results(opened, findings):
    measured = {}
    for row in rows_of(opened, "chart-changes"):
        measured[row["algorithm"], row["seed"], row["client"]] = float(row["value"])
    for label in ("vred", "semi_vred"):
        for seed, run in findings.named(label).runs.items():
            for name, figure in zip(NAMES, run.late_figures, strict=True):
                assert measured[label, str(seed), name] == pytest.approx(100 * figure, abs=0.006)


def test_names_are_text(opened):
    assert opened.run("return [...document.querySelector('#client').options].map(o => o.textContent)")[1:] == NAMES
    assert opened.run("return document.querySelectorAll('script').length") == 4
    assert not opened.all("a[href^=javascript]") and not opened.all("main b")
    rows_of(opened, "chart-changes")
    assert NAMES[0] in opened.one("#chart-changes details.data").text


def test_columns_sort_by_mouse_and_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    head = opened.all("table.glance thead button")

    def order() -> list[str]:
        *competing, chance = [line[0] for line in lines_of(opened)]
        assert chance == "fedavg, other seeds"  # which does not compete, and goes last
        return competing

    assert [th.get_attribute("aria-sort") for th in opened.all("table.glance thead th")][1] == "descending"
    assert order()[0] == "vred" and order()[-1] == "semi_vred"
    head[0].click()
    assert order() == sorted(order())
    head[1].send_keys(Keys.ENTER)
    head[1].send_keys(Keys.SPACE)
    assert opened.all("table.glance thead th")[1].get_attribute("aria-sort") == "ascending"
    assert order()[0] == "semi_vred" and order()[-1] == "vred"
    assert "Sorted by Worst 10 %, ascending" in opened.one("#status").get_attribute("textContent")


def test_whom_the_guard_held_back_stands_on_the_page(opened):
    lines = opened.run(
        "return [...document.querySelectorAll('#guard tbody tr')].map(r => [...r.children].map(c => c.innerText))"
    )
    assert lines == [
        ["vred", NAMES[0], "4", "2", "3", "4", "0", "2", "0", "0", "2"],
        ["semi_vred", NAMES[0], "2", "4", "4", "0", "2", "0", "0", "0", "0"],
        ["semi_vred", NAMES[1], "2", "1", "1", "0", "0", "0", "0", "2", "0"],
    ]
    bars = {(row["algorithm"], row["client"], row["round"], row["what"]) for row in rows_of(opened, "chart-guard")}
    assert bars == {
        ("vred", NAMES[0], "2", "left out"),
        ("vred", NAMES[0], "3", "loss"),
        ("semi_vred", NAMES[1], "1", "size"),
        ("semi_vred", NAMES[0], "4", "weight"),
    }


def test_algorithms_and_seeds_switch_on_and_off_everywhere(opened):
    before = charts(opened)
    opened.run("document.querySelector('[data-kind=algorithm][data-key=vred]').click()")
    opened.settled()
    assert len(opened.all("tr.off")) == 1
    after = charts(opened)
    for figure in set(before) - {"chart-federation"}:
        assert after[figure] != before[figure], figure
        assert "vred" not in {row["algorithm"] for row in rows_of(opened, figure)}
    opened.run("document.querySelector('[data-kind=seed][data-key=\"1\"]').click()")
    for figure in before:
        assert "1" not in {row.get("seed") for row in rows_of(opened, figure)}
    opened.one("#all").click()
    opened.settled()
    assert not opened.all("tr.off") and ">vred<" in charts(opened)["chart-changes"]
    assert "1" in {row["seed"] for row in rows_of(opened, "chart-changes")}
    assert opened.console() == []


def looks(browser: Browser) -> dict[str, list[str]]:
    """How each chart that shows clients draws them."""
    script = """
        const drawn = (figure) => [...figure.querySelectorAll(".plot svg *")]
            .filter((mark) => mark.__data__?.datum?.client !== undefined)
            .map((mark) => mark.outerHTML).sort();
        return [...document.querySelectorAll("figure")].map((figure) => [figure.id, drawn(figure)]);
    """
    return {figure: marks for figure, marks in browser.run(script) if marks}


def test_a_client_picked_in_one_chart_stands_out_in_all(opened):
    click = """
        const marks = [...document.querySelectorAll("#chart-changes .plot svg path")];
        const mark = marks.find((each) => each.__data__?.datum?.client === arguments[0]);
        const place = mark.getBoundingClientRect();
        const where = {bubbles: true, clientX: place.x + place.width / 2, clientY: place.y + place.height / 2};
        mark.dispatchEvent(new MouseEvent("click", where));
    """
    before = looks(opened)
    assert {"chart-changes", "chart-clients", "chart-turns", "chart-weights", "chart-federation"} <= set(before)
    opened.run(click, NAMES[0])
    opened.settled()
    assert opened.one("#client").get_attribute("value") == "0"
    by_mouse = looks(opened)
    for figure, marks in before.items():
        assert by_mouse[figure] != marks, figure
    opened.run(click, NAMES[0])
    opened.settled()
    assert opened.one("#client").get_attribute("value") == ""
    assert looks(opened) == before
    opened.one("#client").send_keys("<script>")
    opened.settled()
    assert looks(opened) == by_mouse
    opened.one("#all").click()
    opened.settled()


def test_charts_are_saved(opened, findings):
    for button in opened.all("#chart-changes .tools button"):
        button.click()
    rows = list(csv.DictReader(io.StringIO(opened.saved("changes.csv").read_text())))
    assert {row["client"] for row in rows} == {name if name != "=1+1" else "'=1+1" for name in NAMES}
    own = findings.named("vred").runs[0].late_figures
    (saved,) = [row for row in rows if (row["algorithm"], row["seed"], row["client"]) == ("vred", "0", "plain")]
    assert float(saved["value"]) == pytest.approx(100 * own[-1], abs=0.006)
    svg = ET.fromstring(opened.saved("changes.svg").read_text())
    assert svg.tag.endswith("svg") and "vred" in "".join(svg.itertext())
    assert opened.saved("changes.png").read_bytes().startswith(b"\x89PNG")
    assert opened.console() == []


def test_it_can_be_read_without_eyes_or_mouse(opened):
    assert opened.run("return document.documentElement.lang") == "en"
    for selector in ("header", "main", "footer", "h1"):
        assert len(opened.all(selector)) == 1
    for figure in opened.all("figure"):
        image = figure.find_element("css selector", "[role=img]")
        words = [opened.one(f"#{place}").text for place in image.get_attribute("aria-labelledby").split()]
        assert all(len(text) > 10 for text in words)
        assert len(figure.find_elements("css selector", ".tools button[aria-label]")) == 3
    unnamed = """
        const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length;
        return [...document.querySelectorAll("button, select, input")].filter((e) => !named(e)).length
    """
    assert opened.run(unnamed) == 0


def test_the_other_theme_a_phone_and_paper(browser, page):
    browser.open(page, width=390, theme="dark")
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.run("const frame = document.querySelector('.glance').parentElement; return frame.scrollWidth") <= 390
    shrunk = """
        const scale = (svg) => svg.getBoundingClientRect().width / svg.width.baseVal.value;
        return Math.min(...[...document.querySelectorAll(".plot svg")].map(scale))
    """
    assert browser.run(shrunk) >= 0.69  # smaller text is not readable
    names = [text.text for text in browser.all("#chart-differences text") if text.text == "semi_vred"]
    assert len(names) == 4  # beside each of the pictures below each other
    assert browser.run(colour) == "rgb(22, 24, 29)"
    dark = charts(browser)
    browser.one("#theme").click()
    browser.settled()
    assert browser.run(colour) == "rgb(255, 255, 255)"
    assert browser.one("#theme").text == "Dark"
    assert charts(browser) != dark
    paper = browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert len(paper["data"]) > 10_000
    assert browser.console() == []


# a live page, last: it takes the browser away from the page above

SENTENCE = "document.querySelector('#verdict .sentence').textContent"
CHOOSE = """
    document.querySelector("input[data-key=vred]").click();
    const client = document.getElementById("client");
    client.value = "3";
    client.dispatchEvent(new Event("change"));
    document.querySelector("#tables summary").click();
    document.querySelector("#chart-learning-curves details.data summary").click();
    document.querySelector(".glance th:nth-child(4) button").click();
    document.getElementById("theme").click();
    document.querySelector("input[data-key=semi_vred]").focus();
"""
CHOSEN = """
    const isFilled = (details) => details.open && details.children.length > 1;
    return {
        switched: document.querySelector("input[data-key=vred]").checked,
        client: document.getElementById("client").value,
        open: [...document.querySelectorAll("#tables details")].map(isFilled),
        sorted: document.querySelector(".glance th:nth-child(4)").getAttribute("aria-sort"),
        theme: document.documentElement.dataset.theme,
        focus: document.activeElement.dataset.key,
    };
"""
ROUNDS = """
    const cells = [...document.querySelectorAll("#chart-learning-curves details.data td:nth-child(3)")];
    return Math.max(...cells.map((cell) => cell.textContent.split(" ").length))
"""


@pytest.fixture
def live(tmp_path):
    server = PageServer(PageVersions(tmp_path / "mine", pause=0, idle=0).newest, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_live_page_grows_and_keeps_what_was_chosen(small, browser, live, tmp_path):
    growing = Growing(small, tmp_path / "mine")
    browser.requests()
    browser.console()
    browser.open(live.address)
    assert "Waiting for the first round" in browser.run(f"return {SENTENCE}")
    growing.write(2)
    browser.wait(f"return {SENTENCE}.startsWith('After 2 of 4 rounds') && document.querySelector('figure svg')")
    browser.run(CHOOSE)
    browser.wait(f"{ROUNDS} === 2")
    before = browser.run(CHOSEN)
    assert before["switched"] is False and before["open"][0] and not before["open"][1]
    browser.run("window.scrollTo(0, 1500); window.wasHere = true")
    growing.write(3)
    browser.wait(f"{ROUNDS} === 3")
    assert browser.run(f"return {SENTENCE}").startswith("After 3 of 4 rounds")
    assert browser.run(CHOSEN) == before
    assert browser.run("return [window.wasHere, window.scrollY]") == [True, 1500]  # no reload, no jump
    growing.finish()
    browser.wait("return document.querySelector('#verdict .fact').textContent === 'All 8 runs have finished.'")
    assert browser.run("return document.getElementById('live').textContent") == "Live"
    addresses = {address.partition("?")[0] for address in browser.requests()}
    assert {address for address in addresses if address.startswith("http")} == {live.address, f"{live.address}data"}
    assert browser.console() == []
    live.shutdown()
    live.server_close()
    browser.wait("return document.getElementById('live').textContent.startsWith('The server does not answer')")


BEYOND_EDGES = """
    const picture = document.documentElement;
    const width = picture.width.baseVal.value;
    const height = picture.height.baseVal.value;
    const isCut = (box) => box.left < -1 || box.right > width + 1 || box.top < -2 || box.bottom > height + 2;
    const texts = [...document.querySelectorAll("text")].filter((text) => text.textContent.trim());
    return [texts.length, texts.filter((text) => isCut(text.getBoundingClientRect())).map((text) => text.textContent)];
"""


def test_no_text_of_a_committed_picture_is_cut_off_in_a_browser_with_wide_fonts(browser):
    root = Path(__file__).parents[2]
    pictures = [path for folder in ("results", "examples", "docs/pictures") for path in (root / folder).rglob("*.svg")]
    assert len(pictures) > 40
    for picture in pictures:
        browser.driver.get(picture.as_uri())
        texts, cut_off = browser.run(BEYOND_EDGES)
        assert texts > 5 and cut_off == [], picture
