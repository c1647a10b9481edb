"""The experiments that come with the repository: the paper's settings, and a quick form of each."""

import csv
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import evenfed
from evenfed.cli.training import experiment_of
from evenfed.comparison.experiment import Experiment
from evenfed.experiments import FOLDER, bundled
from evenfed.report import paper_tables

ROOT = FOLDER
REPOSITORY = Path(__file__).parents[1]

PAPER = {
    "paper-cifar10": "CIFAR-10",
    "paper-cifar100": "CIFAR-100",
    "paper-cinic10": "CINIC-10",
    "paper-stackoverflow": "StackOverflow",
}
NINE = {"fedavg", "qffl", "afl", "gifair", "term", "propfair", "delta_fl", "vred", "semi_vred"}


STUDIES = {"vred-cifar10", "readings-cifar10", "damping-cifar10", "damped-cifar10"}
LANGUAGE = {"damped-shakespeare": "paper-shakespeare", "damped-stackexchange": "stackexchange"}
OVER_FEDERATIONS = (
    "choose-cifar10",
    "choose-cifar100",
    "chosen-cifar10",
    "confirm-cifar10",
    "confirm-cifar100",
    "guard-cifar10",
    "others-cifar10",
    "twenty-cifar10",
)
DIGITS = ("choose-digits", "confirm-digits", "narrow-digits")
OTHERS = {*STUDIES, *LANGUAGE, *OVER_FEDERATIONS, *DIGITS, "demo"}
REPRODUCTIONS = sorted(p for p in ROOT.glob("*.toml") if p.stem not in OTHERS)


@pytest.mark.parametrize("path", REPRODUCTIONS, ids=lambda p: p.stem)
def test_each_has_nine_algorithms_three_seeds_200_rounds_its_command_first_and_a_quick_form(path):
    found = Experiment.read(path)
    assert path.read_text().startswith(f"# evenfed compare @{path.stem}\n")
    assert {v.algorithm.name for v in found.variants} == NINE
    assert found.seeds == (0, 1, 2) and found.train.rounds == 200 and found.train.batch_size == 64
    quick = found.in_quick_form()
    assert quick.name == f"{path.stem}-quick" and quick.train.rounds <= 50 and quick.seeds == (0, 1)


@pytest.mark.parametrize(("name", "data_set"), PAPER.items())
def test_learning_rates_and_hyper_parameters_are_the_papers_best(name, data_set):
    variants = {v.label: v for v in Experiment.read(ROOT / f"{name}.toml").variants}
    folder = Path(paper_tables.__path__[0])

    def rows(table):
        lines = (folder / table).read_text().splitlines()
        return [r for r in csv.DictReader(lines) if r["dataset"] == data_set]

    for row in rows("best_learning_rate.csv"):
        assert variants[row["algorithm"].replace("-", "_")].options["lr"] == float(row["learning_rate"])
    ours = {"q": "q", "alpha": "alpha", "M": "baseline", "beta": "beta"}
    for row in rows("best_hyperparameters.csv"):
        if row["parameter"] in ours:
            algorithm = variants[row["algorithm"].replace("-", "_")].algorithm
            assert getattr(algorithm, ours[row["parameter"]]) == float(row["value"])
    assert variants["gifair"].algorithm.strength == 1.0


def test_what_the_paper_errs_in_is_said_in_the_file():
    assert "80-20" in (ROOT / "paper-cifar100.toml").read_text()
    for path in ROOT.glob("paper-*.toml"):
        assert re.search(r"lambda_max of our own split", path.read_text()), path


