"""Comparisons and searches by several workers: the same folders and bits as by one process, whoever is lost."""

import contextlib
import functools
import importlib
import json
import os
import re
import shutil
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

import evenfed as package
from command import SMALL, rounds_of, wait_for
from evenfed.comparison.folder import RunFolder
from evenfed.comparison.parts import divided, parts_of
from evenfed.core.errors import InputError
from evenfed.simulate.state import Run
from evenfed.spread.crew import Crew, Watcher
from evenfed.spread.on_ray import ray_places
from evenfed.spread.options import Spread
from worked_example import federation, small_model

pytestmark = pytest.mark.slow
OPTIONS = {"seeds": 2, "rounds": 3, "lr": 0.2, "batch_size": 4, "device": "cpu", "progress": False}
ENTRIES = ["vred", "ditto"]
RUNS = 8  # with FedAvg and its repetitions


def compared(out: Path, **options):
    return package.compare(small_model, federation(), ENTRIES, out=out, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """By one process."""
    out = tmp_path_factory.mktemp("alone")
    compared(out)
    return out


def same(wanted: Path, out: Path) -> None:
    runs = [path.parent.relative_to(wanted) for path in wanted.glob("*/seed-*/header.json")]
    assert len(runs) == RUNS
    for run in runs:
        assert rounds_of(wanted / run) == rounds_of(out / run), run
        assert (wanted / run / "model.safetensors").read_bytes() == (out / run / "model.safetensors").read_bytes(), run


def header_of(run: RunFolder) -> dict:
    return json.loads(run.header_path.read_text())


def worker_of(root: Path, part: int) -> int:
    held_by = re.match(r"process (\d+) on ", (root / ".parts" / f"part-{part}" / ".lock").read_text())
    return int(held_by[1])


def test_a_worker_is_killed_and_another_goes_on_from_its_checkpoint_to_the_bit(tmp_path, alone, monkeypatch, capsys):
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    killed = []

    def dawdle(progress):  # in the workers: the rounds of ditto wait until one of them was killed
        import time

        if progress.label == "ditto" and progress.round == 2 and not (tmp_path / "killed").exists():
            time.sleep(60)

    def kill():
        saved = RunFolder(tmp_path / "fedavg-other-batches" / "seed-1")  # the last one of its part
        wait_for(lambda: 1 in saved.checkpoints())
        killed.append(worker_of(tmp_path, 1))
        (tmp_path / "killed").touch()
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    compared(tmp_path, workers=2, callbacks=dawdle, progress=True)
    thread.join()
    same(alone, tmp_path)
    assert header_of(RunFolder(tmp_path / "ditto" / "seed-0"))["resumed_at"] == [0, 1]
    assert header_of(RunFolder(tmp_path / "vred" / "seed-0"))["resumed_at"] == [0]
    told = capsys.readouterr().err
    assert "8 runs in 2 parts, one worker each; 24 rounds in all" in told and "round 24 of 24 over all runs" in told
    assert "worker 2 on cpu was lost: it was killed by SIGKILL; another worker goes on with its 4 runs" in told
    assert worker_of(tmp_path, 1) not in (killed[0], os.getpid())
    compared(tmp_path, rounds=4)  # one process keeps the parts
    assert worker_of(tmp_path, 0) == worker_of(tmp_path, 1) == os.getpid()
    longer = shutil.copytree(alone, tmp_path / "longer")
    compared(longer, rounds=4)
    same(longer, tmp_path)


def test_slurm_jobs_that_are_processes_here(tmp_path, alone):
    """By submitit's local executor."""
    compared(tmp_path, cluster="slurm:executor=local,time=5", workers=1)
    same(alone, tmp_path)
    assert len(list((tmp_path / ".parts" / "slurm").glob("*_result.pkl"))) == 1


def test_an_interrupted_command(evenfed, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = Crew._check

    def interrupted(self, post):
        if not self.stop():
            os.kill(os.getpid(), signal.SIGINT)
        whole(self, post)

    monkeypatch.setattr(Crew, "_check", interrupted)
    done = evenfed("compare", "--algorithms", "fedavg", "--seeds", 1, "--rounds", 2, *SMALL, "--workers", 2)
    signal.signal(signal.SIGINT, before)
    assert done.returncode == 130 and "every finished round is saved" in done.stderr
    assert "2 runs in 2 parts" in done.stderr


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's own
def test_a_ray_cluster_of_two_nodes(tmp_path, alone):
    """Each node has room for one worker. One is lost: what ran there is done on the other."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    def at_work(place: Path, doomed: str) -> None:
        import time

        import ray

        node = ray.get_runtime_context().get_node_id()
        (place / node).write_text("here")
        while node == doomed or not (place / "one is gone").exists():
            time.sleep(0.05)

    def lose() -> None:
        wait_for(lambda: (work / second.node_id).exists() and len(list(work.iterdir())) == 2)
        cluster.remove_node(second, allow_graceful=False)
        (work / "one is gone").touch()

    work = tmp_path / "work"
    work.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        places = ray_places(Spread(cluster=cluster.address))
        assert len(places) == 2
        lost = []
        watcher = Watcher()
        watcher.lost = lambda errand, place, why: lost.append(why)
        thread = threading.Thread(target=lose)
        thread.start()
        errands = [functools.partial(at_work, work, second.node_id)] * 2
        outcomes = Crew(errands, places, watcher, lambda: False).carry_out()
        thread.join()
        assert [outcome.kind for outcome in outcomes] == ["done", "done"] and len(lost) == 1
        compared(tmp_path / "runs", cluster=cluster.address)
        same(alone, tmp_path / "runs")
    finally:
        ray.shutdown()
        cluster.shutdown()


WAITING = """
import contextlib, sqlite3, time
from pathlib import Path
import torch

QUERY = "SELECT value_json FROM trials JOIN trial_user_attributes USING (trial_id) WHERE state = 'RUNNING' AND key = ?"

def workers():
    if not Path({study!r}).exists():
        return []
    with contextlib.closing(sqlite3.connect({study!r})) as study, contextlib.suppress(sqlite3.OperationalError):
        return study.execute(QUERY, ["worker"]).fetchall()
    return []  # its tables are not made yet

class Model(torch.nn.Linear):
    def __init__(self, hidden):
        super().__init__(64, 10)

    def forward(self, x):
        while not Path({killed!r}).exists() and workers():
            time.sleep(0.05)
        return super().forward(x.flatten(1))
"""


def test_a_search_by_two_workers_one_of_whom_is_killed(tmp_path, evenfed, monkeypatch):
    """Its model waits in training until one worker was killed; another trains what that one had taken."""
    study = tmp_path / "both" / "demo-tune" / "tune.db"
    killed = tmp_path / "killed"
    (tmp_path / "waiting.py").write_text(WAITING.format(study=str(study), killed=str(killed)))
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["tune", "--algorithms", "fedavg", "--rounds", 2, *SMALL, "--batch", 3, "--format", "json"]
    arguments += ["--set", "model.name=waiting.Model"]

    def kill():
        waiting = importlib.import_module("waiting")
        wait_for(waiting.workers)
        ((worker,), *_) = waiting.workers()
        os.kill(int(json.loads(worker).rpartition(":")[2]), signal.SIGKILL)
        killed.touch()

    threading.Thread(target=kill, daemon=True).start()
    both = evenfed(*arguments, "--workers", 2, "--out", "both")
    assert both.returncode == 0, both.stderr
    assert "2 batches of up to 3 candidates, 2 workers" in both.stderr
    assert "was lost: it was killed by SIGKILL; another worker trains its candidates" in both.stderr
    one = evenfed(*arguments, "--out", "one")
    assert json.loads(both.stdout) == json.loads(one.stdout) and "6 of 6 candidates" in both.stderr
    with contextlib.closing(sqlite3.connect(study)) as kept:
        states = dict(kept.execute("SELECT state, COUNT(*) FROM trials GROUP BY state"))
    assert states["COMPLETE"] == 6 and states["FAIL"] in (1, 2, 3)  # what the lost worker had taken is marked


def test_workers_need_a_folder_and_a_simulator(tmp_path, evenfed):
    with pytest.raises(InputError, match="workers write their runs to a folder; give one with out="):
        package.compare(small_model, federation(), ENTRIES, workers=2, **OPTIONS)
    done = evenfed("compare", "--workers", 2, "--engine", "flower")
    assert done.returncode == 2 and "engine='flower' has workers of its own" in done.stderr


def test_parts_are_kept_and_new_runs_are_divided_anew(tmp_path):
    runs = [Run(label, None, package.Settings(seed=0)) for label in "abcdef"]
    assert divided(list("abc"), 5) == [["a"], ["b"], ["c"]]
    assert parts_of(tmp_path, runs, runs, 0) == []
    first = parts_of(tmp_path, runs[:4], runs[:4], 2)
    assert [part.runs for part in first] == [(runs[0], runs[1]), (runs[2], runs[3])]
    again = parts_of(tmp_path, runs, runs[1:], 3)
    assert [part.number for part in again] == [0, 1, 2, 3]
    assert [part.runs for part in again] == [(runs[1],), (runs[2], runs[3]), (runs[4],), (runs[5],)]
    assert again[0].planned == tuple(runs[:4]) and again[3].planned == (runs[4], runs[5])
    (tmp_path / ".parts" / "parts.json").write_text("[[3]]")
    with pytest.raises(InputError, match="does not say which runs go together"):
        parts_of(tmp_path, runs, runs, 2)


def test_a_part_trains_on_the_engine_of_the_whole_comparison(tmp_path):
    """Two clients per run: a part of one run alone would not be stacked."""
    whole = tmp_path / "whole"
    options = {"participation": 2, "seeds": 1}
    compared(whole, **options)
    names = [f"{label}, seed 0" for label in ("fedavg", "vred", "ditto", "fedavg-other-batches")]
    parts = tmp_path / "parts"
    (parts / ".parts").mkdir(parents=True)
    (parts / ".parts" / "parts.json").write_text(json.dumps([[[name] for name in names]]))
    compared(parts, **options)
    for run in RunFolder.all_in(whole):
        engine = header_of(RunFolder(parts / run.path.relative_to(whole)))["engine"]
        assert engine == header_of(run)["engine"] and "stacked" in engine
    assert (parts / ".parts" / "part-1" / ".lock").exists()
