"""Tables of any system: long and wide, in every format, to the figures that the metrics' own functions give."""

import csv
import json
import tracemalloc

import numpy as np
import pandas
import pytest

import evenfed as package
from evenfed import Fairness, InputError, Suppression
from evenfed.auditing import assemble, gather
from evenfed.fairness import Inequality

CLIENTS = 12
FEDAVG = np.linspace(0.2, 0.9, CLIENTS)
FAIR = FEDAVG + 0.1 * (0.6 - FEDAVG)


def long_rows(seeds=3, rounds=(1, 2), **names) -> list[dict]:
    """Two algorithms whose figures grow with the seed; the last round's are those above."""
    rows = []
    for algorithm, figures in (("fedavg", FEDAVG), ("fair", FAIR)):
        for seed in range(seeds):
            for number in rounds:
                late = 1 if number == rounds[-1] else 0.5
                for k, figure in enumerate(figures):
                    row = {"client": f"c{k}", "accuracy": late * (figure + 0.01 * seed * (1 + k % 2))}
                    rows.append({**row, "algorithm": algorithm, "seed": seed, "round": number})
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_figures_are_those_of_the_metrics_own_functions():
    results = package.audit(long_rows(seeds=1))
    fair = results["fair"]
    for name in ("mean", "std", "worst", "worst10", "worst20", "best10"):
        assert fair.last[name][0] == pytest.approx(getattr(Fairness.of(FAIR), name))
    effect = Suppression.of(FAIR, FEDAVG)
    for name in ("improved", "degraded", "suffering_gain", "well_gain", "mean_gain"):
        assert fair.last[name][0] == pytest.approx(getattr(effect, name))
    assert results.first.baseline.label == "fedavg"


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet", "split.json", "columns.json"])
def test_every_format_gives_the_same(tmp_path, ending):
    rows = long_rows()
    frame = pandas.DataFrame(rows)
    path = tmp_path / f"clients.{ending}"
    writers = {
        "csv": lambda: write_csv(path, rows),
        "tsv": lambda: frame.to_csv(path, sep="\t"),  # with pandas' index, a column without a name
        "json": lambda: path.write_text(json.dumps(rows)),
        "jsonl": lambda: frame.to_json(path, orient="records", lines=True),
        "parquet": lambda: frame.to_parquet(path),
        "split.json": lambda: frame.to_json(path, orient="split"),
        "columns.json": lambda: frame.to_json(path),
    }
    writers[ending]()
    expected = package.audit(frame)
    results = package.audit(path)
    for label in ("fedavg", "fair"):
        assert results[label].late["worst10"][0] == pytest.approx(expected[label].late["worst10"][0])
    assert results.difference("fair").points == pytest.approx(expected.difference("fair").points)


def test_the_interval_is_students_over_seeds():
    rows = long_rows()
    rng = np.random.default_rng(0)
    for row in rows:
        row["accuracy"] *= 1 + 0.01 * rng.normal()
    results = package.audit(rows)
    frame = pandas.DataFrame(rows).query("round == 2")
    worst = frame.groupby(["algorithm", "seed"]).accuracy.apply(lambda figures: Fairness.of(figures).worst10)
    gaps = 100 * (worst["fair"] - worst["fedavg"])
    reach = 4.302653 * gaps.std() / 3**0.5
    difference = results.difference("fair", "worst10")
    assert [difference.low, difference.high] == pytest.approx([gaps.mean() - reach, gaps.mean() + reach])


@pytest.mark.parametrize(
    "names",
    [
        {"client": "cid", "accuracy": "test_acc", "algorithm": "strategy", "round": "server_round"},
        {"client": "partition-id", "accuracy": "Accuracy", "algorithm": "Method", "seed": "trial"},
        {"client": "Client ID", "accuracy": "eval/acc", "algorithm": "algo", "round": "step", "seed": "run"},
        {"client": "node_id", "accuracy": "top1", "algorithm": "model", "round": "epoch"},
    ],
)
def test_columns_are_known_by_the_names_people_give_them(names):
    results = package.audit(long_rows(**names))
    assert results["fair"].last["mean"][0] == pytest.approx(FAIR.mean() + 0.015)
    for role, name in names.items():
        what = "metric" if role == "accuracy" else role
        assert f"{what} from '{name}'" in results.facts[0]


