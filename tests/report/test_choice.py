"""Hyper-parameters chosen on validation data, and the experiment that confirms them."""

import json
import shutil
import sys
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import evenfed as package
from evenfed.cli import main
from evenfed.comparison.analysis.findings import Findings
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.storage.reading import read
from evenfed.comparison.tuning import choose as choosing
from evenfed.data import DataSettings, federate
from evenfed.metrics import LOSS
from evenfed.report import choice
from evenfed.report.charts import choice as choice_chart
from evenfed.report.charts.saving import save
from reports import FLOOR, put_rounds

pytestmark = pytest.mark.slow


def test_judged_on_validation_the_test_examples_stay_unseen():
    usual = federate(DataSettings(clients=5, validation_fraction=0.25))
    judged = federate(DataSettings(clients=5, validation_fraction=0.25, judge="validation"))
    assert judged.judged.sizes.tolist() == usual.validation.sizes.tolist() != usual.judged.sizes.tolist()
    assert judged.judged.inputs.equal(usual.validation.inputs) and judged.train.inputs.equal(usual.train.inputs)
    assert "judged on the validation examples" in judged.notes
    with pytest.raises(package.InputError, match="validation_fraction"):
        DataSettings(judge="validation")
    with pytest.raises(package.InputError, match="did you mean"):
        DataSettings(judge="validaton", validation_fraction=0.2)


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Path:
    """A grid of two VRed dials and FedAvg's rate on validation data, made once through the command."""
    folder = tmp_path_factory.mktemp("grid")
    (folder / "grid.toml").write_text(
        'name = "grid"\nseeds = 1\nnoise_floor = "seeds"\n'
        '[data]\nclients = 6\nvalidation_fraction = 0.3\njudge = "validation"\n'
        "[train]\nrounds = 4\nlast_rounds = 2\nbatch_size = 16\n"
        "[algorithms.fedavg]\nlr = 0.1\n"
        '[algorithms.rates]\nalgorithm = "fedavg"\ngrid = { lr = [0.2] }\n'
        '[algorithms.vred]\nlr = 0.3\ngrid = { beta = [0.5, 1.0], smooth = ["none", 0.25] }\n'
    )
    asked = ["compare", str(folder / "grid.toml"), "--out", str(folder), "--format", "json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evenfed", *asked])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return folder


@pytest.fixture
def judged(grid, tmp_path) -> Path:
    """A copy of the grid's results, beside its file."""
    shutil.copytree(grid, tmp_path, dirs_exist_ok=True)
    return tmp_path / "grid"


def test_the_terminal_says_what_accuracies_are_measured_on(judged, evenfed, tmp_path):
    told = evenfed("compare", tmp_path / "grid.toml", "--out", tmp_path).stdout
    assert "VALIDATION accuracy in %" in told and "Test accuracy" not in told


def test_a_repetition_in_another_precision_does_not_compete_in_the_terminal(evenfed, tmp_path):
    (tmp_path / "two.toml").write_text(
        'name = "two"\nseeds = 1\nnoise_floor = false\n[data]\nclients = 6\n[train]\nrounds = 2\n'
        '[algorithms.fedavg]\n[algorithms.again]\nalgorithm = "fedavg"\nprecision = "tf32"\n[algorithms.vred]\n'
    )
    told = evenfed("compare", tmp_path / "two.toml", "--out", tmp_path, "--full").stdout
    labels = [line.split()[0] for line in told.splitlines() if line.split()[:1] in (["fedavg"], ["vred"], ["again"])]
    assert labels == ["fedavg", "vred", "again"] * 2  # in both tables below those that compete
    assert "again: fedavg in tf32 instead of fp32." in " ".join(told.split())


def test_a_grid_is_every_combination_under_a_label_of_its_own(judged):
    found = read(judged)
    assert sorted(e.label for e in found.entries) == [
        "fedavg",
        "fedavg[lr=0.2]",
        "vred[beta=0.5,smooth=0.25]",
        "vred[beta=0.5]",
        "vred[beta=1.0,smooth=0.25]",
        "vred[beta=1.0]",
    ]
    smooth = {e.label: e.config["train"]["smooth"] for e in found.entries}
    assert smooth["vred[beta=0.5]"] is None and smooth["vred[beta=0.5,smooth=0.25]"] == 0.25
    with pytest.raises(package.InputError, match="table of lists"):
        Experiment.of({"algorithms": {"vred": {"grid": {"beta": 0.5}}}}, "mine")


