"""Results that are kept: packed, repeated, over several federations, chosen on validation data, put into Markdown."""

import csv
import io
import json
import shutil
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import altair
import numpy as np
import pytest

import evenfed as package
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.pack import pack
from evenfed.comparison.reading import read
from evenfed.comparison.statistics import Chance, Difference, Pairs, between_all, chance, components
from evenfed.data import DataSettings, federate
from evenfed.report import choice, figures
from evenfed.report.against import answer, paired
from evenfed.report.fill import filled, missing

ROOT = Path(__file__).parents[2]
FLOOR = "fedavg-other-seeds"


def plain(text: str) -> dict[tuple[str, str, str, str], dict[str, str]]:
    return {(c["table"], c["entry"], c["part"], c["figure"]): c for c in csv.DictReader(io.StringIO(text))}


def numbers(cell: dict[str, str]) -> list[float]:
    return [float(cell[k]) for k in ("value", "spread", "points", "low", "high") if cell[k]]


def steady(level):
    """Every client of a run at the same accuracy in all rounds: `level(label, seed)`, apart by client."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["accuracy"] = (level(label, seed) + 0.01 * np.arange(6)).tolist()

    return change


def apart(label: str, seed: int) -> float:
    """FedAvg's two seeds and the two other ones at 0.40, 0.44, 0.42 and 0.46."""
    return 0.40 + 0.04 * (seed % 2) + 0.02 * (label == FLOOR)


# what runs say of themselves


