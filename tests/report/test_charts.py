"""Charts: specifications that compile, rows that equal the findings, labels that keep off each other."""

import dataclasses
import itertools
import json
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest

from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.reading import read
from evenfed.comparison.tuning.search import Candidate
from evenfed.metrics import ACCURACY, LOSS
from evenfed.report.charts import clients, differences, elements, labels, trade_off, tuning
from evenfed.report.charts import report as charts
from evenfed.report.charts.axes import Axis, Extent
from evenfed.report.charts.plot import Plot
from evenfed.report.charts.saving import save
from evenfed.report.charts.theme import DARK, is_own, looks
from reports import FLOOR, front, steady

AREA = labels.Box(0, 0, 640, 420)


@pytest.fixture(scope="module")
def findings(small):
    return read(small)


@pytest.fixture(scope="module")
def by_name(findings):
    return {chart.name: chart for chart in charts.of(findings)}


def test_every_specification_compiles_and_draws_the_rows_it_is_given(by_name):
    import vl_convert

    for chart in by_name.values():
        assert chart.spec["data"] == {"name": "rows"} and chart.spec["params"][0] == {"name": "picked", "value": None}
        assert "title" not in chart.spec and "config" not in chart.spec
        json.dumps(chart.rows, allow_nan=False)
        compiled = vl_convert.vegalite_to_vega({**chart.still(), "config": DARK.config})
        assert any(signal["name"] == "picked" for signal in compiled["signals"])
        assert compiled["data"][0]["name"] == "rows" and compiled["data"][0]["values"] == list(chart.rows)


def test_panels_fill_their_rows_or_have_axes_of_their_own():
    for number in range(1, 20):
        drawing = elements.panels([f"a{k}" for k in range(number)], [], [])
        is_full = number % drawing["columns"] == 0
        assert is_full != ("resolve" in drawing) and drawing["columns"] <= 4
    names = elements.panels([FLOOR, "vred"], [], [])["facet"]["header"]["labelExpr"]
    assert "fedavg, other seeds" in names and FLOOR in names


def test_an_interval_beyond_the_axis_is_marked_with_its_end(edited):
    def wide(label: str, seed: int) -> float:
        return 0.4 + {"vred": 0.4 * (seed % 2), "semi_vred": 0.001 * (seed % 2)}.get(label, 0)

    drawn = differences.chart(Differences([read(edited(steady(wide)))], late=True))
    assert "datum.high > " in json.dumps(drawn.spec) and "format(datum.high" in json.dumps(drawn.spec)


def test_the_trade_off_fits_a_phone_with_its_labels(findings, by_name):
    narrow = by_name["trade-off"].narrow
    assert narrow["width"] < 300
    plot = Plot.of(findings, narrow["width"])
    assert all(label.box.left >= 0 and label.box.right <= narrow["width"] for label in plot.labels.values())


def test_the_trade_off_has_every_run_and_those_of_chance(findings, by_name):
    rows = by_name["trade-off"].rows
    values = [row["worst10"] for row in rows if row["algorithm"] == "vred"]
    mean, spread = findings.rows["vred"].late["worst10"]
    assert np.mean(values) == pytest.approx(100 * mean, abs=1e-3)
    assert np.std(values) == pytest.approx(100 * spread, abs=1e-3) and spread > 0
    by_chance = [row["mean"] for row in rows if row["chance"]]
    runs = [*findings.baseline.histories, *findings.floor.histories]
    assert sorted(by_chance) == pytest.approx(sorted(100 * run.late_fairness.mean for run in runs), abs=1e-3)
    assert {row["seed"] for row in rows} == set(findings.seeds)  # those of chance come and go with FedAvg's seeds
    without_floor = dataclasses.replace(findings, controls=())
    assert not any(row["repetition"] for row in trade_off.chart(without_floor).rows)


def test_changes_are_those_of_each_client_against_the_same_seed_of_fedavg(findings, by_name):
    chart = by_name["changes"]
    for seed in findings.seeds:
        own = findings.named("vred").runs[seed].late_figures
        fedavgs = findings.baseline.runs[seed].late_figures
        changes = [row["change"] for row in chart.rows if row["algorithm"] == "vred" and row["seed"] == seed]
        assert changes == pytest.approx(list(100 * (own - fedavgs)), abs=1e-3)
    assert {row["algorithm"] for row in chart.rows} == {"vred", "semi_vred", "fedavg-other-seeds"}