def test_the_quick_form_scales_every_learning_rate_and_says_so_in_labels():
    table = {
        "train": {"lr": 0.02},
        "quick": {"lr_factor": 5.0, "train.rounds": 2},
        "algorithms": {"fedavg": {}, "rates": {"algorithm": "fedavg", "grid": {"lr": [0.01]}}, "vred": {"lr": 0.1}},
    }
    quick = Experiment.of(table, "mine").in_quick_form()
    rates = {v.label: v.options.get("lr", quick.train.lr) for v in quick.variants}
    assert rates == {"fedavg": pytest.approx(0.1), "fedavg[lr=0.05]": pytest.approx(0.05), "vred": pytest.approx(0.5)}
    again = quick.changed(["train.lr=0.3"])
    assert next(r.settings.lr for r in again.runs()[0] if r.label == "fedavg") == 0.3


def test_entries_in_another_precision_are_repetitions():
    whole = Experiment.read(ROOT / "paper-cifar10.toml")
    assert whole.repetitions() == {"fedavg-tf32", "semi_vred-tf32"}
    quick = whole.in_quick_form()  # for a CPU, which computes those alike
    assert not quick.repetitions() and len(quick.variants) == len(whole.variants) - 2
    alone = {"fedavg": {}, "vred": {"precision": "bf16"}}  # of which there is no other one
    assert Experiment.of({"algorithms": alone}, "mine").repetitions() == set()


def test_quick_needs_a_table():
    with pytest.raises(evenfed.InputError, match="no table"):
        Experiment.of({"algorithms": {"fedavg": {}}}, "mine").in_quick_form()


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_studies_stand_on_the_papers_federation(name):
    path = ROOT / f"{name}.toml"
    study, paper = Experiment.read(path), Experiment.read(ROOT / f"paper-{path.stem.partition('-')[2]}.toml")
    assert path.read_text().startswith(f"# evenfed compare @{path.stem}\n") and study.name == path.stem
    assert study.model == paper.model
    for name in ("rounds", "batch_size", "local_epochs", "last_rounds", "precision"):
        assert getattr(study.train, name, "fp32") == getattr(paper.train, name, "fp32"), name
    for name in ("name", "partition", "clients", "concentration", "train_fraction", "seed", "examples"):
        assert getattr(study.data, name) == getattr(paper.data, name), name


@pytest.mark.parametrize(("name", "original"), LANGUAGE.items())
def test_damped_language_studies_change_the_weights_alone_at_fedavgs_rate(name, original):
    study = Experiment.read(ROOT / f"{name}.toml")
    paper = Experiment.read(ROOT / f"{original}.toml")
    (fedavg,) = [variant for variant in paper.variants if variant.label == "fedavg"]
    assert study.model == paper.model and study.data == paper.data and study.seeds == paper.seeds
    assert study.train.lr == fedavg.options["lr"]
    assert study.train.evaluate_every % 2 == 1


@pytest.mark.parametrize(("name", "hidden"), [("confirm-digits", [32]), ("narrow-digits", [4])])
def test_digits_are_confirmed_on_other_federations_than_they_were_chosen_on(name, hidden):
    choose = Experiment.read(ROOT / "choose-digits.toml").changed([f"model.hidden={hidden}"])
    confirm = Experiment.read(ROOT / f"{name}.toml")
    assert choose.data.judge == "validation" and confirm.data.judge == "test"
    assert not set(choose.federations) & set(confirm.federations)
    assert choose.model == confirm.model and choose.train.rounds == confirm.train.rounds
    tried = {(variant.algorithm, *sorted(variant.options.items())) for variant in choose.variants}
    for variant in confirm.variants:
        options = {"lr": confirm.train.lr, **variant.options}
        assert (variant.algorithm, *sorted(options.items())) in tried, variant.label


@pytest.mark.parametrize("name", OVER_FEDERATIONS)
def test_studies_over_federations_have_the_papers_model_and_see_a_swing_of_period_two(name):
    path = ROOT / f"{name}.toml"
    study, paper = Experiment.read(path), Experiment.read(ROOT / f"paper-{name.partition('-')[2]}.toml")
    assert path.read_text().startswith(f"# evenfed compare @{path.stem}\n") and study.name == path.stem
    assert study.model == paper.model and study.train.batch_size == paper.train.batch_size
    assert study.train.evaluate_every % 2 == 1
    for member in study.members:
        for option in ("name", "partition", "clients", "concentration", "train_fraction", "examples"):
            assert getattr(member.data, option) == getattr(paper.data, option), option


