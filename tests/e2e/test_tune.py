"""Tuning as a user runs it: grids and Bayesian search, killed and going on, several processes on one study."""

import dataclasses
import json
import re
import signal
import sqlite3
import time
import tomllib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import command
import evenfed as package
from evenfed.algorithms import FedAvg
from evenfed.comparison.experiment import DEMO, Experiment
from evenfed.comparison.tuning.search import LEARNING_RATES, Search, space_of
from evenfed.comparison.tuning.study import mark
from evenfed.comparison.tuning.tune import tune
from evenfed.comparison.variants import Variant
from evenfed.core.algorithm import hyper
from evenfed.report import tuning as result

pytestmark = pytest.mark.slow
QUICK = ["--rounds", "3", *command.SMALL, "--batch", "5"]


def start(*arguments: str, cwd: Path) -> command.Forked:
    return command.Forked("tune", *arguments, *QUICK, cwd=cwd)


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
    assert 5 <= before <= 30  # on a busy machine all may be there before the kill
    two = [start(*arguments, cwd=tmp_path) for _ in range(2)]
    done = [command.ended(process) for process in two]
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    told = [json.loads(each.stdout) for each in done]
    last = max(told, key=lambda t: len(t["candidates"]))
    grid = [("fedavg", ("lr", lr)) for lr in LEARNING_RATES["images"]]
    alphas = space_of(Variant.parse("term"), "images")["alpha"]
    grid += [("term", ("alpha", a), ("lr", lr)) for a in alphas for lr in LEARNING_RATES["images"]]
    assert points(last) == sorted(grid)  # every point once: none lost by the kill, none done twice
    assert last["selected_on"] == "validation" and set(last["chosen"]) == {"fedavg", "term"}
    best = max(c["figures"]["worst10"] for c in last["candidates"] if c["label"] == "term")
    assert last["chosen"]["term"]["figures"]["worst10"] == best


def test_the_chosen_values_are_an_experiment_and_a_picture(tmp_path, evenfed):
    done = evenfed("tune", "--algorithms", "fedavg", "--select-on", "test", *QUICK)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "demo-tune"
    assert "TEST data" in done.stdout and (folder / "pareto.png").stat().st_size > 5000
    page = (folder / "report.html").read_text()
    assert "Page: runs/demo-tune/report.html" in done.stdout
    assert "has the best worst 10 % of" in page and '"name":"pareto"' in page
    text = (folder / "tuned.toml").read_text()
    assert "TEST DATA" in text
    chosen = Experiment.read(folder / "tuned.toml")
    assert chosen.variants[0].options["lr"] in LEARNING_RATES["images"] and chosen.data.validation_fraction == 0
    assert tomllib.loads(text)["train"]["rounds"] == 3 and chosen.selected_on == "test"
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
        Experiment.read(DEMO).with_value("train.rounds", 2).with_value("data.clients", 5).with_value("seeds", 1)
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
    assert not (tmp_path / "runs").exists()


def test_another_experiment_is_another_search():
    usual = Experiment.read(DEMO)
    assert mark(usual) == mark(usual.changed(["train.device=cpu"]))
    for change in ("train.rounds=5", "data.clients=7", "model.hidden=[8]", "seeds=2"):
        assert mark(usual) != mark(usual.changed([change])), change


@dataclass(frozen=True)
class TwoDials(FedAvg):
    """An algorithm of another package: one hyper-parameter with a grid, one without, one of whole numbers."""

    strength: float = hyper(0.5, "of the pull", least=0, reason="it is a part", grid=(0.1, 0.9))
    shape: Literal["round", "square"] = hyper("round", "of the pull")
    order: int = hyper(1, "of the pull", grid=(1, 2))


def tuned_by(tmp_path, **options):
    table = {
        "algorithms": {"twodials": {"algorithm": "twodials"}},
        "data": {"clients": 4},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"rounds": 2, "device": "cpu"},
        "seeds": 1,
        "tune": options,
    }
    experiment = Experiment.of(table, "dials")
    entry = experiment.variants[-1]
    experiment = dataclasses.replace(experiment, variants=(entry,))
    return tune(experiment, Search(**experiment.tune), tmp_path, lambda done, all: None)


@pytest.fixture
def two_dials(monkeypatch):
    known = {**package.algorithms._all(), "twodials": TwoDials}
    monkeypatch.setattr(package.algorithms, "_all", lambda: known)


