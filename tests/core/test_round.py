"""Opening and closing rounds: streaming, dropped clients, damping, server optimisers, buffers, memory."""

import copy
import math
import weakref

import numpy as np
import pytest
import torch

import evenfed
from evenfed.algorithms import AFL, CLIMB, FCFL, QFFL, TERM, DeltaFL, FedAvg, FedFV, SemiVRed, VRed
from worked_example import DELTAS, LOSSES, SIZES, close, example_round


def start(algorithm, **options) -> evenfed.Server:
    return evenfed.Server.start(algorithm, torch.ones(2).double(), SIZES, lr=0.1, **options)


def updates(ids):
    return [evenfed.Update(int(i), DELTAS[i], DELTAS[i]) for i in ids]


def test_updates_may_come_in_any_order_and_any_grouping(algorithm):
    def losses_at(_, ids):
        return torch.tensor(LOSSES).double()[ids]

    opened = evenfed.open_round(start(algorithm), LOSSES)
    ids = opened.plan.ids.tolist()
    forward, one = evenfed.close_round(opened, updates(ids), losses_at)
    backward, two = evenfed.close_round(opened, updates(ids[::-1]), losses_at)
    stack = evenfed.Update(torch.tensor(ids), DELTAS[ids], DELTAS[ids])
    together, three = evenfed.close_round(opened, [stack], losses_at)
    for server, record in ((backward, two), (together, three)):
        assert close(server.params, forward.params, 1e-12)
        assert close(record.weights, one.weights, 1e-12)
    assert set(forward.memory) == set(backward.memory)
    assert all(close(forward.memory[k], backward.memory[k], 1e-12) for k in forward.memory)


def test_same_order_of_arrival_is_bit_equal():
    opened = evenfed.open_round(start(SemiVRed()), LOSSES)
    (a, _), (b, _) = (evenfed.close_round(opened, updates([2, 0, 1])) for _ in range(2))
    assert torch.equal(a.theta, b.theta)


def test_clients_of_weight_zero_are_not_asked_to_train():
    assert evenfed.open_round(start(DeltaFL(alpha=0.2)), LOSSES).plan.ids.tolist() == [0, 1]


@pytest.mark.parametrize("algorithm", [FedAvg(), VRed(), SemiVRed(), TERM()], ids=str)
def test_a_client_lost_after_the_plan_leaves_the_planned_total(algorithm):
    opened = evenfed.open_round(start(algorithm), LOSSES)
    server, record = evenfed.close_round(opened, updates([0, 2]))
    kept = opened.plan.weights[[0, 2]]
    wanted = kept * opened.plan.weights.sum() / kept.sum()
    assert close(record.weights, (wanted[0], 0, wanted[1]), 1e-12)
    assert close(1 - server.params, wanted @ DELTAS[[0, 2]], 1e-12)
    assert record.dropped == (1,) and not record.skipped


def test_q_fedavg_with_a_lost_client_is_q_fedavg_of_the_others():
    opened = evenfed.open_round(start(QFFL(q=1)), LOSSES)
    _, lost = evenfed.close_round(opened, updates([0, 2]))
    _, alone = example_round(QFFL(q=1), ids=[0, 2])
    assert close(lost.weights, alone.weights, 1e-12)


def test_a_lost_client_with_geometry_is_as_if_it_had_not_been_drawn():
    opened = evenfed.open_round(start(FedFV()), LOSSES)
    lost, record = evenfed.close_round(opened, updates([0, 2]))
    alone, _ = example_round(FedFV(), ids=[0, 2])
    assert close(lost.params, alone.params, 1e-12) and record.dropped == (1,)


def test_nothing_usable_skips_the_round_and_says_so(algorithm):
    opened = evenfed.open_round(start(algorithm), LOSSES)
    server, record = evenfed.close_round(opened, [], lambda _, ids: torch.ones(len(ids)))
    assert record.skipped and torch.equal(server.theta, torch.ones(2).double()) and server.index == 1
    opened = evenfed.open_round(start(algorithm), [math.nan] * 3)
    server, record = evenfed.close_round(opened, [])
    assert record.skipped and record.dropped == (0, 1, 2) and math.isnan(record.objective)


def test_fcfl_without_the_one_client_it_weighs_skips_the_round():
    """At a low temperature all weight is the worst client's, and the others' underflows to nothing."""
    server = evenfed.Server.start(FCFL(temperature=1e-4), torch.zeros(2), [10, 10, 10], lr=0.1)
    opened = evenfed.open_round(server, [2.0, 1.0, 0.5])
    assert opened.plan.weights.tolist() == [1, 0, 0]
    lost = evenfed.Update(0, torch.tensor([float("nan"), 0.0]))
    after, record = evenfed.close_round(
        opened, [lost, evenfed.Update(1, torch.ones(2)), evenfed.Update(2, torch.ones(2))]
    )
    assert record.skipped and 0 in record.dropped and after.theta.tolist() == [0, 0]