def test_wide_tables_have_a_column_per_algorithm():
    wide = {"client": [f"c{k}" for k in range(CLIENTS)], "fedavg_acc": FEDAVG.tolist(), "fair_acc": FAIR.tolist()}
    results = package.audit(wide)
    assert results.first.metric.name == "accuracy" and results.first.baseline.label == "fedavg"
    assert results["fair"].last["worst10"][0] == pytest.approx(Fairness.of(FAIR).worst10)
    bare = {"client": wide["client"], "fedavg": wide["fedavg_acc"], "fair": wide["fair_acc"]}
    assert package.audit(bare, metric="accuracy")["fair"].last == results["fair"].last
    assert "a guess" in "".join(package.audit(bare).facts)


def test_a_column_per_client_is_read_too():
    rows = [{"iteration": k, **{f"client {c} | accuracy": 0.1 * k + 0.01 * c for c in range(5)}} for k in range(3)]
    results = package.audit(rows)
    assert results.first.header.clients["names"] == [f"client {c}" for c in range(5)]
    assert results.rows[0].last["mean"][0] == pytest.approx(0.22)


@pytest.mark.parametrize(
    "content",
    [
        {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.7}},
        {"client": ["a", "b"], "accuracy": [0.5, 0.7]},
        {"site-1": {"results": {"accuracy": 0.5}}, "site-2": {"results": {"accuracy": 0.7}}},  # NVFlare's cross-site
        {"results": {"site-1": {"accuracy": 0.5}, "site-2": {"accuracy": 0.7}}},
        {"fedavg": [{"client": "a", "accuracy": 0.5}, {"client": "b", "accuracy": 0.7}]},
    ],
)
def test_shapes_of_json(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(content))
    (row,) = package.audit(path).rows
    assert (row.last["mean"][0], row.last["worst"][0]) == pytest.approx((0.6, 0.5))


def test_spreadsheets_with_decimal_commas_and_tables_of_other_libraries(tmp_path):
    import pyarrow

    (tmp_path / "g.csv").write_text("Client;Accuracy\na;0,5\nb;0,7\n")
    columns = {"client": ["a", "b"], "accuracy": [0.5, 0.7]}
    nullable = pandas.DataFrame(columns).astype({"accuracy": "Float64"})
    for source in (tmp_path / "g.csv", pyarrow.table(columns), nullable):
        assert package.audit(source).rows[0].last["mean"][0] == pytest.approx(0.6)
    nullable.loc[1, "accuracy"] = pandas.NA
    with pytest.raises(InputError, match="client b has no figure"):
        package.audit(nullable)


def test_algorithms_on_other_clients_are_left_out():
    rows = [{"client": f"{name}{k}", "acc": 0.5, "method": name} for name in ("x", "y") for k in range(3)]
    results = package.audit(rows)
    assert [row.label for row in results.rows] == ["x"]
    assert any("y: left out, no client in common with x" in fact for fact in results.facts)


def test_lower_is_better_turns_the_worst_round():
    losses = [{"client": k, "test_loss": 1 - figure} for k, figure in enumerate(FEDAVG)]
    assert package.audit(losses).rows[0].last["worst"][0] == pytest.approx(0.8)
    unknown = [{"client": k, "latency": 1 - figure} for k, figure in enumerate(FEDAVG)]
    assert package.audit(unknown).rows[0].last["worst"][0] == pytest.approx(0.1)
    assert package.audit(unknown, lower_is_better=True).rows[0].last["worst"][0] == pytest.approx(0.8)


def test_percent_is_seen_and_said():
    rows = [{"client": k, "acc": 100 * figure} for k, figure in enumerate(FEDAVG)]
    results = package.audit(rows)
    assert results.rows[0].last["mean"][0] == pytest.approx(FEDAVG.mean())
    assert "Accuracies are in percent." in results.facts


@pytest.mark.parametrize(
    "table",
    [
        {"client": ["a", "b"], "acc": ["0.5%", "0.9 %"]},
        {"client": ["a", "b", "c"], "acc": ["0.5%", "0.9 %", None]},
        {"client": ["a", "b"], "accuracy_percent": [0.5, 0.9]},
        {"client": ["a", "b"], "Accuracy (%)": [0.5, 0.9]},
        {"client": ["a", "b"], "fedavg_acc_pct": [0.5, 0.9], "fair_acc_pct": [0.7, 0.8]},
    ],
)
def test_signs_and_names_that_say_percent(table):
    results = package.audit(table, missing="drop")
    assert results.rows[0].last["worst"][0] == pytest.approx(0.005)
    assert "Accuracies are in percent." in results.facts


