"""`evenfed watch`: the page of a folder in progress, from the first request to the end of the server."""

import base64
import gzip
import json
import os
import signal
import socket
import threading
import urllib.request

import pytest

from command import PATIENCE, wait_for
from evenfed.comparison.storage.live_reader import NewestComparison
from evenfed.core.errors import InputError
from evenfed.report.live.page_versions import PageVersions
from growing import Growing

JSON = ["--format", "json"]


@pytest.fixture
def growing(small, tmp_path):
    return Growing(small, tmp_path / "mine")


@pytest.fixture
def editions(growing):
    return PageVersions(growing.folder, pause=0, idle=0)


def content_of(edition) -> dict:
    return json.loads(edition.data)["content"]


def sentence_of(content) -> str:
    return "".join(content["verdicts"][0]["sentence"])


def test_a_folder_that_is_not_there_yet(editions):
    content = content_of(editions.newest())
    assert sentence_of(content) == "Waiting for the first round with figures of clients."
    assert content["facts"][0].startswith("Nothing has been written to ") and content["charts"] == []
    assert "<html" in editions.newest().html()


def test_a_window_that_is_not_full_yet_is_not_said_to_be(edited, tmp_path):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["config"]["train"]["last_rounds"] = 4

    growing = Growing(edited(change), tmp_path / "growing")
    growing.write(3)
    content = content_of(PageVersions(growing.folder, pause=0, idle=0).newest())
    assert "Figures are averages over the last 3 rounds." in content["verdicts"][0]["notes"]
    assert content["facts"][1].startswith("digits: 6 clients, 3 of 4 rounds so far, ")


def test_rounds_appear_and_nothing_is_sent_twice(growing, editions):
    first = editions.newest()
    assert editions.newest() is first
    growing.write(2)
    second = editions.newest()
    assert second.key != first.key and editions.newest() is second
    content = content_of(second)
    assert content["facts"][0].startswith("All 8 runs are at round 2 of 4, last written at ")
    assert sentence_of(content).startswith("After 2 of 4 rounds: ")
    growing.finish()
    content = content_of(editions.newest())
    assert content["facts"][0] == "All 8 runs have finished."
    assert "rounds:" not in sentence_of(content)


def test_the_page_in_the_end_is_that_of_the_report(small, growing, editions):
    growing.finish()
    own = content_of(editions.newest())
    other = content_of(PageVersions(small).newest())
    for part in ("glances", "tables", "entries", "seeds", "clients"):
        assert own[part] == other[part]
    assert [chart["name"] for chart in own["charts"]] == [chart["name"] for chart in other["charts"]]


def test_a_run_that_lags_is_in_the_curves_alone(growing, editions):
    growing.finish(lambda label, seed: label in ("fedavg", "vred"))
    growing.write(2, lambda label, seed: label == "semi_vred")
    content = content_of(editions.newest())
    assert [entry["label"] for entry in content["entries"]] == ["fedavg", "vred", "semi_vred"]
    assert [line["entry"] for line in content["glances"][0]["lines"]] == ["fedavg", "vred"]
    columns = json.loads(gzip.decompress(base64.b64decode(json.loads(editions.newest().data)["columns"])))
    algorithms = {chart["name"]: data.get("algorithm") for chart, data in zip(content["charts"], columns, strict=True)}
    assert "semi_vred" in algorithms["learning-curves"] and "semi_vred" not in algorithms["trade-off"]


def test_federations_one_after_another(splits, tmp_path):
    growing = [Growing(splits(split, 0.02), tmp_path / "mine" / f"federation-{split}") for split in (3, 4)]
    editions = PageVersions(tmp_path / "mine", pause=0, idle=0)
    assert "Nothing has been written" in content_of(editions.newest())["facts"][0]
    growing[0].finish()
    growing[1].write(2)
    content = content_of(editions.newest())
    assert content["facts"][0].startswith("federation-4: All 8 runs are at round 2 of 4")
    assert content["charts"][-1]["title"].startswith("federation-4, so far: ")
    growing[1].finish()
    assert content_of(editions.newest())["title"] == "mine: 2 splits of the data"


