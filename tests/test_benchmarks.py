"""Benchmarks without their machines: their page is what their files say, and what is timed runs."""

import importlib
import json
from pathlib import Path

import pytest
import torch

import evenfed
from evenfed import models
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.problem import Problem

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    found = importlib.import_module("gpu")
    monkeypatch.setattr(found, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return found


def test_the_page_has_the_tables_of_the_committed_figures(gpu):
    assert gpu.tables(json.loads(gpu.RESULT.read_text())) in (BENCHMARKS / "README.md").read_text()


def test_deploy_has_the_table_of_rounds_on_real_nodes(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    nodes = importlib.import_module("flower_nodes")
    if nodes.RESULT.exists():
        assert nodes.table(json.loads(nodes.RESULT.read_text())["rows"]) in nodes.PAGE.read_text()
    rows = {"fedavg": {"title": "a", "messages": 2.0, "seconds": [10.0]}}
    rows["own-3"] = {"title": "b", "messages": 3.0, "seconds": [14.0, 16.0]}
    assert "| b | 3 | 15.0 | 1.50 |" in nodes.table(rows)


@pytest.mark.slow
def test_private_has_the_table_of_runs_on_real_nodes(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    nodes = importlib.import_module("private_nodes")
    assert nodes.table(json.loads(nodes.RESULT.read_text())["runs"]) in nodes.PAGE.read_text()


@pytest.mark.slow
def test_rounds_and_peers_run(gpu):
    clients, model = gpu.sentences(2, 70, known=50), models.lstm_words(50, embedding=4, hidden=4)
    problem = Problem.of(model, clients, evenfed.Settings(lr=0.005, batch_size=64, device="cpu", precision="bf16"))
    shared = gpu.together(problem, Slots(problem, 2, "bf16"), runs=2, rounds=1)
    peers = gpu._peers(model, clients, [c.train for c in clients])
    page = "\n".join(gpu._rounds("LSTM", [shared], peers))
    assert "2 runs share the slots" in page and "naive code" in page and min(peers.values()) > 0


def test_a_step_runs(gpu, monkeypatch):
    def once(work, _repeats):
        work()
        return 1.0

    monkeypatch.setattr(gpu, "milliseconds", once)
    for name in ("reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    clients, model = gpu.sentences(2, 70, known=50), models.lstm_words(50, embedding=4, hidden=4)
    measured = gpu.step("LSTM", model, clients, 2, "fp32")
    assert measured["samples_per_s"] == 2 * 64 * 1000


def test_kernels_are_judged_against_torchs_convolution(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "_recorded", lambda call: 1.0)
    for stride in (1, 2):
        found = gpu._kernel(8, 16, 32, stride, clients=2, batch=4)
        assert all(0 <= found[f"{name}_error"] < 5e-3 for name in ("forward", "images", "weights"))
        assert f"8x8, 16 to 32, stride {stride}" in "\n".join(gpu._kernels([found]))


def test_both_pages_have_the_tables_of_the_committed_fleets(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    fleet = importlib.import_module("flower_fleet")
    tables = fleet.table(json.loads((BENCHMARKS / "results" / "flower_fleet.json").read_text())["systems"])
    assert tables in (BENCHMARKS / "README.md").read_text() and tables in fleet.MANUAL.read_text()


def test_the_page_has_the_tables_of_the_committed_averages(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    averaging = importlib.import_module("averaging")
    assert averaging.tables(json.loads(averaging.RESULT.read_text())) in (BENCHMARKS / "README.md").read_text()


def test_the_page_has_the_tables_of_the_committed_liars(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    liars = importlib.import_module("liars")
    page = liars.PAGE.read_text()
    assert liars.liars_page.filled(page, json.loads(liars.RESULT.read_text())) == page


def test_means_of_the_last_models_are_judged_as_the_run_judges_its_own(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    averaging = importlib.import_module("averaging")
    monkeypatch.setattr(averaging, "LAST", {"mean of last 1": 1})
    draw = torch.Generator().manual_seed(0)
    clients = []
    for size in (6, 9):
        part = (torch.randn(size, 64, generator=draw), torch.randint(0, 10, (size,), generator=draw))
        clients.append(evenfed.Client(train=part, test=part))
    means = averaging.LastModels(clients)
    result = evenfed.train(averaging.network(), clients, "fedavg", rounds=3, lr=0.5, callbacks=means)
    judged = means.accuracies["fedavg", 0, "mean of last 1"]
    assert [row.tolist() for row in judged] == [record.accuracy.tolist() for record in result.records]


@pytest.fixture
def coverage(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("coverage_of_intervals")


def test_the_page_has_the_committed_coverage(coverage):
    assert coverage.table(coverage.kept_outcomes()) in (BENCHMARKS / "README.md").read_text()


def test_intervals_err_in_about_five_percent_of_the_cases_and_find_what_is_there(coverage):
    """At reduced size: 200 comparisons, whose share of errors strays by 1.5 points."""

    def found(federations: int, seeds: int, **design: object) -> dict[str, float]:
        return coverage.measured(coverage.Design(federations, seeds, **design), 200).found

    alone = found(1, 3)
    wild = found(1, 3, wildness=5.0)
    uneven = found(2, 3, wildness=5.0, wild_on=0)
    over_federations = found(10, 1, reacts=True, rule="federations")
    for shares in (alone, wild, uneven, over_federations):
        assert all(1 <= share <= 9.5 for share in shares.values()), shares
    former = found(1, 3, gain=1.0, rule="former")
    assert former["mean"] < 40 < 50 < found(1, 3, gain=1.0)["mean"]


def test_intervals_over_few_clients_miss_more_often(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    coverage = importlib.import_module("coverage_over_clients").coverage
    held = coverage(20, repetitions=100)
    assert held["mean"] > 87 and 75 < held["worst10"] < held["mean"]


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "2")  # the soak sets its own
    return importlib.import_module("scale")


def test_the_page_has_the_tables_of_scale(scale):
    results = json.loads(scale.RESULTS.read_text())
    text = (BENCHMARKS / "README.md").read_text()
    tables = importlib.import_module("scale_page")
    assert tables.population_table(results) in text
    assert tables.options_table(results["options"]["figures"]) in text
    assert tables.round_table(results) in text
    assert tables.soak_table(results["soak"]["figures"]) in text


def test_the_committed_rounds_are_flat_in_the_population(scale):
    """With a panel: everyone's evaluation is work per client."""
    figures = json.loads(scale.RESULTS.read_text())["population"]["figures"]
    rounds = {each["clients"]: each for each in figures if each["panel"]}
    assert tuple(rounds) == scale.POPULATIONS
    fewest, _, most = rounds.values()
    assert most["round_cpu_s"] < 2 * fewest["round_cpu_s"]  # it was 92 times as much
    for each in rounds.values():
        assert each["grown_mb"] < 5 and each["line_bytes"] < 50_000 and each["files"]["header.json"] < 5000


def test_a_draw_is_measured(scale):
    assert scale.draw(3000, 10, repeats=1)["cpu_ms"] < 1000


def test_the_committed_soak_does_not_grow(scale):
    figures = json.loads(scale.RESULTS.read_text())["soak"]["figures"]
    assert figures["rounds"] == 2000
    _check_flat(figures)


def test_a_small_soak_does_not_grow(scale):
    _check_flat(scale.soak(rounds=80, count=2500, every=10))


def _check_flat(figures):
    """From the second tenth on: the first fills caches."""
    early = slice(len(figures["handles"]) // 4, len(figures["handles"]) // 2)
    late = slice(-len(figures["handles"]) // 4, None)
    assert max(figures["handles"][late]) <= max(figures["handles"][early]) + 1  # a checkpoint that is being written
    assert min(figures["resident_mb"][late]) - max(figures["resident_mb"][early]) < 5
    assert min(figures["cpu_ms_per_round"][late]) < 1.5 * max(figures["cpu_ms_per_round"][early])


@pytest.mark.parametrize(("form", "panel"), [("list", 0), ("arrays", 200)])
def test_a_population_is_measured(scale, monkeypatch, form, panel):
    monkeypatch.setattr(scale, "ROUNDS", 3)
    figures = scale.population(2500, form, panel)
    assert figures["line_bytes"] < 80_000 and figures["round_cpu_s"] > 0
