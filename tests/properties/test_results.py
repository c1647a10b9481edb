"""Run folders, packed results, audits and pages from files that are damaged, or say odd things."""

import csv
import functools
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

import evenfed
from evenfed.comparison.storage.pack import PACKED, pack
from evenfed.comparison.storage.reading import read
from evenfed.report.document import Report
from evenfed.report.page import contents, write
from reports import put_rounds
from seeking import changed, command, damage, folder, in_json, is_answered, odd_text, seek

OPTIONS = {"rounds": 2, "lr": 0.1, "batch_size": 3, "device": "cpu", "progress": False, "guard": "on"}


@functools.cache
def source() -> Path:
    """A small comparison on disk, with a client that the guard holds back."""
    place = Path(tempfile.mkdtemp())
    draw = torch.Generator().manual_seed(0)
    clients = []
    for k in range(4):
        x = torch.randn(5, 3, generator=draw) * (100 if k == 3 else 1)
        y = torch.randint(0, 2, (5,), generator=draw)
        clients.append(evenfed.Client(train=(x, y), test=(x, y), name=f"site {k}"))
    evenfed.compare(lambda: nn.Linear(3, 2), clients, ["vred"], seeds=1, noise_floor=False, out=place, **OPTIONS)
    return place


@pytest.fixture(autouse=True, scope="module")
def cleared():
    yield
    shutil.rmtree(source())
    source.cache_clear()


def runs(place: Path) -> list[Path]:
    return sorted(path.parent for path in place.glob("*/seed-*/header.json"))


def rounds_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def reported(place: Path) -> None:
    """All that is made of a folder."""
    report = Report.of([place], beside_paper=False)
    page = contents.of_report(report)
    content, columns = page.describe()
    json.dumps(content, allow_nan=False)
    columns.encode("ascii")


@seek(st.data(), st.booleans())
def test_headers_and_rounds(data, in_header):
    """Checksums fit, so that what is odd is read."""
    with folder() as place:
        shutil.copytree(source(), place / "runs")
        run = data.draw(st.sampled_from(runs(place / "runs")))
        header = json.loads((run / "header.json").read_text())
        rounds = rounds_of(run)
        if in_header:
            header = data.draw(changed(header))
        else:
            rounds = data.draw(changed(rounds))
        if not isinstance(header, dict) or not all(isinstance(line, dict) for line in rounds):
            return
        put_rounds(run, rounds, header)
        assert is_answered(reported, place / "runs")
        assert is_answered(evenfed.load, place / "runs")


@seek(st.data())
def test_damaged_folders(data):
    with folder() as place:
        shutil.copytree(source(), place / "runs")
        run = data.draw(st.sampled_from(runs(place / "runs")))
        file = data.draw(st.sampled_from(sorted(run.iterdir())))
        content = data.draw(damage(file.read_bytes()))
        is_damaged = content != file.read_bytes()
        file.write_bytes(content)
        assert is_answered(read, place / "runs")
        assert is_answered(evenfed.load, place / "runs")
        if is_damaged and file.name == "rounds.jsonl":
            with pytest.raises(evenfed.InputError):
                read(place / "runs")


@functools.cache
def packed() -> bytes:
    with folder() as place:
        path, _ = pack(source(), place / "packed")
        return path.read_bytes()


@seek(st.data())
def test_packed_results(data):
    with folder() as place:
        (place / PACKED).write_bytes(data.draw(damage(packed())))
        assert is_answered(reported, place)


names = st.lists(odd_text, min_size=4, max_size=4)


@seek(names, odd_text, st.lists(st.sampled_from([0.0, 1.0, 0.5, None]), min_size=4, max_size=4))
def test_pages_show_names_as_text(clients, label, figures):
    with folder() as place:
        shutil.copytree(source(), place / "runs")
        for run in runs(place / "runs"):
            header = json.loads((run / "header.json").read_text())
            header["clients"]["names"] = clients
            if run.parent.name == "vred":
                header["label"] = label
            rounds = rounds_of(run)
            for line in rounds:
                line["accuracy"] = figures
            put_rounds(run, rounds, header)
        assert is_answered(shown_safely, place / "runs")


