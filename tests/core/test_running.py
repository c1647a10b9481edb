"""One trip per round: sums of updates before the weights are known, and updates that wait."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import evenfed
from evenfed.comparison.variants import Variant
from evenfed.core.algorithm import Algorithm, WeightTerms
from evenfed.core.running import RunningSums, can_run
from evenfed.testing import check_algorithm

STREAMED = [
    "fedavg",
    "ditto",
    "propfair",
    "qffl",
    "qffl[q=2,share_weighted=true]",
    "term",
    "term[alpha=400]",
    "vred[beta=5]",
    "vred[beta=5,safe=0.9]",
    "climb[lr_dual=5,epsilon=0]",
]
CLIENTS = 9
DRAW = np.random.default_rng(0)
SIZES = DRAW.integers(1, 60, CLIENTS).tolist()


def server_of(label, **options):
    algorithm = Variant.of_entry(label).algorithm
    return evenfed.Server.start(algorithm, torch.zeros(40), SIZES, lr=0.1, **options)


@pytest.mark.parametrize("label", STREAMED)
@pytest.mark.parametrize("smooth", [None, 0.3])
def test_a_few_sums_give_the_step_of_all_updates(label, smooth):
    held = server = server_of(label, smooth=smooth)
    for _ in range(3):
        drawn = np.sort(DRAW.permutation(CLIENTS)[:6])
        losses = DRAW.gamma(2.0, 1.0, 6)
        deltas = torch.from_numpy(DRAW.normal(size=(6, 40))).float()
        assert can_run(server)
        running = RunningSums(server)
        running.drawn = torch.from_numpy(drawn)
        for k in DRAW.permutation(6)[:5].tolist():  # one never replies
            running.add(evenfed.Update(int(drawn[k]), deltas[k]), float(losses[k]))
        assert running.sums.shape[0] <= 2
        server, record = running.folded(server).close()
        arrived = [k for k in range(6) if int(drawn[k]) in running.losses]
        opened = evenfed.open_round(held, losses[arrived], torch.from_numpy(drawn[arrived]))
        planned = set(opened.plan.ids.tolist())
        updates = [evenfed.Update(int(drawn[k]), deltas[k]) for k in arrived if int(drawn[k]) in planned]
        held, wanted = evenfed.close_round(opened, updates)
        assert torch.allclose(server.theta, held.theta, rtol=1e-5, atol=2e-6)
        assert np.allclose(record.weights, wanted.weights, rtol=1e-12, equal_nan=True)
        assert record.objective == pytest.approx(wanted.objective) and not record.skipped
        held = server


@pytest.mark.parametrize("label", ["semi_vred", "gifair", "delta_fl", "afl", "fedmgda", "fedfv", "fcfl"])
def test_weights_that_need_all_losses_first_are_not_streamed(label):
    assert not can_run(server_of(label))


def test_a_guard_or_buffers_need_the_updates_themselves():
    assert not can_run(server_of("fedavg", guard=evenfed.core.guard.Guard()))
    assert not can_run(server_of("fedavg", buffers={"mean": torch.zeros(3)}))


@dataclass(frozen=True)
class Lying(Algorithm):
    """Its weights are the losses' ranks, and it says that they are shares."""

    sums_to_one = False

    def objective(self, losses, shares):
        return losses.max()

    def terms(self, ids, losses, sizes, memory):
        return WeightTerms(sizes[None])


def test_terms_that_do_not_give_the_weights_are_told():
    server = evenfed.Server.start(Lying(), torch.zeros(2), [1, 2, 3], lr=0.1)
    running = RunningSums(server)
    running.drawn = torch.arange(3)
    for client in range(3):
        running.add(evenfed.Update(client, torch.ones(2)), float(client))
    with pytest.raises(evenfed.InputError, match="`terms` does not give its weights"):
        running.folded(server)
    with pytest.raises(evenfed.InputError, match="`terms` does not give its weights"):
        check_algorithm(Lying())
