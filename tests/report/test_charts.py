"""Charts: specifications that compile, rows that equal the findings, labels that keep off each other."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from evenfed.comparison.reading import read
from evenfed.report import charts
from evenfed.report.charts import labels, trade_off
from evenfed.report.charts.axes import Axis, Extent
from evenfed.report.charts.saving import save_changed
from evenfed.report.charts.theme import DARK, is_own, looks

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
        compiled = vl_convert.vegalite_to_vega(chart.still(DARK))
        assert any(signal["name"] == "picked" for signal in compiled["signals"])
        assert compiled["data"][0]["name"] == "rows" and compiled["data"][0]["values"] == list(chart.rows)


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


def test_charts_are_drawn_again_only_where_they_changed(by_name, tmp_path):
    chart = by_name["trade-off"]
    svg, png = save_changed([chart], tmp_path)
    before = png.stat().st_mtime_ns
    assert save_changed([chart], tmp_path) == [svg, png] and png.stat().st_mtime_ns == before
    changed = dataclasses.replace(chart, title="Another")
    assert save_changed([changed], tmp_path) == [svg, png] and png.stat().st_mtime_ns > before
    png.unlink()
    assert save_changed([changed], tmp_path) == [svg, png] and png.exists()
