"""Wrong tables end in a sentence: what was given, what is allowed, what to do."""

import json
from types import SimpleNamespace

import pytest

import evenfed as package
from evenfed import InputError

GOOD = [{"client": "a", "accuracy": 0.5}, {"client": "b", "accuracy": 0.7}]


def rows(**changes):
    return [GOOD[0], {**GOOD[1], **changes}]


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        ([{"name": "a", "accuracy": 0.5}], {}, "no column of clients.*name, accuracy.*--client COLUMN"),
        ([{"client": "a", "city": "Bonn"}], {}, "which column is the metric.*--metric COLUMN"),
        ([{"client": "a", "x": 1, "y": 2, "algorithm": "b"}], {}, "several columns of numbers: x, y"),
        (rows(accuracy=70), {}, r"'accuracy' mixes units: 0.5 \(client a\) and 70 \(client b\).*--unit percent"),
        (rows(accuracy=-0.1), {}, "accuracy lies between 0 and 1"),
        (rows(accuracy=700), {"unit": "percent"}, "is 700; an accuracy lies between"),
        (rows(client="a"), {}, r"client a appears more than once \(0.5 and 0.7; 1 extra row\)"),
        (rows(accuracy=float("nan")), {}, "client b has no figure.*--missing drop"),
        (rows(accuracy=""), {}, "client b has no figure"),
        (rows(accuracy=float("inf")), {}, "figure of client b is infinite"),
        ([{"client": k, "loss": 1e308} for k in "ab"], {}, "beyond 1e\\+100"),
        (rows(accuracy="high"), {"metric": "accuracy"}, "'accuracy' does not hold numbers"),
        ([{**row, "size": -3} for row in GOOD], {}, "the size is '-3'; give the number"),
        ([{**row, "round": 1.5} for row in GOOD], {}, "round is '1.5'; give whole numbers"),
        (rows(client=None), {}, "the client is empty"),
        (
            [{**row, "algorithm": name} for row, name in zip(GOOD, ["x", None], strict=True)],
            {},
            "the algorithm is empty",
        ),
        (GOOD, {"baseline": "fedprox"}, "unknown baseline 'fedprox'"),
        (GOOD, {"metric": "acuracy"}, "unknown column 'acuracy'; did you mean 'accuracy'"),
        (GOOD, {"client": "cleint"}, r"unknown column \(--client\) 'cleint'; did you mean 'client'"),
        (GOOD, {"unit": "per cent"}, "unknown unit"),
        (GOOD, {"missing": "ignore"}, "unknown missing"),
        (GOOD, {"last_rounds": 0}, "last_rounds=0"),
        (GOOD, {"last_rounds": 10}, "no column of rounds to average 10 of"),
        ([], {}, "give a pandas table"),
        (SimpleNamespace(metrics_distributed=None), {}, r"audit\(SimpleNamespace\): give a pandas table"),
        (3, {}, r"audit\(int\)"),
        ([1, 2], {}, "a list of things other than objects"),
        ({"client": ["a"], "accuracy": [1, 2]}, {}, "columns of different lengths"),
        ([{"client": 1, "group": g, "round": k, "acc": 1} for k, g in enumerate("xy")], {}, "belongs to one group"),
    ],
)
def test_what_is_wrong_is_said(table, options, sentence):
    with pytest.raises(InputError, match=sentence):
        package.audit(table, **options)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.csv", b"", "is empty"),
        ("head.csv", b"client,accuracy\n", "has no rows"),
        ("short.csv", b"client,accuracy\na,0.5\nb\n", "row 2: 1 cell for 2 columns"),
        ("quote.csv", b'client,accuracy\n"a,0.5\nb,0.7\n', "broken CSV"),
        ("latin.csv", "client,accuracy\nMünchen,0.5\n".encode("latin-1"), "is not UTF-8 text"),
        ("twice.csv", b"client,accuracy,accuracy\na,1,1\n", "two columns are named 'accuracy'"),
        ("cut.json", b'[{"client": "a", ', "broken JSON"),
        ("deep.json", b"[" * 100_000, "(nested too deeply|broken JSON)"),
        ("number.json", b"7", "is a int"),
        ("cut.jsonl", b'{"client": "a", "accuracy": 1}\n{"client": ', "line 2: broken JSON"),
        ("no.parquet", b"PAR1 this is none PAR1", "not a parquet file"),
        ("results.xlsx", b"PK", "'.xlsx' are not read"),
        ("results.pkl", b"\x80\x04", "'.pkl' are not read"),
        ("mlflow.db", b"not a database, but long enough to be looked at " * 9, "not an MLflow database"),
        ("x/events.out.tfevents.1", b"broken", "no scalar belongs to a client"),
        ("notes.txt", b"no,table\n1,2\n", "'.txt' are not read"),
        ("clients.csv.gz", b"\x1f\x8b", "is compressed; unpack it first"),
        ("odd.json", b'{"metrics_distributed": {"accuracy": 5}}', "not as Flower writes it"),
        ("odd2.json", b'{"evaluate_metrics_clientapp": {"x": {"acc": [1], "cid": [0]}}}', "not as Flower writes it"),
        ("missing.csv", None, "there is no file or folder"),
    ],
)
def test_broken_files_end_in_a_sentence(evenfed, tmp_path, name, content, sentence):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    done = evenfed("audit", path if "/" not in name else path.parent)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(done.stderr)


