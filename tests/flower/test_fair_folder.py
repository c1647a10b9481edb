"""`Fair` on disk: the same run folder as everywhere, and a killed server that goes on to the bit."""

import json
import math
import random

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import evenfed
from evenfed.comparison.storage.folder import RunFolder
from local_grid import LocalGrid
from stranger import LR, SIZES, app_of, extended, fair, model, run

pytestmark = pytest.mark.slow


def lines(folder):
    rows = [json.loads(line) for line in folder.rounds_path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def kill_after(rounds):
    def listen(progress):
        if progress.round == rounds:
            raise KeyboardInterrupt

    return listen


LATER = {"fraction_train": 0.25, "fraction_evaluate": 0.25, "min_train_nodes": 1, "min_evaluate_nodes": 1}
CASES = {
    "later": ({**LATER, "average": 0.5}, "afl"),  # clients are met round by round
    "smooth": ({"trips": 2, "server_lr": 0.01, "server_optimizer": "adam"}, "semi_vred[beta=1,smooth=0.5]"),
    "evaluate": ({"loss_in": "evaluate", "loss_from": "eval_loss", "guard": "on"}, "climb"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_server_goes_on_and_ends_as_if_undisturbed(case, tmp_path):
    options, name = CASES[case]
    app = app_of() if case == "evaluate" else extended()
    whole = fair(name, out=tmp_path / "whole", **options)
    undisturbed, _ = run(whole, app, rounds=3)
    with pytest.raises(KeyboardInterrupt):
        run(fair(name, out=tmp_path / "cut", listen=kill_after(2), **options), app, rounds=3)
    again = fair(name, out=tmp_path / "cut", **options)
    grid = LocalGrid(app, len(SIZES))
    random.seed(99)  # another process has drawn other numbers
    result = again.start(grid, ArrayRecord(model().state_dict()), 3, 1.0, ConfigRecord({"lr": LR}))
    assert "train_loss" in result.train_metrics_clientapp[1] and "eval_acc" in result.evaluate_metrics_clientapp[1]
    assert result.train_metrics_clientapp == undisturbed.train_metrics_clientapp
    assert result.evaluate_metrics_clientapp == undisturbed.evaluate_metrics_clientapp
    assert torch.equal(again.server.theta, whole.server.theta)
    assert again.clients.positions == whole.clients.positions
    kept = [RunFolder.at(tmp_path / folder, whole.label, 0) for folder in ("cut", "whole")]
    assert lines(kept[0]) == lines(kept[1]) and len(lines(kept[0])) == 3
    assert kept[0].header().finished and kept[0].header().resumed_at == [0, 1]


def test_a_folder_of_fair_is_read_and_ends_at_once_when_finished(tmp_path):
    strategy = fair(out=tmp_path, **LATER)
    central = {"seen": 1.0}
    random.seed(1)
    grid = LocalGrid(extended(), len(SIZES))
    start = ArrayRecord(model().state_dict())
    config = ConfigRecord({"lr": LR})
    result = strategy.start(grid, start, 6, 1.0, config, evaluate_fn=lambda number, arrays: MetricRecord(central))
    assert set(result.evaluate_metrics_serverapp) == set(range(7))
    folder = RunFolder.at(tmp_path, strategy.label, 0)
    history = folder.history()
    assert history.records[0].central == central and len(history.records[0].losses) == len(SIZES)
    assert len(strategy.records[0].losses) < len(SIZES) and not math.isnan(history.moved)
    assert sorted(folder.header().train_sizes) == sorted(SIZES)
    late = history.late_figures  # each client is evaluated now and then
    each = np.array([record.accuracy for record in history.records])
    is_known = ~np.isnan(each).all(0)
    assert is_known.any() and np.allclose(late[is_known], np.nanmean(each[:, is_known], axis=0))
    again = fair(out=tmp_path, resume=True, **LATER)
    grid.contexts.clear()
    found = again.start(grid, start, 6, 1.0, config)
    assert torch.equal(again.server.theta, strategy.server.theta) and len(again.records) == 6
    assert all((found.arrays[name].numpy() == array.numpy()).all() for name, array in result.arrays.items())


def test_a_first_round_without_a_reply_is_kept_as_skipped(tmp_path):
    lost = []

    def lose_the_first_round(reply, client):
        lost.append(client)
        return None if len(lost) <= len(SIZES) else reply

    strategy = fair(out=tmp_path, trips=1)
    run(strategy, extended(), rounds=3, spoil=lose_the_first_round)
    records = RunFolder.at(tmp_path, strategy.label, 0).history().records
    assert [record.skipped for record in records] == [True, False, False]
    assert [record.index for record in records] == [0, 1, 2] and len(records[0].dropped) == len(SIZES)


def test_a_run_that_nobody_ever_replies_to_ends_and_writes_no_rounds(tmp_path):
    strategy = fair(out=tmp_path, trips=1)
    result, _ = run(strategy, extended(), rounds=2, spoil=lambda reply, client: None)
    assert [record.skipped for record in strategy.records] == [True, True]
    assert RunFolder.at(tmp_path, strategy.label, 0).header() is None
    assert set(result.arrays) == set(model().state_dict())


def test_a_folder_of_fair_is_reported_with_a_row_per_client(tmp_path, evenfed):
    strategy = fair(out=tmp_path)
    run(strategy, extended())
    folder = RunFolder.at(tmp_path, strategy.label, 0)
    shown = evenfed("report", folder.path, "--no-figures").stdout
    assert "Each client of semi_vred[beta=1], 2 rounds" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("client ") and "." in line]
    assert sorted(int(row[2]) for row in rows) == sorted(SIZES)


def test_what_cannot_be_kept_is_refused(tmp_path):
    run(fair(out=tmp_path), extended(), rounds=1)
    with pytest.raises(evenfed.InputError, match=r"another configuration.*fair.trips: 2 there, 3 here"):
        run(fair(out=tmp_path, trips=3), extended(), rounds=2)
    wrapped = DifferentialPrivacyServerSideFixedClipping(fair(out=tmp_path), 0.0, 1e6, 4)
    with pytest.raises(evenfed.InputError, match="needs Fair's own `start`"):
        run(wrapped, extended())
