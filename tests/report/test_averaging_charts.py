"""Charts of what averaging does: differences on every federation, clients taking turns, learning curves."""

import json

import numpy as np
import pytest

from evenfed.comparison.analysis.averaging import averaged_rivals, before_and_after, one_decay_each
from evenfed.comparison.storage.reading import read
from evenfed.report.charts import averaging, over_rounds, turns
from evenfed.report.charts.elements import label_lines
from evenfed.report.charts.report import across, of_report
from evenfed.report.document import Report
from reports import put_rounds


@pytest.fixture
def federations(splits):
    """Three federations. VRed's current model is 2, 4 and 6 points ahead of FedAvg's, its average 4, 8 and 12."""

    def deploy_average(folder, label, ahead):
        source = folder / label
        target = folder / f"{label}[average=0.8]"
        for path in source.glob("seed-*"):
            header = json.loads((path / "header.json").read_text())
            header["config"]["train"]["average"] = 0.8
            rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
            for line in rounds:
                line["current"] = line["accuracy"]
                line["accuracy"] = (np.array(line["accuracy"]) + ahead).tolist()
            copy = target / path.name
            copy.mkdir(parents=True)
            put_rounds(copy, rounds, header)

    folders = []
    for seed in range(3):
        ahead = 0.02 * (seed + 1)
        folder = splits(seed, ahead)
        deploy_average(folder, "fedavg", 0.0)
        deploy_average(folder, "vred", ahead)
        folders.append(folder)
    return folders


def test_differences_are_shown_on_every_federation_before_and_after(federations):
    comparisons = [read(folder) for folder in federations]
    assert averaged_rivals(comparisons[0]) == {"vred[average=0.8]": "fedavg[average=0.8]"}
    rows = averaging.chart(comparisons).rows
    for figure in ("worst 10 %", "mean"):
        for stage, points in (("before", 2), ("after", 4)):
            shown = [row for row in rows if (row["figure"], row["stage"]) == (figure, stage)]
            for seed in range(3):
                on_one = [row["points"] for row in shown if row.get("federation") == str(seed)]
                assert on_one == pytest.approx([points * (seed + 1)] * 2, abs=0.001)  # of two seeds
            (interval,) = (row for row in shown if "low" in row)
            assert interval["low"] < 0 < 2 * points < interval["high"] and interval["runs"] == 6


def test_the_axis_is_as_wide_as_the_means_and_intervals_not_as_single_seeds():
    of_seeds = [{"algorithm": "vred", "figure": "mean", "stage": "after", "federation": "0"} for _ in range(2)]
    rows = [{**row, "points": points} for row, points in zip(of_seeds, (-50.0, 54.0), strict=True)]
    rows.append({"algorithm": "vred", "figure": "mean", "stage": "after", "low": -1.0, "high": 5.0})
    axis = averaging._axis(rows)
    assert -2 < axis.low < -1 and 5 < axis.high < 6


def test_the_worst_clients_of_each_round_are_marked(federations):
    findings = read(federations[0])
    rows = turns.chart(findings).rows
    # accuracies rise with the number of the client, so client 0 is the worst of six in every round
    assert {(row["client"], tuple(row["round"])) for row in rows} == {("digits-0", (1, 2, 3, 4))}
    drawn = [entry.label for entry in before_and_after(findings)]
    assert drawn[:4] == ["fedavg", "fedavg[average=0.8]", "vred", "vred[average=0.8]"]
    assert {row["algorithm"] for row in rows} == set(drawn) == {entry.label for entry in findings.planned}
    assert turns.worst_clients(np.array([0.3, np.nan, 0.1, 0.2]), higher_is_better=True) == [2]
    assert turns.worst_clients(np.array([0.3, np.nan, 0.1, 0.2]), higher_is_better=False) == [0]


def test_learning_curves_have_every_run_of_every_federation(federations):
    comparisons = [read(folder) for folder in federations]
    rows = over_rounds.chart(comparisons).rows
    last = {}
    for row in rows:
        last.setdefault(row["algorithm"], []).append(row["mean"][-1])
    fedavg = np.mean([100 * run.fairness.mean for one in comparisons for run in one.baseline.histories])
    assert np.mean(last["fedavg[average=0.8]"]) == pytest.approx(fedavg, abs=1e-3)
    assert np.mean(last["vred"]) == pytest.approx(fedavg + 4, abs=1e-3)
    assert np.mean(last["vred[average=0.8]"]) == pytest.approx(fedavg + 8, abs=1e-3)
    assert {row["federation"] for row in rows} == {0, 1, 2}


@pytest.mark.slow
def test_reports_draw_them_only_where_entries_deploy_an_average(federations, small):
    made = Report.of(federations, beside_paper=False)
    assert [chart.name for chart in of_report(made)] == ["differences", "averaging", "turns", "learning-curves"]
    assert [chart.name for chart in across(made.pooled.comparisons)] == ["differences", "averaging", "learning-curves"]
    without = read(small)
    assert averaging.chart([without]) is None and one_decay_each(without) == []


def test_long_labels_are_broken_between_their_options():
    assert label_lines("semi_vred[beta=0.5,smooth=0.25]", 20) == ["semi_vred", "beta=0.5,", "smooth=0.25"]
