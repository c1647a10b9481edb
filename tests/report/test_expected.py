"""Expected accuracies: class shares times recalls, beside the measured ones where they fit."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from evenfed.comparison.analysis.expected import Fit, SpreadParts, expected_accuracies
from evenfed.comparison.storage.reading import read
from evenfed.fairness import Fairness
from evenfed.report.document import Report
from evenfed.report.notes import fit_notes


def federation(clients=200, own_effect=0.0, concentration=0.2, seed=0):
    """Accuracies, label counts and recalls; answers are right by class, and by an effect of each client's own."""
    draw = np.random.default_rng(seed)
    recalls = np.linspace(0.3, 0.9, 10)
    counts = np.array([draw.multinomial(100, draw.dirichlet(np.full(10, concentration))) for _ in range(clients)])
    effects = own_effect * draw.choice([-1, 1], size=(clients, 1))
    right = draw.binomial(counts, np.clip(recalls + effects, 0, 1))
    return right.sum(1) / counts.sum(1), counts, right.sum(0) / counts.sum(0)


def test_class_shares_and_binomial_noise_add_up_to_the_spread():
    fit = Fit.of([SpreadParts.of(*federation())])
    assert 0.6 < fit.classes < 0.97 and fit.noise > 0.05
    assert abs(fit.rest) < 0.03 and fit.is_good
    alike = Fit.of([SpreadParts.of(*federation(concentration=1000))])  # no label skew: all is noise
    assert alike.classes < 0.2 and abs(alike.rest) < 0.2


def test_what_clients_have_beside_their_labels_is_found_unexplained():
    fit = Fit.of([SpreadParts.of(*federation(own_effect=0.15))])
    assert fit.rest > 0.2 and not fit.is_good


def test_expected_figures_are_nearer_to_the_truth():
    accuracies, counts, recalls = federation(clients=50)
    truth = expected_accuracies(counts, np.linspace(0.3, 0.9, 10))
    expected = expected_accuracies(counts, recalls)
    wanted = Fairness.of(truth).worst10
    assert abs(Fairness.of(expected).worst10 - wanted) < abs(Fairness.of(accuracies).worst10 - wanted)


def test_clients_and_classes_without_examples_do_not_count():
    counts = np.array([[2, 0, 0], [0, 0, 0], [1, 1, 0]])
    recalls = np.array([1.0, 0.5, np.nan])
    expected = expected_accuracies(counts, recalls)
    assert np.array_equal(expected, [1, np.nan, 0.75], equal_nan=True)
    spread = SpreadParts.of(np.array([1, np.nan, 0.5]), counts, recalls)
    assert spread.total == pytest.approx(2 * 0.25**2 + 2 * 0.25**2)
    assert spread.unexplained == pytest.approx(2 * 0.25**2)
    assert spread.noise == pytest.approx(0.25 / 2)
    assert Fit.of([]) is None


def table(report: Report, name: str):
    return next((each for each in report.tables if each.name == name), None)


def test_a_report_has_them_beside_the_measured_ones(small):
    findings = read(small)
    run = findings.baseline.histories[0]
    by_hand = []
    for record in run.late:
        shares = run.label_counts / run.label_counts.sum(1, keepdims=True)
        by_hand.append(shares @ np.nan_to_num(record.recalls))
    assert np.allclose(run.expected.late_figures, np.mean(by_hand, axis=0))
    row = findings.rows["fedavg"]
    worst10 = [history.expected.late_fairness.worst10 for history in findings.baseline.histories]
    assert row.late["expected_worst10"][0] == pytest.approx(np.mean(worst10))
    described = json.loads(json.dumps(findings.describe()))["rows"][0]
    assert described["late"]["expected_worst10"]["mean"] == pytest.approx(np.mean(worst10))
    assert described["last"]["expected_std"]["mean"] > 0 and described["fit"]["is_good"] == row.fit.is_good
    report = Report.of([small], beside_paper=False)
    beside = table(report, "expected-late")
    assert [column.title for column in beside.columns][:2] == ["worst 10 %", "expected worst 10 %"]
    assert beside.lines[0].cells[1].value == pytest.approx(100 * np.mean(worst10))
    assert len(beside.columns) == 6 and "Class shares explain" in " ".join(beside.notes)
    last = table(report, "expected-last")  # the fit is known for the last rounds alone
    assert [column.key for column in last.columns] == ["worst10", "expected_worst10", "std", "expected_std"]
    assert "The fit is that of the last 2 rounds." in last.notes and "By classes" not in " ".join(last.notes)


def fitting(label: str, seed: int, header: dict, rounds: list) -> None:
    """Accuracies as recalls say; VRed's are 4 points above the others'."""
    counts = np.array([row.split() for row in header["judged_classes"]], dtype=float)
    for line in rounds:
        recalls = np.linspace(0.2, 0.9, counts.shape[1]) + 0.04 * (label == "vred") + 0.001 * (seed % 2)
        line["recalls"] = recalls.tolist()
        line["accuracy"] = (counts @ recalls / counts.sum(1)).tolist()


def test_shares_of_the_spread_are_said_as_shares(small):
    findings = read(small)

    def note(*fits: Fit) -> str:
        rows = {
            label: dataclasses.replace(findings.rows[label], fit=fit)
            for label, fit in zip(findings.rows, fits, strict=False)
        }
        return " ".join(fit_notes(SimpleNamespace(rows=rows)))

    all_noise = "The noise of their small test sets alone explains all of the spread between clients."
    assert note(Fit(-0.02, 1.61), Fit(0.04, 1.71)).endswith(all_noise)
    assert "explain 0 to 4 % of the spread between clients (weighted R2), noise 90 to 100 %." in note(
        Fit(-0.02, 1.61), Fit(0.04, 0.9)
    )


