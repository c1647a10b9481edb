"""`evenfed.train`, `evenfed.compare` and `evenfed.federate`, given odd data, models, losses and options."""

import dataclasses

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

import evenfed
from evenfed.comparison.runs import MOST_SEEDS
from evenfed.settings import Settings
from seeking import is_answered, numbers, odd_text, seek, values

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
BASE = {"rounds": 1, "lr": 0.1, "batch_size": 3, "device": "cpu", "progress": False}
SHAPES = [(6, 4), (6, 3), (6,), (0, 4), (5, 4), (6, 4, 1), (), (1, 6, 4), (6, 1)]
TYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def tensor(shape: tuple[int, ...], kind: torch.dtype, fill: float) -> torch.Tensor:
    return torch.full(shape, fill).to(kind)


tensors = st.builds(
    tensor, st.sampled_from(SHAPES), st.sampled_from(TYPES), st.sampled_from([0.0, 1.0, 2.0, -1.0, 1e6, np.nan, np.inf])
)
arrays = st.one_of(
    tensors,
    tensors.map(lambda each: each.numpy()),
    tensors.map(lambda each: each.tolist()),
    tensors.map(lambda each: each.to("meta")),
    tensors.map(lambda each: each.to_sparse() if each.ndim else each),
    tensors.map(lambda each: {"x": each}),
    tensors.map(lambda each: (each, each)),
    st.lists(numbers, max_size=6),
    st.just(X.requires_grad_(False)),
    st.just(np.array(["a", "b", "c", "d", "e", "f"])),
    st.just(np.array([None] * 6, dtype=object)),
    st.just(np.arange("2020-01-01", "2020-01-07", dtype="M8[D]")),
    values,
)
inputs = st.one_of(st.just(X), arrays)
targets = st.one_of(st.just(Y), arrays)
parts = st.one_of(st.tuples(inputs, targets), st.just((X, Y)), values, st.none())


@seek(parts, parts, odd_text, st.sampled_from([None, "mse", "binary", "cross_entropy"]), st.booleans())
def test_odd_data(training, test, name, loss, one_is_good):
    odd = evenfed.Client(train=training, test=test, name=name)
    clients = [odd, evenfed.Client(train=(X, Y), test=(X, Y))] if one_is_good else [odd, odd]
    options = {} if loss is None else {"loss": loss}
    assert is_answered(train, nn.Linear(4, 3), clients, "fedavg", **BASE, **options)


class Odd(nn.Module):
    """A linear model whose outputs are changed by a function."""

    def __init__(self, change, parameters=True):
        super().__init__()
        self.change = change
        self.linear = nn.Linear(4, 3) if parameters else nn.Identity()

    def forward(self, x):
        return self.change(self.linear(x))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3).to_sparse())

    def forward(self, x):
        return x @ self.weight.to_dense()


class OwnError(Exception):
    """A mistake in the user's own function, which may pass on."""


def fails(*_):
    raise OwnError("a mistake of the user's own")


def train(*arguments, **options):
    try:
        evenfed.train(*arguments, **options)
    except OwnError:
        return


CHANGES = [
    lambda y: y,
    lambda y: (y, y),
    lambda y: {"logits": y},
    lambda y: y.long(),
    lambda y: y * np.nan,
    lambda y: y[:, :0],
    lambda y: y.sum(),
    lambda y: None,
    lambda y: "text",
    lambda y: y[:-1],
    lambda y: y.detach(),
    lambda y: y.to(torch.complex64),
    lambda y: y.double(),
    lambda y: y.half(),
    lambda y: y.unsqueeze(-1),
    lambda y: y.numpy(),
    lambda y: torch.rand_like(y) + y,
    fails,
]
LOSSES = [
    "mse",
    "binary",
    "cross_entropy",
    "huber",
    None,
    lambda outputs, targets: outputs.sum(1),
    lambda outputs, targets: outputs.sum(),
    lambda outputs, targets: outputs.argmax(1),
    lambda outputs, targets: targets,
    lambda outputs, targets: targets.bool(),
    lambda outputs, targets: outputs.sum(1) * np.nan,
    lambda outputs, targets: -(outputs.sum(1) ** 2) * 1e30,
    lambda outputs, targets: 1.0,
    lambda outputs, targets: None,
    lambda outputs: outputs.sum(1),
    lambda outputs, targets: outputs.detach().sum(1),
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(reduction="none"),
    fails,
    5,
]
SCORES = [*LOSSES, lambda outputs, targets: outputs.sum(1).tolist(), lambda outputs, targets: "a"]
models = st.one_of(
    st.builds(Odd, st.sampled_from(CHANGES), st.booleans()),
    st.sampled_from(
        [
            nn.Linear(4, 3),
            nn.Linear(5, 3),
            nn.Linear(4, 3).double(),
            nn.Linear(4, 3).half(),
            nn.Linear(4, 3, device="meta"),
            nn.LazyLinear(3),
            Sparse(),
            nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
            nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)),
            nn.Embedding(4, 3),
            nn.LSTM(4, 3),
            nn.Linear(4, 3).requires_grad_(False),
            nn.ModuleList([nn.Linear(4, 3)]),
            nn.Linear,
            lambda: nn.Linear(4, 3),
            lambda: None,
        ]
    ),
    st.sampled_from([None, 5, "mlp", {}]),
)
CLIENTS = [evenfed.Client(train=(X, Y), test=(X, Y)), evenfed.Client(train=(X[:2], Y[:2]), test=(X, Y))]


