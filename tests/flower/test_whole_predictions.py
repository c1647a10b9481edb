"""Scores of all predictions of a client at once (AUROC), on Flower as in the simulator."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import evenfed
from evenfed import Metric, scores
from evenfed.flower import client_app
from local_grid import OPTIONS, LocalGrid, on_flower, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow


def two_classes():
    """Clients with targets 0 and 1; of the last one's test examples all are 1."""
    clients = []
    for client in federation(sizes=(9, 7, 12, 6)):
        (train, train_targets), (test, _) = client.train, client.test
        targets = (test[:, 0] > 0).long() if len(clients) < 3 else torch.ones(len(test), dtype=torch.long)
        clients.append(evenfed.Client((train, (train_targets > 0).long()), (test, targets), client.name))
    return clients


def auc(outputs, targets):
    return roc_auc_score(targets, outputs[:, 1] - outputs[:, 0])


def app_of(clients, score):
    held = sites(clients)
    return client_app(small_model, lambda c: held[c.node_config["partition-id"]], device="cpu", score=score)


def test_whole_predictions_are_scored_as_in_the_simulator_and_one_class_is_told(tmp_path, caplog):
    clients = two_classes()
    clients[0] = evenfed.Client(clients[0].train, clients[2].test, "site-0")
    score = Metric(lambda outputs, targets: scores.auroc(outputs[:, :2], targets), name="AUROC", whole_client=True)
    strategy, result, _ = on_flower("semi_vred", clients, app=app_of(clients, score), out=tmp_path, rounds=2)
    wanted = evenfed.train(
        small_model(), clients, "semi_vred", engine="reference", device="cpu", score=score, **{**OPTIONS, "rounds": 2}
    )
    found = strategy.records[-1].accuracy
    assert np.array_equal(found, wanted.records[-1].accuracy, equal_nan=True)
    assert np.isnan(found[3]) and not np.isnan(found[:3]).any()
    assert strategy.records[-1].dropped == ()  # it trains all the same
    loaded = evenfed.load(tmp_path / "semi_vred" / "seed-0")
    assert loaded.metric.name == "AUROC" and loaded.fairness == wanted.fairness
    assert result.evaluate_metrics_clientapp[2]["worst-AUROC"] == pytest.approx(np.nanmin(found))
    assert caplog.text.count("client 3 (site-3) has no AUROC") == 1
    line = next(line for line in caplog.text.splitlines() if "round 2/2" in line)
    assert "AUROC 0." in line and "%" not in line


def test_of_a_figure_of_which_less_is_better_the_highest_is_the_worst(caplog):
    clients = two_classes()
    brier = Metric(
        lambda outputs, targets: np.mean((outputs.argmax(1) - targets) ** 2) + len(targets),
        higher_is_better=False,
        name="miss",
        whole_client=True,
    )
    on_flower("fedavg", clients, app=app_of(clients, brier), rounds=1)
    assert "worst site-2 (" in caplog.text  # it has most examples


def test_a_score_that_fails_for_another_reason_is_told_before_training():
    clients = two_classes()
    broken = Metric(lambda outputs: 1.0, name="broken", whole_client=True)
    with pytest.raises(evenfed.InputError, match="clients could not be set up"):
        on_flower("fedavg", clients, grid=LocalGrid(app_of(clients, broken), 4), rounds=1, wait=0.3)