def choose(folder: Path, floor: Path | None = None) -> choosing.Choice:
    return choosing.choose([read(folder)], [read(floor)] if floor else [])


def put(folder: Path, level: dict[str, tuple[float, float]]) -> None:
    """Worst and other clients' accuracy of every entry, in all rounds."""
    for path in folder.glob("*/seed-*/rounds.jsonl"):
        worst, others = level.get(path.parents[1].name, (0.1, 0.2))
        lines = [json.loads(line) | {"accuracy": [worst] + [others] * 5} for line in path.read_text().splitlines()]
        put_rounds(path.parent, lines)


def test_the_highest_worst10_is_chosen_among_those_that_keep_the_mean(judged, evenfed, tmp_path):
    put(
        judged,
        {
            "fedavg": (0.30, 0.60),  # mean 0.55
            FLOOR: (0.30, 0.624),  # 2 points of noise in the mean
            "fedavg[lr=0.2]": (0.20, 0.62),
            "vred[beta=0.5]": (0.40, 0.56),  # 0.533: within the noise of the best mean
            "vred[beta=1.0]": (0.50, 0.50),  # the fairest, but 0.50
        },
    )
    done = evenfed("choose", judged, "--out", tmp_path / "confirm.toml")
    assert done.returncode == 0, done.stderr
    assert "vred[beta=0.5]" in done.stdout and "vred over beta and smooth" in done.stdout
    text = (tmp_path / "confirm.toml").read_text()
    made = Experiment.read(tmp_path / "confirm.toml")
    assert text.startswith("# evenfed compare ") and "highest worst 10 %" in text
    assert {v.label: v.options.get("lr", made.train.lr) for v in made.variants} == {
        "fedavg": 0.1,
        "vred[beta=0.5]": 0.3,
        "fedavg[lr=0.3]": 0.3,  # tells re-weighting from a learning rate
    }
    assert (made.data.judge, made.data.validation_fraction, made.selected_on) == ("test", 0.0, "validation")
    assert made.seeds == (0, 1, 2) and made.train.rounds == 4 and made.data.clients == 6
    assert tomllib.loads(text)["algorithms"]["vred[beta=0.5]"]["beta"] == 0.5
    drawn = (judged / "report" / "dials.svg").read_text()
    assert "VALIDATION accuracy over beta and smooth" in drawn and "dials.svg" in done.stdout


def test_what_is_chosen_with_smoothed_losses_is_confirmed_beside_the_same_without(judged, evenfed, tmp_path):
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.6), "vred[beta=1.0,smooth=0.25]": (0.4, 0.6)})
    assert evenfed("choose", judged, "--out", tmp_path / "confirm.toml").returncode == 0
    made = {v.label: v for v in Experiment.read(tmp_path / "confirm.toml").variants}
    assert set(made) == {"fedavg", "vred[beta=1.0,smooth=0.25]", "vred[beta=1.0]", "fedavg[lr=0.3]"}
    assert made["vred[beta=1.0]"].options.get("smooth") is None and made["vred[beta=1.0]"].options["lr"] == 0.3


def test_an_entry_keeps_its_own_smoothing_where_the_others_share_one(evenfed, tmp_path):
    how = ["--algorithms", "fedavg,vred[beta=1,smooth=none]", "--rounds", 2, "--seeds", 1, "--set", "data.clients=6"]
    judged = ["train.smooth=0.25", "data.judge=validation", "data.validation_fraction=0.2"]
    done = evenfed("compare", *how, *(w for v in judged for w in ("--set", v)), "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert evenfed("choose", tmp_path / "demo", "--out", tmp_path / "confirm.toml").returncode == 0
    made = Experiment.read(tmp_path / "confirm.toml")
    smooth = {v.label: v.options.get("smooth", made.train.smooth) for v in made.variants}
    assert smooth == {"fedavg": 0.25, "vred[beta=1,smooth=none]": None}
    assert "once more without" not in (tmp_path / "confirm.toml").read_text()


def test_what_broke_down_is_not_chosen_and_other_files_are_not_overwritten(judged, evenfed, tmp_path):
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.6), "vred[beta=0.5]": (0.6, 0.6), "vred[beta=1.0]": (0.5, 0.6)})
    path = judged / "vred[beta=0.5]" / "seed-0" / "rounds.jsonl"
    lines = [json.loads(line) | {"skipped": True} for line in path.read_text().splitlines()]
    put_rounds(path.parent, lines)
    assert choose(judged).chosen["vred"].label == "vred[beta=1.0]"
    done = evenfed("choose", judged, "--out", tmp_path / "grid.toml")
    assert done.returncode == 2 and "was not written by `evenfed choose`" in done.stderr
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml", "--seeds", 0).returncode == 2
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml").returncode == 0
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml").returncode == 0  # its own it may write again
    written = (tmp_path / "c.toml").read_text()
    (tmp_path / "c.toml").write_text(written + "# by hand\n")
    done = evenfed("choose", judged, "--out", tmp_path / "c.toml")
    assert done.returncode == 2 and "it was edited, or chosen with other options" in done.stderr
    assert (tmp_path / "c.toml").read_text() == written + "# by hand\n"
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml", "--force").returncode == 0
    assert (tmp_path / "c.toml").read_text() == written


