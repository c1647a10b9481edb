"""Several comparisons beside each other: pooled, drawn and refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from evenfed.comparison.analysis.intervals import components
from evenfed.comparison.analysis.side_by_side import pooled
from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.reading import read
from evenfed.report.charts import differences
from evenfed.report.charts.report import of_report
from evenfed.report.document import Report
from evenfed.report.fill import filled
from evenfed.report.paired_tables import paired
from reports import figures_in, numbers, put_rounds

pytestmark = pytest.mark.slow


def train_with(folder, labels, **options):
    """Change the headers of runs: these options of training."""
    for path in folder.glob(f"{labels}/seed-*/header.json"):
        header = json.loads(path.read_text())
        header["config"]["train"].update(options)
        path.write_text(json.dumps(header))


def test_federations_are_pooled_and_their_spread_told_from_the_seeds(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    cells = figures_in(evenfed("report", "--no-figures", one, two, "--format", "csv").stdout)
    gap = cells["paired-late", "vred", "worst10", "difference"]
    assert numbers(gap) == pytest.approx([4, 4, 4], abs=1e-3)
    assert [float(cells["paired-late", "vred", "mean", f"data.seed={k}"]["value"]) for k in (0, 1)] == pytest.approx(
        [2, 6]
    )
    within = 100 * np.std([0.0, 0.01], ddof=1)
    between = np.sqrt(np.var([2.0, 6.0], ddof=1))
    assert float(cells["components-late", "vred", "minus FedAvg: federations", "mean"]["value"]) == pytest.approx(
        between
    )
    assert float(cells["components-last", "fedavg", "figure: seeds", "mean"]["value"]) == pytest.approx(within)
    assert float(cells["suppression-last", "vred", "", "mean_gain"]["value"]) == pytest.approx(4)
    assert float(cells["suppression-last", "vred", "", "mean_gain"]["spread"]) == pytest.approx(2)
    shown = evenfed("report", "--no-figures", "--full", one, two).stdout
    assert "vred: the worst 10 % are lifted" in shown and (one / "beside" / "report.md").exists()


def test_losses_are_not_called_points(splits):
    folders = [splits(0, 0.02), splits(1, 0.06), splits(0, 0.02, hidden=[8])]
    for run in (run for folder in folders for run in folder.glob("*/seed-*")):
        header = json.loads((run / "header.json").read_text())
        rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        header["metric"] = {"name": "loss", "higher_is_better": False}
        put_rounds(run, [{**line, "test_losses": line["accuracy"]} for line in rounds], header)
    for pair, names in ((folders[:2], {"glance-late", "components-late"}), (folders[::2], {"paired-late"})):
        tables = {table.name: table for table in Report.of(pair, beside_paper=False).tables}
        for name in names:
            assert "points" not in tables[name].notes[0].lower() and tables[name].digits == 3


def test_what_all_federations_share_is_said_once(splits, tmp_path, evenfed):
    study = tmp_path / "study"
    study.mkdir()
    for split in range(3):
        splits(split, 0.02).rename(study / f"federation-{split}")
    shutil.rmtree(study / "federation-2" / "vred" / "seed-1")
    text = evenfed("report", "--no-figures", study, "--format", "markdown").stdout
    title, _, *facts = text.partition("\n## ")[0].splitlines()
    assert title == "# study"
    assert sum("6 clients, 4 rounds" in fact for fact in facts) == 1
    assert any(fact.startswith("federation-2: ") and "vred" in fact for fact in facts)


def test_a_difference_says_on_how_many_federations_it_is_better(splits):
    """In percent: more accuracy and less spread are better."""
    gains = (0.02, -0.03, 0.04)
    findings = [read(splits(split, gain)) for split, gain in enumerate(gains)]
    table = paired(Differences(findings, True))
    column = [column.key for column in table.columns].index("better_on")
    shown = {line.part: line.cells[column].verdict for line in table.lines if line.entry == "vred"}
    assert shown["mean"] == shown["worst10"] == "2 of 3"
    assert shown["std"] == "0 of 3"  # every client gains as much: no spread is narrower
    alone = paired(Differences(findings[:1], True))
    assert "better_on" not in [column.key for column in alone.columns]


def test_models_of_each_client_are_not_in_bold_and_a_note_says_why(splits):
    folders = [splits(0, 0.06), splits(1, 0.06)]
    for path in [header for folder in folders for header in folder.glob("vred/seed-*/header.json")]:
        described = json.loads(path.read_text())
        described["config"].update(algorithm="ditto", hyper_parameters={})
        path.write_text(json.dumps(described))
    several = Report.of(folders, beside_paper=False)
    alone = Report.of(folders[:1], beside_paper=False)
    of_both = [(several, "glance-late"), (several, "suppression-late"), (alone, "suppression-late")]
    for report, name in of_both:
        (table,) = [table for table in report.tables if table.name == name]
        best = [line.entry for line in table.lines if any(cell.best for cell in line.cells)]
        assert best and "vred" not in best
        assert any(note.startswith("vred: each client keeps its own model") for note in table.notes)


def test_how_runs_were_made_is_said_once(splits):
    folders = [splits(split, 0.02) for split in range(2)]
    header = folders[1] / "vred" / "seed-0" / "header.json"
    described = json.loads(header.read_text())
    described["commit"] = "another-commit"
    header.write_text(json.dumps(described))
    first, *others = Report.of(folders, beside_paper=False).facts
    assert "6 clients" in first and "another" in first
    assert not any("6 clients" in fact for fact in others)


def test_from_three_federations_on_the_interval_is_over_federations(splits):
    """VRed 2, 6 and 4 points ahead, with every seed alike: sure on these, not on a fourth."""
    found = [read(folder) for folder in (splits(0, 0.02), splits(1, 0.06), splits(2, 0.04))]
    both = Differences(found, True)
    gap = both.between("vred", "fedavg", "worst10")
    reach = 4.3027 * 2 / np.sqrt(3)  # Student's, 2 degrees of freedom; standard deviation 2
    assert (gap.points, gap.low, gap.high) == pytest.approx((4, 4 - reach, 4 + reach), rel=1e-4)
    given = both.on_these("vred", "fedavg", "worst10")
    assert (given.low, given.high) == pytest.approx((4, 4), abs=1e-3)
    table = paired(both, ["a", "b", "c"])
    (line,) = (line for line in table.lines if (line.entry, line.part) == ("vred", "worst10"))
    assert line.cells[-1].verdict == "better on these federations"
    assert "95 % interval over 3 federations: what to expect of another one" in " ".join(table.notes)
    said = "vred: the worst 10 % are lifted on these federations, not shown to change on others (+4.00"
    assert any(note.startswith(said) for note in table.notes)
    one_seed = []
    for each in found:
        entries = tuple(replace(entry, runs={0: entry.runs[0]}) for entry in each.entries)
        one_seed.append(replace(each, entries=entries, controls=()))
    alone = Differences(one_seed, True)  # still judged, since federations are the sample
    assert alone.between("vred", "fedavg", "worst10").high == pytest.approx(gap.high, abs=1e-3)
    assert not alone.on_these("vred", "fedavg", "worst10").is_judged
    assert "these" not in [column.key for column in paired(alone, ["a", "b", "c"]).columns]


def test_federations_are_drawn_together_with_each_ones_difference(splits, evenfed, tmp_path):
    folders = [splits(0, 0.02), splits(1, 0.06)]
    made = Report.of(folders, beside_paper=False)
    assert [chart.name for chart in of_report(made)] == ["differences"]
    rows = differences.chart(made.pooled).rows
    for federation, ahead in (("0", 2), ("1", 6)):
        points = [row["points"] for row in rows if row.get("federation") == federation and row["algorithm"] == "vred"]
        assert points[:2] == pytest.approx([ahead, ahead], abs=1e-3)  # in the mean, with each seed
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed split-0 split-1 differences.svg -->\n<!-- /evenfed -->\n")
    assert "Not drawn yet: `evenfed report split-0 split-1`." in filled(page)
    assert evenfed("report", "--full", *folders).returncode == 0
    assert "difference from FedAvg with its 95 % interval](split-0/beside/differences.svg)" in filled(page)
    splits(2, 0.01)
    page.write_text("<!-- evenfed split-0 split-2 differences.svg -->\n<!-- /evenfed -->\n")
    assert "Not drawn yet" in filled(page)  # that figure is of others


def test_a_label_that_means_something_else_elsewhere_is_not_pooled(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    train_with(two, "vred", smooth=0.5)
    assert (
        "Left out, as not the same in all of them: vred" in evenfed("report", "--no-figures", "--full", one, two).stdout
    )


def test_set_ups_that_cannot_be_pooled_are_not_drawn_as_one(splits):
    made = Report.of([splits(0, 0.02), splits(0, 0.03, stem="cifar")], beside_paper=False)
    assert not of_report(made)


def test_a_page_shows_the_federations_that_are_there_and_names_the_others(splits, tmp_path):
    splits(0, 0.02), splits(1, 0.06)
    page = tmp_path / "page.md"
    page.write_text("<!-- evenfed split-0 split-2 split-1 paired-late -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `split-2`.\n\n| algorithm |" in filled(page) and "| vred | mean | +4.00 [" in filled(page)
    page.write_text("<!-- evenfed split-0 split-2 paired-late -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `split-2`.\n\n| algorithm |" in filled(page) and "| vred | mean | +2.00 [" in filled(page)
    page.write_text("<!-- evenfed split-0 split-2 components-late -->\n<!-- /evenfed -->\n")
    assert "Not run yet: `split-2`.\n<!--" in filled(page)  # one federation has no spread over federations


def test_spreads_are_of_the_seeds_that_all_federations_have(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    before = figures_in(evenfed("report", "--no-figures", one, two, "--format", "csv").stdout)
    for label in ("fedavg", "vred"):
        shutil.copytree(one / label / "seed-1", one / label / "seed-3")
    after = figures_in(evenfed("report", "--no-figures", one, two, "--format", "csv").stdout)
    spreads = [key for key in before if key[0].startswith("components")]
    assert spreads and all(numbers(after[key]) == numbers(before[key]) for key in spreads)
    assert "Only the seeds that all federations have." in evenfed("report", "--no-figures", "--full", one, two).stdout


def test_set_ups_stand_beside_each_other_by_what_differs(splits, evenfed):
    one, two = splits(0, 0.02), splits(0, 0.03, stem="cifar")
    shutil.rmtree(two / "semi_vred")
    shown = evenfed("report", "--no-figures", "--full", one, two).stdout
    assert "not the same in all of them: semi_vred." in " ".join(shown.split())
    cells = figures_in(evenfed("report", "--no-figures", one, two, "--format", "csv").stdout)
    assert float(cells["paired-last", "vred", "model.stem=None", "mean"]["value"]) == pytest.approx(2)
    assert float(cells["paired-last", "vred", "model.stem=cifar", "mean"]["value"]) == pytest.approx(3)
    assert not any(key[0].startswith("components") for key in cells)  # not repetitions of one experiment


def test_the_same_comparison_twice_is_refused(small, evenfed):
    done = evenfed("report", "--no-figures", "--full", small, small)
    assert done.returncode == 2 and "same set-up" in done.stderr


def test_averages_over_different_numbers_of_rounds_are_refused(splits, evenfed):
    one, two = splits(0, 0.02), splits(1, 0.06)
    train_with(two, "*", last_rounds=3)
    refused = evenfed("report", "--no-figures", one, two)
    assert refused.returncode == 2
    assert f"({one} the last 2, {two} the last 3); give one number for all: `evenfed report --l" in refused.stderr
    shown = evenfed("report", "--no-figures", "--last-rounds", "3", one, two)
    assert shown.returncode == 0 and "2 federations, average of the last 3 rounds" in shown.stdout


def test_draws_on_several_federations_are_independent(small):
    found = read(small)
    alone = Differences([found], True).between("vred", "fedavg", "mean")
    both = Differences([found, found], True).between("vred", "fedavg", "mean")
    assert both.points == pytest.approx(alone.points) and both.high - both.low < alone.high - alone.low


def test_components_are_not_negative_and_recover_what_was_put_in():
    draws = np.random.default_rng(0)
    values = 3 * draws.normal(size=(4000, 1)) + draws.normal(size=(4000, 3))
    assert components(values) == pytest.approx((3, 1), rel=0.05)
    assert components(draws.normal(size=(3, 3)) * [[1, 9, 1]])[0] >= 0


def test_a_pooled_row_has_the_mean_oscillation(small):
    row = read(small).rows["vred"]
    rows = [replace(row, oscillation=-0.2), replace(row, oscillation=-0.6)]
    assert pooled(rows).oscillation == pytest.approx(-0.4)
    unknown = replace(rows[0], oscillation=float("nan"))
    assert pooled([*rows, unknown]).oscillation == pytest.approx(-0.4)


def test_training_losses_and_moved_weight_are_means_over_federations(splits):
    folders = [splits(split, 0.02) for split in range(2)]
    (table,) = (table for table in Report.of(folders, beside_paper=False).tables if table.name == "training")
    lines = {line.entry: [cell.value for cell in line.cells] for line in table.lines}
    losses = []
    for folder in folders:
        for run in read(folder).named("vred").histories:
            losses += [record.losses.mean() for record in run.records[-2:]]  # train.last_rounds
    loss, moved, _ = lines["vred"]
    assert loss == pytest.approx(np.mean(losses)) and moved > 0
    assert lines["fedavg"][1] == pytest.approx(0, abs=1e-4)


def test_settings_of_other_set_ups_are_not_shown_as_everyones(splits):
    same = Report.of([splits(0, 0.02), splits(1, 0.02)], beside_paper=False)
    assert "settings" in [table.name for table in same.tables]
    other = Report.of([splits(0, 0.02, hidden=[7]), splits(1, 0.02, hidden=[8])], beside_paper=False)
    assert "settings" not in [table.name for table in other.tables]


def test_fedavg_at_a_rate_that_one_federation_lacks_gives_the_others_no_noise_floor_there(splits):
    """The floor has FedAvg runs that every federation has."""
    folders = [splits(split, 0.02) for split in (0, 1)]
    findings = [read(folder) for folder in folders]
    alone = Differences(findings, late=True).chance("mean", 2)
    other_rate = replace(findings[0].baseline, label="fedavg[lr=0.5]")
    for position in (0, 1):
        with_more = list(findings)
        repeated = ((other_rate,), *findings[position].repeated)
        with_more[position] = replace(findings[position], repeated=repeated)
        assert Differences(with_more, late=True).chance("mean", 2) == alone