def test_the_twenty_federations_are_those_of_both_confirmations_with_the_same_runs():
    """So that all runs can be taken over: each federation's are some of its confirmation's."""
    confirmed = {}
    for name in ("confirm-cifar10", "chosen-cifar10"):
        for member in Experiment.read(ROOT / f"{name}.toml").members:
            confirmed[member.data.seed] = [member.config(run) for run in member.runs()[0]]
    twenty = Experiment.read(ROOT / "twenty-cifar10.toml").members
    assert [member.data.seed for member in twenty] == sorted(confirmed)
    for member in twenty:
        for run in member.runs()[0]:
            assert member.config(run) in confirmed[member.data.seed], run.name


@pytest.mark.skipif(not (REPOSITORY / "results").is_dir(), reason="the package's sources have no results")
def test_runs_of_a_gpu_are_put_together_and_shown_without_a_gpu_and_without_their_data(evenfed, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "no-data"))
    call = ["compare", "@twenty-cifar10", "--device", "cuda", "--set", "federations=[3]"]
    out = ["--reuse", REPOSITORY / "results" / "confirm-cifar10" / "federation-3", "--out", tmp_path]
    shown = evenfed(*call, *out)
    assert shown.returncode == 0, shown.stderr
    assert "vred[beta=0.5,smooth=0.1,average=0.8]" in shown.stdout
    again = evenfed(*call, "--out", tmp_path)
    assert again.returncode == 0, again.stderr


def test_the_damping_study_is_the_whole_grid_on_validation_data():
    study = Experiment.read(ROOT / "damping-cifar10.toml")
    assert study.data.judge == "validation" and study.seeds == (0,) and study.noise_floor
    grid = {(v.algorithm.name, v.options.get("smooth")) for v in study.variants if v.algorithm.name != "fedavg"}
    assert len(study.variants) == 4 + 3 * 16
    assert grid == {(m, s) for m in ("semi_vred", "vred", "term") for s in (None, 0.5, 0.25, 0.1)}
    strengths = {getattr(v.algorithm, "beta", None) or getattr(v.algorithm, "alpha", None) for v in study.variants[4:]}
    assert strengths == {0.2, 0.5, 1.0, 2.0}
    rates = {v.options["lr"] for v in study.variants if v.algorithm.name == "fedavg"}
    assert rates == {0.002, 0.005, 0.01, 0.02}


def labels(**tables) -> list[str]:
    """Of the entries of an experiment with lr = 0.2 in [train]."""
    experiment = Experiment.of({"train": {"lr": 0.2}, "algorithms": tables}, "page")
    return [variant.label for variant in experiment.variants]


def test_a_grids_labels_say_what_its_table_fixes():
    slow = {"algorithm": "semi_vred", "lr": 0.01, "grid": {"beta": [0.5, 1.0]}}
    assert labels(slow=slow, fast={**slow, "lr": 0.5}) == [
        "fedavg",
        "semi_vred[lr=0.01,beta=0.5]",
        "semi_vred[lr=0.01,beta=1.0]",
        "semi_vred[lr=0.5,beta=0.5]",
        "semi_vred[lr=0.5,beta=1.0]",
    ]
    usual = {"algorithm": "semi_vred", "lr": 0.2, "beta": 0.2, "grid": {"smooth": ["none", 0.5]}}
    assert labels(usual=usual) == ["fedavg", "semi_vred", "semi_vred[smooth=0.5]"]  # as [train] and by default
    strong = {"algorithm": "semi_vred[beta=1]", "grid": {"smooth": ["none", 0.5]}}
    assert labels(strong=strong) == ["fedavg", "semi_vred[beta=1]", "semi_vred[beta=1,smooth=0.5]"]
    assert labels(slow={"algorithm": "semi_vred", "lr": 0.01}) == ["fedavg", "slow"]  # no grid: the table's name