def test_accuracies_above_one_by_rounding_are_one():
    results = package.audit({"client": ["a", "b"], "acc": [1.0000000002, 0.5]})
    assert results.rows[0].last["best10"][0] == 1.0 and results.rows[0].last["worst"][0] == 0.5


def test_wide_tables_of_two_metrics():
    table = {
        "client": ["a", "b"],
        "fedavg_loss": [0.2, 0.6],
        "fedavg_acc": [0.9, 0.5],
        "qffl_loss": [0.3, 0.5],
        "qffl_acc": [0.8, 0.6],
    }
    results = package.audit(table)
    assert dict.fromkeys(results) == {"fedavg": None, "qffl": None}
    assert results["qffl"].last["mean"][0] == pytest.approx(0.7)
    assert package.audit(table, metric="loss")["qffl"].last["worst"][0] == pytest.approx(0.5)
    assert list(package.audit(table, metric=["acc", "loss"]).findings) == ["acc", "loss"]
    with pytest.raises(InputError, match="the columns hold 'acc' or 'loss'"):
        package.audit(table, metric="auc")
    scopes = {"client": ["a", "b"]}
    for name, figures in (("a_test_acc", [0.9, 0.9]), ("b_test_acc", [0.8, 0.8]), ("a_val_acc", [0.5, 0.5])):
        scopes[name] = figures
    assert list(package.audit(scopes)) == ["a", "b"]
    assert package.audit(scopes, metric="val_acc")["a"].last["mean"][0] == 0.5


def test_an_audit_is_a_mapping():
    results = package.audit(long_rows())
    assert list(results) == list(results.keys()) == ["fedavg", "fair"] and len(results) == 2
    assert "fair" in results and "fare" not in results and 0 not in results
    assert dict(results)["fair"] == results["fair"] and results.get("fare") is None


def test_several_metrics_each_have_a_report(evenfed, tmp_path):
    rows = [{"client": k, "acc": figure, "loss": 1 - figure, "auc": 0.9} for k, figure in enumerate(FEDAVG)]
    write_csv(tmp_path / "m.csv", rows)
    done = evenfed("audit", "m.csv", "--metric", "acc", "--metric", "loss", "--no-figures")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "m-audit").iterdir()} == {"acc", "loss"}
    assert "Not read: auc" in done.stdout
    assert "Less is better" in (tmp_path / "m-audit/loss/report.md").read_text()
    printed = {}
    for form in ("json", "csv"):
        options = ["--metric", "acc", "--metric", "loss", "--no-figures", "--format", form]
        printed[form] = evenfed("audit", "m.csv", *options).stdout
    assert list(json.loads(printed["json"])["metrics"]) == ["acc", "loss"]
    lines = list(csv.DictReader(printed["csv"].splitlines()))
    assert {line["metric"] for line in lines} == {"acc", "loss"} and "table" not in {line["table"] for line in lines}


def test_groups_and_sizes_are_shown():
    rows = long_rows(seeds=1, rounds=(1,))
    for row in rows:
        row["region"] = "north" if int(row["client"][1:]) < 4 else "south"
        row["num_examples"] = 10 if row["region"] == "north" else 30
    (document,) = package.audit(rows).documents()
    tables = {table.name: table for table in document.tables}
    north, south, apart, *_ = tables["groups-last"].lines
    assert [north.cells[0].value, south.cells[0].value] == [4, 8]
    assert apart.cells[1].value == pytest.approx(100 * (FEDAVG[4:].mean() - FEDAVG[:4].mean()))
    by_size = tables["inequality-last"].lines[0].cells[-1].value
    assert by_size == pytest.approx(100 * np.average(FEDAVG, weights=[10] * 4 + [30] * 8))


def test_clients_evaluated_in_turns_keep_their_latest_figure():
    rows = [
        {"client": k, "round": number, "acc": 0.1 * number} for number in (1, 2, 3) for k in range(4) if k != number
    ]
    results = package.audit(rows)
    figures = results.first.baseline.histories[0].last_figures
    names = results.first.header.clients["names"]
    assert dict(zip(names, figures, strict=True)) == pytest.approx({"0": 0.3, "1": 0.3, "2": 0.3, "3": 0.2})
    assert any("keep their latest" in fact for fact in results.facts)


