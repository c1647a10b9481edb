"""Work handed out to real processes: what they answer, what becomes of work that is lost, who ends with whom."""

import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from command import wait_for
from evenfed.comparison import runner
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.progress import silence
from evenfed.core.errors import InputError
from evenfed.spread.dispatcher import MOST_LOSSES, Dispatcher, DispatchObserver, raise_failures
from evenfed.spread.local import LocalSlot
from evenfed.spread.options import SpreadOptions, gpus, spread_of, visible_gpu
from evenfed.spread.remote_call import packed, perform

KEPT = "the rest is kept"


class Noted(DispatchObserver):
    """Keeps what it is told. `file`: grows as work goes on."""

    def __init__(self, file: Path | None = None) -> None:
        self.lines: list[str] = []
        self.file = file

    def progress(self, task):
        return len(self.file.read_text()) if self.file and self.file.exists() else 0

    def started(self, task, place):
        self.lines.append(f"{task} started")

    def lost(self, task, place, why):
        self.lines.append(f"{task} lost: {why}")

    def ended(self, task, place, outcome):
        self.lines.append(f"{task} {outcome.kind}")


def carried_out(tasks, workers=2, watcher=None, stop=lambda: False):
    places = [LocalSlot(f"worker {number}", "cpu", 1) for number in range(workers)]
    return Dispatcher(tasks, places, watcher or Noted(), stop).carry_out()


# Tasks are sent by value: a worker does not have this module.
def note(path: Path, word: str) -> None:
    with path.open("a") as file:
        file.write(word)


