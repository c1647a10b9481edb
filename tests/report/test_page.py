"""What a page says, and what it is made of; `test_page_in_chromium.py` looks at it in a browser."""

import base64
import gzip
import hashlib
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from evenfed import audit
from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.reading import read
from evenfed.report.charts.chart import Chart
from evenfed.report.document import Report
from evenfed.report.files import write_page
from evenfed.report.page import contents, details, evidence, verdict, write
from reports import FLOOR, put_rounds, steady


def verdict_on(folder):
    report = Report.of_findings([read(folder)], beside_paper=False)
    return verdict.of(evidence.chosen(report.pooled.comparisons, report.pooled))


def at(levels: dict[str, float]):
    """Entries at these accuracies, FedAvg at 0.4; seeds hardly differ."""

    def level(label: str, seed: int) -> float:
        return levels.get(label, 0.4) + 0.001 * (seed % 2) * (label == "vred")

    return steady(level)


def test_the_best_is_named_with_its_gain_and_that_nobody_pays(edited):
    judged = verdict_on(edited(at({"vred": 0.5, "semi_vred": 0.45})))
    assert judged.sentence == (
        "vred serves the worst-served clients best: the worst 10 % (1 of 6 clients) reach 50.0 % accuracy, 10.1 points "
        "more than with FedAvg, and the average client gains 10.0 points."
    )
    words = dict(judged.details)
    assert "accuracy 40.0 % with FedAvg, 50.0 % with vred" in words["Who gains"]
    assert "It rests on 2 seeds on one split of the data." in words["How sure"]