def test_an_algorithm_of_ones_own_is_tuned_by_the_grid_it_declares(tmp_path, two_dials):
    tuned = tuned_by(tmp_path, grid={"lr": [0.1]})
    tried = sorted((c.values["strength"], c.values["order"], c.values["lr"]) for c in tuned.candidates)
    assert tried == [(0.1, 1, 0.1), (0.1, 2, 0.1), (0.9, 1, 0.1), (0.9, 2, 0.1)]
    assert tuned.untuned == {"twodials": {"shape": "round"}}
    table = tuned._repr_html_()
    assert "4 candidates" in table and "strength=" in table and "<td" in table
    told = result.not_tuned(tuned)
    assert "twodials.shape = round" in told and "grid=[...]" in told
    again = tuned_by(tmp_path, grid={"lr": [0.1], "twodials": {"shape": ["round", "square"], "order": [1]}})
    assert len(again.candidates) == 4 and again.untuned == {} and result.not_tuned(again) is None
    assert {c.values["shape"] for c in again.candidates} == {"round", "square"}


def test_bayes_keeps_whole_numbers_whole(tmp_path, two_dials):
    tuned = tuned_by(tmp_path, method="bayes", trials=3)
    for candidate in tuned.candidates:
        assert type(candidate.values["order"]) is int and 0.1 <= candidate.values["strength"] <= 0.9
    assert len(tuned.candidates) == 3


def test_the_table_tune_of_an_experiment(tmp_path, evenfed):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[algorithms.fedavg]\n[train]\nrounds = 2\n[data]\nclients = 4\n[model]\nname = 'mlp'\nhidden = [4]\n"
        "[tune]\nmetric = 'mean'\nseeds = [3]\n[tune.grid]\nlr = [0.1, 0.3]\nsmooth = ['none', 0.5]\n"
    )
    done = evenfed("tune", file, "--format", "json", "--select-on", "test", "--verbose")
    assert done.returncode == 0, done.stderr
    assert re.search(r"fedavg with lr=0\.1, smooth=0\.5: mean 0\.\d{4}, worst 10 % 0\.\d{4}\n", done.stderr)
    told = json.loads(done.stdout)
    assert (told["metric"], told["selected_on"]) == ("mean", "test")
    assert sorted((c["values"]["lr"], str(c["values"]["smooth"])) for c in told["candidates"]) == [
        (0.1, "0.5"),
        (0.1, "None"),
        (0.3, "0.5"),
        (0.3, "None"),
    ]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"trails": 3}, "did you mean 'trials'"),
        ({"grid": {"bta": [1]}}, "unknown name in"),
        ({"grid": {"semi_vred": {"bta": [1]}}}, "did you mean 'beta'"),
        ({"grid": {"lr": 0.1}}, "give a list of values"),
        ({"grid": {"lr": [[0.1]]}}, "give plain values"),
        ({"grid": 3}, "give a table of lists"),
        ({"trials": "many"}, "trials='many'"),
    ],
)
def test_tables_tune_that_cannot_be(table, told, tmp_path):
    def begun():
        experiment = Experiment.of({"algorithms": {"semi_vred": {}}, "tune": table}, "bad")
        tune(experiment, Search(**experiment.tune), tmp_path, lambda done, all: None)

    with pytest.raises(package.InputError, match=told):
        begun()


def test_a_search_waits_for_another_that_writes_to_its_database(tmp_path):
    """Longer than SQLite waits by itself, as happens on a busy machine."""
    first = start("--algorithms", "fedavg", "--format", "json", cwd=tmp_path)
    database = tmp_path / "runs" / "demo-tune" / "tune.db"
    command.wait_for(lambda: complete(database) >= 1, every=0.02)
    with closing(sqlite3.connect(database, timeout=30)) as writer:
        writer.execute("begin immediate")
        time.sleep(6)
        writer.rollback()
    done = command.ended(first)
    assert done.returncode == 0, done.stderr


def test_candidates_that_tie_are_said_to(evenfed, tmp_path):
    """With steps too small to learn anything, all candidates are the initial model."""
    table = "seeds = 1\n[data]\nclients = 10\n[train]\nrounds = 1\n[algorithms.fedavg]\n[tune.grid]\nlr = [1e-9, 2e-9]"
    (tmp_path / "tiny.toml").write_text(table)
    done = evenfed("tune", "tiny.toml")
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "chosen by worst 10 % on the validation split, last round" in printed
    assert "! fedavg: all 2 candidates tie at the same worst 10 %" in printed
    assert "the best mean decides, then the order of trial" in printed