def test_where_none_keeps_the_mean_the_highest_is_taken_and_said(judged):
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.601), "vred[beta=0.5]": (0.1, 0.4), "vred[beta=1.0]": (0.3, 0.3)})
    made = choose(judged)
    assert made.chosen["vred"].label == "vred[beta=0.5]" and not made.reached["vred"]
    shown = choice.tables(made)
    assert [c.title for c in shown[2].columns] == ["smooth=0.25", "smooth=none"]
    assert shown[2].lines[0].cells[1].value == pytest.approx(35)  # beta=0.5 without smoothing: (0.1 + 5 x 0.4) / 6
    assert "none reaches" in choice.tables(made)[0].lines[1].cells[-1].verdict


def test_of_three_dials_two_are_drawn_and_the_third_is_as_chosen(judged):
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.6), "vred[beta=0.5]": (0.5, 0.6)})
    for label in ("vred[beta=0.5,smooth=0.25]", "vred[beta=1.0]"):
        path = judged / label / "seed-0" / "header.json"
        header = json.loads(path.read_text())
        header["config"]["train"]["average"] = 0.9
        path.write_text(json.dumps(header))
    made = choose(judged)
    (grid,) = choice.grids(made)
    assert made.chosen["vred"].label == "vred[beta=0.5]" and grid.dials == ("beta", "smooth")
    labels = {point: entry.label for point, entry in grid.entries.items()}
    assert labels == {(0.5, None): "vred[beta=0.5]", (1.0, 0.25): "vred[beta=1.0,smooth=0.25]"}
    assert choice.tables(made)[2].title == "vred over beta and smooth (average=none, as chosen)"
    drawn = choice_chart.chart(made)
    assert "vred: average=none, as chosen." in drawn.says
    assert {row["algorithm"] for row in drawn.rows} == set(labels.values())


def test_the_floor_is_read_and_checked_as_the_candidates_are(judged, small, evenfed, tmp_path):
    put(judged, {"fedavg": (0.30, 0.60), FLOOR: (0.30, 0.624), "fedavg[lr=0.2]": (0.1, 0.2)})
    (tmp_path / "floors").mkdir()
    (tmp_path / "floors/federation-0").symlink_to(judged)
    target = tmp_path / "x.toml"
    header = judged / "vred[beta=1.0]/seed-0/header.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "finished": False}))
    done = evenfed("choose", judged, "--floor", tmp_path / "floors", "--out", target)
    assert "vred[beta=1.0]: seed 0 left out, not finished" in " ".join(done.stderr.split())
    assert done.returncode == 0 and "minus 2.00 points" in " ".join(done.stdout.split()), done.stderr
    assert choose(judged, judged).margin.points == pytest.approx(2.0)
    first = read(judged)
    config = {**first.header.config, "model": {**first.header.config["model"], "hidden": 5}}
    other = replace(first, header=replace(first.header, config=config))
    with pytest.raises(package.InputError, match=r"\(--floor\) differs from .* in model.hidden; take the margin"):
        choosing.choose([first], [other])
    for wrong in (["--floor", small], []):
        folder = judged if wrong else small
        done = evenfed("choose", folder, *wrong, "--out", tmp_path / "y.toml")
        assert done.returncode == 2 and "judged on test data" in done.stderr and not (tmp_path / "y.toml").exists()