@seek(models, st.sampled_from(LOSSES), st.one_of(st.just("accuracy"), st.sampled_from(SCORES)), st.booleans())
def test_odd_models_losses_and_scores(model, loss, score, guarded):
    options = {"guard": "on"} if guarded else {}
    if loss is not None:
        options["loss"] = loss
    if score != "accuracy":
        options["score"] = score
    assert is_answered(train, model, CLIENTS, "semi_vred", **BASE, **options)


OPTIMIZERS = [
    "sgd",
    "adam",
    "nonsense",
    {"name": "adam", "lr": 1},
    {"name": "sgd", "momentum": "a"},
    {"name": "adam", "betas": [0.9]},
    {"name": "adam", "eps": -1},
    {"momentum": 0.9},
    torch.optim.LBFGS,
    torch.optim.SparseAdam,
    torch.optim.Adam,
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: None,
    fails,
    nn.Linear(1, 1),
    5,
]
SCHEDULES = ["cosine", "constant", {"name": "cosine", "rounds": 0}, {"name": "step", "every": 0}, fails, lambda r: "a"]
near = {
    "optimizer": st.sampled_from(OPTIMIZERS),
    "server_optimizer": st.sampled_from(OPTIMIZERS),
    "lr_schedule": st.sampled_from(SCHEDULES),
    "device": st.sampled_from([None, "cpu", "cuda:99", "cpu:7", "meta", torch.device("cpu"), "mps", ""]),
    "engine": st.sampled_from(["reference", "parallel", "auto", "nonsense"]),
    "precision": st.sampled_from(["fp32", "tf32", "bf16", "fp8"]),
    "participation": st.sampled_from([1, 2, 3, 0, 0.5, 1.5, {"clients": 1}]),
    "guard": st.sampled_from(["on", {"loss": 0}, {"update": np.inf}, {"nonsense": 1}, True]),
    "callbacks": st.sampled_from([fails, [fails], None, "tensorboard", ["a"], lambda p: p.stop(5)]),
    "average": st.sampled_from([0, 0.5, 1, 1.5, "a", True]),
    "smooth": st.sampled_from([0, 0.5, 1, 1.5, "a"]),
    "lr": st.sampled_from([0, 1e-300, 1e300, -1, np.nan, "a"]),
    "local_steps": st.sampled_from([0, 1, 2, 1.5]),
    "local_epochs": st.sampled_from([0, 1, 2, 1.5]),
    "batch_size": st.sampled_from([0, 1, 100, "full", None]),
    "seed": st.sampled_from([0, -1, 2**63 - 1, 2**63, 1.0, True]),
    "evaluate_every": st.sampled_from([0, 1, 5]),
}
SMALL = st.one_of(st.integers(-1, 4), st.floats(), odd_text, st.none(), st.booleans())
fields = sorted({field.name for field in dataclasses.fields(Settings)} - {"rounds", "local_steps", "local_epochs"})


@seek(
    st.dictionaries(st.sampled_from(fields), st.one_of(SMALL, values), max_size=1),
    st.lists(st.sampled_from(sorted(near)), max_size=2, unique=True),
    st.data(),
    st.one_of(st.sampled_from(evenfed.algorithms.names()), odd_text),
)
def test_odd_options(options, names, data, entry):
    chosen = {name: data.draw(near[name]) for name in names}
    assert is_answered(train, nn.Linear(4, 3), CLIENTS, entry, **{**BASE, **options, **chosen})


@seek(
    st.one_of(st.just(X), arrays),
    st.one_of(st.just(Y), arrays),
    st.one_of(st.sampled_from(["dirichlet", "shards", "iid", "natural", None]), odd_text),
    st.dictionaries(
        st.sampled_from(["clients", "concentration", "shards_per_client", "owners", "test", "seed"]),
        st.one_of(st.integers(-1, 8), st.just([0, 0, 0, 1, 1, 1]), values),
        max_size=2,
    ),
)
def test_federate(x, y, partition, options):
    assert is_answered(evenfed.federate, x, y, partition, **options)


@seek(
    st.lists(st.one_of(st.sampled_from(["fedavg", "vred[beta=0]", {"algorithm": "qffl"}]), values), max_size=2), values
)
def test_comparisons(entries, seeds):
    make = lambda: nn.Linear(4, 3)  # noqa: E731
    few = 1 if isinstance(seeds, int) and 2 < seeds <= MOST_SEEDS else seeds
    assert is_answered(evenfed.compare, make, CLIENTS, entries, seeds=few, **BASE)


vectors = st.one_of(st.lists(numbers, max_size=6), tensors.map(lambda each: each.numpy()), values)


@seek(vectors, vectors)
def test_fairness(figures, others):
    assert is_answered(evenfed.Fairness.of, figures)
    assert is_answered(evenfed.Inequality.of, figures)
    assert is_answered(evenfed.Suppression.of, figures, others)
