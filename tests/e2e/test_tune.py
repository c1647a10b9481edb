"""Tuning as a user runs it: grids and Bayesian search, killed and going on, several processes on one study."""

import json
import os
import signal
import sqlite3
import subprocess
import tomllib
from pathlib import Path

import pytest

import command
import evenfed as package
from evenfed.comparison.experiment import DEMO, Experiment
from evenfed.comparison.study import GRIDS, LEARNING_RATES, Candidate, Search, mark
from evenfed.comparison.tune import front, tune

pytestmark = pytest.mark.slow
QUICK = ["--rounds", "6", *command.SMALL, "--batch", "5"]


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return command.start("tune", *arguments, *QUICK, cwd=cwd)


def complete(database: Path) -> int:
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            return connection.execute("select count(*) from trials where state = 'COMPLETE'").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def points(told: dict) -> list[tuple]:
    return sorted((c["label"], *sorted(c["values"].items())) for c in told["candidates"])


def test_the_papers_grid_killed_and_going_on_by_two_processes(tmp_path):
    arguments = ["--algorithms", "fedavg,term", "--format", "json"]
    first = start(*arguments, cwd=tmp_path)
    database = tmp_path / "runs" / "demo-tune" / "tune.db"
    command.wait_for(lambda: complete(database) >= 5 or first.poll() is not None, every=0.02)
    first.send_signal(signal.SIGKILL)
    command.ended(first)
    before = complete(database)
    assert 5 <= before < 30
    two = [start(*arguments, cwd=tmp_path) for _ in range(2)]
    told = [json.loads(command.ended(process).stdout) for process in two]
    last = max(told, key=lambda t: len(t["candidates"]))
    grid = [("fedavg", ("lr", lr)) for lr in LEARNING_RATES["images"]]
    grid += [("term", ("alpha", a), ("lr", lr)) for a in GRIDS["term"][1] for lr in LEARNING_RATES["images"]]
    assert points(last) == sorted(grid)  # every point once: none lost by the kill, none done twice
    assert last["selected_on"] == "validation" and set(last["chosen"]) == {"fedavg", "term"}
    best = max(c["figures"]["worst10"] for c in last["candidates"] if c["label"] == "term")
    assert last["chosen"]["term"]["figures"]["worst10"] == best


def test_the_chosen_values_are_an_experiment_and_a_picture(tmp_path, evenfed):
    done = evenfed("tune", "--algorithms", "fedavg", "--select-on", "test", *QUICK)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "demo-tune"
    assert "TEST data" in done.stdout and (folder / "trade-off.png").stat().st_size > 5000
    text = (folder / "tuned.toml").read_text()
    assert "TEST DATA" in text
    chosen = Experiment.read(folder / "tuned.toml")
    assert chosen.variants[0].options["lr"] in LEARNING_RATES["images"] and chosen.data.validation_fraction == 0
    assert tomllib.loads(text)["train"]["rounds"] == 6 and chosen.selected_on == "test"
    for words in (["compare", folder / "tuned.toml", "--seeds", "1"], ["report", "runs/demo"]):
        done = evenfed(*words)
        assert done.returncode == 0, done.stderr
    assert "chosen on the TEST data" in " ".join(done.stdout.split())


def test_bayesian_search_and_a_shared_database(tmp_path, evenfed):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    arguments = [
        "--algorithms",
        "semi_vred",
        "--method",
        "bayes",
        "--trials",
        "6",
        "--storage",
        url,
        "--format",
        "json",
    ]
    told = json.loads(evenfed("tune", *arguments, *QUICK).stdout)
    tried = [c["values"] for c in told["candidates"] if c["label"] == "semi_vred"]
    assert len(tried) == 6 and all(0.001 <= v["lr"] <= 0.05 and 0.01 <= v["beta"] <= 1 for v in tried)
    again = evenfed("tune", *arguments, *QUICK)
    assert json.loads(again.stdout) == told and again.stderr == ""  # nothing left to do


def test_candidates_are_judged_on_validation_rows_only(tmp_path):
    """With the test rows' labels scrambled nothing changes; choosing on them would."""
    from evenfed.data import federation

    experiment = (
        Experiment.read(DEMO).with_value("train.rounds", 4).with_value("data.clients", 5).with_value("seeds", 1)
    )
    experiment = Experiment(**{**experiment.__dict__, "variants": experiment.variants[:1]})
    plain = tune(experiment, Search(), tmp_path / "a", lambda done, all: None)
    whole = federation._pool

    def scrambled(data, parts):
        pool = whole(data, parts)
        is_test = len(pool.targets) > 800  # half of 1,797; train is 4/5 of the other half
        return pool.__class__(pool.inputs, (pool.targets + is_test) % 10, pool.starts, pool.sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "_pool", scrambled)
        other = tune(experiment, Search(), tmp_path / "b", lambda done, all: None)
        judged = tune(experiment, Search(select_on="test"), tmp_path / "c", lambda done, all: None)
    assert [c.figures for c in plain.candidates] == [c.figures for c in other.candidates]
    assert [c.figures for c in judged.candidates] != [c.figures for c in plain.candidates]


def test_the_front_is_what_none_beats_in_both():
    made = [Candidate("a", {}, {"mean": m, "worst10": w}) for m, w in ((1, 5), (2, 4), (2, 3), (3, 1), (0, 0), (1, 5))]
    assert [(c.figures["mean"], c.figures["worst10"]) for c in front(made)] == [(1, 5), (1, 5), (2, 4), (3, 1)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": "gird"}, "did you mean 'grid'"),
        ({"select_on": "train"}, "unknown select-on"),
        ({"metric": "wrost10"}, "did you mean 'worst10'"),
        ({"trials": 0}, "trials=0"),
        ({"batch": 0}, "batch=0"),
    ],
)
def test_bad_searches(given, told):
    with pytest.raises(package.InputError, match=told):
        Search(**given)


def test_a_database_that_cannot_be_used(tmp_path, evenfed):
    done = evenfed("tune", "--algorithms", "fedavg", "--storage", "sqlite:////nowhere/at/all.db", *QUICK)
    assert done.returncode == 2 and "cannot be used" in done.stderr and "Traceback" not in done.stderr
    assert os.listdir(tmp_path / "runs") == ["demo-tune"]


def test_another_experiment_is_another_search():
    usual = Experiment.read(DEMO)
    assert mark(usual) == mark(usual.changed(["train.device=cpu"]))
    for change in ("train.rounds=5", "data.clients=7", "model.hidden=[8]", "seeds=2"):
        assert mark(usual) != mark(usual.changed([change])), change
