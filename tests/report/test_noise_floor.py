"""The noise floor: repetitions of FedAvg, what chance alone does, and the answer that needs both."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import evenfed
from evenfed.comparison.analysis.history import are_equal
from evenfed.comparison.analysis.intervals import Difference, over_federations, over_seeds
from evenfed.comparison.analysis.noise_floor import Chance, NoiseFloor
from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.reading import read
from evenfed.report.notes import floor_notes
from evenfed.report.page import glance, verdict
from evenfed.report.page.evidence import Basis
from evenfed.report.paired_tables import answer, controls, paired
from reports import FLOOR, PAIRED_FLOOR, apart, figures_in, steady
from worked_example import federation, small_model

pytestmark = pytest.mark.slow


def test_an_entry_that_differs_in_precision_alone_is_a_control(edited, evenfed):
    """vred becomes FedAvg in tf32 with one seed, semi_vred stays a competitor; FedAvg is older than an option."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header.update(finished=seed == 1)
            header["config"].update(algorithm="fedavg", hyper_parameters={})
            header["config"]["train"]["precision"] = "tf32"
        if label == "fedavg":
            del header["config"]["train"]["start"], header["config"]["train"]["precision"]
        for line in rounds:
            line["accuracy"] = [0.9 if label == "vred" else 0.5] * 6

    folder = edited(change)
    found = read(folder)
    assert [e.label for e in found.entries] == ["fedavg", "semi_vred"]
    assert [(e.label, e.repeats) for e in found.controls] == [(FLOOR, "fedavg"), ("vred", "fedavg")]
    shown = evenfed("report", "--no-figures", folder, "--format", "markdown").stdout
    assert "vred: fedavg in tf32 instead of fp32, seed 1 only." in shown
    assert "| *vred* | 90.00 |" in shown and "**90.00" not in shown  # the best, and does not compete
    cells = figures_in(evenfed("report", "--no-figures", folder, "--format", "csv").stdout)
    assert float(cells["controls-late", "vred", "minus fedavg", "mean"]["value"]) == pytest.approx(40)
    assert ("paired-late", "vred", "mean", "difference") in cells  # the floor stands in every table
    assert ("suppression-last", "vred", "", "improved") in cells


