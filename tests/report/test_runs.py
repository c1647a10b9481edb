"""What a report says of its runs: breakdowns, learning rates, smoothing, clients and seeds left out."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import evenfed as package
from evenfed.comparison.analysis.entry_figures import row
from evenfed.comparison.analysis.noise_floor import NoiseFloor
from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.reading import read
from evenfed.report.document import Report
from evenfed.report.fill import filled, missing
from evenfed.report.paired_tables import against_rivals, paired
from reports import apart, figures_in, steady


def test_a_run_that_broke_down_is_told_from_one_that_lost_a_round(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            late = label == "vred" and seed == 1 and line["index"] >= 2
            line["skipped"] = late or (label == "semi_vred" and line["index"] == 2)

    folder = edited(change)
    told = evenfed("report", "--no-figures", "--full", folder).stdout
    assert "vred, seed 1: broke down, all rounds from round 3 on were skipped" in told
    assert "semi_vred, seed" not in told and told.count("broke down") == 1
    runs = read(folder).named("vred").runs
    assert runs[0].breakdown is None and "from round 3 on" in runs[1].advice("vred")


def test_losses_that_grew_without_bound_are_a_breakdown(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred" and seed == 0:
            rounds[-1]["losses"] = [1e14] * 6

    told = evenfed("report", "--no-figures", "--full", edited(change)).stdout
    assert "vred, seed 0: broke down, the mean loss grew from " in told and "to 1e+14" in told


def test_losses_that_are_not_finite_are_a_breakdown_of_the_whole_entry(edited, evenfed):
    """The other seed alone would flatter it."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["accuracy"] = None
            line["test_losses"] = [1.0 + seed] * 6
        if label == "vred" and seed == 1:
            rounds[-1]["test_losses"] = [None] * 6
        if label == "semi_vred" and seed == 1:
            rounds[-1]["losses"] = [1e14] * 6
            rounds[-1]["test_losses"] = [None, *[2.0] * 5]

    folder = edited(change)
    shown = evenfed("report", "--no-figures", folder).stdout
    assert "vred: seed 1 broke down, its test losses are not finite\n" in shown
    assert "semi_vred: seed 1 broke down, its test losses are not finite: the mean loss grew" in shown
    assert "no figures on test data" not in shown
    read_again = read(folder)
    assert [entry.label for entry in read_again.lost] == ["vred", "semi_vred"]
    assert len(read_again.advice) == 2
    assert row("vred", read_again.lost[0].histories, None).late == {}
    fedavg = read_again.baseline.histories[0]
    assert fedavg.lost is None and fedavg.breakdown is None


