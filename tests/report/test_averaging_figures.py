"""Figures of what averaging does: differences on every federation, clients taking turns, learning curves."""

import json

import numpy as np
import pytest

from evenfed.comparison.averaging import averaged_rivals, one_decay_each
from evenfed.comparison.reading import read
from evenfed.report.charts import averaging, curves, report, turns
from evenfed.report.charts.drawing import label_lines
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


def marks(panel: dict) -> dict:
    (layer,) = (layer for layer in panel["layer"] if layer["mark"]["type"] == "point")
    return {(point["row"], point["stage"].split(":")[0]): point for point in layer["data"]["values"]}


def test_differences_are_shown_on_every_federation_before_and_after(federations):
    comparisons = [read(folder) for folder in federations]
    assert averaged_rivals(comparisons[0]) == {"vred[average=0.8]": "fedavg[average=0.8]"}
    (row,) = averaging.figure(comparisons)["vconcat"]
    worst, mean = row["hconcat"]
    assert [panel["title"]["text"] for panel in (worst, mean)] == ["worst 10 %", "mean"]
    for panel in (worst, mean):
        shown = marks(panel)
        for seed in range(3):
            assert shown[str(seed), "before"]["points"] == pytest.approx(2 * (seed + 1))
            assert shown[str(seed), "after"]["points"] == pytest.approx(4 * (seed + 1))
        average = shown["mean after", "after"]
        assert average["points"] == pytest.approx(8) and average["low"] < 0 < 8 < average["high"]


def test_an_entry_that_strays_far_does_not_squeeze_the_others():
    near = [{"points": value, "row": "1", "stage": ""} for value in (-2.0, 1.0, 3.0)]
    far = [{"points": -60.0, "row": "1", "stage": ""}]
    axis = averaging._Axis.of([near, near, far])
    assert axis.low > -15 and axis.high >= 3
    (clipped,) = map(axis.clipped, far)
    assert clipped["points"] == axis.low and clipped["left"] == "← -60"
    assert axis.clipped(near[0]) == near[0]


def test_the_worst_clients_of_each_round_are_marked_for_both_models(federations):
    findings = read(federations[0])
    figure = turns.figure(findings)
    current, average = figure["hconcat"]
    # accuracies rise with the number of the client, so client 0 is the worst of six in every round
    for panel in (current, average):
        assert "1 different clients" in panel["title"]["text"]
        assert {cell["client"] for cell in panel["data"]["values"]} == {"0"}
        assert [cell["round"] for cell in panel["data"]["values"]] == [1, 2, 3, 4]
    assert turns.worst_clients(np.array([0.3, np.nan, 0.1, 0.2]), higher_is_better=True) == [2]
    assert turns.worst_clients(np.array([0.3, np.nan, 0.1, 0.2]), higher_is_better=False) == [0]


def test_learning_curves_show_the_deployed_model_the_current_one_and_fedavg(federations):
    comparisons = [read(folder) for folder in federations]
    (column,) = curves.figure(comparisons)["concat"]
    mean, _ = column["vconcat"]
    last = {point["line"]: point["value"] for point in mean["data"]["values"] if point["round"] == 4}
    fedavg = np.mean([100 * run.fairness.mean for one in comparisons for run in one.baseline.histories])
    assert last["FedAvg's average"] == pytest.approx(fedavg)
    assert last["each round's model"] == pytest.approx(fedavg + 4)
    assert last["average of the models"] == pytest.approx(fedavg + 8)


@pytest.mark.slow
def test_reports_draw_them_only_where_entries_deploy_an_average(federations, small, tmp_path):
    drawn = {path.stem for path in report.draw(Report.of(federations, beside_paper=False), tmp_path / "study")}
    assert drawn == {"differences", "averaging", "turns", "learning-curves"}
    without = read(small)
    assert averaging.figure([without]) is None and turns.figure(without) is None and curves.figure([without]) is None
    assert one_decay_each(without) == []


def test_long_labels_are_broken_between_their_options():
    assert label_lines("semi_vred[beta=0.5,smooth=0.25]", 20) == ["semi_vred", "beta=0.5,", "smooth=0.25"]