def test_differences_in_expected_figures(edited):
    folder = edited(fitting)
    report = Report.of([folder], beside_paper=False)
    differences = table(report, "expected-paired-late")
    by_metric = {line.part: line.cells[0].value for line in differences.lines if line.entry == "vred"}
    assert by_metric["worst10"] == pytest.approx(4) and by_metric["mean"] == pytest.approx(4)
    assert "expected accuracy" in differences.title
    (brief,) = report.in_brief().tables
    assert "expected worst 10 %" in [column.title for column in brief.columns]


def test_what_does_not_fit_is_said_and_not_judged(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        fitting(label, seed, header, rounds)
        if label == "vred":
            for line in rounds:
                line["accuracy"] = line["accuracy"][::-1]

    folder = edited(change)
    findings = read(folder)
    assert findings.expected.by_label.keys() == findings.by_label.keys() - {"vred"}
    report = Report.of([folder], beside_paper=False)
    assert "WARNING: expected figures do not fit vred:" in " ".join(table(report, "expected-late").notes)
    assert {line.entry for line in table(report, "expected-paired-late").lines}.isdisjoint({"vred"})
    (brief,) = report.in_brief().tables
    column = [column.title for column in brief.columns].index("expected worst 10 %")
    assert {line.entry for line in brief.lines if line.cells[column].value is None} == {"vred"}
    assert "Expected figures do not fit vred, so they are left out there." in brief.notes


def test_where_fedavg_does_not_fit_nothing_is_judged_by_them(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        fitting(label, seed, header, rounds)
        for line in rounds:
            line["accuracy"] = line["accuracy"][::-1]

    folder = edited(change)
    assert read(folder).expected is None
    report = Report.of([folder], beside_paper=False)
    assert "WARNING" in " ".join(table(report, "expected-late").notes)
    assert table(report, "expected-paired-late") is None
    (brief,) = report.in_brief().tables
    assert "expected worst 10 %" not in [column.title for column in brief.columns]
    assert "xpected" not in " ".join(brief.notes)


def without_recalls(label: str, seed: int, header: dict, rounds: list) -> None:
    """As older runs are."""
    del header["judged_classes"]
    for line in rounds:
        line.pop("recalls", None)


def test_runs_without_recalls_are_reported_as_before(edited):
    folder = edited(without_recalls)
    findings = read(folder)
    assert findings.expected is None and findings.rows["fedavg"].fit is None
    report = Report.of([folder], beside_paper=False)
    assert not [each.name for each in report.tables if "expected" in each.name]
    (brief,) = report.in_brief().tables
    assert "best 10 %" in [column.title for column in brief.columns]


def test_clients_left_out_have_no_expected_figure(small):
    findings = read(small)
    smallest = min(size for size in findings.judged_sizes if size)
    fewer = findings.with_min_test(smallest + 1)
    expected = fewer.baseline.histories[0].expected
    measured = fewer.baseline.histories[0]
    assert np.array_equal(np.isnan(expected.last_figures), np.isnan(measured.last_figures))
    assert np.isnan(expected.last_figures).sum() > np.isnan(findings.baseline.histories[0].last_figures).sum()


def folders_of_splits(edited, tmp_path, count: int, change) -> list:
    """Comparisons that expected figures fit, on splits 0, 1, ...; `change` gets the split and the run."""

    def change_on(split: int, label: str, seed: int, header: dict, rounds: list) -> None:
        header["config"]["data"]["seed"] = split
        fitting(label, seed, header, rounds)
        change(split, label, seed, header, rounds)

    folders = []
    for split in range(count):
        folder = edited(partial(change_on, split))
        folders.append(folder.rename(tmp_path / f"split-{split}"))
    return folders


def test_federations_are_pooled_in_expected_figures_too(edited, tmp_path):
    def change(split: int, label: str, seed: int, header: dict, rounds: list) -> None:
        if split == 2:
            without_recalls(label, seed, header, rounds)

    folders = folders_of_splits(edited, tmp_path, 3, change)
    older = Report.of(folders[1:], beside_paper=False)
    assert table(older, "expected-paired-late") is None
    pooled = table(Report.of(folders[:2], beside_paper=False), "expected-paired-late")
    line = next(line for line in pooled.lines if line.entry == "vred" and line.part == "worst10")
    cells = dict(zip([column.key for column in pooled.columns], line.cells, strict=True))
    assert cells.pop("better_on").verdict == "2 of 2" and cells.pop("verdict").value is None
    assert [round(cell.value, 6) for cell in cells.values()] == [4, 4, 4]


def test_what_does_not_fit_on_every_federation_has_no_expected_figure_at_a_glance(edited, tmp_path):
    def change(split: int, label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred" and split == 1:
            for line in rounds:
                line["accuracy"] = line["accuracy"][::-1]

    folders = folders_of_splits(edited, tmp_path, 2, change)
    glance = table(Report.of(folders, beside_paper=False), "glance-late")
    place = [column.key for column in glance.columns].index("expected_worst10")
    known = {line.entry: line.cells[place].value is not None for line in glance.lines}
    assert known["fedavg"] and known["semi_vred"] and not known["vred"]
    assert "Expected figures do not fit vred on every federation" in " ".join(glance.notes)


def test_a_result_has_them(small):
    import evenfed

    result = evenfed.load(small / "fedavg" / "seed-0")
    expected = result.expected
    assert np.allclose(expected.accuracy, result.history.expected.last_figures, equal_nan=True)
    assert dataclasses.asdict(expected.fairness) == dataclasses.asdict(Fairness.of(expected.accuracy))
    assert expected.fit == result.history.expectation.fit and len(result.recalls) == 10