def test_models_of_each_client_are_not_ranked_against_single_ones(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        at({"vred": 0.5 + 0.0001 * seed, "semi_vred": 0.7 + 0.0001 * seed})(label, seed, header, rounds)
        if label == "semi_vred":
            header["config"]["algorithm"] = "ditto"

    folder = edited(change)
    judged = verdict_on(folder)
    assert judged.sentence.startswith("vred serves the worst-served clients best of all single models: ")
    assert judged.sentence.endswith(
        "semi_vred (each client keeps its own model) reaches 70.0 % accuracy, 30.0 points more than FedAvg; it is not "
        "ranked against single models."
    )
    report = Report.of([folder], beside_paper=False)
    (table,) = report.in_brief().tables
    assert [line.entry for line in table.lines if line.cells[1].best] == ["vred"]
    assert any(note.startswith("semi_vred: each client keeps its own model") for note in table.notes)


def test_shares_of_clients_come_with_what_chance_does(edited):
    words = dict(verdict_on(edited(at({"vred": 0.5, FLOOR: 0.41}))).details)
    assert "do better (100 % when FedAvg alone is repeated)" in words["Who gains"]
    assert "FedAvg with other seeds (not paired) differs by less than" in words["How sure"]


def test_a_gain_smaller_than_the_bound_of_chance_is_called_in_doubt():
    rows = []
    for name, gain in (("fedavg", 0.0), ("fair", 0.02), ("fedavg-other-batches", 0.0)):
        for seed in range(2):
            moved = 0.001 * seed if name == "fair" else 0.02 * seed * (name != "fedavg")
            rows += [{"client": k, "seed": seed, "algorithm": name, "acc": 0.3 + gain + moved} for k in range(12)]
    (findings,) = audit(rows).findings.values()
    basis = evidence.chosen([findings], Differences([findings], late=True))
    gain = replace(basis.change("fair", "worst10"), low=0.5, high=4.0)
    assert gain.direction == 1 and not basis.is_beyond_chance(gain)
    sureness = details.how_sure(basis, "fair", gain)
    assert "But repeating FedAvg with other batches alone can change this figure by" in sureness


def test_the_verdict_on_an_audit_claims_no_splits():
    rows = [
        {"client": k, "seed": seed, "algorithm": name, "acc": 0.05 * k + gain + 0.001 * seed * gain}
        for name, gain in (("fedavg", 0.1), ("fair", 0.2))
        for seed in range(3)
        for k in range(12)
    ]
    (document,) = audit(rows).documents()
    (judged,) = contents.of_report(document).verdicts
    assert dict(judged.details)["How sure"].startswith("The 95 % interval excludes zero. It rests on 3 seeds.")
    assert not any("split" in note for note in judged.notes)


def test_whoever_pays_is_named(edited):
    def robbed(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["accuracy"] = [0.2, 0.5, 0.6, 0.7, 0.8, 0.9]
            if label == "vred":
                line["accuracy"] = [0.3 + 0.0001 * seed, 0.4, 0.5, 0.6, 0.7, 0.7 + 0.001 * seed]

    sentence = verdict_on(edited(robbed)).sentence
    assert "10.0 points more than with FedAvg, at a cost of" in sentence
    assert sentence.endswith("8.3 points to the average client and 20.0 points to the best-served 10 %.")


def test_an_equal_is_not_called_worse(edited):
    judged = verdict_on(edited(at({"vred": 0.5, "semi_vred": 0.5})))
    assert "better than FedAvg" in judged.sentence and "best:" not in judged.sentence
    assert dict(judged.details)["How sure"].endswith("It is not shown to be better than semi_vred.")


def test_what_chance_could_do_is_no_gain(edited):
    def noisy(label: str, seed: int) -> float:
        return 0.4 + (0.02 if label == "vred" else 0) + 0.05 * (seed % 2) * (label == "vred")

    judged = verdict_on(edited(steady(noisy)))
    assert judged.sentence == (
        "No algorithm is shown to serve the worst-served clients better than FedAvg: vred comes closest with +4.5 "
        "points for the worst 10 % (1 of 6 clients), which may be chance."
    )


def test_of_equals_the_one_with_the_best_mean_comes_closest(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        mean = {"vred": 0.5, "semi_vred": 0.7}.get(label, 0.6)
        for line in rounds:
            line["accuracy"] = [0.5, *[mean] * 5]

    judged = verdict_on(edited(change))
    assert dict(judged.details)["Its cost"].startswith("The average client: +8.3 points")
    assert "semi_vred" in dict(judged.details)["The closest"]


def test_what_chance_alone_does_has_no_colour(edited):
    page = contents.of_report(Report.of([edited(at({"vred": 0.5, FLOOR: 0.6}))], beside_paper=False))
    directions = {line["entry"]: line["cells"][1].get("direction") for line in page.glances[0].lines}
    assert directions["vred"] == 1 and directions[FLOOR] == 0


def test_harm_is_said(edited):
    judged = verdict_on(edited(at({"vred": 0.3})))
    assert judged.sentence == "No algorithm is shown to serve the worst-served clients better than FedAvg."
    assert dict(judged.details)["Who does harm"] == "vred serves the worst 10 % worse than FedAvg."


@pytest.mark.parametrize("label", ["worse", "fedavg[lr=300.0]"])
def test_entries_are_marked_where_a_text_was_built_from_them(edited, label):
    """Not inside other entries' names, nor in words that are spelt like one."""
    folder = edited(at({"vred": 0.3, "semi_vred": 0.4}))
    (folder / "vred").rename(folder / label)
    texts = dict(verdict_on(folder).describe()["details"])
    assert texts["Who does harm"] == ["", label, " serves the worst 10 % worse than FedAvg."]
    assert len(texts["Its cost"]) == 1  # "0 % do worse"


def test_who_broke_down_is_named(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        at({"vred": 0.3})(label, seed, header, rounds)
        if label == "semi_vred" and seed == 1:
            rounds[-1]["accuracy"] = [None] * 6
        if label == "vred" and seed == 1:
            rounds[-1]["skipped"] = True

    page = contents.of_report(Report.of([edited(change)], beside_paper=False))
    assert dict(page.verdicts[0].details)["Who does harm"] == (
        "vred serves the worst 10 % worse than FedAvg. semi_vred broke down in training and has no figures. vred broke "
        "down in some runs."
    )
    assert page.verdicts[0].sentence.startswith("No algorithm is shown")
    (line,) = [line for line in page.glances[0].lines if line["entry"] == "semi_vred"]
    assert line["cells"][0] == {"text": "broke down"} and len(line["cells"]) == 4


def test_where_all_others_broke_down_that_is_the_verdict(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label.endswith("vred"):
            rounds[-1]["accuracy"] = [None] * 6

    judged = verdict_on(edited(change))
    assert judged.sentence == "vred and semi_vred broke down, so nothing can be compared with FedAvg."


def test_who_broke_down_on_one_split_is_named(splits):
    folders = [splits(1, 0.05), splits(2, 0.06)]
    for run in (folders[1] / "semi_vred").iterdir():
        rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        rounds[-1]["accuracy"] = [None] * 6
        put_rounds(run, rounds)
    report = Report.of(folders, beside_paper=False)
    assert any("Left out, as training broke down: semi_vred." in note for note in report.tables[1].notes)
    (judged,) = contents.of_report(report).verdicts
    assert dict(judged.details)["Who does harm"] == "semi_vred broke down in training and has no figures."


def test_one_seed_is_not_judged(edited):
    def alone(label: str, seed: int, header: dict, rounds: list) -> None:
        header["finished"] = seed % 1000 == 0
        at({"vred": 0.5})(label, seed, header, rounds)

    judged = verdict_on(edited(alone))
    assert judged.sentence.startswith("One seed cannot separate an effect from chance. In these runs, vred serves")
    assert "Not at all" in dict(judged.details)["How sure"]


def test_the_best_with_one_seed_leaves_the_others_judged(edited):
    def mixed(label: str, seed: int, header: dict, rounds: list) -> None:
        header["finished"] = label != "vred" or seed == 0
        at({"vred": 0.6, "semi_vred": 0.3 + 0.001 * seed})(label, seed, header, rounds)

    judged = verdict_on(edited(mixed))
    assert judged.sentence == (
        "No algorithm is shown to serve the worst-served clients better than FedAvg. In these runs, vred serves "
        "the worst 10 % (1 of 6 clients) best: 20.0 points more than FedAvg. But one seed cannot separate an effect "
        "from chance."
    )
    assert dict(judged.details)["Who does harm"] == "semi_vred serves the worst 10 % worse than FedAvg."


def test_who_predicts_padding_alone_is_no_gain(edited):
    def padded(label: str, seed: int, header: dict, rounds: list) -> None:
        at({"vred": 0.5})(label, seed, header, rounds)
        for line in rounds:
            line["unpadded"] = [0.2 - 0.1 * (label == "vred") + 0.001 * seed * (label == "vred")] * 6

    folder = edited(padded)
    judged = verdict_on(folder)
    assert judged.sentence.startswith("No algorithm is shown to serve the worst-served clients better than FedAvg")
    assert "vred serves the worst 10 % worse than FedAvg." in dict(judged.details)["Who does harm"]
    (first,) = contents.of_report(Report.of_findings([read(folder)], beside_paper=False)).glances
    assert first.subtitle.startswith("Test accuracy in % without padding positions")


def test_of_a_loss_less_is_better(edited):
    def losses(label: str, seed: int, header: dict, rounds: list) -> None:
        header["metric"] = {"name": "loss", "higher_is_better": False}
        for line in rounds:
            line["test_losses"] = (np.arange(1, 7) * (0.5 + 1e-6 * seed if label == "vred" else 1.0)).tolist()

    sentence = verdict_on(edited(losses)).sentence
    assert "the worst 10 % (1 of 6 clients) reach a loss of 3.000, 3.000 less than with FedAvg" in sentence


def test_the_data_of_charts_are_columns():
    rows = [{"client": "a\x1b", "round": [1, 2], "mean": [0.5, None]}, {"client": "b", "own": float("nan")}]
    page = contents.Page("", [], [], [], [], charts=[Chart("one", "", "", {}, rows)])
    _, packed = page.describe()
    (columns,) = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert columns == {
        "client": [r"a\x1b", "b"],
        "round": [[1, 2], None],
        "mean": [[0.5, None], None],
        "own": [None] * 2,
    }


@pytest.fixture(scope="module")
def report(small):
    return Report.of_findings([read(small)], beside_paper=False)


def test_the_page_allows_its_own_scripts_alone(report):
    text = write.html(contents.of_report(report))
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    scripts = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert json.loads(write.data(contents.of_report(report), "8")).keys() == {"edition", "content", "columns"}
    assert "connect-src 'self'" in write.html(contents.of_report(report), live="data", edition="7")


def test_one_run_has_nothing_that_compares(small):
    """No columns against itself, no plot of one dot, no line beside the run's own."""
    report = Report.of([small / "vred" / "seed-0"], beside_paper=False)
    content, _ = contents.of_report(report).describe()
    (glance,) = content["glances"]
    assert [column["title"] for column in glance["columns"]] == ["Algorithm", "Worst 10 %", "Mean"]
    assert [len(line["cells"]) for line in glance["lines"]] == [2] and glance["notes"] == []
    says = {chart["name"]: chart["says"] for chart in content["charts"]}
    assert "trade-off" not in says and says["learning-curves"] == ""
    assert says["clients"] == "Clients from the worst served to the best."
    for table in [*report.tables, *report.in_brief().tables]:
        assert not {"improved", "degraded"} & {column.key for column in table.columns}
        assert not any(cell.best for line in table.lines for cell in line.cells)
        assert not any("best in bold" in note for note in table.notes)
    compared, _ = contents.of_report(Report.of([small], beside_paper=False)).describe()
    assert len(compared["glances"][0]["columns"]) == 5 and compared["charts"][0]["name"] == "trade-off"


def test_names_cannot_end_a_script(edited, tmp_path):
    hostile = ["<script>alert(1)</script>", "</script>", "<!--", "\u2028", "a\u202eb", "&lt;"]

    def named(label: str, seed: int, header: dict, rounds: list) -> None:
        header["clients"]["names"] = hostile

    folder = edited(named).rename(tmp_path / "<script>alert(2)<script>")
    text = write.html(contents.of_report(Report.of_findings([read(folder)], beside_paper=False)))
    assert "<script>alert" not in text and "\u202e" not in text
    assert text.count("</script>") == 4 and "<!--" not in text
    content = json.loads(re.search('id="content">(.*?)</script>', text, re.DOTALL)[1])
    assert content["clients"][:3] == hostile[:3] and content["clients"][4] == "a\\u202eb"


def test_a_page_says_how_to_make_it_again(report, small):
    content, _ = contents.of_report(report).describe()
    text = write.html(contents.of_report(report))
    assert "<noscript>This page needs JavaScript. `evenfed report FOLDER` writes" in text
    assert content["commands"][0].startswith("evenfed compare --algorithms fedavg,vred,semi_vred")
    assert content["commands"][-1] == f"evenfed report {small}"
    assert {"Versions", "Commit", "[data]", "[train]"} <= {term for term, _ in content["provenance"]}
    in_memory, _ = contents.of_report(report, in_memory=True).describe()
    assert in_memory["commands"] == [] and str(small) not in json.dumps(in_memory["provenance"])


def test_a_page_shows_the_commands_of_all_its_runs(edited):
    def later(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["command"] = "/bin/evenfed compare --algorithms fedavg,vred --out 'out dir'"
            header["started"] = "2099-01-01T00:00:00+00:00"

    folder = edited(later)
    content, _ = contents.of_report(Report.of_findings([read(folder)], beside_paper=False)).describe()
    first, second, report = content["commands"]
    assert first.startswith("evenfed compare --algorithms fedavg,vred,semi_vred")
    assert second == "evenfed compare --algorithms fedavg,vred --out 'out dir'" and report.startswith("evenfed report")


def test_without_the_package_that_draws_there_are_tables_and_a_sentence(small, evenfed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    write.runtime.cache_clear()
    try:
        done = evenfed("report", small, "--out", tmp_path / "tables")
    finally:
        write.runtime.cache_clear()
    assert done.returncode == 0
    assert "pip install 'evenfed[report]'" in done.stdout and "Page:" not in done.stdout
    assert not (tmp_path / "tables" / "report.html").exists() and (tmp_path / "tables" / "report.md").exists()


def test_the_runtime_is_bundled_once(monkeypatch, tmp_path):
    vl_convert = pytest.importorskip("vl_convert")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda snippet: made.append(snippet) or "a = '</script>'")
    assert write.runtime.__wrapped__() == write.runtime.__wrapped__() == r"a = '<\/script>'"
    assert len(made) == 1


def test_several_federations_share_a_verdict_and_other_set_ups_have_one_each(splits):
    folders = [splits(1, 0.05), splits(2, 0.06), splits(3, 0.07)]
    together = contents.of_report(Report.of(folders, beside_paper=False))
    (judged,) = together.verdicts
    assert judged.sentence.startswith("vred serves the worst-served clients best: the worst 10 %")
    assert "on each of 3 splits" in dict(judged.details)["How sure"]
    assert together.title.endswith(": 3 splits of the data")
    apart = contents.of_report(Report.of([folders[0], splits(4, 0.0, hidden=[8])], beside_paper=False))
    assert len(apart.verdicts) == len(apart.glances) == 2
    assert apart.verdicts[0].sentence.startswith("data.seed=1, model.hidden=")


def test_a_result_and_a_comparison_write_their_pages(small, tmp_path):
    import evenfed

    comparison = evenfed.load(small)
    path = comparison.page(tmp_path / "new" / "all.html")
    assert path.stat().st_size < 2_000_000 and "vred" in path.read_text()
    alone = comparison["vred"][0].page(tmp_path / "one.html")
    assert "the worst 10 % (1 of 6 clients) reach" in alone.read_text()
    assert write_page(Report.of_findings([read(small)], False), tmp_path / "w.html").exists()
    assert FLOOR in path.read_text()