def test_curves_over_rounds_end_where_the_run_does(findings, by_name):
    for row in by_name["learning-curves"].rows:
        run = findings.named(row["algorithm"]).runs[row["seed"]]
        assert row["round"] == [1, 2, 3, 4]
        assert row["std"][-1] == pytest.approx(100 * run.fairness.std, abs=1e-3)
        assert row["mean_baseline"][-1] == pytest.approx(
            100 * findings.baseline.runs[row["seed"]].fairness.mean, abs=1e-3
        )


def test_an_algorithm_of_ones_own_is_highlighted(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"]["algorithm"] = "my_method"

    found = read(edited(change))
    assert [entry.label for entry in found.planned if is_own(entry)] == ["vred"]
    owns = {row["algorithm"]: row["own"] for row in trade_off.chart(found).rows}
    assert owns["vred"] and not owns["semi_vred"]


def test_no_two_algorithms_look_the_same(findings):
    entries = [dataclasses.replace(findings.entries[1], label=f"entry {k}") for k in range(30)]
    seen = looks([findings.baseline, *entries])
    assert len(set(seen.values())) == 31


@pytest.mark.parametrize("seed", range(5))
def test_labels_and_their_lines_keep_off_labels_and_points(seed):
    draw = np.random.default_rng(seed)
    points = []
    for k in range(18):
        x, y = draw.normal([320, 210], [60, 40])
        bars = (labels.Line(x - 20, y, x + 20, y), labels.Line(x, y - 30, x, y + 30))
        points.append(labels.Point(x, y, f"algorithm[beta={k}]", bars))
    placed = labels.place(points, AREA, [labels.Box(560, 0, 640, 28)])
    for one, other in itertools.combinations(placed, 2):
        assert not one.box.meets(other.box)
        assert not (one.leader and one.leader.meets(other.box))
        assert not (other.leader and other.leader.meets(one.box))
    for label, point in itertools.product(placed, points):
        assert label.box.is_inside(AREA) and not label.box.meets(point.box)


def test_one_diverging_algorithm_does_not_squeeze_the_others():
    near = [Extent(40 + k, 42 + k) for k in range(5)]
    axis = Axis.of([*near, Extent(3, 4)], sign=1)
    assert axis.low > 35 and not axis.holds(3.5) and axis.holds(46)
    far_better = Axis.of([*near, Extent(95, 96)], sign=1)
    assert far_better.holds(95.5)  # what is far better is the finding
    assert Axis.of([Extent(0.1, 0.2)] * 5 + [Extent(70, 80)], sign=-1).high < 1
    differences = Axis.of_differences([Extent(-2, 3), Extent(-1, 2), Extent(-60, -50)])
    assert differences.low > -12 and differences.high >= 3
    assert Axis.of_differences([Extent(-2, 3), Extent(-1, 2), Extent(-7, -5)]).holds(-7)  # little room to gain


def drawn_texts(chart, tmp_path):
    """All texts of the picture."""
    svg, _ = save(chart, tmp_path)
    return [element.text for element in ET.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}text")]


def test_fewer_rows_draw_what_holds_for_them(by_name, tmp_path):
    """The page switches seeds and algorithms off by leaving out their rows."""
    chart = by_name["turns"]
    rows = [row for row in chart.rows if row["seed"] == 0 and row["algorithm"] != "semi_vred"]
    texts = drawn_texts(dataclasses.replace(chart, rows=rows), tmp_path)
    clients = {row["client"] for row in rows if row["algorithm"] == "vred"}
    number = "1 client" if len(clients) == 1 else f"{len(clients)} different clients"
    assert "vred" in texts and "semi_vred" not in texts and number in texts


def test_an_interval_is_drawn_only_with_all_the_runs_it_is_of(findings, by_name, tmp_path):
    """An interval cannot be computed again by a specification, so with fewer seeds there is none."""
    chart = by_name["differences"]
    whole = save(chart, tmp_path)[0].read_text()
    rows = [row for row in chart.rows if row.get("seed") != 1]
    fewer = save(dataclasses.replace(chart, rows=rows), tmp_path)[0].read_text()
    intervals = sum("low" in row for row in chart.rows)
    assert intervals and whole.count(" from: ") == intervals and fewer.count(" from: ") == 0
    gap = Differences([findings], late=True).between("vred", "fedavg", "worst10")
    (row,) = (row for row in chart.rows if "low" in row and (row["algorithm"], row["metric"]) == ("vred", "worst10"))
    assert (row["low"], row["high"]) == pytest.approx((gap.low, gap.high), abs=1e-3)


def test_what_is_off_the_scale_is_said_in_the_picture(edited, tmp_path):
    def diverge(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            level = 0.02 if label == "vred" else 0.5 + 0.01 * (seed % 2)
            line["accuracy"] = (level + 0.02 * np.arange(6)).tolist()

    found = read(edited(diverge))
    others = [dataclasses.replace(found.named("semi_vred"), label=f"other {k}") for k in range(4)]
    found = dataclasses.replace(found, entries=(*found.entries, *others))
    texts = drawn_texts(trade_off.chart(found), tmp_path)
    assert "off the scale (mean, worst 10 %):" in texts and "vred: 7.0, 2.0" in texts
    assert any("6 off the scale, to −" in text for text in drawn_texts(clients.changes(found), tmp_path))


def test_who_needs_little_more_room_than_the_others_has_it(edited, tmp_path):
    def gain(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            gains = np.full(6, 0.1 if "vred" in label else 0.05 * (seed > 1))
            gains[5] += 0.3 * (label == "vred" and seed == 0)
            line["accuracy"] = (0.4 + gains).tolist()

    chart = clients.changes(read(edited(gain)))
    texts = list(filter(None, drawn_texts(chart, tmp_path)))
    assert "vred" in texts and not any("off the scale" in text for text in texts)


def test_eighteen_long_labels_in_a_corner_keep_off_each_other():
    draw = np.random.default_rng(0)
    points = []
    for k in range(18):
        x = draw.uniform(80, 560)
        points.append(labels.Point(x, draw.uniform(10, 60), f"semi_vred[beta=0.{k},smooth=0.25,average=0.8]"))
    placed = labels.place(points, AREA, [labels.Box(560, 0, 640, 28)])
    for one, other in itertools.combinations(placed, 2):
        assert not one.box.meets(other.box)


def test_labels_of_the_drawn_picture_do_not_overlap(by_name, tmp_path):
    svg, _ = save(by_name["trade-off"], tmp_path)
    boxes = set()
    for element in ET.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}text"):
        if element.text in ("fedavg", "vred", "semi_vred", "better"):
            x, y = map(float, re.findall(r"-?[0-9.]+", element.get("transform"))[:2])
            width = labels.LETTER * len(element.text)
            left = {"start": x, "middle": x - width / 2, "end": x - width}[element.get("text-anchor")]
            boxes.add(labels.Box(left, y - 11, left + width, y + 3))  # a halo stands where its label does
    assert len(boxes) == 4
    assert not any(one.meets(other) for one, other in itertools.combinations(boxes, 2))


def test_entries_that_differ_at_the_end_of_their_labels_are_told_apart(findings):
    """Labels of rows are whole. Those of panels keep off the next panel, at 7.2 pixels a letter."""
    vred = findings.named("vred")
    long = [f"semi_vred[beta=0.5,smooth=0.25,average={average}]" for average in (0.8, 0.9, 0.95)]
    long.append("an-algorithm-of-my-own-without-any-options")
    entries = [dataclasses.replace(vred, label=label) for label in long]
    found = dataclasses.replace(findings, entries=(findings.baseline, *entries[:3]), controls=())
    view = differences.chart(Differences([found], late=True)).spec["concat"][0]  # the others show no labels
    (axis,) = (
        layer["encoding"]["y"]["axis"] for layer in view["layer"] if {"x2", "y"} <= layer.get("encoding", {}).keys()
    )
    assert axis["labelLimit"] == 0
    for shown in (entries[:1], entries[:3], entries):
        found = dataclasses.replace(findings, entries=(findings.baseline, *shown), controls=())
        spec = clients.sorted_curves(found).spec
        names = json.loads(spec["facet"]["header"]["labelExpr"].removeprefix("(").removesuffix(")[datum.value]"))
        widest = max(len(line) for lines in names.values() for line in lines)
        assert 7.2 * widest <= spec["spec"]["width"] and len({tuple(lines) for lines in names.values()}) == len(shown)


def test_very_many_clients_are_shown_as_quantiles_and_it_is_said(findings):
    many = 5000
    levels = np.linspace(0.2, 0.9, many)

    def wide(entry, shift):
        runs = {}
        for seed, run in entry.runs.items():
            records = []
            for record in run.records:
                figures = np.full(many, 0.5)
                records.append(
                    dataclasses.replace(record, accuracy=levels + shift, losses=figures, weights=figures / many)
                )
            runs[seed] = dataclasses.replace(run, records=records, shares=np.full(many, 1 / many), label_counts=None)
        return dataclasses.replace(entry, runs=runs)

    sizes = [10] * many
    people = {**findings.header.clients, "names": list(map(str, range(many))), "train": sizes, "test": sizes}
    header = dataclasses.replace(findings.header, clients=people, judged_classes=None)
    entries = [wide(entry, 0.01 * place) for place, entry in enumerate(findings.entries)]
    found = dataclasses.replace(findings, entries=tuple(entries), controls=(), header=header)
    made = {chart.name: chart for chart in charts.of(found)}
    for name, number in (("clients", 2), ("changes", 2), ("turns", 3), ("weights", 2)):
        assert len(made[name].rows) <= number * 2 * 101 and "5,000 clients" in made[name].says
    assert "200 of 5,000 clients" in made["federation"].title and len(made["federation"].rows) == 200
    values = [row["value"] for row in made["clients"].rows if (row["algorithm"], row["seed"]) == ("vred", 0)]
    assert values == pytest.approx(np.quantile(100 * (levels + 0.01), np.linspace(0, 1, 101)), abs=1e-3)
    assert {row["change"] for row in made["changes"].rows if row["algorithm"] == "semi_vred"} == {2.0}
    worst = {(row["client"], *row["part"]) for row in made["turns"].rows}
    assert worst == {("0 to 5 %", 1.0, 1.0, 1.0, 1.0), ("5 to 10 %", 1.0, 1.0, 1.0, 1.0)}


def test_weights_are_in_units_of_the_weight_by_size(findings, by_name):
    run = findings.named("vred").runs[0]
    (row,) = (r for r in by_name["weights"].rows if (r["algorithm"], r["seed"], r["client"]) == ("vred", 0, "digits-3"))
    last = run.records[-1]
    weight = last.weights[3] / last.weights.sum() / run.shares[3]
    assert row["round"] == [1, 2, 3, 4] and row["weight"][-1] == pytest.approx(weight, rel=1e-2)


def test_the_federation_has_each_clients_labels(findings, by_name):
    counts = findings.header.label_counts
    for client, row in enumerate(by_name["federation"].rows):
        shares = 100 * counts[client] / counts[client].sum()
        assert row["class"] == np.flatnonzero(counts[client]).tolist()
        assert row["share"] == pytest.approx(shares[counts[client] > 0].tolist(), abs=0.01)


@pytest.mark.parametrize("judged_by", [ACCURACY, LOSS])
def test_the_front_of_a_search_is_drawn_through_those_that_no_other_beats(judged_by, tmp_path):
    draw = np.random.default_rng(3)
    candidates = []
    for label in ("vred", "term"):
        for beta in range(12):
            mean, worst10 = draw.uniform(0.2, 0.6, 2)
            candidates.append(Candidate(label, {"beta": beta}, {"mean": mean, "worst10": worst10}))
    search = SimpleNamespace(judged_by=judged_by, select_on="validation")
    tuned = SimpleNamespace(candidates=candidates, chosen={"vred": candidates[0]}, search=search)
    for label in ("vred", None):  # all rows, and those of one entry
        chart = tuning.chart(tuned)
        rows = [row for row in chart.rows if label is None or row["algorithm"] == label]
        svg, _ = save(dataclasses.replace(chart, rows=rows), tmp_path)
        (path,) = re.findall(r'<path[^>]*d="([^"]*)"[^>]*stroke-dasharray="4,3"', svg.read_text())
        shown = [candidate for candidate in candidates if label is None or candidate.label == label]
        assert len(re.findall("[ML]", path)) == len(front(shown, judged_by.sign)) > 1
