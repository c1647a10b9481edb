"""The guard as an option of runs, and training that diverges."""

import json

import pytest
import torch
from torch import nn

import evenfed
from evenfed.comparison.loading import load
from evenfed.comparison.storage.reading import read
from evenfed.comparison.storage.record_json import from_json, to_json
from evenfed.core.guard import Clip, Guard
from evenfed.report.charts import guard
from evenfed.report.charts import report as charts
from evenfed.report.document import Report
from evenfed.report.guard_tables import facts, tables

OPTIONS = {"loss": "mse", "rounds": 4, "lr": 0.02, "batch_size": 4, "device": "cpu"}


def line():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def clients(odd=1.0):
    """Six alike, and one whose targets are `odd` times as large."""
    draw = torch.Generator().manual_seed(0)
    federation = []
    for k in range(7):
        inputs = torch.randn(12, 3, generator=draw)
        targets = inputs.sum(1, keepdim=True) * (odd if k == 6 else 1.0)
        federation.append(evenfed.Client(train=(inputs, targets), test=(inputs, targets), name=f"site {k}"))
    return federation


def test_both_engines_clip_alike():
    runs = []
    for engine in ("reference", "parallel"):
        runs.append(evenfed.train(line(), clients(50.0), "semi_vred", guard="on", engine=engine, **OPTIONS))
    first, second = runs
    told = [[(clip.client, clip.what) for clip in record.clipped] for record in first.records]
    assert told == [[(clip.client, clip.what) for clip in record.clipped] for record in second.records]
    assert all((6, "loss") in each and (6, "update") in each for each in told)
    assert torch.allclose(first.server.theta, second.server.theta, atol=1e-5)
    assert float(first.server.theta.abs().max()) < 2  # the six alike are served


def test_a_guarded_run_resumes_to_the_bit(tmp_path):
    options = {**OPTIONS, "guard": {"update": 3.0}}
    whole = evenfed.train(line(), clients(5.0), "qffl", **options)
    evenfed.train(line(), clients(5.0), "qffl", out=tmp_path, **{**options, "rounds": 2})
    resumed = evenfed.train(line(), clients(5.0), "qffl", out=tmp_path, **options)
    assert torch.equal(whole.server.theta, resumed.server.theta)
    assert [record.clipped for record in whole.records] == [record.clipped for record in resumed.records]


def test_entries_may_differ_in_the_guard_and_the_report_names_who_was_held(tmp_path):
    entries = ["fedavg", "fedavg[guard=on]", {"algorithm": "vred", "guard": {"weight": 2}}]
    result = evenfed.compare(line, clients(50.0), entries, out=tmp_path, seeds=1, **OPTIONS)
    assert len(result["vred[guard=own]"]) == 1
    assert not any(record.clipped for record in result["fedavg"][0].records)
    report = Report.of([tmp_path], beside_paper=False)
    (table,) = [table for table in report.tables if table.name == "guard"]
    assert {(line.entry, line.part) for line in table.lines} >= {("fedavg[guard=on]", "site 6")}
    (findings,) = report.findings
    assert {chart.name for chart in charts.of(findings)} >= {"guard"}
    told = facts(findings)
    assert any("fedavg[guard=on]: the guard held" in sentence and "site 6" in sentence for sentence in told)
    lines = (tmp_path / "fedavg[guard=on]" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert any(row[:2] == [6, "update"] for row in json.loads(lines[0])["clipped"])
    assert "clipped" not in json.loads((tmp_path / "fedavg" / "seed-0" / "rounds.jsonl").read_text().splitlines()[0])
    kept = load(tmp_path)["fedavg[guard=on]"][0]
    assert kept.records[0].clipped == result["fedavg[guard=on]"][0].records[0].clipped


def test_who_was_held_back_on_several_federations_and_in_many_rounds(tmp_path, monkeypatch):
    runs = {}
    for odd in (50.0, 60.0):
        folder = tmp_path / f"federation-{odd:.0f}"
        evenfed.compare(line, clients(odd), ["fedavg[guard=on]"], out=folder, seeds=1, **OPTIONS)
        runs[odd] = read(folder)
    (table,) = tables(list(runs.values()))
    parts = [line.part for line in table.lines if line.entry == "fedavg[guard=on]"]
    assert len(parts) == 2 and all(part.endswith(": site 6") for part in parts) and parts[0] != parts[1]
    first, last = table.lines[0].cells[1:3]
    assert (first.value, last.value) == (1, 4)
    monkeypatch.setattr(guard, "MOST_CELLS", 2)
    chart = guard.chart(runs[50.0])
    assert "groups of 2" in chart.says
    bars = [(row["algorithm"], row["round"], row["until"]) for row in chart.rows]
    assert bars == [("fedavg[guard=on]", 1, 2), ("fedavg[guard=on]", 3, 4)]


def test_records_with_clips_survive_json():
    run = evenfed.train(line(), clients(50.0), guard="on", **OPTIONS)
    record = run.records[0]
    again = from_json(json.loads(json.dumps(to_json(record))))
    assert again.clipped == record.clipped and isinstance(again.clipped[0], Clip)
    assert run.settings.guarding() == Guard()


def test_a_run_that_diverges_ends_with_its_reason_and_the_others_go_on(tmp_path):
    options = {**OPTIONS, "rounds": 12}
    entries = ["fedavg", "qffl", "fedavg[lr=1e6]"]
    with pytest.warns(UserWarning, match=r"fedavg\[lr=1e6\] broke down: diverged in round"):
        result = evenfed.compare(line, clients(), entries, out=tmp_path, seeds=1, **options)
    (diverged,) = result["fedavg[lr=1e6]"]
    assert diverged.stopped.startswith("diverged in round") and len(diverged.records) < 12
    assert bool(diverged.server.theta.isfinite().all())
    assert len(result["qffl"][0].records) == 12
    shown = [text for text in str(result).splitlines() if text.startswith("fedavg[lr=1e6]")]
    assert shown and shown[0].split()[1:] == ["-"] * 6
    report = Report.of([tmp_path], beside_paper=False)
    assert any("fedavg[lr=1e6]: seed 0 diverged in round" in fact for fact in report.facts)
    (dashes,) = [row for row in report.in_brief().tables[0].lines if row.entry == "fedavg[lr=1e6]"]
    assert all(cell.text(1) == "-" for cell in dashes.cells)
    with pytest.warns(UserWarning, match="broke down"):
        again = evenfed.compare(line, clients(), entries, out=tmp_path, seeds=1, **options)
    assert again["fedavg[lr=1e6]"][0].stopped == diverged.stopped