def test_fedavg_as_a_grids_table_fixes_it_stays_what_others_are_compared_with():
    experiment = Experiment.of(
        {
            "train": {"lr": 0.2},
            "algorithms": {
                "FedAvg": {"lr": 0.01, "grid": {"average": ["none", 0.8]}},
                "other": {"algorithm": "fedavg", "lr": 0.5, "grid": {"average": ["none", 0.8]}},
            },
        },
        "page",
    )
    rates = {variant.label: variant.options["lr"] for variant in experiment.variants}
    assert rates == {
        "fedavg": 0.01,
        "FedAvg[average=0.8]": 0.01,
        "fedavg[lr=0.5]": 0.5,
        "fedavg[lr=0.5,average=0.8]": 0.5,
    }


def test_rates_in_a_grids_labels_follow_the_quick_form():
    slow = {"algorithm": "semi_vred", "lr": 0.01, "grid": {"beta": [0.5]}}
    study = Experiment.of({"train": {"lr": 0.2}, "quick": {"lr_factor": 6.0}, "algorithms": {"slow": slow}}, "page")
    assert "semi_vred[lr=0.01,beta=0.5]" in {variant.label for variant in study.variants}
    assert "semi_vred[lr=0.06,beta=0.5]" in {variant.label for variant in study.in_quick_form().variants}


def test_the_commands_of_the_first_page_run(evenfed):
    done = evenfed("compare", "--quick", "--rounds", 2)
    assert done.returncode == 0 and "semi_vred[beta=1,smooth=0.25]" in done.stdout, done.stderr
    reported = evenfed("report", "runs/demo-quick", "--no-figures")
    assert reported.returncode == 0 and "seeds 0, 1" in reported.stdout, reported.stderr


def test_entries_of_the_set_up_study_are_the_papers():
    paper = {v.label: v for v in Experiment.read(ROOT / "paper-cifar10.toml").variants}
    assert all(paper[v.label] == v for v in Experiment.read(ROOT / "vred-cifar10.toml").variants)


