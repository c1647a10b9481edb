"""The noise floor: repetitions of FedAvg, what chance alone does, and the answer that needs both."""

from dataclasses import replace

import numpy as np
import pytest

from evenfed.comparison.floor import Chance, NoiseFloor
from evenfed.comparison.intervals import Difference
from evenfed.comparison.reading import read
from evenfed.comparison.statistics import Differences
from evenfed.report.against import answer, controls, paired
from reports import FLOOR, PAIRED_FLOOR, apart, figures_in, steady

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
    assert "commit 0000000; " in told and "commit 1111111; " in told and "2026-11-10 to 2026-11-11" in told
    assert "commit eeeeeee; " in told


def test_other_precision_of_another_setting_is_a_competitor(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"]["train"]["precision"] = "bf16"

    assert [e.label for e in read(edited(change)).entries] == ["fedavg", "vred", "semi_vred"]


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


def test_the_answer_follows_the_interval_with_the_noise_floor_beside_it():
    def gap(points: float, low: float, high: float, metric: str = "worst10") -> Difference:
        return Difference(points, low, high, metric, seeds=3)

    still, floors = gap(0.1, -1, 1, "mean"), dict.fromkeys(("worst10", "mean"), Chance(1.0, 3))  # 3.18 points
    assert "worst 10 % are lifted (+5.00" in answer("x", {"worst10": gap(5, 3, 7), "mean": still}, floors)
    small = answer("x", {"worst10": gap(3, 1, 5), "mean": still}, floors)  # less than a new seed moves, in every seed
    assert "worst 10 % are lifted (+3.00 [+1.00, +5.00]; a new seed alone up to 3.18)" in small
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


def test_the_interval_rests_on_other_batches_where_these_were_run(edited):
    """FedAvg with other batches a point off; VRed 2 and 3 points ahead: one degree of freedom becomes three."""

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
    variance = (0.5 + 2 * 1) / 3  # squared points: VRed's about its mean, the floor's about zero
    wide, sharp = (Differences([each], True).between("vred", "fedavg", "mean") for each in (alone, found))
    assert (wide.points, sharp.points) == pytest.approx((2.5, 2.5))
    reaches = 12.706 * np.sqrt(0.5 / 2), 3.1824 * np.sqrt(variance / 2)
    assert (wide.high - 2.5, sharp.high - 2.5) == pytest.approx(reaches, rel=1e-3)
    assert (wide.verdict, sharp.verdict) == ("no difference shown", "better")
    chance = NoiseFloor([found], True).chance("mean", seeds=2)
    assert (chance.deviation, chance.freedom, chance.is_paired) == (pytest.approx(1 / np.sqrt(2)), 2, True)
    table = paired(Differences([found], True))
    assert "own seeds and FedAvg against FedAvg with other batches" in table.notes[0]
    assert [line.part for line in controls(Differences([found], True)).lines if line.entry == "two FedAvg figures"] == [
        "other batches, 1 seed",
        "other batches, 2 seeds",
        "a new seed, 1 seed",
        "a new seed, 2 seeds",
    ]
