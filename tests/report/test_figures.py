"""The trade-off figure: bars, the region of chance, one's own method, labels; and what is drawn again."""

import dataclasses

import pytest

from evenfed.comparison.reading import read
from evenfed.report.figures import comparison
from evenfed.report.figures.drawing import kind, save_changed


def layers(figure: dict, mark: str) -> list[dict]:
    return [layer for layer in figure["layer"] if layer["mark"]["type"] == mark]


def test_the_trade_off_has_bars_of_the_spread_and_the_region_of_chance(small):
    findings = read(small)
    figure = comparison.trade_off(findings)
    points = {point["algorithm"]: point for point in figure["data"]["values"]}
    mean, spread = findings.rows["vred"].late["worst10"]
    assert points["vred"]["worst10_high"] - points["vred"]["worst10_low"] == pytest.approx(200 * spread) and spread > 0
    assert points["vred"]["worst10"] == 100 * mean
    (region,) = layers(figure, "rect")
    (corners,) = region["data"]["values"]
    runs = [*findings.baseline.histories, *findings.floor.histories]
    assert corners["mean_low"] == min(100 * run.late_fairness.mean for run in runs)
    assert corners["worst10_high"] == max(100 * run.late_fairness.worst10 for run in runs)
    without_floor = dataclasses.replace(findings, controls=())
    assert not layers(comparison.trade_off(without_floor), "rect")


def test_an_algorithm_of_ones_own_is_highlighted(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"]["algorithm"] = "my_method"

    findings = read(edited(change))
    kinds = {entry.label: kind(entry) for entry in findings.planned}
    assert kinds["vred"] == "your own" and kinds["semi_vred"] == "VRed, Semi-VRed"
    points = {point["algorithm"]: point for point in comparison.trade_off(findings)["data"]["values"]}
    assert points["vred"]["own"] and not points["semi_vred"]["own"]


def test_figures_are_drawn_again_only_where_they_changed(small, tmp_path):
    figures = {"trade-off": comparison.trade_off(read(small))}
    svg, png = save_changed(figures, tmp_path)
    before = png.stat().st_mtime_ns
    assert save_changed(figures, tmp_path) == [svg, png] and png.stat().st_mtime_ns == before
    changed = {"trade-off": {**figures["trade-off"], "width": 500}}
    assert save_changed(changed, tmp_path) == [svg, png] and png.stat().st_mtime_ns > before
    png.unlink()
    assert save_changed(changed, tmp_path) == [svg, png] and png.exists()