def test_the_floor_gives_figures_and_federations_of_the_rule(study):
    """Expected accuracies, and means over two federations although it has one."""
    comparisons = fitting(study)
    fedavgs = [findings.baseline for findings in comparisons]
    repeated = replace(fedavgs[0], runs={seed: fedavg.runs[0] for seed, fedavg in enumerate(fedavgs)})
    floor = replace(comparisons[0], entries=(repeated, *comparisons[0].entries[1:]), repeated=((repeated,),))
    means = [100 * fedavg.expected.runs[0].late_fairness.mean for fedavg in fedavgs]
    made = choosing.choose(comparisons, [floor])
    assert made.is_expected
    assert made.margin.points == pytest.approx(np.sqrt(2 * np.var(means, ddof=1) / 2))


def test_what_broke_down_is_never_chosen_and_named(judged):
    """Entries with figures and without, of one method or all of it, on any federation."""
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.61), "vred[beta=0.5]": (0.5, 0.9), "vred[beta=1.0]": (0.4, 0.7)})
    findings = read(judged)

    def breaking(label: str, seed: int):
        entry = findings.named(label)
        return replace(entry, runs={seed: replace(entry.runs[0], stopped="diverged in round 2")})

    broken = breaking("vred[beta=0.5]", 0)
    entries = [broken if entry.label == broken.label else entry for entry in findings.entries]
    assert choosing.choose([findings]).chosen["vred"].label == broken.label
    lost = replace(breaking("vred[beta=0.5]", 0), label="term", config={**broken.config, "algorithm": "term"})
    with_broken = replace(findings, entries=tuple(entries), lost=(lost,))
    made = choosing.choose([with_broken])
    assert made.chosen["vred"].label == "vred[beta=1.0]" and "term" not in made.chosen
    assert "Excluded, as training broke down: vred[beta=0.5], term. No entry is left to choose of term." in made.rule
    verdicts = {line.entry: line.cells[-1].verdict for line in choice.tables(made)[1].lines}
    assert verdicts["vred[beta=0.5]"] == "broke down" and verdicts["vred[beta=1.0]"] == "chosen"
    made = choosing.choose(
        [replace(with_broken, entries=tuple(entry for entry in entries if entry.method == "fedavg" or entry is broken))]
    )
    assert list(made.chosen) == ["fedavg"] and made.without_choice == ("vred", "term")


def test_what_broke_down_does_not_widen_the_margin(study):
    put_figures(study)
    comparisons = [read(folder) for folder in study]
    label = "vred[beta=0.5,smooth=0.1,average=0.9]"
    wild = comparisons[0].named(label)
    wild = replace(wild, runs={0: replace(wild.runs[0], stopped="diverged in round 2")})
    entries = [wild if entry.label == label else entry for entry in comparisons[0].entries]
    broken = replace(comparisons[0], entries=tuple(entries))
    others = [entry.label for entry in entries if entry is not wild]
    margins = [
        choosing.choose(each).margin.points
        for each in (comparisons, [broken, comparisons[1]], [findings.only(others) for findings in comparisons])
    ]
    assert margins[1] == margins[2] != margins[0]


def test_a_loss_is_too_high_not_too_low(judged):
    findings = read(judged)

    def by_loss(entry):
        return replace(entry, runs={seed: replace(run, judged_by=LOSS) for seed, run in entry.runs.items()})

    made = choosing.choose([findings._with(by_loss)], margin=0.0)
    verdicts = {line.cells[-1].verdict for line in choice.tables(made)[1].lines}
    assert made.findings.metric.is_loss and "mean too high" in verdicts and "mean too low" not in verdicts


def test_entries_of_any_federation_that_are_not_in_all_are_named(study):
    put_figures(study)
    first, second = (read(folder) for folder in study)
    fewer = first.only([entry.label for entry in first.entries if entry.label != "vred[beta=1.0,smooth=0.1]"])
    for comparisons in ([fewer, second], [first, second.only(fewer.by_label)]):
        made = choosing.choose(comparisons)
        assert made.left_out == ("vred[beta=1.0,smooth=0.1]",) and made.left_out[0] in made.rule


