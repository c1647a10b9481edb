"""A zoo of models: every kind trains, and the fast engine gives the reference engine's result."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import evenfed
from evenfed.simulate.engines.parallel import Parallel
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.problem import EvalRequest, Problem, Task
from worked_example import federation

OPTIONS = {"rounds": 1, "lr": 0.05, "batch_size": 4, "device": "cpu"}
SIZES = (10, 0, 6, 7, 6)  # no batch of one example


class Module(nn.Module):
    """A body, then scores of three classes."""

    def __init__(self, width=6, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.score = nn.Linear(width, 3)


class Branching(Module):
    def forward(self, x):
        scores = self.score(x)
        return scores if x.sum() > 0 else 2 * scores


class Item(Module):
    def forward(self, x):
        return self.score(x) * (1 + x.abs().max().item() / 100) if self.training else self.score(x)


class Encoder(Module):
    """Six tokens, the last ones masked where the input is negative."""

    def __init__(self, nested, dropout=0.0):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)
        super().__init__(4, embed=nn.Linear(1, 4), encoder=encoder)

    def forward(self, x):
        padding = torch.zeros_like(x, dtype=torch.bool)
        padding[:, 4:] = x[:, 4:] < 0
        hidden = self.encoder(self.embed(x[..., None]), src_key_padding_mask=padding)
        return self.score(hidden[:, 0])


class Recurrent(Module):
    def __init__(self):
        super().__init__(3, lstm=nn.LSTM(2, 3, 2, dropout=0.3, batch_first=True))

    def forward(self, x):
        hidden, _ = self.lstm(x.view(-1, 3, 2))
        return self.score(hidden[:, -1])


class Bag(Module):
    def __init__(self):
        super().__init__(4, bag=nn.EmbeddingBag(5, 4))

    def forward(self, x):
        symbols = x.abs().clamp(max=4).long()
        return self.score(self.bag(symbols))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 6)
        self.score = nn.Linear(6, 3, bias=False)
        self.score.weight = self.embed.weight

    def forward(self, x):
        return self.score(x + self.embed(x.argmax(1) % 3))


class Complex(Module):
    def forward(self, x):
        spectrum = torch.fft.fft(x) * torch.exp(1j * x)
        return self.score(torch.view_as_real(spectrum).pow(2).sum(-1).sqrt())


class Noisy(Module):
    def forward(self, x):
        return self.score(F.rrelu(x, training=self.training))


class Numpy(Module):
    """Leaves torch on its way."""

    def forward(self, x):
        return self.score(torch.from_numpy(np.tanh(x.detach().numpy())))


class Unique(Module):
    """An operation whose result has as many rows as there are different numbers."""

    def forward(self, x):
        return self.score(x) + len(torch.unique(x)) / 1000 if self.training else self.score(x)


class InstanceNorm(Module):
    def __init__(self):
        super().__init__(6, norm=nn.InstanceNorm1d(3, track_running_stats=True))

    def forward(self, x):
        return self.score(self.norm(x.view(-1, 3, 2)).flatten(1))


def sequential(*layers):
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))


ZOO = {
    "batch norm": (lambda: sequential(nn.BatchNorm1d(8)), "BatchNorm1d '1' keeps statistics"),
    "dropout": (lambda: sequential(nn.Dropout(0.4)), "stacked"),
    "group norm": (lambda: sequential(nn.GroupNorm(2, 8)), "stacked"),
    "branching": (Branching, "its control flow depends on the data"),
    "item": (Item, "its control flow depends on the data"),
    "encoder": (lambda: Encoder(nested=False), "stacked"),
    "encoder, nested": (lambda: Encoder(nested=True), "visited"),
    "encoder, nested, dropout": (lambda: Encoder(nested=True, dropout=0.1), "visited"),
    "lstm, dropout": (Recurrent, "recurrent"),
    "embedding bag": (Bag, "visited"),
    "weight norm": (lambda: sequential(parametrizations.weight_norm(nn.Linear(8, 8))), "_weight_norm"),
    "spectral norm": (lambda: sequential(parametrizations.spectral_norm(nn.Linear(8, 8))), "changes its buffer"),
    "tied": (Tied, "stacked"),
    "complex": (Complex, "stacked"),
    "noisy": (Noisy, "visited by 1 worker"),
    "numpy": (Numpy, "visited"),
    "unique": (Unique, "visited"),
    "instance norm": (InstanceNorm, "changes its buffer"),
}


@pytest.mark.parametrize("kind", ZOO)
def test_every_kind_of_model_trains_as_the_reference_does(kind):
    make, told = ZOO[kind]
    torch.manual_seed(0)
    model = make().double()
    results = {}
    for engine in ("parallel", "reference"):
        clients = federation(sizes=SIZES, dtype=torch.float64)
        results[engine] = evenfed.train(model, clients, engine=engine, **OPTIONS)
    parallel = results["parallel"]
    reference = results["reference"]
    assert told in parallel.engine
    assert torch.allclose(parallel.server.theta, reference.server.theta, rtol=1e-6, atol=1e-9)
    assert not torch.equal(reference.server.theta, reference.server.layout.flatten(dict(model.named_parameters())))
    for name, buffer in reference.server.buffers.items():
        assert torch.allclose(parallel.server.buffers[name], buffer, rtol=1e-6, atol=1e-9), name
    for ours, theirs in zip(parallel.records, reference.records, strict=True):
        assert np.allclose(ours.losses, theirs.losses, rtol=1e-6, equal_nan=True)
        assert np.allclose(ours.accuracy, theirs.accuracy, rtol=1e-6, equal_nan=True)


def test_what_fails_in_the_recorded_step_is_visited_after_all():
    """Tracing may trip over what a trial of two clients does not."""
    clients = federation(sizes=SIZES, dtype=torch.float64)
    settings = evenfed.Settings(**OPTIONS)
    problem = Problem.of(Branching().double(), clients, settings)
    theta = problem.theta
    everyone = torch.tensor([0, 2, 3, 4])
    task = Task(index=0, seed=0, theta=theta, ids=everyone, local=settings.local(0))
    question = EvalRequest(theta, everyone, {})
    for ask in (
        lambda engine: [update.delta for _, update in engine.train([task])],
        lambda engine: engine.losses([question]),
        lambda engine: [engine.scores([question], problem.judged, (problem.score,))[0].means],
    ):
        parallel = Parallel(problem, 4, batchings=[settings.batching])
        parallel.engine = Slots(problem, 2)
        for ours, theirs in zip(ask(parallel), ask(Reference(problem)), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-9)
        assert "visited" in parallel.how and "cannot be vectorised" in parallel.how


class FailsInTraining(Module):
    def forward(self, x):
        if self.training:
            raise KeyError("no such thing")
        return self.score(x)


@pytest.mark.parametrize(
    ("sizes", "options", "told"),
    [
        ((8, 1, 5), {}, r"client site-1 has one example, so its batch has one; leave it out, replace BatchNorm by"),
        ((8, 1, 5), {"drop_last": True}, "client site-1 has one example, .* or set batch_norm='frozen'"),
        ((9, 1, 1), {"batch_size": None}, "client site-1, one of 2 such clients, has one example"),
        ((8, 5), {"batch_size": 1, "drop_last": True}, "client site-0 has a batch of one .* give a larger batch_size,"),
    ],
)
def test_a_batch_of_one_example_is_told_what_helps(sizes, options, told):
    options = {**OPTIONS, **options}
    normed = sequential(nn.BatchNorm1d(8))
    with pytest.raises(evenfed.InputError, match=told) as refused:
        evenfed.train(normed, federation(sizes=sizes), **options)
    assert "drop_last" not in str(refused.value) and "another batch_size" not in str(refused.value)
    frozen = evenfed.train(normed, federation(sizes=sizes), batch_norm="frozen", **options)
    assert len(frozen.records) == 1


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_a_model_that_cannot_train_is_refused_before_round_1(engine):
    told = r"(?s)client site-0 has a batch of one example.*batch_size or drop_last=True, replace BatchNorm"
    normed = sequential(nn.BatchNorm1d(8))
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.train(normed, federation(sizes=(9, 8)), engine=engine, **OPTIONS)
    spared = evenfed.train(normed, federation(sizes=(9, 8)), engine=engine, drop_last=True, **OPTIONS)
    assert len(spared.records) == 1
    with pytest.raises(evenfed.InputError, match=r"fails in training mode.*\[6\].*KeyError: .no such thing"):
        evenfed.train(FailsInTraining(), federation(), engine=engine, **OPTIONS)
