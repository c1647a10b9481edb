"""Sites whose inputs are a dict, with a frozen part of the model that never travels."""

import pytest
import torch
from torch import Tensor, nn

import evenfed
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.server import initial_arrays
from local_grid import OPTIONS, LocalGrid

pytestmark = pytest.mark.slow


class Gated(nn.Module):
    """Two inputs and a frozen first layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.base = nn.Linear(4, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, gate: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.base(x).tanh() * gate[:, None])}


def clients() -> list[evenfed.Client]:
    draw = torch.Generator().manual_seed(2)
    made = []
    for size in (5, 9, 12):
        inputs = {"x": torch.randn(size, 4, generator=draw), "gate": torch.rand(size, generator=draw)}
        targets = torch.randint(0, 3, (size,), generator=draw)
        made.append(evenfed.Client((inputs, targets), (inputs, targets)))
    return made


def test_sites_with_several_inputs_train_as_in_the_simulator_and_send_the_trained_part_alone():
    sites = clients()
    app = client_app(Gated, lambda context: sites[context.node_config["partition-id"]], device="cpu")
    strategy = FairStrategy("semi_vred", ordered=True, timeout=1, **OPTIONS)
    arrays = initial_arrays(Gated())
    assert set(arrays) == {"head.weight", "head.bias"}
    strategy.start(LocalGrid(app, len(sites)), arrays)
    simulated = evenfed.train(Gated(), clients(), "semi_vred", engine="reference", device="cpu", **OPTIONS)
    assert len(strategy.records) == OPTIONS["rounds"]
    for found, expected in zip(strategy.records, simulated.records, strict=True):
        torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(expected.losses), rtol=1e-5, atol=1e-7)
        assert (found.accuracy == expected.accuracy).all()