@pytest.fixture
def study(evenfed, tmp_path) -> list[Path]:
    """Two federations of one seed each, with averages."""
    (tmp_path / "study.toml").write_text(
        'name = "study"\nseeds = 1\nfederations = [0, 1]\nnoise_floor = false\n'
        '[data]\nclients = 6\nvalidation_fraction = 0.3\njudge = "validation"\n'
        "[train]\nrounds = 2\nlast_rounds = 2\nbatch_size = 16\nlr = 0.1\n"
        '[algorithms.fedavg]\ngrid = { average = ["none", 0.9] }\n'
        '[algorithms.vred]\ngrid = { beta = [0.5, 1.0], smooth = [0.1], average = ["none", 0.9] }\n'
    )
    done = evenfed("compare", tmp_path / "study.toml", "--out", tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [tmp_path / "study" / f"federation-{k}" for k in (0, 1)]


def put_figures(study: list[Path]) -> None:
    """In place of measured ones; those that class recalls would give are others, so these are not used."""
    for folder, up in zip(study, (0.0, 0.1), strict=True):
        put(
            folder,
            {
                "fedavg": (0.30 + up, 0.60 + up),
                "fedavg[average=0.9]": (0.34 + up, 0.64 + up),  # mean 0.59: the best FedAvg
                "vred[beta=0.5,smooth=0.1]": (0.40 + up, 0.63 + 0.5 * up),
                "vred[beta=0.5,smooth=0.1,average=0.9]": (0.50 + 1.6 * up, 0.60 + up),  # 0.583 + 0.01 of the second
                "vred[beta=1.0,smooth=0.1,average=0.9]": (0.60 + up, 0.55 + up),  # the fairest, but 0.558
            },
        )


def test_one_choice_from_several_federations_with_the_margin_that_they_give(study, evenfed, tmp_path):
    """The margin is the standard error of the differences in the mean on the two federations."""
    _expected_accuracies_decide(fitting(study))
    put_figures(study)
    target = tmp_path / "confirm.toml"
    done = evenfed("choose", *study, "--out", target, "--seeds", 2, "--federations", "3,4")
    assert done.returncode == 0, done.stderr
    made = choosing.choose([read(folder) for folder in study])
    variance = np.var([-2 / 3, 1 / 3], ddof=1)  # of the median entry: points from the best FedAvg's mean
    assert made.margin.points == pytest.approx(np.sqrt(variance / (7 / 9) ** 3 / 2))
    assert made.bar == pytest.approx(64 - made.margin.points)
    assert {method: entry.label for method, entry in made.chosen.items()} == {
        "fedavg": "fedavg[average=0.9]",
        "vred": "vred[beta=0.5,smooth=0.1,average=0.9]",
    }
    confirmed = Experiment.read(target)
    assert confirmed.federations == (3, 4) and confirmed.seeds == (0, 1) and confirmed.data.judge == "test"
    options = {v.label: (v.options.get("average"), v.options.get("smooth")) for v in confirmed.variants}
    assert options == {
        "fedavg": (0.9, None),
        "vred[beta=0.5,smooth=0.1,average=0.9]": (0.9, 0.1),
        "vred[beta=0.5,smooth=0.1]": (None, 0.1),
        "fedavg[average=none]": (None, None),
    }
    assert "mean too low" in done.stdout and "2 federations" in " ".join(done.stdout.split())
    wide = evenfed("choose", tmp_path / "study", "--out", target, "--margin", 5, "--force")
    assert wide.returncode == 0 and "vred[beta=1.0,smooth=0.1,average=0.9]" in target.read_text()
    for wrong, why in (
        ([study[0]] * 2, "same set-up"),
        ([study[0], "--federations", "x"], "whole numbers"),
        ([study[0], "--federations", "3,3"], "a number appears twice"),
    ):
        refused = evenfed("choose", *wrong, "--out", target)
        assert refused.returncode == 2 and why in refused.stderr


def fitting(study: list[Path]) -> list[Findings]:
    """The entries that expected accuracies fit on both federations."""
    comparisons = [read(folder) for folder in study]
    shared = set.intersection(*(set(findings.expected.by_label) for findings in comparisons))
    assert {"fedavg", "vred[beta=0.5,smooth=0.1]"} <= shared
    return [findings.only(shared) for findings in comparisons]


def _expected_accuracies_decide(findings) -> None:
    """Where class recalls explain the measured ones, as they do in these runs."""
    made = choosing.choose(findings)
    assert made.is_expected and "expected accuracies (class shares times class recalls)" in made.rule
    label = made.chosen["vred"].label
    expected = [each.expected.named(label).histories[0].late_fairness.worst10 for each in findings]
    assert made.rows[label].late["worst10"][0] == pytest.approx(np.mean(expected))
    measured = [each.named(label).histories[0].late_fairness.worst10 for each in findings]
    assert np.mean(measured) != pytest.approx(np.mean(expected))


def test_figures_are_called_expected_where_they_are(study, tmp_path):
    """On the picture and under every table, with all that they are means over."""
    made = choosing.choose(fitting(study))
    chosen, candidates, grid = choice.tables(made)
    assert "expected accuracies (class shares times class recalls)" in " ".join(chosen.notes)
    figures = (
        "Expected VALIDATION accuracy in %, average of the last 2 rounds, mean over 2 federations with one seed each."
    )
    assert candidates.notes[0].startswith(figures) and grid.notes[0].startswith(figures)
    dials = choice_chart.chart(made)
    assert dials.title.startswith("Expected VALIDATION accuracy over beta and average")
    assert "mean over 2 federations with one seed each." in dials.says
    texts = _drawn(dials, tmp_path)
    assert "expected accuracy, %" in texts and "accuracy, %" not in texts


def test_a_candidate_that_expected_accuracies_do_not_fit_is_not_left_out(study):
    """It may be the best: then all are judged as measured."""
    comparisons = [read(folder) for folder in study]
    assert all(findings.expected for findings in comparisons)  # they fit FedAvg
    fit_everywhere = set(fitting(study)[0].by_label)
    misfits = set(comparisons[0].by_label) - fit_everywhere
    assert misfits
    made = choosing.choose(comparisons)
    assert not made.is_expected and made.left_out == () and misfits <= set(made.rows)
    assert "expected accuracies do not fit all candidates: class shares" in " ".join(choice.tables(made)[0].notes)


def test_why_figures_are_measured_is_said(study):
    put(study[0], {})  # figures that no recalls give
    made = choosing.choose([read(folder) for folder in study])
    chosen, candidates, _ = choice.tables(made)
    assert "expected accuracies do not fit FedAvg on 1 of 2 federations: class shares" in " ".join(chosen.notes)
    assert candidates.notes[0].startswith("VALIDATION accuracy in %")
    assert choice_chart.chart(made).title.startswith("VALIDATION accuracy over")
    for path in study[0].glob("*/seed-*"):
        lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        for line in lines:
            del line["recalls"]
        put_rounds(path, lines)
    made = choosing.choose([read(folder) for folder in study])
    assert "these runs have no class recalls" in " ".join(choice.tables(made)[0].notes)


def test_a_dial_that_is_off_is_called_none_and_numbers_go_by_size(small, tmp_path):
    findings = read(small)
    fedavg = findings.baseline
    vred = findings.named("vred")
    entries = []
    for average, smooth in product((None, 10.5, 9.5), (0.95, None, 0.9)):
        train = {**vred.config["train"], "average": average, "smooth": smooth}
        config = {**vred.config, "train": train}
        entries.append(replace(vred, label=f"vred {len(entries)}", config=config))
    made = choosing.Choice(
        [replace(findings, entries=(fedavg, *entries), controls=())],
        chosen={"fedavg": fedavg, "vred": entries[0]},
        bar=0.0,
        margin=choosing.Margin(0.0, "as asked for"),
        reached={"fedavg": True, "vred": True},
    )
    grid = choice.tables(made)[-1]
    assert [column.key for column in grid.columns] == ["average=9.5", "average=10.5", "average=none"]
    assert list(dict.fromkeys(line.entry for line in grid.lines)) == ["smooth=0.9", "smooth=0.95", "smooth=none"]
    texts = _drawn(choice_chart.chart(made), tmp_path)
    assert [text for text in texts if text in ("0.9", "0.95", "none")][:3] == ["0.9", "0.95", "none"]
    assert [text for text in texts if text in ("9.5", "10.5", "none")][-3:] == ["9.5", "10.5", "none"]
    assert "null" not in texts


def _drawn(chart, folder: Path) -> list[str | None]:
    """All texts of the picture."""
    svg, _ = save(chart, folder)
    return [element.text for element in ET.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}text")]