def test_a_folder_without_results_and_a_folder_of_averages(evenfed, tmp_path):
    (tmp_path / "notes").mkdir()
    assert "holds no results to read" in evenfed("audit", "notes").stderr
    averages = {"evaluate_metrics_clientapp": {"1": {"accuracy": 0.5}}}
    (tmp_path / "flower.json").write_text(json.dumps(averages))
    done = evenfed("audit", "flower.json")
    assert done.returncode == 2 and "averages over clients" in done.stderr


def test_unit_and_missing_are_the_ways_out():
    low = [{"client": k, "accuracy": value} for k, value in enumerate([0.5, 40.0, 80.0])]
    assert package.audit(low, unit="percent").rows[0].last["worst"][0] == pytest.approx(0.005)
    kept = package.audit(rows(accuracy=None), missing="drop")
    assert kept.rows[0].last["mean"][0] == 0.5
    assert any("left out 1 row without a figure" in fact for fact in kept.facts)


def test_names_are_text_everywhere(evenfed, tmp_path):
    evil = "<script>alert(1)</script>\x1b[31m"
    table = [{"client": f"=cmd{k}", "algorithm": name, "acc": 0.5} for k in range(3) for name in ("fedavg", evil)]
    (tmp_path / "evil.json").write_text(json.dumps(table))
    done = evenfed("audit", "evil.json", "--full", "--no-figures")
    assert done.returncode == 0 and "\x1b[31m" not in done.stdout
    page = (tmp_path / "evil-audit/report.md").read_text()
    assert "\x1b" not in page and "\\<script>" in page


WIDE = {"client": ["A", "B", "C"], "fedavg_acc": [0.9, 0.8, 0.5], "qffl_acc": [0.8, 0.8, 0.7]}


def test_a_metric_that_contradicts_the_columns_is_refused():
    for metric in ("loss", "los", "foo"):
        with pytest.raises(InputError, match=f"unknown metric '{metric}'; the columns hold 'acc'.*mean 'acc'"):
            package.audit(WIDE, metric=metric)
    for metric in ("acc", "accuracy", "test_acc"):
        assert package.audit(WIDE, metric=metric).first.metric.higher_is_better


@pytest.mark.parametrize(
    ("table", "metric", "is_guess"),
    [
        (WIDE, None, False),
        ({"client": ["A", "B"], "x": [1, 2], "y": [2, 1]}, "latency", True),
        ({"client": ["A", "B"], "x": [1, 2], "y": [2, 1]}, "loss", False),
        ({"x": {"A": 0.5, "B": 0.7}}, None, True),
        ({"A": 0.5, "B": 0.7}, None, True),
        ({"client": ["A", "B"], "latency": [1, 2], "speed": [2, 1]}, "latency", True),
    ],
)
def test_a_guessed_direction_is_said(table, metric, is_guess):
    assert any("(a guess" in fact for fact in package.audit(table, metric=metric).facts) == is_guess
    decided = package.audit(table, metric=metric, lower_is_better=False)
    assert not any("(a guess" in fact for fact in decided.facts)


def test_an_algorithm_without_its_worst_client_is_refused_or_compared_on_the_others():
    table = [
        {"client": name, "algorithm": "fedavg", "acc": acc} for name, acc in zip("abc", (0.9, 0.8, 0.1), strict=True)
    ]
    table += [{"client": name, "algorithm": "fair", "acc": acc} for name, acc in zip("ab", (0.8, 0.8), strict=True)]
    with pytest.raises(InputError, match=r"fair has no figure for 1 of 3 clients, such as c.*--missing drop"):
        package.audit(table)
    kept = package.audit(table, missing="drop")
    assert [row.late["mean"][0] for row in kept.rows] == pytest.approx([0.85, 0.8])
    assert kept["fedavg"].late["worst"][0] == 0.8
    assert any("left out of all algorithms" in fact for fact in kept.facts)