def test_survivors_whose_weights_sum_to_nothing_skip_the_round():
    opened = evenfed.open_round(start(VRed(beta=2)), LOSSES)  # weights (0.58, 0.54, -0.12)
    _, record = evenfed.close_round(opened, updates([2]))
    assert record.skipped and record.dropped == (0, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_losses_and_updates_are_dropped_and_named(bad):
    _, record = example_round(FedAvg(), [2.0, bad, 0.5])
    assert record.dropped == (1,) and close(record.weights, (1 / 7, 0, 6 / 7), 1e-12)
    deltas = DELTAS.clone()
    deltas[2, 0] = bad
    server, record = example_round(FedAvg(), deltas=deltas)
    assert record.dropped == (2,) and close(record.weights, (0.25, 0.75, 0), 1e-12)
    assert bool(server.theta.isfinite().all())
    opened = evenfed.open_round(start(FedAvg()), LOSSES)
    _, stacked = evenfed.close_round(opened, [evenfed.Update(torch.arange(3), deltas)])
    assert stacked.dropped == (2,) and close(stacked.weights, record.weights, 1e-12)


def test_a_stranger_and_a_second_reply_are_refused():
    opened = evenfed.open_round(start(FedAvg()), LOSSES[:2], torch.tensor([0, 1]))
    with pytest.raises(evenfed.InputError, match=r"client \[2\]"):
        evenfed.close_round(opened, updates([2]))
    with pytest.raises(evenfed.InputError, match="has replied"):
        evenfed.close_round(opened, updates([0, 0]))


def test_smoothing_is_kept_per_client_and_moves_only_when_it_takes_part():
    a = 0.25
    server = start(VRed(beta=0.5), smooth=a)
    opened = evenfed.open_round(server, LOSSES)
    assert close(opened.round.losses, LOSSES)  # a client's first loss starts its average
    server, _ = evenfed.close_round(opened, updates([0, 1, 2]))
    opened = evenfed.open_round(server, [1.0, 3.0], torch.tensor([0, 1]))
    wanted = [(1 - a) * 2.0 + a * 1.0, (1 - a) * 1.0 + a * 3.0]
    assert close(opened.round.losses, wanted, 1e-12)
    p = np.array([0.25, 0.75])
    assert close(opened.plan.weights, p * (1 + 2 * 0.5 * (np.array(wanted) - p @ wanted)), 1e-12)
    server, record = evenfed.close_round(opened, updates([0, 1]))
    assert close(server.smoothed, [*wanted, 0.5], 1e-12)
    assert close(record.losses[:2], (1.0, 3.0)) and math.isnan(record.losses[2])  # as measured
    assert record.objective == pytest.approx(
        float(VRed(beta=0.5).objective(torch.tensor([1.0, 3.0]).double(), torch.tensor(p)))
    )


def test_smooth_one_is_no_smoothing():
    plain, damped = start(SemiVRed()), start(SemiVRed(), smooth=1.0)
    for losses in (LOSSES, [0.1, 4.0, 2.0]):
        turns = [evenfed.open_round(s, losses) for s in (plain, damped)]
        assert torch.equal(turns[0].plan.weights, turns[1].plan.weights)
        plain, damped = (evenfed.close_round(t, updates([0, 1, 2]))[0] for t in turns)


def test_server_lr_scales_the_step():
    full, _ = example_round(VRed())
    half, _ = example_round(VRed(), server=start(VRed(), server_lr=0.5))
    assert close(1 - half.params, 0.5 * (1 - full.params), 1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    ],
)
def test_any_torch_optimiser_on_the_server_takes_the_step_as_its_gradient(make):
    by_hand = torch.ones(2, dtype=torch.float64)
    optimiser = make([by_hand])
    server = start(SemiVRed(), optimizer=make)
    for losses in (LOSSES, [0.5, 2.0, 1.0], LOSSES):
        opened = evenfed.open_round(server, losses)
        by_hand.grad = opened.plan.weights @ DELTAS
        optimiser.step()
        server, _ = evenfed.close_round(opened, updates([0, 1, 2]))
        assert close(server.params, by_hand, 1e-12)


def test_a_servers_optimiser_state_stays_as_it_was_when_the_next_round_steps():
    """A checkpoint of round 1 may be written while round 2 is computed."""
    momentum = lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)  # noqa: E731
    first = evenfed.Server.start(FedAvg(), torch.ones(2).double(), SIZES, lr=0.1, optimizer=momentum)
    server, _ = example_round(FedAvg(), server=first)
    kept = copy.deepcopy(server.optimizer_state)
    example_round(FedAvg(), server=server)
    assert torch.equal(kept["state"][0]["momentum_buffer"], server.optimizer_state["state"][0]["momentum_buffer"])


def test_parameters_by_name_go_in_and_come_out():
    params = {"weight": torch.zeros(2, 3), "bias": torch.ones(2)}
    server = evenfed.Server.start(FedAvg(), params, [1, 3], lr=0.1)
    opened = evenfed.open_round(server, [1.0, 1.0])
    moved = [{"bias": torch.full((2,), float(k)), "weight": torch.full((2, 3), 1.0 + k)} for k in range(2)]
    server, _ = evenfed.close_round(opened, [evenfed.Update(k, moved[k]) for k in range(2)])
    assert close(server.params["weight"], torch.full((2, 3), -1.75)) and close(server.params["bias"], [0.25, 0.25])
    with pytest.raises(evenfed.InputError, match="weight"):
        evenfed.close_round(opened, [evenfed.Update(0, {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)})])