def test_of_comparisons_below_a_folder_the_newest_unfinished_one_is_shown(small, tmp_path):
    """As Flower's server apps write them: runs/<run id>/<label>/seed-<seed>."""
    runs = tmp_path / "runs"
    newest = NewestComparison(runs)
    first, second, third = (Growing(small, runs / name) for name in ("71", "8", "93"))
    assert newest.choose() is None
    first.write(1)
    assert newest.choose() == runs / "71"
    second.write(2)
    assert newest.choose() == runs / "8"  # a new run, which stays in sight while both are written to
    first.write(3)
    assert newest.choose() == runs / "8"
    facts = content_of(PageVersions(runs).newest())["facts"]
    assert facts[0].startswith(f"All {len(first.runs)} runs are at round 3 of 4")
    assert f"Shown is {runs / '71'}, written last; {runs} holds 2 comparisons." in facts
    second.finish()
    assert newest.choose() == runs / "71"
    first.finish()
    third.finish()
    third.runs["vred", 0][1].header_path.write_text("{")  # damaged: none to wait for
    assert newest.choose() == runs / "93" and newest.others == 2
    assert NewestComparison(runs / "93").choose() is None  # it holds runs of its own


def test_runs_without_figures_of_clients(edited):
    def change(label, seed, header, rounds):
        for line in rounds:
            line["accuracy"] = line["test_losses"] = None

    content = content_of(PageVersions(edited(change)).newest())
    assert sentence_of(content).startswith("These runs have no figures of their clients")


def test_a_damaged_run_is_named(growing, editions):
    growing.finish()
    _, target = growing.runs["vred", 0]
    target.header_path.write_text("{")
    content = content_of(editions.newest())
    assert any("vred" in fact and "not a run's header" in fact for fact in content["facts"])
    assert content["glances"]


def test_while_a_page_is_made_others_get_the_one_before(growing, editions, monkeypatch):
    first = editions.newest()
    growing.write(1)
    editions._lock.acquire()
    assert editions.newest() is first
    editions._lock.release()
    assert editions.newest() is not first


def test_what_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; give a folder"):
        PageVersions(tmp_path / "file")


def test_the_page_asks_its_own_server_alone(editions):
    html = editions.newest().html()
    assert "connect-src 'self'" in html and 'data-live="data"' in html
    assert f'data-edition="{editions.newest().key}"' in html


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def is_open(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly(how, small, evenfed):
    port = free_port()
    before = signal.getsignal(how)
    pages = []

    def view():
        try:
            wait_for(lambda: is_open(port))
            idle.connect(("127.0.0.1", port))
            with urllib.request.urlopen(f"http://localhost:{port}/", timeout=PATIENCE) as answer:
                pages.append(answer.read())
        finally:
            os.kill(os.getpid(), how)

    viewer = threading.Thread(target=view)
    with socket.socket() as idle:
        viewer.start()
        done = evenfed("watch", small, "--port", port)
        viewer.join()
    assert done.returncode == 0 and done.stderr == ""
    assert f"http://127.0.0.1:{port}/" in done.stdout
    assert b"All 8 runs have finished." in pages[0]
    assert signal.getsignal(how) == before
    assert not is_open(port)


def test_a_port_that_is_taken(evenfed, small):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = evenfed("watch", small, "--port", taken.getsockname()[1])
    assert refused.returncode == 2 and "is in use" in refused.stderr and "--port 0" in refused.stderr
    assert evenfed("watch", small, "--port", 70000).returncode == 2


def test_compare_says_how_to_watch(evenfed, small):
    shown = evenfed(
        "compare", "--rounds", 1, "--seeds", 1, "--algorithms", "fedavg", "--out", "a b", "--format", "json"
    )
    assert "see it live: evenfed watch 'a b/demo'" in shown.stderr