def test_every_source_of_the_runs_is_named(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header.update(commit=f"{seed:x}" * 40, started=f"2026-11-1{seed % 10}T07:00:00+00:00")
        header["earlier"] = [{**header, "commit": "e" * 40, "from_round": 0}] * (label == "vred")  # then resumed

    told = evenfed("report", "--no-figures", edited(change), "--format", "markdown").stdout
    (commits,) = re.findall(r"evenfed \S+, commits ([0-9a-f, ]+); 2026-11-10 to 2026-11-11", told)
    assert {"0000000", "1111111", "eeeeeee"} <= set(commits.split(", "))


def test_other_precision_of_another_setting_is_a_competitor(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"]["train"]["precision"] = "bf16"

    assert [e.label for e in read(edited(change)).entries] == ["fedavg", "vred", "semi_vred"]


def test_an_average_of_the_same_training_is_no_repetition(edited):
    """vred becomes the average of FedAvg's models."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"].update(algorithm="fedavg", hyper_parameters={})
            header["config"]["train"]["average"] = 0.8
        steady(apart)(label, seed, header, rounds)

    found = read(edited(change))
    assert [entry.method for entry in found.entries] == ["fedavg", "fedavg", "semi_vred"]
    assert NoiseFloor([found], True).chance("mean", seeds=1).freedom == 3


def test_chance_is_the_deviation_of_the_difference_of_two_fedavg_figures(edited):
    found = read(edited(steady(apart)))
    deviation = 100 * np.std([0.40, 0.44, 0.42, 0.46], ddof=1)
    alone = NoiseFloor([found], True).chance("mean", seeds=1)
    assert (alone.deviation, alone.freedom) == (pytest.approx(np.sqrt(2) * deviation), 3)
    assert alone.bound == pytest.approx(3.182 * alone.deviation, rel=1e-3)  # Student's, 3 degrees of freedom
    assert NoiseFloor([found], False).chance("worst10", seeds=2).deviation == pytest.approx(deviation)
    assert NoiseFloor([found], True).chance("lasting10", seeds=2).deviation == pytest.approx(deviation)
    again = NoiseFloor([found, found], True)  # the same seeds again
    assert again.chance("mean", seeds=2).deviation == pytest.approx(deviation)


def test_what_a_seed_does_on_every_federation_is_seen_once(splits):
    """Seeds that lift one federation and lower the other leave their mean where it was."""
    one = read(splits(0, 0.0))
    turned = replace(one, repeated=tuple(tuple(_turned(e) for e in group) for group in one.repeated))
    assert NoiseFloor([one], True).chance("mean", seeds=2).deviation > 0.1
    assert NoiseFloor([one, turned], True).chance("mean", seeds=2).deviation == pytest.approx(0, abs=1e-9)


def _turned(entry):
    def upside_down(run):
        return replace(run, records=[replace(r, accuracy=1 - r.accuracy) for r in run.records])

    return replace(entry, runs={seed: upside_down(run) for seed, run in entry.runs.items()})


def test_observations_that_are_all_equal_prove_nothing():
    """The worst of ten clients with ten test examples each is a multiple of ten points: two seeds often agree."""
    draw = np.random.default_rng(0)
    worst = 10 * draw.binomial(10, 0.6, size=(1000, 2, 2, 10)).min(axis=-1)  # [comparisons, entries, seeds]
    findings = 0
    for entry, fedavg in worst:
        interval = over_seeds([(entry - fedavg).astype(float)])
        findings += not (np.isnan(interval.low) or interval.low <= 0 <= interval.high)
    assert findings < 60
    unknown = over_seeds([np.array([2.0, 2.0])])
    assert unknown.points == 2 and np.isnan(unknown.reach)
    assert np.isnan(over_federations([np.array([2.0])] * 3).reach)
    assert over_seeds([np.zeros(2)]).reach == 0  # the same runs: no difference, and none by chance


def test_a_difference_that_is_equal_in_all_seeds_is_not_judged_and_says_why(edited):
    """VRed's worst client is 10 points ahead in both seeds; its mean differs between them."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["accuracy"] = [0.4 + 0.1 * (label == "vred")] + [0.6 + 0.01 * seed * (label == "vred")] * 5

    differences = Differences([read(edited(change))], True)
    table = paired(differences)
    verdicts = {line.part: line.cells[-1].verdict for line in table.lines if line.entry == "vred"}
    assert verdicts["worst10"] == "not judged" and verdicts["mean"] == "no difference shown"
    assert "exactly the same in all observations is not judged" in " ".join(table.notes)
    assert any(note.startswith("vred: the worst 10 % are not judged (+10.00") for note in table.notes)
    sentence = verdict.of(Basis(differences)).sentence
    assert "same difference, which cannot separate an effect from chance" in sentence


def test_repetitions_that_tie_show_nothing_about_chance(edited):
    """The worst of six clients is a multiple of ten points, so FedAvg's two repetitions agree on it by chance."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        gain = 0.1 * (label == "vred") * (seed + 1)
        for line in rounds:
            line["accuracy"] = [0.4 + gain] + [0.6 + gain + 0.01 * (label == FLOOR)] * 5

    folder = edited(change)
    for seed in (0, 1):  # what were other seeds become other batches
        (folder / FLOOR / f"seed-{1000 + seed}").rename(folder / FLOOR / f"seed-{seed}")
    (folder / FLOOR).rename(folder / PAIRED_FLOOR)
    differences = Differences([read(folder)], True)
    assert differences.floor.is_paired and differences.chance("mean", 2).bound > 0
    assert differences.chance("worst10", 2) is None
    assert "Repeating FedAvg" not in dict(verdict.of(Basis(differences)).details)["How sure"]


def test_each_federation_has_a_variance_of_its_own():
    """Pooled, two federations with standard deviations 1 and 4 would err in 8.7 %, with 6 and 2 seeds in 31 %."""
    draw = np.random.default_rng(0)

    def share_found(deviations: tuple[float, float], seeds: tuple[int, int]) -> float:
        found = 0
        for _ in range(1000):
            gaps = [draw.normal(0, deviation, size=n) for deviation, n in zip(deviations, seeds, strict=True)]
            interval = over_seeds(gaps)
            found += not interval.low <= 0 <= interval.high
        return found / 1000

    assert share_found((1, 4), (2, 2)) < 0.065
    assert share_found((1, 4), (3, 3)) < 0.075
    assert share_found((1, 4), (6, 2)) < 0.13


def test_the_answer_follows_the_interval_with_the_noise_floor_beside_it():
    def gap(points: float, low: float, high: float, metric: str = "worst10") -> Difference:
        return Difference(points, low, high, metric, seeds=3)

    still, floors = gap(0.1, -1, 1, "mean"), dict.fromkeys(("worst10", "mean"), Chance(1.0, 3))  # 3.18 points
    assert "worst 10 % are lifted (+5.00" in answer("x", {"worst10": gap(5, 3, 7), "mean": still}, floors)
    small = answer("x", {"worst10": gap(3, 1, 5), "mean": still}, floors)  # less than other seeds move it
    assert "worst 10 % are lifted (+3.00 [+1.00, +5.00]; other seeds alone, not paired, up to 3.18)" in small
    assert "10 % are not shown to change" in answer("x", {"worst10": gap(9, -1, 19), "mean": still}, floors)
    lost = answer("x", {"worst10": gap(-3, -5, -1), "mean": gap(-2, -3, -1, "mean")}, dict.fromkeys(floors))
    assert "worst 10 % are lowered" in lost and "mean is lowered" in lost and "seed" not in lost
    closer = answer("x", {"mean": still, "std": gap(-5, -6, -4, "std")}, {**floors, "std": Chance(1.0, 3)})
    assert "the std is narrowed (-5.00" in closer


def test_every_run_has_its_oscillation(small, evenfed):
    cells = figures_in(evenfed("report", "--no-figures", small, "--format", "csv").stdout)
    for label, runs in read(small).rows.items():
        assert runs.seeds == 2, label
    for entry in read(small).everyone:
        for seed, run in entry.runs.items():
            said = cells["runs", entry.label, f"seed {seed}", "mean-last"]["value"]
            assert float(said) == pytest.approx(100 * run.fairness.mean)
            told = cells["runs", entry.label, f"seed {seed}", "oscillation"]["value"]
            assert told == "" if np.isnan(run.oscillation) else float(told) == pytest.approx(run.oscillation)


def test_the_floor_of_other_batches_is_paired_and_no_part_of_the_interval(edited):
    """FedAvg with other batches a point off; VRed 2 and 3 points ahead. An entry may be noisier than FedAvg."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        gap = {"vred": 0.02 + 0.01 * seed, FLOOR: 0.01 * (-1) ** seed}.get(label, 0.0)
        for line in rounds:
            line["accuracy"] = [0.4 + 0.1 * (seed % 2) + gap] * 6

    folder = edited(change)
    alone = read(folder)
    for seed in (0, 1):  # what were other seeds become other batches
        (folder / FLOOR / f"seed-{1000 + seed}").rename(folder / FLOOR / f"seed-{seed}")
    (folder / FLOOR).rename(folder / PAIRED_FLOOR)
    found = read(folder)
    assert found.floor is None and [(e.label, e.repeats) for e in found.controls] == [(PAIRED_FLOOR, "fedavg")]
    before, with_floor = (Differences([each], True).between("vred", "fedavg", "mean") for each in (alone, found))
    assert before == with_floor
    assert with_floor.points == pytest.approx(2.5)
    assert with_floor.high - 2.5 == pytest.approx(12.706 * np.sqrt(0.5 / 2), rel=1e-3)
    chance = NoiseFloor([found], True).chance("mean", seeds=2)
    assert (chance.deviation, chance.freedom, chance.is_paired) == (pytest.approx(1 / np.sqrt(2)), 2, True)
    assert [line.part for line in controls(Differences([found], True)).lines if line.entry == "two FedAvg figures"] == [
        "other batches, 1 seed",
        "other batches, 2 seeds",
        "other seeds, 1 seed",
        "other seeds, 2 seeds",
    ]


def test_other_batches_that_change_nothing_are_no_noise_floor(tmp_path):
    """Every client is one batch: FedAvg again, but for rounding."""
    options = {"seeds": 2, "rounds": 3, "lr": 0.2, "device": "cpu", "progress": False}
    options |= {"batch_size": 64, "noise_floor": "batches", "out": tmp_path}
    evenfed.compare(lambda: nn.Linear(6, 3), federation(), ["vred"], **options)
    found = read(tmp_path)
    assert found.other_batches is not None and found.paired_floor is None
    assert "change nothing here" in " ".join(floor_notes(found))
    shown = glance.of(Basis(Differences([found], True)))
    (line,) = [line for line in shown.lines if line["entry"] == PAIRED_FLOOR]
    assert "chance alone" not in str(line) and 'Then set noise_floor = "seeds".' in " ".join(shown.notes)
    assert not NoiseFloor([found], True).is_paired


def test_other_batches_may_end_earlier_than_fedavg(small):
    """As a callback may stop one of them: what they share does not make them the same."""
    found = read(small)
    other_batches = replace(found.baseline, label=PAIRED_FLOOR, repeats="fedavg")
    again = replace(found, controls=(other_batches,))
    shorter = {seed: replace(run, records=run.records[:-1]) for seed, run in other_batches.runs.items()}
    earlier = replace(found, controls=(replace(other_batches, runs=shorter),))
    assert again.paired_floor is None
    assert earlier.paired_floor is not None and earlier.paired_floor.runs == shorter


def equal_seeds(out: Path, seeds: int) -> evenfed.Comparison:
    """Whole clients as batches, all of them in every round, and one model to start from."""
    options = {"seeds": seeds, "rounds": 6, "lr": 1.0, "device": "cpu", "progress": False}
    return evenfed.compare(small_model(), federation(), ["vred[beta=1]"], out=out, **options)


def test_seeds_that_change_nothing_are_one_observation(tmp_path):
    """No interval of zero width, no verdict from it, and no noise floor of zero."""
    with pytest.warns(UserWarning, match=r"all 3 seeds give the same FedAvg run.*give a function"):
        comparison = equal_seeds(tmp_path, seeds=3)
    assert "All seeds gave the same FedAvg run" in str(comparison)
    found = read(tmp_path)
    assert found.floor is not None and found.floor_of_seeds is None
    assert found.describe()["noise_floor"] is None
    assert "nothing is drawn by seed" in " ".join(floor_notes(found))
    differences = Differences([found], True)
    gap = differences.between("vred[beta=1]", "fedavg", "mean")
    assert gap.points != 0 and (gap.is_judged, gap.seeds) == (False, 1)
    assert not differences.on_each("vred[beta=1]", "fedavg", "mean")[0].is_judged
    assert len(differences.by_seed("vred[beta=1]", "fedavg", "mean")[0]) == 3
    assert differences.chance("mean", 3) is None
    table = paired(differences)
    assert "All seeds gave the same runs" in " ".join(table.notes)
    assert {line.cells[-1].verdict for line in table.lines} == {"not judged"}
    basis = Basis(differences)
    assert verdict.of(basis).sentence.startswith("All seeds gave the same runs, which cannot separate")


def test_another_seed_that_changes_nothing_is_no_noise_floor(tmp_path):
    equal_seeds(tmp_path, seeds=1)
    found = read(tmp_path)
    assert found.floor_of_seeds is None and NoiseFloor([found], True).chance("mean", 1) is None


def test_federations_are_observations_whatever_their_seeds(tmp_path):
    with pytest.warns(UserWarning, match="all 2 seeds"):
        equal_seeds(tmp_path, seeds=2)
    found = read(tmp_path)
    mirrored = replace(found, entries=tuple(_turned(entry) for entry in found.entries))
    three = Differences([found, found, mirrored], True)
    assert three.between("vred[beta=1]", "fedavg", "mean").is_judged
    assert three.fewest_seeds == 1 and not three.are_also_on_these


@pytest.mark.parametrize("chance", ["batches", "participation", "dropout", "augmentation", "model"])
def test_seeds_that_change_something_need_no_warning(chance):
    """A warning would be an error."""
    model = nn.Sequential(small_model(), nn.Dropout(0.5)) if chance == "dropout" else small_model()
    given = {
        "batches": {"batch_size": 4},
        "participation": {"participation": 0.5},
        "augmentation": {"augment": lambda batch, draw: batch + draw.uniform(len(batch), 1)},
    }
    options = {"seeds": 2, "rounds": 1, "device": "cpu", "progress": False, **given.get(chance, {})}
    start = (lambda: nn.Linear(6, 3)) if chance == "model" else model
    comparison = evenfed.compare(start, federation(), ["fedavg"], **options)
    first, second = comparison["fedavg"]
    assert not np.array_equal(first.test_losses, second.test_losses)


def test_a_function_that_makes_the_same_model_for_every_seed_is_told():
    options = {"seeds": 2, "rounds": 1, "device": "cpu", "progress": False, "noise_floor": False}
    with pytest.warns(UserWarning, match="all 2 seeds give the same FedAvg run"):
        comparison = evenfed.compare(small_model, federation(), ["fedavg"], batch_size=64, **options)
    first, second = comparison["fedavg"]
    assert are_equal([first.history, second.history])


def test_runs_are_the_same_by_their_losses_and_without_these_by_their_figures(small):
    """Rounding may turn an answer of a small test set; results of other systems have no losses."""
    run = read(small).baseline.histories[0]
    *before, last = run.records
    turned = replace(run, records=[*before, replace(last, accuracy=last.accuracy + 0.1)])
    trained_otherwise = replace(run, records=[*before, replace(last, losses=last.losses + 0.1)])
    assert are_equal([run, run]) and are_equal([run, turned]) and not are_equal([run, trained_otherwise])

    def without_losses(history):
        unknown = np.full_like(last.losses, np.nan)
        return replace(history, records=[replace(record, losses=unknown) for record in history.records])

    assert are_equal([without_losses(run)] * 2) and not are_equal([without_losses(run), without_losses(turned)])
