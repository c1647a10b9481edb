"""One small full-batch step moves the model along minus the gradient of the objective it claims to descend."""

import pytest
import torch

import evenfed
from evenfed.algorithms import TERM, DeltaFL, FedAvg, GiFair, PropFair, SemiVRed, VRed
from evenfed.core.algorithm import Algorithm

LR = 1e-3
DESCENDS = [
    FedAvg(),
    VRed(beta=0.4),
    SemiVRed(beta=0.4),
    TERM(alpha=0.8),
    GiFair(strength=1.0),
    DeltaFL(alpha=0.4),
    DeltaFL(alpha=0.4, exact=True),
    PropFair(baseline=6.0),
    PropFair(baseline=2.0, tail="huber"),
    PropFair(baseline=2.0, tail="linear"),
]


@pytest.mark.parametrize("algorithm", DESCENDS, ids=str)
@pytest.mark.parametrize("engine", ["reference", "parallel"])
def test_one_step_is_minus_lr_times_the_gradient_of_the_objective(algorithm: Algorithm, engine: str):
    draw = torch.Generator().manual_seed(1)
    clients = [
        evenfed.Client((torch.randn(n, 3, generator=draw).double() + n / 9, torch.randn(n, generator=draw).double()))
        for n in (4, 9, 20, 7, 13)
    ]
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()

    def squared(outputs, targets):
        return (outputs[:, 0] - targets) ** 2

    trained = evenfed.train(model, clients, algorithm, loss=squared, rounds=1, lr=LR, engine=engine, device="cpu").model
    losses = torch.stack([squared(model(x), y).mean() for x, y in (c.train for c in clients)])
    shares = torch.tensor([4.0, 9, 20, 7, 13]).double() / 53
    gradients = torch.autograd.grad(algorithm.objective(losses, shares), list(model.parameters()))
    for before, after, gradient in zip(model.parameters(), trained.parameters(), gradients, strict=True):
        assert torch.allclose(after, before - LR * gradient, rtol=0, atol=1e-9)