def shown_safely(place: Path) -> None:
    report = Report.of([place], beside_paper=False)
    text = write.html(contents.of_report(report))
    assert text.count("</script") == text.count("<script")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)


COLUMNS = ["client", "accuracy", "algorithm", "seed", "round", "loss", "fedavg", "vred", "size", "group", "id", ""]
cells = st.one_of(st.sampled_from(["a", "b", "0", "1", "0.5", "50", "50%", "", "nan", "inf", "1e400", "-1"]), odd_text)
rows = st.lists(st.lists(cells, max_size=5), max_size=5)
heads = st.lists(st.one_of(st.sampled_from(COLUMNS), odd_text), max_size=5)
audit_options = st.dictionaries(
    st.sampled_from(["metric", "baseline", "lower_is_better", "unit", "missing", "last_rounds", "client", "seed"]),
    st.one_of(st.sampled_from([*COLUMNS, "percent", "fraction", "drop", 1, 0, True, None]), in_json),
    max_size=2,
)


def judged(*arguments, **options) -> None:
    results = evenfed.audit(*arguments, **options)
    str(results)
    results._repr_html_()
    for report in results.documents():
        contents.of_report(report).describe()


@seek(heads, rows, audit_options, st.booleans())
def test_audits_of_tables(head, lines, options, is_damaged):
    with folder() as place:
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        try:
            writer.writerows([head, *lines])
        except csv.Error:
            return
        (place / "x.csv").write_text(buffer.getvalue(), errors="surrogatepass")
        assert is_answered(judged, place / "x.csv", **options)


RESULTS = {
    "rows": [
        {"client": "a", "fedavg": 0.5, "vred": 0.6, "seed": 0},
        {"client": "b", "fedavg": 0.1, "vred": 0.4, "seed": 0},
    ],
    "columns": {"client": ["a", "b"], "accuracy": [0.5, 0.9], "algorithm": ["fedavg", "vred"]},
    "nested": {"fedavg": {"a": 0.5, "b": 0.7}, "vred": {"a": 0.4, "b": 0.9}},
}


@seek(st.data(), st.sampled_from(sorted(RESULTS)), audit_options, st.sampled_from(["json", "jsonl", "python", "bytes"]))
def test_audits_of_trees(data, kind, options, form):
    tree = data.draw(st.one_of(changed(RESULTS[kind]), in_json))
    if form == "python":
        assert is_answered(judged, tree, **options)
        return
    with folder() as place:
        path = place / f"x.{'jsonl' if form == 'jsonl' else 'json'}"
        lines = tree if form == "jsonl" and isinstance(tree, list) else [tree]
        content = "\n".join(map(json.dumps, lines)).encode()
        if form == "bytes":
            content = data.draw(damage(content))
        path.write_bytes(content)
        assert is_answered(judged, path, **options)


@seek(st.data(), st.sampled_from(["report", "audit", "pack"]))
def test_commands_on_results(data, name):
    with folder() as place:
        shutil.copytree(source(), place / "runs")
        run = data.draw(st.sampled_from(runs(place / "runs")))
        rounds = data.draw(changed(rounds_of(run)))
        header = data.draw(changed(json.loads((run / "header.json").read_text())))
        if not isinstance(header, dict) or not all(isinstance(line, dict) for line in rounds):
            return
        put_rounds(run, rounds, header)
        more = {"report": ["--no-figures"], "audit": ["--no-figures"], "pack": ["packed"]}[name]
        code, said = command(place, name, "runs", *more)
        assert code in (0, 1, 2) and (code == 0 or said.strip())
        assert not any(ord(letter) < 32 and letter not in "\n\r\t" for letter in said), said