def test_one_script_makes_all_results_and_the_page_links_their_reports():
    script = REPOSITORY / "experiments" / "reproduce.sh"
    done = subprocess.run([script], env={**os.environ, "DRY": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = set(re.findall(r"compare @(\S+)", done.stdout))
    written = re.findall(r"choose .* --out (\S+\.toml)", done.stdout)
    assert names and names <= set(bundled())
    in_the_package = [file for file in written if file.startswith("src/")]
    assert in_the_package and all((REPOSITORY / file).parent == ROOT for file in in_the_package)
    page = (REPOSITORY / "docs" / "reproduce.md").read_text()
    packed = set(re.findall(r"pack \S+ results/(\S+)", done.stdout))
    linked = set(re.findall(r"\]\(\.\./results/([\w-]+)/\S+\)", page))
    assert packed and packed <= linked
    missing = {**os.environ, "DRY": "1", "MISSING": "1"}
    done = subprocess.run([script, "others-cifar10"], env=missing, capture_output=True, text=True)
    assert "--reuse results/others-cifar10" in done.stdout
    wrong = subprocess.run([script, "cifar11"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "unknown part 'cifar11'" in wrong.stderr


def test_experiments_of_the_package_are_listed_and_found_by_name(evenfed):
    listed = evenfed("experiments").stdout
    assert all(f"@{name} " in listed for name in bundled())
    assert Experiment.read(Path("@paper-cifar10")) == Experiment.read(ROOT / "paper-cifar10.toml")
    refused = evenfed("compare", "@paper-cifar11")
    assert refused.returncode == 2 and "did you mean '@paper-cifar10'" in refused.stderr
    assert "@vred-cifar10" in evenfed("compare", "@no").stderr  # without a guess all are listed


def test_a_new_experiment_runs_as_it_is_and_with_ones_own_data_and_model(tmp_path, evenfed, monkeypatch):
    folder = tmp_path / "data" / "wards"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        np.savez(folder / f"{name}.npz", x=draw.normal(size=(12, 4)), y=draw.integers(0, 2, 12))
    model = "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
    (tmp_path / "own_net.py").write_text(f"import torch\n\n{model}")
    made = evenfed("new", "mine.toml", "--data", "data/wards", "--model", "own_net.Net")
    assert made.returncode == 0 and "evenfed compare mine.toml" in made.stdout
    done = evenfed("compare", "mine.toml", "--quick", "--set", "train.rounds=2")
    assert done.returncode == 0 and "semi_vred" in done.stdout, done.stderr
    assert "3 clients: a, b, c" in done.stderr
    assert done.stdout.count("At a glance") == 1 and "oscillation" not in done.stdout
    again = evenfed("new", "mine.toml")
    assert again.returncode == 2 and "exists already" in again.stderr
    nowhere = evenfed("new", "other.toml", "--data", "nowhere")
    assert nowhere.returncode == 2 and "no such folder or data set" in nowhere.stderr
    (tmp_path / "empty").mkdir()
    empty = evenfed("new", "empty.toml", "--data", "empty")
    assert empty.returncode == 0 and "! empty holds no .npz or .parquet file yet" in empty.stdout
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    absent = evenfed("new", "absent.toml", "--data", "cifar10")
    assert absent.returncode == 0 and "! cifar10 is not in the cache; first run `evenfed data fetch" in absent.stdout
    spaced = evenfed("new", "my own.toml")
    assert "evenfed compare 'my own.toml'" in spaced.stdout
    assert (tmp_path / "my own.toml").read_text().startswith("# evenfed compare 'my own.toml'\n")
    assert Experiment.read(tmp_path / "my own.toml").name == "my-own"
    assert evenfed("new", "digits.toml").returncode == 0
    usual = Experiment.read(tmp_path / "digits.toml")
    assert usual.data.name == "digits" and {v.label for v in usual.variants} == {"fedavg", "semi_vred", "qffl"}


def test_grids_that_fix_different_tables_have_different_labels():
    def entry(momentum):
        optimizer = {"name": "sgd", "momentum": momentum}
        return {"algorithm": "vred", "optimizer": optimizer, "grid": {"beta": [0.5, 1.0]}}

    found = Experiment.of({"algorithms": {"slow": entry(0.5), "fast": entry(0.9)}}, "two")
    assert [v.label for v in found.variants[1:]] == [
        "slow[beta=0.5]",
        "slow[beta=1.0]",
        "fast[beta=0.5]",
        "fast[beta=1.0]",
    ]
    assert found.variants[3].options["optimizer"]["momentum"] == 0.9


@pytest.mark.parametrize(
    ("experiment", "written", "labels"),
    [
        ("others", "fedavg-rates,drfa", ["fedavg", "fedavg[lr=0.01]", "drfa"]),
        ("others", "gifair", ["fedavg", "gifair[strength=10.0]", "gifair[strength=25.0]"]),
        ("others", "GiFair", ["fedavg", "gifair[strength=10.0]", "gifair[strength=25.0]"]),
        ("others", "gifair[strength=10.0],term", ["fedavg", "gifair[strength=10.0]", "term"]),
        ("confirm", "vred[beta=1.0]", ["fedavg", "vred[beta=1.0]"]),
        ("choose", "fedavg", ["fedavg", "fedavg[average=0.8]", "fedavg[average=0.9]"]),
    ],
)
def test_a_table_of_the_experiment_stands_for_all_its_entries(experiment, written, labels):
    chosen = experiment_of(Path(f"@{experiment}-cifar10"), False, written, None, {}, [])
    assert [variant.label for variant in chosen.variants] == labels
    quick = experiment_of(Path(f"@{experiment}-cifar10"), True, written, None, {}, [])
    assert len(quick.variants) == len(labels)