def test_runs_with_names_are_numbered_and_those_without_common_seeds_are_left_out():
    named = [{**row, "seed": f"{row['algorithm']}-{row['seed']}"} for row in long_rows()]
    assert package.audit(named).difference("fair").seeds == 3
    apart = [{**row, "seed": row["seed"] + 10 * (row["algorithm"] == "fair")} for row in long_rows()]
    results = package.audit(apart)
    assert len(results.rows) == 1 and any("no seed in common" in fact for fact in results.facts)


def test_algorithms_are_compared_over_the_seeds_that_all_have():
    rows = [row for row in long_rows() if (row["algorithm"], row["seed"]) != ("fair", 2)]
    results = package.audit(rows)
    expected = package.audit(long_rows(seeds=2))
    assert results["fedavg"].last == expected["fedavg"].last and results["fair"].last == expected["fair"].last
    assert "Compared over the seeds that all algorithms have: 2 (fedavg has 3)." in results.facts


def grows(algorithm: str, rounds) -> list[dict]:
    """Two clients whose accuracy in a round is its number."""
    return [
        {"client": client, "algorithm": algorithm, "step": number, "acc": number / 1000}
        for number in rounds
        for client in "ab"
    ]


@pytest.mark.parametrize(
    ("fedavg", "fair", "means", "fact"),
    [
        (range(10, 101, 10), range(10, 101, 10), (8, 8), ""),
        (range(5, 21, 5), range(1, 21), (1.25, 1.25), "in which all were evaluated (5, 10, 15, 20)."),
        (range(1, 11), range(1, 21), (0.8, 1.8), "fedavg 5 in rounds 6 to 10, fair 5 in rounds 16 to 20."),
        ((10, 20), (10, 20), (1.5, 1.5), "There are only 2 evaluated rounds to average, not 5."),
    ],
)
@pytest.mark.parametrize("most_rounds", [10_000, 2])  # more are kept by their order
def test_last_rounds_are_evaluated_ones(monkeypatch, fedavg, fair, means, fact, most_rounds):
    monkeypatch.setattr(assemble, "MOST_ROUNDS", most_rounds)
    rows = grows("fedavg", fedavg) + grows("fair", fair)
    results = package.audit(rows, last_rounds=5)
    assert [100 * results[label].late["mean"][0] for label in ("fedavg", "fair")] == pytest.approx(means)
    assert any(fact in each for each in results.facts)


def test_own_runs_give_the_numbers_of_report(own_runs, evenfed):
    reported = json.loads(evenfed("report", own_runs, "--no-figures", "--format", "json").stdout)
    audited = json.loads(evenfed("audit", own_runs, "--no-figures", "--format", "json").stdout)
    assert audited["tables"] == reported["tables"]
    frame = package.load(own_runs).to_pandas()
    from_frame = package.audit(frame, metric="accuracy", last_rounds=2, missing="drop")
    (document,) = from_frame.documents()
    ours = {table["name"]: table for table in reported["tables"]}
    for name in (
        "detailed-late",
        "detailed-last",
        "suppression-late",
        "paired-late",
        "controls-late",
        "inequality-late",
    ):
        theirs = next(table for table in document.tables if table.name == name)
        for line, own in zip(theirs.lines, ours[name]["lines"], strict=True):
            assert line.entry == own["entry"]
            for column, cell in zip(theirs.columns, line.cells, strict=True):
                figure = own["figures"][column.key]
                if name != "inequality-late" or column.key != "weighted_mean":
                    assert cell.value == pytest.approx(figure.get("value"), abs=1e-9), (name, line.entry, column.key)
                assert cell.low == pytest.approx(figure.get("low"), abs=1e-9)


def test_a_folder_above_own_runs(own_runs, tmp_path):
    (tmp_path / "runs").symlink_to(own_runs)
    assert package.audit(tmp_path)["vred"] == package.audit(own_runs)["vred"]
    study = tmp_path / "more" / "study"
    study.mkdir(parents=True)
    (study / "federation-3").symlink_to(own_runs)
    with pytest.raises(InputError, match=r"holds 1 federation; audit one of them, e\.g\. .*federation-3"):
        package.audit(study)


