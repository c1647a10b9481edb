"""The folder of a Flower run: one writer at a time, finished runs that end at once, and what is read from it."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import evenfed
from evenfed.comparison.storage.folder import RunFolder
from evenfed.comparison.storage.live_reader import LiveRun
from evenfed.comparison.storage.lock import LOCK, locked
from evenfed.comparison.storage.pack import pack
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.server import initial_arrays
from evenfed.report.charts.report import of_report
from evenfed.report.document import Report
from local_grid import OPTIONS, LocalGrid, on_flower, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow


def second_run(tmp_path, **options):
    """What a run says that begins on a folder while another is in its second round there."""
    told = []

    def begin(progress):
        if progress.round == 1:
            with pytest.raises(evenfed.InputError) as error:
                on_flower("semi_vred", out=tmp_path, rounds=3, **options)
            told.append(str(error.value))

    on_flower("semi_vred", out=tmp_path, rounds=3, listen=begin)
    return told


def test_a_second_run_on_the_same_folder_is_refused_and_told_who_is_there(tmp_path):
    (told,) = second_run(tmp_path)
    assert f"process {os.getpid()} on {socket.gethostname()}" in told and "another folder" in told
    lines = (tmp_path / "semi_vred" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 1, 2]


def test_runs_with_other_labels_share_a_folder_and_a_comparison_waits_for_them(tmp_path):
    told = []

    def begin(progress):
        if progress.round == 1:
            on_flower("fedavg", out=tmp_path, rounds=1)
            with pytest.raises(evenfed.InputError, match=f"process {os.getpid()}") as error, locked(tmp_path):
                pass
            told.append(str(error.value))

    on_flower("semi_vred", out=tmp_path, rounds=2, listen=begin)
    assert told and RunFolder.at(tmp_path, "fedavg", 0).finished
    with locked(tmp_path), pytest.raises(evenfed.InputError, match="another evenfed"):
        on_flower("vred", out=tmp_path, rounds=1)


def test_a_lock_dies_with_its_process(tmp_path):
    text = "import sys, time; from pathlib import Path; from evenfed.comparison.storage.lock import hold_run\n"
    text += "held = hold_run(Path(sys.argv[1]) / 'a' / 'seed-0', Path(sys.argv[1])); print('held', flush=True)\n"
    text += "time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", text, tmp_path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        run = tmp_path / "a" / "seed-0"
        with pytest.raises(evenfed.InputError, match=f"process {other.pid} on"), locked(run):
            pass
        other.kill()
        other.wait()
    with locked(run), locked(tmp_path):
        assert str(other.pid) not in (run / LOCK).read_text()


class Nobody(LocalGrid):
    """A grid that no client is connected to."""

    def __init__(self):
        super().__init__(app=None, clients=0)


def test_a_finished_run_ends_at_once_with_its_result_and_asks_no_client(tmp_path, caplog):
    options = {**OPTIONS, "out": tmp_path, "rounds": 2, "average": 0.5}
    start = initial_arrays(small_model())
    done, result, _ = on_flower("semi_vred", **options)
    again = FairStrategy("semi_vred", resume=True, **options)
    found = again.start(Nobody(), start)
    assert torch.equal(again.server.theta, done.server.theta)
    for name, array in result.arrays.items():
        assert np.array_equal(found.arrays[name].numpy(), array.numpy())
    assert found.train_metrics_clientapp == result.train_metrics_clientapp
    assert found.evaluate_metrics_clientapp == result.evaluate_metrics_clientapp
    assert "finished after 2 rounds" in caplog.text and "site-4" in caplog.text
    with pytest.raises(evenfed.InputError, match="holds a finished run; give resume=true"):
        FairStrategy("semi_vred", **options).start(Nobody(), start)
    with pytest.raises(evenfed.InputError, match="another configuration"):
        FairStrategy("semi_vred", resume=True, **{**options, "lr": 0.3}).start(Nobody(), start)
    more, _, _ = on_flower("semi_vred", resume=True, **{**options, "rounds": 3})
    assert more.server.index == 3


def test_resume_says_whether_a_run_must_be_there(tmp_path):
    start = initial_arrays(small_model())
    with pytest.raises(evenfed.InputError, match="holds no run to resume"):
        FairStrategy("fedavg", out=tmp_path, resume=True).start(Nobody(), start)
    on_flower("fedavg", out=tmp_path, leave_after=0)
    with pytest.raises(evenfed.InputError, match="holds a run; give resume=true"):
        FairStrategy("fedavg", out=tmp_path, resume=False, **OPTIONS).start(Nobody(), start)
    with pytest.raises(evenfed.InputError, match="give `out`"):
        FairStrategy("fedavg", resume=True)


def test_a_run_killed_before_its_end_was_noted_is_finished(tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(RunFolder, "finish", lambda *given: None)
        on_flower("fedavg", out=tmp_path, rounds=1)
    assert not RunFolder.at(tmp_path, "fedavg", 0).finished
    on_flower("fedavg", out=tmp_path, rounds=1)
    assert RunFolder.at(tmp_path, "fedavg", 0).finished


@pytest.mark.parametrize("finished", [False, True])
def test_doubled_rounds_are_refused_by_every_reader(finished, tmp_path):
    """As two servers wrote them into one folder before it was locked."""
    on_flower("fedavg", out=tmp_path, rounds=3, leave_after=None if finished else 1)
    folder = RunFolder.at(tmp_path, "fedavg", 0)
    texts = folder.lines.texts()
    folder.rounds_path.write_text("".join(text + text for text in texts))
    header = folder.header()
    folder._write_header(replace(header, lines_digest=None))  # as older versions, which kept none
    followed = LiveRun(folder)
    followed.look()
    assert "is of round 1" in followed.damage or "instead of 3" in followed.damage
    for read in (folder.history, lambda: evenfed.load(folder.path), lambda: pack(tmp_path, tmp_path / "packed")):
        with pytest.raises(evenfed.InputError, match=r"line 2 is of round 1|6 rounds instead of 3|no finished run"):
            read()


def with_a_lost_reply(tmp_path, rounds=3, **options):
    """A run in which client 3 is dropped from the second round."""
    done = []

    def lost_in_round_2(reply, client):
        is_lost = reply.metadata.message_type == "train" and client == 3 and len(done) == 1
        return None if is_lost else reply

    held = sites(federation())
    app = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")
    grid = LocalGrid(app, 5, spoil=lost_in_round_2)
    return on_flower(
        "semi_vred",
        grid=grid,
        out=tmp_path,
        rounds=rounds,
        timeout=0.1,
        listen=lambda progress: done.append(progress.round),
        **options,
    )


def test_one_runs_folder_is_reported_with_a_row_per_site(tmp_path, evenfed):
    strategy, _, _ = with_a_lost_reply(tmp_path)
    folder = tmp_path / "semi_vred" / "seed-0"
    shown = evenfed("report", folder, "--no-figures").stdout
    assert "Each client of semi_vred, 3 rounds" in shown
    assert (folder / "report" / "report.md").read_text().startswith("# semi_vred, seed 0")
    tables = {table["name"]: table for table in json.loads((folder / "report" / "tables.json").read_text())["tables"]}
    lines = {line["entry"]: [cell.get("value") for cell in line["cells"]] for line in tables["clients"]["lines"]}
    assert len(lines) == 5 and list(lines)[-1] == "site-1"  # it has no test data: the worst come first
    last = strategy.records[-1]
    size, loss, accuracy, weight, rounds, dropped, clipped = lines["site-3"]
    assert (size, rounds, dropped, clipped) == (17, 3, 1, 0)
    assert loss == pytest.approx(last.losses[3]) and accuracy == pytest.approx(100 * last.accuracy[3])
    assert weight == pytest.approx(100 * np.mean([record.weights[3] for record in strategy.records]))
    assert lines["site-0"][5] == 0


def test_an_unfinished_runs_folder_is_reported_and_loaded_as_far_as_it_is(tmp_path):
    strategy, _, _ = with_a_lost_reply(tmp_path, rounds=4, leave_after=1)
    folder = tmp_path / "semi_vred" / "seed-0"
    report = Report.of([folder], beside_paper=False)
    assert "semi_vred: not finished, after 2 of 4 rounds" in report.facts
    assert report.in_brief().tables[0].name == "clients"
    assert [chart.name for chart in of_report(report)] == ["clients", "learning-curves", "weights"]
    with pytest.warns(RuntimeWarning, match="2 of 4 rounds"):
        result = evenfed.load(folder, model=small_model())
    assert len(result.records) == 2 and result.settings.rounds == 4
    assert torch.equal(result.server.theta, strategy.server.theta)
    assert result.fairness.worst == np.nanmin(strategy.records[-1].accuracy)
    assert torch.equal(result.model.state_dict()["0.bias"], strategy.deployed.to_torch_state_dict()["0.bias"])
