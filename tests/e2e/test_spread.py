"""Comparisons and searches by several workers: the same folders and bits as by one process, whoever is lost."""

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest
import submitit

import evenfed as package
from command import SMALL, rounds_of, wait_for
from evenfed.comparison.parts import divided, parts_of
from evenfed.comparison.storage.folder import RunFolder
from evenfed.core.errors import InputError
from evenfed.simulate.state import Run
from evenfed.spread.dispatcher import Dispatcher
from evenfed.spread.on_ray import ray_places
from evenfed.spread.options import SpreadOptions
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


def same(wanted: Path, out: Path, runs: int = RUNS) -> None:
    folders = [path.parent.relative_to(wanted) for path in wanted.glob("*/seed-*/header.json")]
    assert len(folders) == runs
    for run in folders:
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


def test_slurm_jobs_that_are_processes_here_one_of_which_dies(tmp_path, alone, monkeypatch, capsys):
    """By submitit's local executor, whose jobs go the way of SLURM's but for sbatch."""
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 0.5)  # it waits 15 s for slow network file systems
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    out = tmp_path / "runs"

    def die_once(progress):  # in the job
        import time

        if progress.round == 2 and not (tmp_path / "died").exists():
            while not (out / "fedavg-other-batches" / "seed-1" / "checkpoint-1.safetensors").exists():
                time.sleep(0.01)
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    compared(out, cluster="slurm:executor=local,time=5", workers=1, callbacks=die_once, progress=True)
    same(alone, out)
    assert header_of(RunFolder(out / "ditto" / "seed-0"))["resumed_at"] == [0, 1]
    assert "job 1 was lost: it left no result (state FINISHED)" in capsys.readouterr().err
    assert len(list((out / ".parts" / "slurm").glob("*_result.pkl"))) == 1


def test_an_interrupted_command(evenfed, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = Dispatcher._check

    def interrupted(self, post):
        if not self.stop():
            os.kill(os.getpid(), signal.SIGINT)
        whole(self, post)

    monkeypatch.setattr(Dispatcher, "_check", interrupted)
    done = evenfed("compare", "--algorithms", "fedavg", "--seeds", 1, "--rounds", 2, *SMALL, "--workers", 2)
    signal.signal(signal.SIGINT, before)
    assert done.returncode == 130 and "every finished round is saved" in done.stderr
    assert "2 runs in 2 parts" in done.stderr


@pytest.fixture
def short_folder():
    """Where Ray notes the cluster's address: elsewhere than usual, or Flower's tests at the same time would join it."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # a socket's path is short
        yield folder


def is_running(process: int) -> bool:
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # empty once it has ended
    except OSError:
        return False


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's own
def test_a_comparison_over_the_two_nodes_of_a_ray_cluster_one_of_which_dies(
    tmp_path, alone, monkeypatch, capsys, short_folder
):
    """Each node has room for one worker. One is killed after a round: its runs go on at the other, to the bit."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    monkeypatch.setenv("RAY_TMPDIR", short_folder)
    out = tmp_path / "runs"
    seen = tmp_path / "seen"  # <node>/<run>: which node trained it, with the worker's process id

    def note(progress):  # in the workers
        import os
        import time

        import ray

        node = seen / ray.get_runtime_context().get_node_id()
        node.mkdir(parents=True, exist_ok=True)
        (node / f"{progress.label}-{progress.seed}").write_text(str(os.getpid()))
        while progress.round == 2 and not (tmp_path / "lost").exists():
            time.sleep(0.05)

    def at(node: str) -> set[str]:
        return {path.name for path in (seen / node).glob("*")}

    def lose() -> None:
        wait_for(lambda: len(at(head)) == len(at(second.node_id)) == RUNS // 2)
        wait_for(lambda: all(1 in run.checkpoints() for run in RunFolder.all_in(out)))
        doomed.update(at(second.node_id))
        workers = {int(path.read_text()) for path in (seen / second.node_id).glob("*")}
        cluster.remove_node(second, allow_graceful=False)
        wait_for(lambda: not any(is_running(worker) for worker in workers))  # they end a moment after their node
        (tmp_path / "lost").touch()

    doomed: set[str] = set()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        head = cluster.head_node.node_id
        second = cluster.add_node(num_cpus=1)
        assert len(ray_places(SpreadOptions(cluster=cluster.address))) == 2
        thread = threading.Thread(target=lose)
        thread.start()
        compared(out, cluster=cluster.address, callbacks=note, progress=True)
        thread.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    same(alone, out)
    assert len(doomed) == RUNS // 2 and len(at(head)) == RUNS
    for run in RunFolder.all_in(out):
        was_lost = f"{run.label}-{run.seed}" in doomed
        assert header_of(run)["resumed_at"] == ([0, 1] if was_lost else [0])
    assert "another worker goes on with its 4 runs" in capsys.readouterr().err


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
    runs = [Run(label, None, package.Settings(seed=0, lr=0.1 * k)) for k, label in enumerate("abcdef", 1)]
    assert divided(["a", "b", "c"], 5) == [["a"], ["b"], ["c"]]
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


def test_runs_that_are_trained_once_stay_in_one_part(tmp_path):
    plain, averaged = package.Settings(), package.Settings(average=0.8)
    settings = {"a": plain, "b": package.Settings(lr=0.2), "a averaged": averaged, "c": package.Settings(lr=0.3)}
    runs = [Run(label, None, options) for label, options in settings.items()]
    labels = [[run.label for run in part.runs] for part in parts_of(tmp_path, runs, runs, 3)]
    assert labels == [["a", "a averaged"], ["b"], ["c"]]


def test_workers_take_federations_side_by_side_with_the_same_bits(tmp_path, evenfed):
    federations = ["--set", "federations=[0,1,2]", "--set", "noise_floor=false"]
    size = ["--algorithms", "vred", "--seeds", 1, "--rounds", 2, *SMALL]
    arguments = ["compare", *size, *federations, "--format", "json"]
    one = evenfed(*arguments, "--out", "one")
    two = evenfed(*arguments, "--out", "two", "--workers", 2)
    assert one.returncode == two.returncode == 0, two.stderr
    assert "6 runs in 3 parts, one worker each" in two.stderr
    for seed in (0, 1, 2):
        same(tmp_path / "one" / "demo" / f"federation-{seed}", tmp_path / "two" / "demo" / f"federation-{seed}", runs=2)
    again = evenfed(*arguments, "--out", "two", "--workers", 2)
    assert again.stdout == two.stdout and "parts" not in again.stderr


def test_a_part_trains_on_the_engine_of_the_whole_comparison_to_the_bit(tmp_path):
    """Two clients per run: a part of one run alone would not be stacked.

    Other clients are drawn in every run, so stacks differ. Batches that are equally long keep their bits in any stack.
    """
    whole = tmp_path / "whole"
    options = {"participation": 2, "seeds": 1, "drop_last": True}
    compared(whole, **options)
    names = [f"{label}, seed 0" for label in ("fedavg", "vred", "ditto", "fedavg-other-batches")]
    parts = tmp_path / "parts"
    (parts / ".parts").mkdir(parents=True)
    (parts / ".parts" / "parts.json").write_text(json.dumps([[[name] for name in names]]))
    compared(parts, **options)
    same(whole, parts, runs=4)
    for run in RunFolder.all_in(whole):
        engine = header_of(RunFolder(parts / run.path.relative_to(whole)))["engine"]
        assert engine == header_of(run)["engine"] and "stacked" in engine
    assert (parts / ".parts" / "part-1" / ".lock").exists()