def test_another_baseline(own_runs):
    results = package.audit(own_runs, baseline="vred")
    assert results.first.baseline.label == "vred" and "fedavg" in results.first.rows
    with pytest.raises(InputError, match="did you mean 'vred'"):
        package.audit(own_runs, baseline="vrde")


@pytest.fixture(scope="module")
def own_runs(tmp_path_factory):
    """A comparison of evenfed's own, on disk."""
    import torch

    generator = torch.Generator().manual_seed(0)
    clients = []
    for k in range(5):
        x = torch.randn(30, 4, generator=generator)
        y = (x[:, 0] + 0.3 * k * x[:, 1] > 0).long()
        clients.append(package.Client((x[:15], y[:15]), test=(x[15:], y[15:])))
    out = tmp_path_factory.mktemp("own") / "runs"
    package.compare(
        lambda: torch.nn.Linear(4, 2),
        clients,
        ["fedavg", "vred"],
        seeds=2,
        rounds=4,
        lr=0.5,
        last_rounds=2,
        out=out,
    )
    return out


def test_big_tables_are_read_in_bounded_memory(tmp_path, monkeypatch):
    path = tmp_path / "big.csv"
    with path.open("w") as file:
        file.write("client,round,accuracy,comment\n")
        for number in range(1, 21):
            file.writelines(f"c{k},{number},0.5,{'x' * 80}\n" for k in range(1000))
    size = path.stat().st_size
    tracemalloc.start()
    try:
        package.audit(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * size  # columns that are not read, and text, are not kept
    monkeypatch.setattr(gather, "MOST_ROWS", 1000)
    with pytest.raises(InputError, match="more than 1,000 rows"):
        package.audit(path)


def test_inequality_of_equal_and_of_extreme_figures():
    equal = Inequality.of([0.7] * 10)
    assert (equal.gini, equal.jain, equal.theil, equal.entropy, equal.cv, equal.angle) == (0, 1, 0, 1, 0, 0)
    one = Inequality.of([0.0] * 9 + [0.8])
    assert one.gini == pytest.approx(0.9) and one.jain == pytest.approx(0.1)
    assert one.theil == pytest.approx(np.log(10)) and one.entropy == pytest.approx(0)
    figures = np.random.default_rng(0).random(30)
    measures = Inequality.of(figures)
    differences = np.abs(figures[:, None] - figures).mean() / (2 * figures.mean())
    relative = figures / figures.mean()
    assert measures.gini == pytest.approx(differences)
    assert measures.theil == pytest.approx(np.mean(relative * np.log(relative)))
    assert measures.jain == pytest.approx(figures.sum() ** 2 / (30 * (figures**2).sum()))
    assert measures.cv == pytest.approx(figures.std() / figures.mean())
    assert measures.angle == pytest.approx(np.degrees(np.arccos(measures.jain**0.5)))
    assert Inequality.of(100 * figures).gini == pytest.approx(measures.gini)
    negative = Inequality.of([-1.0, 1.0])
    assert np.isnan(negative.gini) and negative.gap_max_min == 2


def over_clients(clients: int, gain) -> dict[str, object]:
    """The lines of the table over clients, by metric; nothing if there is no such table."""
    base = 0.3 + 0.6 * np.random.default_rng(1).random(clients)
    results = package.audit({"client": list(range(clients)), "fedavg": base, "other": base + gain(base)}, metric="acc")
    (document,) = results.documents()
    tables = {table.name: table for table in document.tables}
    lines = tables["over-clients-last"].lines if "over-clients-last" in tables else []
    return {line.part: line.cells[0] for line in lines}


def test_one_seed_has_intervals_over_clients():
    shifted = over_clients(60, lambda base: 0.05)
    for metric, points in {"mean": 5, "worst10": 5, "std": 0}.items():
        cell = shifted[metric]
        assert [cell.value, cell.low, cell.high] == pytest.approx([points] * 3, abs=1e-9)
    evened = over_clients(60, lambda base: 0.2 * (0.6 - base))
    assert evened["mean"].low < evened["mean"].value < evened["mean"].high
    assert evened["worst10"].low > 0 and evened["std"].high < 0
    assert set(over_clients(30, lambda base: 0.01)) == {"mean", "std"}  # too few for the worst 10 %
    assert over_clients(10, lambda base: 0.01) == {}
