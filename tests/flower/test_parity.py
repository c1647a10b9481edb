"""Flower's result is the simulator's, for every algorithm."""

import pytest
import torch

from local_grid import assert_same, on_flower, simulated

PART = {
    "rounds": 2,
    "participation": 2,
    "prox": 0.3,
    "seed": 5,
    "smooth": 0.3,
    "server_optimizer": "adam",
    "server_lr": 0.01,
}
AVERAGED = {**PART, "average": 0.8, "weigh_at": "average"}


@pytest.mark.parametrize(
    "options",
    [pytest.param({"rounds": 2}, id="all"), pytest.param(AVERAGED, id="part, averaged", marks=pytest.mark.slow)],
)
def test_every_algorithm_is_bit_equal_to_the_simulator(algorithm, options, recwarn):
    strategy, result, _ = on_flower(algorithm, **options)
    wanted = simulated(algorithm, **options)
    assert_same(strategy, wanted)
    final = result.arrays.to_torch_state_dict()
    assert all(torch.equal(final[k], v) for k, v in wanted.model.state_dict().items())