def test_clients_that_were_never_judged_are_no_breakdown(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            for line in rounds:
                line["accuracy"] = [None] * 6

    found = read(edited(change))
    assert found.left_out == ("vred: left out, its clients have no figures on test data",)
    assert found.lost == ()


def test_another_learning_rate_is_told_from_re_weighting(edited, evenfed):
    """semi_vred becomes FedAvg with VRed's learning rate."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "semi_vred":
            header["config"].update(algorithm="fedavg", hyper_parameters={})
        if label in ("vred", "semi_vred"):
            header["config"]["train"]["lr"] = 0.3
        steady(lambda label, seed: {"vred": 0.47, "semi_vred": 0.42}.get(label, 0.4))(label, seed, header, rounds)

    cells = figures_in(evenfed("report", "--no-figures", edited(change), "--format", "csv").stdout)
    assert float(cells["paired-late", "vred", "mean", "difference"]["value"]) == pytest.approx(7)
    table = {key[1:]: cell for key, cell in cells.items() if key[0] == "same-rate-late"}
    assert float(table["vred minus semi_vred", "mean", "difference"]["value"]) == pytest.approx(5)
    assert {entry for entry, _, _ in table} == {"vred minus semi_vred"}


def test_averaging_is_told_from_re_weighting(edited):
    """semi_vred becomes FedAvg with an average, VRed deploys the same average."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "semi_vred":
            header["config"].update(algorithm="fedavg", hyper_parameters={})
        if label in ("vred", "semi_vred"):
            header["config"]["train"]["average"] = 0.8
        steady(lambda label, seed: {"vred": 0.47, "semi_vred": 0.42}.get(label, 0.4))(label, seed, header, rounds)

    differences = Differences([read(edited(change))], True)
    gap, *_ = against_rivals("same-average", differences).lines
    assert (gap.entry, gap.part) == ("vred minus semi_vred", "mean") and gap.cells[0].value == pytest.approx(5)
    gain, *_ = against_rivals("unaveraged", differences).lines
    assert gain.entry == "semi_vred" and gain.cells[0].value == pytest.approx(2)  # minus FedAvg


def test_where_all_learning_rates_are_fedavgs_there_is_no_second_table(small, evenfed):
    cells = figures_in(evenfed("report", "--no-figures", small, "--format", "csv").stdout)
    assert not any(table.startswith("same-rate") for table, *_ in cells)


def test_an_average_of_every_entry_is_said_at_the_top(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["config"]["train"]["average"] = 0.8

    folder = edited(change)
    assert "seeds 0, 1, figures of averaged models (average=0.8);" in Report.of([folder], beside_paper=False).facts[0]
    for path in (folder / "fedavg").glob("seed-*/header.json"):
        header = json.loads(path.read_text())
        header["config"]["train"]["average"] = None
        path.write_text(json.dumps(header))
    assert "averaged" not in Report.of([folder], beside_paper=False).facts[0]


def test_smoothing_is_told_from_re_weighting(edited, evenfed):
    """semi_vred becomes VRed with smoothed losses."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if "vred" in label:
            header["config"].update(algorithm="vred", hyper_parameters={"beta": 0.2})
            header["config"]["train"]["smooth"] = 0.25 if label == "semi_vred" else None
        steady(lambda label, seed: {"vred": 0.37, "semi_vred": 0.42}.get(label, 0.4))(label, seed, header, rounds)

    cells = figures_in(evenfed("report", "--no-figures", edited(change), "--format", "csv").stdout)
    table = {key[1:]: cell for key, cell in cells.items() if key[0] == "undamped-late"}
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
    done = evenfed("report", "--no-figures", folder, "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert not any(table.startswith("undamped") for table, *_ in figures_in(done.stdout))


def test_the_floor_is_that_of_as_many_seeds_as_an_entry_has(edited):
    found = read(edited(steady(apart)))
    three = {e.label: replace(e, runs={**e.runs, 2: e.runs[0]}) for e in found.entries} | {"vred": found.named("vred")}
    notes = paired(Differences([replace(found, entries=tuple(three.values()))], True)).notes
    for label, seeds in (("vred", 2), ("semi_vred", 3)):
        (told,) = (note for note in notes if note.startswith(f"{label}: "))
        assert (
            f"other seeds alone, not paired, up to {NoiseFloor([found], True).chance('mean', seeds).bound:.2f}"
            in told.split("the mean")[1]
        )


@pytest.mark.slow
def test_clients_judged_on_few_examples_can_be_left_out(edited, evenfed, tmp_path):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["clients"]["test"] = [3, 0, 50, 50, 60, 70]
        for line in rounds:
            others = 0.6 + 1e-6 * seed if label == "vred" else 0.5
            line["accuracy"] = [0.0 if label == "vred" else 1.0, None, *[others] * 4]

    folder = edited(change)
    every, large = (
        figures_in(evenfed("report", folder, "--format", "csv", *how).stdout) for how in ((), ("--min-test", 50))
    )
    value = "paired-late", "vred", "worst10", "difference"
    assert float(every[value]["value"]) == pytest.approx(-50) and float(large[value]["value"]) == pytest.approx(
        10, rel=1e-4
    )
    assert (
        "1 of 5 clients left out: judged on fewer than 50 examples"
        in evenfed("report", "--full", folder, "--min-test", 50).stdout
    )
    assert (folder / "report-min-test-50" / "tables.csv").exists()
    cut = read(folder).with_min_test(50)
    assert cut.judged_sizes == [50, 50, 60, 70]
    assert all(
        np.isnan(run.last_figures[0]) and run.last_figures[2] >= 0 for e in cut.everyone for run in e.runs.values()
    )
    none = evenfed("report", "--full", folder, "--min-test", 71)
    assert none.returncode == 2 and "the most are 70" in none.stderr
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed copy min_test=50 paired-late -->\n<!-- /evenfed -->\n")
    assert "| vred | worst 10 % | +10.00 [" in filled(page) and not missing(page)
    page.write_text("<!-- evenfed copy min_test=50 differences.svg -->\n<!-- /evenfed -->\n")
    assert "difference from FedAvg with its 95 % interval](copy/report-min-test-50/differences.svg)" in filled(page)
    page.write_text("<!-- evenfed copy min_test=50 chosen -->\n<!-- /evenfed -->\n")
    with pytest.raises(package.InputError, match="min_test and last_rounds go with reports, not with chosen"):
        filled(page)


def test_the_window_is_that_of_the_rounds_so_far(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["finished"] = False
        header["config"]["train"].update(rounds=300, last_rounds=20)

    folder = edited(change)
    report = Report.of([folder / "vred" / "seed-0"], beside_paper=False)
    assert ", 4 of 300 rounds so far, seed 0;" in report.facts[0]
    assert report.findings[0].last_rounds == 4
    titles = [table.title for table in report.tables]
    assert "At a glance, average of the last 4 rounds" in titles and "20" not in " ".join(titles)


def test_a_run_that_a_callback_ended_is_not_called_unfinished(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["config"]["train"].update(rounds=300, last_rounds=20)
        header["stopped"] = "patience"

    report = Report.of([edited(change)], beside_paper=False)
    assert "6 clients, 300 rounds, seeds 0, 1;" in report.facts[0]
    assert report.findings[0].last_rounds == 4


def test_seeds_of_one_label_with_other_settings_are_left_out_and_named(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred" and seed == 1:
            header["config"]["hyper_parameters"]["beta"] = 1.1

    told = evenfed("report", "--no-figures", "--full", edited(change)).stdout
    assert "vred: seed 1 left out, made with another configuration than seed 0" in told


@pytest.mark.slow
def test_the_averaging_window_is_the_readers_choice(edited, evenfed, tmp_path):
    """FedAvg's four rounds have means of 10, 20, 30 and 40 %; the runs themselves average the last two."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for number, line in enumerate(rounds, start=1):
            line["accuracy"] = [0.1 * number] * 6

    folder = edited(change)

    found = read(folder)
    late = [found.with_last_rounds(rounds).rows["fedavg"].late["mean"][0] for rounds in (None, 3, 99)]
    assert late == pytest.approx([0.35, 0.3, 0.25])
    loaded = package.load(folder, last_rounds=3)
    assert loaded["fedavg"][0].late_fairness.mean == pytest.approx(0.3) and loaded["vred"][0].history.last_rounds == 3
    assert "last 3 rounds" in str(loaded)
    assert "average of the last 3 rounds" in evenfed("report", "--no-figures", folder, "--last-rounds", 3).stdout
    assert (folder / "report-last-3" / "report.md").exists()
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed copy last_rounds=3 columns=mean overview-late -->\n<!-- /evenfed -->\n")
    assert "| fedavg | **30.00" in filled(page)
    with pytest.raises(package.InputError, match="last_rounds=0"):
        package.load(folder, last_rounds=0)
    assert evenfed("report", "--no-figures", folder, "--last-rounds", 0).returncode == 2


def test_notes_on_clients_may_be_worded_otherwise_but_their_sizes_may_not(edited):
    def reworded(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["clients"]["notes"] = ["1 of 6 clients is small; kept"]
        if label == "semi_vred":
            header["clients"]["train"][0] += 1

    found = read(edited(reworded))
    assert [entry.label for entry in found.entries] == ["fedavg", "vred"]
    assert found.left_out == ("semi_vred: left out, run on other clients than fedavg",)