def test_a_bare_matrix_of_parameters_is_one_model_not_a_stack():
    server = evenfed.Server.start(FedAvg(), torch.zeros(2, 3), [1, 3], lr=0.1)
    moved = [torch.full((2, 3), 1.0), torch.full((2, 3), 5.0)]
    opened = evenfed.open_round(server, [1.0, 1.0])
    alone, _ = evenfed.close_round(opened, [evenfed.Update(k, moved[k]) for k in range(2)])
    stacked, _ = evenfed.close_round(opened, [evenfed.Update(torch.arange(2), torch.stack(moved).flatten(1))])
    assert close(alone.params, torch.full((2, 3), -4.0)) and torch.equal(alone.params, stacked.params)
    with pytest.raises(evenfed.InputError, match="expected"):
        evenfed.close_round(opened, [evenfed.Update(torch.arange(2), torch.zeros(2, 5))])


def test_buffers_are_averaged_by_share_whatever_the_weights():
    server = start(VRed(beta=2), buffers={"mean": torch.zeros(1), "count": torch.tensor(0)})
    opened = evenfed.open_round(server, LOSSES)
    own = [{"mean": torch.tensor([[float(k)]]), "count": torch.tensor([7])} for k in range(3)]
    server, record = evenfed.close_round(opened, [evenfed.Update(k, DELTAS[k], buffers=own[k]) for k in range(3)])
    assert record.negative_weights == 1
    assert close(server.buffers["mean"], [0.3 + 1.2], 1e-6) and int(server.buffers["count"]) == 7


def test_fedfv_remembers_clients_that_are_not_drawn_again():
    """With tau = 2 the mean may not oppose last round's absent client either: checked against the definition."""
    deltas = torch.tensor([[-1.0, 0.2], [1.0, 0.1], [0.9, 0.3]]).double()
    server = start(FedFV(alpha=0.0, tau=2))
    server, _ = example_round(FedFV(alpha=0.0, tau=2), deltas=deltas, ids=[0], server=server)
    before = server.params
    server, _ = example_round(FedFV(alpha=0.0, tau=2), deltas=deltas, ids=[1, 2], server=server)
    mean = deltas[1:].mean(0)
    assert float(mean @ deltas[0]) < 0
    off = mean - (mean @ deltas[0]) / (deltas[0] @ deltas[0]) * deltas[0]
    assert close(before - server.params, off / off.norm() * mean.norm(), 1e-9)
    assert server.past is not None and sorted(server.past.ids.tolist()) == [0, 1, 2]
    server, _ = example_round(FedFV(alpha=0.0, tau=2), deltas=deltas, ids=[1, 2], server=server)
    assert sorted(server.past.ids.tolist()) == [1, 2]  # client 0 is too old now


def test_afl_with_few_participants_keeps_a_distribution_and_falls_back_on_shares():
    server = start(AFL(lr_lambda=5.0))
    for ids in ([0], [1], [0, 2], [2]):
        server, record = example_round(AFL(lr_lambda=5.0), ids=ids, server=server)
        mixture = server.memory["lambda"]
        assert float(mixture.sum()) == pytest.approx(1) and float(mixture.min()) >= 0
        assert record.weights.sum() == pytest.approx(1)


def test_climb_weights_sum_to_one_in_expectation_under_sampling():
    server, _ = example_round(CLIMB())
    totals = [example_round(CLIMB(), ids=list(ids), server=server)[1].weights.sum() for ids in ((0, 1), (0, 2), (1, 2))]
    assert np.mean(totals) == pytest.approx(1) and max(totals) > 1.03


def test_updates_are_freed_as_they_are_folded():
    """At most two of a thousand updates live at once: memory is one model, whatever the number of clients."""
    server = evenfed.Server.start(SemiVRed(), torch.zeros(100), [1] * 1000, lr=0.1)
    opened = evenfed.open_round(server, [1 + i / 3000 for i in range(1000)])
    seen, most = [], 0

    def stream():
        nonlocal most
        for i in opened.plan.ids.tolist():
            delta = torch.ones(100)
            seen.append(weakref.ref(delta))
            most = max(most, sum(ref() is not None for ref in seen))
            yield evenfed.Update(i, delta)

    _, record = evenfed.close_round(opened, stream())
    assert len(seen) == 1000 and most <= 2 and record.weights.sum() == pytest.approx(1)


def test_wrong_numbers_of_losses_and_sizes_are_told():
    with pytest.raises(evenfed.InputError, match="2 losses for 3 participants"):
        evenfed.open_round(start(FedAvg()), [1.0, 2.0])
    with pytest.raises(evenfed.InputError, match="no client has training data"):
        evenfed.Server.start(FedAvg(), torch.zeros(2), [0, 0], lr=0.1)
    with pytest.raises(evenfed.InputError, match=r"smooth=1\.5"):
        start(FedAvg(), smooth=1.5)