def die(path: Path, times: int) -> None:
    note(path, "x")
    if len(path.read_text()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def by_value():
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_each_task_is_done_once_and_an_error_does_not_end_the_others(tmp_path):
    def refuse():
        from evenfed.core.errors import InputError

        raise InputError("lr=-1: give a positive number")

    def fail():
        raise ZeroDivisionError("by zero")

    done = [functools.partial(note, tmp_path / str(k), "once") for k in range(3)]
    outcomes = carried_out([refuse, *done, fail])
    assert [outcome.kind for outcome in outcomes] == ["refused", "done", "done", "done", "failed"]
    assert [(tmp_path / str(k)).read_text() for k in range(3)] == ["once"] * 3
    assert "ZeroDivisionError" in outcomes[-1].trace and outcomes[-1].message == "ZeroDivisionError: by zero"
    with pytest.raises(InputError, match=r"lr=-1: give a positive number; ZeroDivisionError.*2 of 5 parts; the rest"):
        raise_failures(outcomes, KEPT)
    raise_failures(outcomes[1:4], KEPT)


def test_what_a_lost_worker_was_at_is_taken_over(tmp_path):
    watcher = Noted()
    (outcome,) = carried_out([functools.partial(die, tmp_path / "tries", 1)], 1, watcher)
    assert outcome.kind == "done" and (tmp_path / "tries").read_text() == "xx"
    assert watcher.lines == ["0 started", "0 lost: it was killed by SIGKILL", "0 started", "0 done"]


@pytest.mark.parametrize("advances", [False, True])
def test_work_that_only_kills_its_workers_is_given_up(tmp_path, advances):
    tries = tmp_path / "tries"
    (outcome,) = carried_out([functools.partial(die, tries, MOST_LOSSES)], 1, Noted(tries if advances else None))
    assert outcome.kind == ("done" if advances else "failed")
    if not advances:
        assert outcome.message == f"{MOST_LOSSES} workers in a row were lost with it, the last one because it was " + (
            "killed by SIGKILL"
        )


def test_a_stop_reaches_all_workers_and_none_is_started_after_it(tmp_path):
    def wait(path):
        note(path, "x")
        time.sleep(60)

    tasks = [functools.partial(wait, tmp_path / str(k)) for k in range(3)]
    stop = threading.Event()
    threading.Thread(target=lambda: (wait_for(lambda: len(list(tmp_path.iterdir())) == 2), stop.set())).start()
    outcomes = carried_out(tasks, 2, stop=stop.is_set)
    assert [outcome.kind for outcome in outcomes] == ["stopped"] * 3 and len(list(tmp_path.iterdir())) == 2


def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    def wait(path):
        path.write_text(str(os.getpid()))
        time.sleep(60)

    job = LocalSlot("worker", "cpu", 1).start(packed(functools.partial(wait, tmp_path / "pid")))
    wait_for((tmp_path / "pid").exists)
    job.process.stdin.close()  # as the system does for a process that is killed
    wait_for(lambda: job.process.poll() is not None)
    assert job.outcome().kind == "stopped"


def test_what_cannot_be_sent_is_refused_in_words():
    lock = threading.Lock()
    with pytest.raises(InputError, match=r"cannot be sent to a worker: .*lock.*or train in one process"):
        packed(lambda: lock.acquire())
    assert perform(packed(lambda: None)).kind == "done"


def test_the_gpus_of_a_machine(monkeypatch):
    assert gpus("cuda:all", 3) == ("cuda:0", "cuda:1", "cuda:2")
    assert gpus("cuda:0, cuda:2", 3) == ("cuda:0", "cuda:2")
    for written, count, told in [
        ("cuda:all", 0, "sees no GPU"),
        ("cuda:0,cuda:3", 3, "'cuda:3' is not a GPU of this machine; give cuda:all or some of cuda:0, cuda:1, cuda:2"),
        ("cuda:0,cpu", 3, "'cpu' is not a GPU"),
        ("cuda:1,cuda:1", 3, "names a GPU twice"),
    ]:
        with pytest.raises(InputError, match=told):
            gpus(written, count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [visible_gpu(name) for name in gpus("cuda:all", 2)] == ["4", "7"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpu("cuda:1") == "1"


def test_runs_on_flower_are_not_trained_again_in_their_parts(tmp_path, monkeypatch):
    train = {"rounds": 1, "engine": "flower"}
    experiment = Experiment.of({"algorithms": {"fedavg": {}}, "seeds": 1, "noise_floor": False, "train": train}, "mine")
    parts = tmp_path / "mine" / ".parts" / "parts.json"
    parts.parent.mkdir(parents=True)
    parts.write_text('[[["fedavg, seed 0"]]]')
    trained = []
    monkeypatch.setattr(runner, "_run_on_flower", lambda *given: trained.append("on Flower"))
    monkeypatch.setattr(runner, "_run_here", lambda *given: trained.append("here"))
    runner.complete(experiment, tmp_path, silence)
    assert trained == ["on Flower"]


def test_where_work_is_spread_to():
    assert spread_of("cpu", None, None) == (None, "cpu") and spread_of(None, 1, None) == (None, None)
    assert spread_of(None, 3, None) == (SpreadOptions(("auto",) * 3), None)
    assert spread_of("cpu", 2, "10.0.0.1:6379") == (SpreadOptions(workers=2, cluster="10.0.0.1:6379"), "cpu")
    slurm, _ = spread_of(None, None, "slurm:partition=gpu,time=60,gpus=1")
    assert slurm == SpreadOptions(cluster="slurm", slurm={"partition": "gpu", "time": 60, "gpus": 1})


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("cuda:all", 2, None), "leave out workers=2"),
        (("cuda:0,cuda:1", None, "auto"), "give one of them"),
        ((None, 0, None), "workers=0: give a whole number, at least 1"),
        ((None, 10**12, None), "give at most 10000"),
        ((None, None, "slrm:partition=gpu"), "did you mean 'slurm'"),
        ((None, None, ""), "give auto or the address of a Ray cluster, or slurm"),
        ((None, None, "slurm:partion=gpu"), "did you mean 'partition'"),
        ((None, None, "slurm:time=soon"), "time is a whole number"),
        ((None, None, "slurm:executor=cloud"), "unknown executor of slurm 'cloud'"),
    ],
)
def test_wrong_places_are_refused(asked, told):
    with pytest.raises(InputError, match=told):
        spread_of(*asked)