def test_a_run_that_broke_down_is_told_from_one_that_lost_a_round(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            late = label == "vred" and seed == 1 and line["index"] >= 2
            line["skipped"] = late or (label == "semi_vred" and line["index"] == 2)

    folder = edited(change)
    told = evenfed("report", folder).stdout
    assert "vred, seed 1: broke down, no finite loss and update from round 3 on" in told
    assert "semi_vred, seed" not in told and told.count("broke down") == 1
    runs = read(folder).named("vred").runs
    assert runs[0].breakdown is None and "from round 3 on" in runs[1].advice("vred")


def test_losses_that_grew_without_bound_are_a_breakdown(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred" and seed == 0:
            rounds[-1]["losses"] = [1e14] * 6

    told = evenfed("report", edited(change)).stdout
    assert "vred, seed 0: broke down, the mean loss grew from " in told and "to 1e+14" in told


def test_another_learning_rate_is_told_from_re_weighting(edited, evenfed):
    """semi_vred becomes FedAvg with VRed's learning rate."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "semi_vred":
            header["config"].update(algorithm="fedavg", hyper_parameters={})
        if label in ("vred", "semi_vred"):
            header["config"]["train"]["lr"] = 0.3
        steady(lambda label, seed: {"vred": 0.47, "semi_vred": 0.42}.get(label, 0.4))(label, seed, header, rounds)

    cells = plain(evenfed("report", edited(change), "--format", "csv").stdout)
    assert float(cells["paired-average", "vred", "mean", "difference"]["value"]) == pytest.approx(7)
    table = {key[1:]: cell for key, cell in cells.items() if key[0] == "same-rate-average"}
    assert float(table["vred minus semi_vred", "mean", "difference"]["value"]) == pytest.approx(5)
    assert {entry for entry, _, _ in table} == {"vred minus semi_vred"}


def test_where_all_learning_rates_are_fedavgs_there_is_no_second_table(small, evenfed):
    cells = plain(evenfed("report", small, "--format", "csv").stdout)
    assert not any(table.startswith("same-rate") for table, *_ in cells)


def test_smoothing_is_told_from_re_weighting(edited, evenfed):
    """semi_vred becomes VRed with smoothed losses."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if "vred" in label:
            header["config"].update(algorithm="vred", hyper_parameters={"beta": 0.2})
            header["config"]["train"]["smooth"] = 0.25 if label == "semi_vred" else None
        steady(lambda label, seed: {"vred": 0.37, "semi_vred": 0.42}.get(label, 0.4))(label, seed, header, rounds)

    cells = plain(evenfed("report", edited(change), "--format", "csv").stdout)
    table = {key[1:]: cell for key, cell in cells.items() if key[0] == "undamped-average"}
    assert float(table["semi_vred minus vred", "worst10", "difference"]["value"]) == pytest.approx(5)
    assert {entry for entry, _, _ in table} == {"semi_vred minus vred"}


def test_entries_without_a_seed_in_common_are_not_compared(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if "vred" in label:
            header["config"].update(algorithm="vred", hyper_parameters={"beta": 0.2})
            header["config"]["train"]["smooth"] = 0.25 if label == "semi_vred" else None

    folder = edited(change)
    shutil.rmtree(folder / "vred" / "seed-0")
    shutil.rmtree(folder / "semi_vred" / "seed-1")
    done = evenfed("report", folder, "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert not any(table.startswith("undamped") for table, *_ in plain(done.stdout))


def test_the_floor_is_that_of_as_many_seeds_as_an_entry_has(edited):
    found = read(edited(steady(apart)))
    three = {e.label: replace(e, runs={**e.runs, 2: e.runs[0]}) for e in found.entries} | {"vred": found.named("vred")}
    notes = paired([Pairs(replace(found, entries=tuple(three.values())), True)]).notes
    for label, seeds in (("vred", 2), ("semi_vred", 3)):
        (told,) = (note for note in notes if note.startswith(f"{label}: "))
        assert f"noise floor {chance([found], 'mean', True, seeds).bound:.2f}" in told.split("the mean")[1]


def test_clients_judged_on_few_examples_can_be_left_out(edited, evenfed, tmp_path):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["clients"]["test"] = [3, 0, 50, 50, 60, 70]
        for line in rounds:
            line["accuracy"] = [0.0 if label == "vred" else 1.0, None, *[0.5 + 0.1 * (label == "vred")] * 4]

    folder = edited(change)
    every, large = (
        plain(evenfed("report", folder, "--format", "csv", *how).stdout) for how in ((), ("--min-test", 50))
    )
    value = "paired-average", "vred", "worst10", "difference"
    assert float(every[value]["value"]) == pytest.approx(-50) and float(large[value]["value"]) == pytest.approx(10)
    assert (
        "1 of 5 clients left out: judged on fewer than 50 examples"
        in evenfed("report", folder, "--min-test", 50).stdout
    )
    assert (folder / "report-min-test-50" / "tables.csv").exists()
    cut = read(folder).with_min_test(50)
    assert cut.judged_sizes == [50, 50, 60, 70]
    assert all(np.isnan(run.accuracy[0]) and run.accuracy[2] >= 0 for e in cut.everyone for run in e.runs.values())
    none = evenfed("report", folder, "--min-test", 71)
    assert none.returncode == 2 and "the most are 70" in none.stderr
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed copy min_test=50 paired-average -->\n<!-- /evenfed -->\n")
    assert "| vred | worst 10 % | +10.00 [" in filled(page) and not missing(page)
    page.write_text("<!-- evenfed copy min_test=50 differences.svg -->\n<!-- /evenfed -->\n")
    with pytest.raises(package.InputError, match="min_test goes with a report's tables"):
        filled(page)


def test_seeds_of_one_label_with_other_settings_are_left_out_and_named(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred" and seed == 1:
            header["config"]["hyper_parameters"]["beta"] = 1.1

    told = evenfed("report", edited(change)).stdout
    assert "vred: seed 1 left out, made with another configuration than seed 0" in told


# packed


def test_a_packed_comparison_gives_the_tables_of_its_folder(small, evenfed, tmp_path):
    done = evenfed("pack", small, tmp_path / "kept")
    assert done.returncode == 0 and "runs.tar.xz" in done.stdout
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["runs.tar.xz"]
    ours, theirs = (plain(evenfed("report", f, "--format", "csv").stdout) for f in (tmp_path / "kept", small))
    assert list(ours) == list(theirs)
    for key in ours:
        assert ours[key]["verdict"] == theirs[key]["verdict"]
        assert numbers(ours[key]) == pytest.approx(numbers(theirs[key]), rel=1e-4, abs=1e-4), key


def test_packing_twice_gives_the_same_bytes_with_headers_entire_and_no_models(small, tmp_path):
    (one, unfinished), (two, _) = (
        pack(small, tmp_path / "one"),
        pack(shutil.copytree(small, tmp_path / "copy"), tmp_path / "two"),
    )
    assert not unfinished
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as tar:
        names = tar.getnames()
        assert {Path(n).name for n in names} == {"header.json", "rounds.jsonl"} and len(names) == 2 * 8
        kept = tar.extractfile("vred/seed-0/header.json").read()
        line = json.loads(tar.extractfile("vred/seed-0/rounds.jsonl").readline())
    assert kept == (small / "vred" / "seed-0" / "header.json").read_bytes()
    with (small / "vred" / "seed-0" / "rounds.jsonl").open() as lines:
        exact = json.loads(lines.readline())
    assert line["accuracy"] == exact["accuracy"]  # shares: a rounded one would count as a change
    assert line["losses"] == [float(f"{v:.6g}") for v in exact["losses"]] != exact["losses"]


def test_another_comparisons_packed_file_is_not_replaced(small, edited, evenfed, tmp_path):
    assert evenfed("pack", small, tmp_path / "kept").returncode == 0
    assert evenfed("pack", small, tmp_path / "kept").returncode == 0  # the same again
    before = (tmp_path / "kept" / "runs.tar.xz").read_bytes()
    other = edited(lambda label, seed, header, rounds: header["config"]["data"].update(seed=7))
    done = evenfed("pack", other, tmp_path / "kept")
    assert done.returncode == 2 and "holds another comparison (seed: 0 there, 7 here)" in done.stderr
    assert (tmp_path / "kept" / "runs.tar.xz").read_bytes() == before
    again = evenfed("pack", tmp_path / "kept", tmp_path / "x")
    assert again.returncode == 2 and "is packed already" in again.stderr


def test_unfinished_runs_are_not_packed_and_damage_is_told(edited, evenfed, tmp_path):
    folder = edited(lambda label, seed, header, rounds: header.update(finished=label != "vred"))
    told = evenfed("pack", folder, tmp_path / "kept").stdout
    assert told.count("left out, not finished") == 2 and "vred/seed-1" in told
    assert [e.label for e in read(tmp_path / "kept").entries] == ["fedavg", "semi_vred"]
    (tmp_path / "kept" / "runs.tar.xz").write_bytes(b"not an archive")
    for arguments, told in (
        (["report", tmp_path / "kept"], "cannot be unpacked"),
        (["pack", tmp_path, tmp_path / "x"], "no finished run"),
    ):
        done = evenfed(*arguments)
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_runs_of_the_same_configuration_are_taken_from_another_comparison(small, evenfed, tmp_path):
    """FedAvg, its other seeds and VRed come from a packed one, VRed under another label; another beta is run."""
    pack(small, tmp_path / "kept")
    same, other = "vred[beta=0.2]", "vred[beta=1.0]"
    asked = f"compare --algorithms fedavg,{same},{other} --rounds 4 --seeds 1,2 --set data.clients=6 --reuse kept"
    done = evenfed(*asked.split(), "--set", "train.last_rounds=2", "--out", "runs", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert f"taken from kept: fedavg seed 1, {same} seed 1, fedavg-other-seeds seed 1001" in told
    header = json.loads((tmp_path / "runs" / "demo" / same / "seed-1" / "header.json").read_text())
    was = json.loads((small / "vred" / "seed-1" / "header.json").read_text())
    assert (header["label"], header["taken_from"]) == (same, "kept")
    assert (header["started"], header["command"]) == (was["started"], was["command"])
    found, before = read(tmp_path / "runs" / "demo"), read(small)
    assert found.named(same).runs[1].accuracy.tolist() == before.named("vred").runs[1].accuracy.tolist()
    assert found.named(other).runs[1].accuracy.tolist() != found.named(same).runs[1].accuracy.tolist()
    refused = evenfed("compare", "--reuse", "nowhere")
    assert refused.returncode == 2 and "there is no folder nowhere" in refused.stderr


# the noise floor


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
    shown = evenfed("report", folder, "--format", "markdown").stdout
    assert "vred: fedavg in tf32 instead of fp32, seed 1 alone." in shown
    assert "| *vred* | 90.00 |" in shown and "**90.00" not in shown  # the best, and does not compete
    cells = plain(evenfed("report", folder, "--format", "csv").stdout)
    assert float(cells["controls-average", "vred", "minus fedavg", "mean"]["value"]) == pytest.approx(40)
    assert ("paired-average", "vred", "mean", "difference") in cells  # the floor stands in every table
    assert ("suppression-last", "vred", "", "improved") in cells


def test_every_source_of_the_runs_is_named(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header.update(commit=f"{seed:x}" * 40, started=f"2026-11-1{seed % 10}T07:00:00+00:00")
        header["earlier"] = [{**header, "commit": "e" * 40, "from_round": 0}] * (label == "vred")  # then resumed

    told = evenfed("report", edited(change), "--format", "markdown").stdout
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
    alone = chance([found], "mean", True, seeds=1)
    assert (alone.deviation, alone.freedom) == (pytest.approx(np.sqrt(2) * deviation), 3)
    assert alone.bound == pytest.approx(3.182 * alone.deviation, rel=1e-3)  # Student's, 3 degrees of freedom
    assert chance([found], "worst10", False, seeds=2).deviation == pytest.approx(deviation)
    assert chance([found], "lasting10", True, seeds=2).deviation == pytest.approx(deviation)
    assert chance([found, found], "mean", True, seeds=2).deviation == pytest.approx(deviation)  # the same seeds again


def test_what_a_seed_does_on_every_federation_is_seen_once(splits):
    """Seeds that lift one federation and lower the other leave their mean where it was."""
    one = read(splits(0, 0.0))
    turned = replace(one, repeated=tuple(tuple(_turned(e) for e in group) for group in one.repeated))
    assert chance([one], "mean", True, seeds=2).deviation > 0.1
    assert chance([one, turned], "mean", True, seeds=2).deviation == pytest.approx(0, abs=1e-9)


def _turned(entry):
    def upside_down(run):
        return replace(run, records=[replace(r, accuracy=1 - r.accuracy) for r in run.records])

    return replace(entry, runs={seed: upside_down(run) for seed, run in entry.runs.items()})


def test_the_answer_needs_interval_and_floor():
    def gap(points: float, low: float, high: float, metric: str = "worst10") -> Difference:
        return Difference(points, low, high, metric, seeds=3)

    still, floors = gap(0.1, -1, 1, "mean"), dict.fromkeys(("worst10", "mean"), Chance(1.0, 3))  # 3.18 points
    assert "worst 10 % are lifted (+5.00" in answer("x", {"worst10": gap(5, 3, 7), "mean": still}, floors)
    assert "moved by less than the noise floor" in answer("x", {"worst10": gap(3, 1, 5), "mean": still}, floors)
    assert "10 % are not shown to change" in answer("x", {"worst10": gap(9, -1, 19), "mean": still}, floors)
    lost = answer("x", {"worst10": gap(-3, -5, -1), "mean": gap(-2, -3, -1, "mean")}, dict.fromkeys(floors))
    assert "worst 10 % are lowered" in lost and "mean is lowered" in lost and "floor" not in lost
    closer = answer("x", {"mean": still, "std": gap(-5, -6, -4, "std")}, {**floors, "std": Chance(1.0, 3)})
    assert "the std is narrowed (-5.00" in closer


def test_every_run_has_its_oscillation(small, evenfed):
    cells = plain(evenfed("report", small, "--format", "csv").stdout)
    for label, runs in read(small).rows.items():
        assert runs.seeds == 2, label
    for entry in read(small).everyone:
        for seed, run in entry.runs.items():
            said = cells["runs", entry.label, f"seed {seed}", "mean-last"]["value"]
            assert float(said) == pytest.approx(100 * run.fairness.mean)
            told = cells["runs", entry.label, f"seed {seed}", "oscillation"]["value"]
            assert told == "" if np.isnan(run.oscillation) else float(told) == pytest.approx(run.oscillation)


# several comparisons


@pytest.fixture
def splits(edited, tmp_path):
    """Two federations: VRed 2 points ahead on one and 6 on the other, seeds 1 point apart."""

    def make(split: int, ahead: float, **other: object) -> Path:
        def change(label: str, seed: int, header: dict, rounds: list) -> None:
            header["config"]["data"]["seed"] = split
            header["config"]["model"].update(other)
            base = 0.4 + 0.05 * split + 0.01 * (seed % 2) + ahead * (label == "vred")
            for line in rounds:
                line["accuracy"] = (base + 0.02 * np.arange(6)).tolist()

        return edited(change).rename(tmp_path / f"split-{split}{''.join(other)}")

    return make


def test_federations_are_pooled_and_their_spread_told_from_the_seeds(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    cells = plain(evenfed("report", one, two, "--format", "csv").stdout)
    gap = cells["paired-average", "vred", "worst10", "difference"]
    assert numbers(gap) == pytest.approx([4, 4, 4])
    assert [float(cells["paired-average", "vred", "mean", f"data.seed={k}"]["value"]) for k in (0, 1)] == pytest.approx(
        [2, 6]
    )
    within = 100 * np.std([0.0, 0.01], ddof=1)
    between = np.sqrt(np.var([2.0, 6.0], ddof=1))
    assert float(cells["components-average", "vred", "minus FedAvg: federations", "mean"]["value"]) == pytest.approx(
        between
    )
    assert float(cells["components-last", "fedavg", "figure: seeds", "mean"]["value"]) == pytest.approx(within)
    assert float(cells["suppression-last", "vred", "", "mean_gain"]["value"]) == pytest.approx(4)
    assert float(cells["suppression-last", "vred", "", "mean_gain"]["spread"]) == pytest.approx(2)
    shown = evenfed("report", one, two).stdout
    assert "vred: the worst 10 % are lifted" in shown and (one / "beside" / "report.md").exists()


def test_federations_are_drawn_together_with_each_ones_difference(splits, evenfed, tmp_path):
    found = [read(splits(0, 0.02)), read(splits(1, 0.06))]
    (drawn,) = {path.stem for path in figures.draw(found, tmp_path / "beside", None)}
    assert drawn == "differences"
    mean = figures.differences(altair, found).to_dict()["hconcat"][0]["layer"][-1]["data"]["values"]
    (vred,) = (one for one in mean if one["entry"] == "vred")
    assert vred["points"] == pytest.approx(4) and vred["each"] == pytest.approx([2, 6])
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed split-0 split-1 differences.svg -->\n<!-- /evenfed -->\n")
    assert "Not drawn yet: `evenfed report split-0 split-1`." in filled(page)
    assert evenfed("report", *(f.folder for f in found)).returncode == 0
    assert "![differences](split-0/beside/differences.svg)" in filled(page)
    page.write_text("<!-- evenfed split-0 split-1 split-1 differences.svg -->\n<!-- /evenfed -->\n")
    assert "Not drawn yet" in filled(page)  # that picture is of others


def test_a_label_that_means_something_else_elsewhere_is_not_pooled(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    for path in two.glob("vred/seed-*/header.json"):
        header = json.loads(path.read_text())
        header["config"]["train"]["smooth"] = 0.5
        path.write_text(json.dumps(header))
    assert "Left out, as not the same in all of them: vred" in evenfed("report", one, two).stdout


def test_set_ups_that_cannot_be_pooled_are_not_drawn_as_one(splits, tmp_path):
    found = [read(splits(0, 0.02)), read(splits(0, 0.03, stem="cifar"))]
    assert not figures.draw(found, tmp_path, None)


def test_a_page_shows_the_federations_that_are_there_and_names_the_others(splits, tmp_path):
    splits(0, 0.02), splits(1, 0.06)
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed split-0 split-2 split-1 paired-average -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `split-2`.\n\n| algorithm |" in filled(page) and "| vred | mean | +4.00 [" in filled(page)
    page.write_text("<!-- evenfed split-0 split-2 paired-average -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `split-2`.\n\n| algorithm |" in filled(page) and "| vred | mean | +2.00 [" in filled(page)
    page.write_text("<!-- evenfed split-0 split-2 components-average -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `split-2`.\n<!--" in filled(page)  # one federation has no spread over federations


def test_spreads_are_of_the_seeds_that_all_federations_have(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    before = plain(evenfed("report", one, two, "--format", "csv").stdout)
    for label in ("fedavg", "vred"):
        shutil.copytree(one / label / "seed-1", one / label / "seed-3")
    after = plain(evenfed("report", one, two, "--format", "csv").stdout)
    spreads = [key for key in before if key[0].startswith("components")]
    assert spreads and all(numbers(after[key]) == numbers(before[key]) for key in spreads)
    assert "Only the seeds that all federations have." in evenfed("report", one, two).stdout


def test_set_ups_stand_beside_each_other_by_what_differs(splits, evenfed):
    one, two = splits(0, 0.02), splits(0, 0.03, stem="cifar")
    shutil.rmtree(two / "semi_vred")
    assert "not the same in all of them: semi_vred." in evenfed("report", one, two).stdout
    cells = plain(evenfed("report", one, two, "--format", "csv").stdout)
    assert float(cells["paired-last", "vred", "model.stem=None", "mean"]["value"]) == pytest.approx(2)
    assert float(cells["paired-last", "vred", "model.stem=cifar", "mean"]["value"]) == pytest.approx(3)
    assert not any(key[0].startswith("components") for key in cells)  # not repetitions of one experiment


def test_the_same_comparison_twice_is_refused(small, evenfed):
    done = evenfed("report", small, small)
    assert done.returncode == 2 and "same set-up" in done.stderr


def test_draws_on_several_federations_are_independent(small):
    found = read(small)
    pairs = [Pairs(found, True, stream) for stream in (0, 1)]
    alone = between_all(pairs[:1], "vred", "fedavg", "mean")
    both = between_all(pairs, "vred", "fedavg", "mean")
    assert both.points == pytest.approx(alone.points) and both.high - both.low < alone.high - alone.low


def test_components_are_not_negative_and_recover_what_was_put_in():
    draws = np.random.default_rng(0)
    values = 3 * draws.normal(size=(4000, 1)) + draws.normal(size=(4000, 3))
    assert components(values) == pytest.approx((3, 1), rel=0.05)
    assert components(draws.normal(size=(3, 3)) * [[1, 9, 1]])[0] >= 0


# choosing


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


@pytest.fixture
def judged(evenfed, tmp_path) -> Path:
    """A grid of two VRed dials and FedAvg's rate on validation data, made through the command."""
    (tmp_path / "grid.toml").write_text(
        'name = "grid"\nseeds = 1\n'
        '[data]\nclients = 6\nvalidation_fraction = 0.3\njudge = "validation"\n'
        "[train]\nrounds = 4\nlast_rounds = 2\nbatch_size = 16\n"
        "[algorithms.fedavg]\nlr = 0.1\n"
        '[algorithms.rates]\nalgorithm = "fedavg"\ngrid = { lr = [0.2] }\n'
        '[algorithms.vred]\nlr = 0.3\ngrid = { beta = [0.5, 1.0], smooth = ["none", 0.25] }\n'
    )
    done = evenfed("compare", tmp_path / "grid.toml", "--out", tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    return tmp_path / "grid"


def test_the_terminal_says_what_accuracies_are_measured_on(judged, evenfed, tmp_path):
    told = evenfed("compare", tmp_path / "grid.toml", "--out", tmp_path).stdout
    assert "VALIDATION accuracy in %" in told and "Test accuracy" not in told


def test_a_repetition_in_another_precision_does_not_compete_in_the_terminal(evenfed, tmp_path):
    (tmp_path / "two.toml").write_text(
        'name = "two"\nseeds = 1\nnoise_floor = false\n[data]\nclients = 6\n[train]\nrounds = 2\n'
        '[algorithms.fedavg]\n[algorithms.again]\nalgorithm = "fedavg"\nprecision = "tf32"\n[algorithms.vred]\n'
    )
    told = evenfed("compare", tmp_path / "two.toml", "--out", tmp_path).stdout
    labels = [line.split()[0] for line in told.splitlines() if line.split()[:1] in (["fedavg"], ["vred"], ["again"])]
    assert labels == ["fedavg", "vred", "again"] * 2  # in both tables below those that compete
    assert "again: the same in another precision." in " ".join(told.split())


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


def put(folder: Path, level: dict[str, tuple[float, float]]) -> None:
    """Worst and other clients' accuracy of every entry, in all rounds."""
    for path in folder.glob("*/seed-*/rounds.jsonl"):
        worst, others = level.get(path.parents[1].name, (0.1, 0.2))
        lines = [json.loads(line) | {"accuracy": [worst] + [others] * 5} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


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
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert choice.choose(judged).chosen["vred"].label == "vred[beta=1.0]"
    done = evenfed("choose", judged, "--out", tmp_path / "grid.toml")
    assert done.returncode == 2 and "was not written by `evenfed choose`" in done.stderr
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml", "--seeds", 0).returncode == 2
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml").returncode == 0
    assert evenfed("choose", judged, "--out", tmp_path / "c.toml").returncode == 0  # its own it may write again


def test_where_none_keeps_the_mean_the_highest_is_taken_and_said(judged):
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.601), "vred[beta=0.5]": (0.1, 0.4), "vred[beta=1.0]": (0.3, 0.3)})
    made = choice.choose(judged)
    assert made.chosen["vred"].label == "vred[beta=0.5]" and not made.reached["vred"]
    shown = choice.tables(made)
    assert [c.title for c in shown[1].columns] == ["smooth=0.25", "smooth=none"]
    assert shown[1].lines[0].cells[1].value == pytest.approx(35)  # beta=0.5 without smoothing: (0.1 + 5 x 0.4) / 6
    assert "none reaches" in choice.tables(made)[0].lines[1].cells[-1].verdict


def test_the_floor_may_come_from_another_comparison_and_test_data_are_refused(judged, edited, evenfed, tmp_path):
    put(judged, {"fedavg": (0.3, 0.6), FLOOR: (0.3, 0.6)})
    other = edited(steady(apart))
    assert choice.choose(judged).floor == pytest.approx(0)
    assert choice.choose(judged, other).floor == pytest.approx(
        100 * np.sqrt(2) * np.std([0.40, 0.44, 0.42, 0.46], ddof=1)
    )
    done = evenfed("choose", other, "--out", tmp_path / "x.toml")
    assert done.returncode == 2 and "judged on test data" in done.stderr and not (tmp_path / "x.toml").exists()


# Markdown


def test_a_block_without_its_end_is_refused_and_missing_folders_are_told(small, evenfed, tmp_path):
    pack(small, tmp_path / "kept")
    page = tmp_path / "page.md"
    block = "<!-- evenfed kept detailed-last -->\n<!-- /evenfed -->\n"
    page.write_text(f"<!-- evenfed kept facts -->\nmine\n{block}")
    done = evenfed("fill", page)
    assert (
        done.returncode == 2 and "<!-- evenfed kept facts --> has no end" in done.stderr and "mine" in page.read_text()
    )
    page.write_text("<!-- evenfed gone kept chosen -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `gone`.\n<!--" in filled(page)  # the noise floor's folder alone chooses nothing
    page.write_text(block.replace("kept", "gone"))
    done = evenfed("fill", page)
    assert done.returncode == 0 and "not run yet, looked for beside that file: gone" in " ".join(done.stderr.split())


def test_blocks_are_filled_from_results_and_checked(small, evenfed, tmp_path):
    page = tmp_path / "page.md"
    pack(small, tmp_path / "kept")
    page.write_text(
        "before\n<!-- evenfed kept detailed-last -->\nlast year\n<!-- /evenfed -->\nbetween\n"
        "<!-- evenfed kept facts -->\n<!-- /evenfed -->\n<!-- evenfed other paper -->\n<!-- /evenfed -->\nafter\n"
    )
    stale = evenfed("fill", page, "--check")
    assert stale.returncode == 2 and "evenfed fill" in stale.stderr and "last year" in page.read_text()
    assert evenfed("fill", page).returncode == 0
    text, mean = page.read_text(), 100 * read(small).rows["vred"].last["mean"][0]
    assert (
        f"| vred | {mean:.2f} ± " in text.replace("**", "") and "digits: 6 clients" in text and "last year" not in text
    )
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "Not run yet: `other`." in text
    assert evenfed("fill", page, "--check").returncode == 0 and filled(page) == text


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("<!-- evenfed kept detaild-last -->\n<!-- /evenfed -->", "detailed-last"),
        ("<!-- evenfed facts -->\n<!-- /evenfed -->", "names no folder"),
        ("<!-- evenfed kept min_test=few facts -->\n<!-- /evenfed -->", "unknown word 'min_test=few'"),
        ("<!-- evenfed kept facts min_test=5 -->\n<!-- /evenfed -->", "unknown word 'min_test=5'"),
        ("nothing", "no block to fill"),
    ],
)
def test_bad_blocks_are_told(small, evenfed, tmp_path, block, told):
    shutil.copytree(small, tmp_path / "kept")
    (tmp_path / "page.md").write_text(block)
    done = evenfed("fill", tmp_path / "page.md")
    assert done.returncode == 2 and told in done.stderr and (tmp_path / "page.md").read_text() == block


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_pages_say_what_the_committed_results_say(page):
    if not (ROOT / "results" / "cifar10").is_dir():
        pytest.skip("results/cifar10 is not there")
    assert filled(ROOT / page) == (ROOT / page).read_text(), "make readme"
