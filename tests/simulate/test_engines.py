"""Two engines, one result: for every algorithm, model kind, stack size and number of stacked runs."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed import models
from evenfed.core.streams import Batching
from evenfed.simulate.engines import parallel
from evenfed.simulate.engines.parallel import Parallel, stacking_wins
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.engines.stacked import Stacked
from evenfed.simulate.engines.visiting import Visiting, cores
from evenfed.simulate.layers import replay
from evenfed.simulate.loop import rounds, start
from evenfed.simulate.problem import Problem
from evenfed.simulate.state import Run
from worked_example import close, federation, small_model

OPTIONS = {"rounds": 5, "lr": 0.1, "batch_size": 4, "local_epochs": 2, "device": "cpu"}


def run(make_engine, runs, problem):
    """(final vectors, all records) of the runs, trained together."""
    states, engine, records = [start(r, problem) for r in runs], make_engine(problem), []
    for now, found in rounds(runs, states, problem, engine):
        states = now
        records.append(found)
    return [s.server.theta for s in states], records, [s.personal for s in states]


def assert_agree(one, two, tolerance):
    for a, b in zip(one[0], two[0], strict=True):
        assert float((a - b).norm() / a.norm()) < tolerance
    for here, there in zip(one[1], two[1], strict=True):
        for a, b in zip(here, there, strict=True):
            assert np.allclose(a.losses, b.losses, rtol=tolerance, atol=1e-9, equal_nan=True)
            assert np.allclose(a.weights, b.weights, rtol=tolerance, atol=tolerance)
            assert np.allclose(a.accuracy, b.accuracy, atol=1e-6, equal_nan=True)
            assert (a.recalls is None) == (b.recalls is None)
            assert a.recalls is None or np.array_equal(a.recalls, b.recalls, equal_nan=True)
    for a, b in zip(one[2], two[2], strict=True):
        assert (a is None) == (b is None) and (a is None or float((a - b).norm() / a.norm()) < tolerance)


def only(found, k):
    """What `run` gave, of one of its runs."""
    return [found[0][k]], [[records[k]] for records in found[1]], [found[2][k]]


ENGINES = {
    "reference": Reference,
    "stacked": lambda problem: Stacked(problem, 64),
    "visiting": lambda problem: Visiting(problem, 2),
    "slots": lambda problem: Slots(problem, 2),
}
USUAL = {"rounds": 3}
CHANGED = {"rounds": 3, "participation": 2, "prox": 0.3, "smooth": 0.3, "server_lr": 0.5}
CASES = [
    (USUAL, torch.float64, 1e-9),
    pytest.param((CHANGED, torch.float64, 1e-9), marks=pytest.mark.slow),
    pytest.param((CHANGED, torch.float32, 1e-5), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=CASES, ids=["usual", "changed", "changed in float32"])
def every_algorithm(request):
    """All algorithms on every engine, trained together; by name where each stands, and how closely they must agree."""
    options, dtype, tolerance = request.param
    settings = evenfed.Settings(**{**OPTIONS, **options})
    problem = Problem.of(small_model(dtype), federation(dtype=dtype), settings)
    names = evenfed.algorithms.names()
    runs = [Run(name, evenfed.algorithms.get(name), settings) for name in names]
    engines = [name for name in ENGINES if dtype == torch.float64 or name != "slots"]
    return names, {name: run(ENGINES[name], runs, problem) for name in engines}, tolerance


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_algorithm_agrees_on_every_engine(algorithm, every_algorithm):
    names, found, tolerance = every_algorithm
    k = names.index(algorithm.name)
    for engine in found:
        assert_agree(only(found["reference"], k), only(found[engine], k), tolerance)


@pytest.fixture(scope="module")
def alone():
    """A problem, 14 runs of seven algorithms with two seeds, and what the reference makes of each run alone."""
    shared = evenfed.Settings(**{**OPTIONS, "rounds": 2}, participation=3)
    problem = Problem.of(small_model(torch.float64), federation(dtype=torch.float64), shared)
    names = ("fedavg", "semi_vred", "propfair", "ditto", "drfa", "qffl", "fedfv")
    runs = []
    for seed in range(2):
        settings = dataclasses.replace(shared, seed=seed, lr=0.05 * (seed + 1))
        runs += [Run(f"{name}-{seed}", evenfed.algorithms.get(name), settings) for name in names]
    return problem, runs, [run(Reference, [each], problem) for each in runs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "slots"), [(Stacked, 1), (Stacked, 3), (Stacked, 1000), (Slots, 1), (Slots, 5), (Slots, 1000)]
)
def test_any_stack_size_and_any_number_of_stacked_runs_agree(engine, slots, alone):
    problem, runs, references = alone
    together = run(lambda p: engine(p, slots), runs, problem)
    for k, reference in enumerate(references):
        assert_agree(reference, only(together, k), 1e-9)


class WithLSTM(nn.Module):
    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.recurrent = kind(5, 6, batch_first=True, **options)
        width = 6 * (2 if options.get("bidirectional") else 1)
        self.output = nn.Linear(width, 7)

    def forward(self, tokens):
        return self.output(self.recurrent(self.embedding(tokens))[0]).transpose(1, 2)


def sequences(sizes=(5, 2, 9)):
    draw = torch.Generator().manual_seed(0)
    made = [torch.randint(0, 7, (n, 11), generator=draw) for n in sizes]
    return [evenfed.Client((t[:, :-1], t[:, 1:]), (t[:, :-1], t[:, 1:])) for t in made]


def images(sizes=(5, 2, 9), side=8):
    draw = torch.Generator().manual_seed(0)
    made = [
        (torch.randn(n, 1, side, side, generator=draw).double(), torch.randint(0, 3, (n,), generator=draw))
        for n in sizes
    ]
    return [evenfed.Client(pair, pair) for pair in made]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"bias": False}),
        (nn.GRU, {}),
        (nn.GRU, {"num_layers": 2}),
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
    ids=str,
)
def test_recurrent_models_stack(kind, options):
    torch.manual_seed(0)
    settings = evenfed.Settings(**{**OPTIONS, "rounds": 2})
    problem = Problem.of(WithLSTM(kind, **options).double(), sequences(), settings)
    runs = [Run("semi_vred", evenfed.algorithms.SemiVRed(), settings)]
    assert_agree(run(Reference, runs, problem), run(lambda p: Stacked(p, 8), runs, problem), 1e-9)


def test_convolutions_stack():
    torch.manual_seed(0)
    settings = evenfed.Settings(**OPTIONS)
    problem = Problem.of(models.cnn(1, 3, width=4).double(), images(), settings)
    runs = [Run("vred", evenfed.algorithms.VRed(), settings)]
    reference = run(Reference, runs, problem)
    assert_agree(reference, run(lambda p: Stacked(p, 8), runs, problem), 1e-9)
    assert_agree(reference, run(lambda p: Visiting(p, 2), runs, problem), 1e-9)


def test_images_in_any_memory_order_stack():
    """Channels last, and one channel with an arbitrary stride, as slices of arrays have it."""
    torch.manual_seed(0)
    clients = images()
    turned = [
        evenfed.Client((x.as_strided(x.shape, (64, 1, 8, 1)), y), (x.to(memory_format=torch.channels_last), y))
        for x, y in (c.train for c in clients)
    ]
    model = models.cnn(1, 3, width=4).double()
    a, b = (evenfed.train(model, given, "vred", **OPTIONS) for given in (clients, turned))
    assert torch.equal(a.server.theta, b.server.theta)
    colour = [
        evenfed.Client((torch.randn(5, 3, 8, 8).to(memory_format=torch.channels_last), torch.zeros(5).long()))
    ] * 4
    assert "stacked" in evenfed.train(models.cnn(3, 3, width=4), colour, "vred", **OPTIONS).engine


def test_frozen_parameters_stay_and_tied_batches_of_one_client_work():
    model = small_model()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    for engine in ("reference", "parallel"):
        result = evenfed.train(model, federation(), rounds=2, lr=0.5, engine=engine, device="cpu")
        assert torch.equal(result.model[0].weight, frozen)
        assert not torch.equal(result.model[2].weight, model[2].weight)


def test_tracing_changes_nothing(monkeypatch):
    """A traced step replays the same operations: bit-equal results, and the trace is really used."""
    settings = evenfed.Settings(**{**OPTIONS, "rounds": 8})
    problem = Problem.of(small_model(), federation(), settings)
    runs = [Run("semi_vred", evenfed.algorithms.SemiVRed(), settings)]
    eager = run(lambda p: Stacked(p, 64), runs, problem)
    monkeypatch.setattr(replay, "PAYS_OFF_AFTER", 2)
    monkeypatch.setattr(replay, "PAYS_OFF_WITH_COMPILER", 2)
    engines = []

    def traced(p):
        engines.append(Stacked(p, 64))
        return engines[-1]

    replayed = run(traced, runs, problem)
    assert engines[0].traced[None].traces and engines[0].shared_values[(problem.loss,)].traces
    assert torch.equal(eager[0][0], replayed[0][0])
    assert all((a[0].losses == b[0].losses)[[0, 2, 3, 4]].all() for a, b in zip(eager[1], replayed[1], strict=True))


def test_a_short_run_on_a_cpu_does_not_import_torchs_compiler():
    script = """
import sys, torch, evenfed
clients = [evenfed.Client((torch.randn(9, 4), torch.randint(0, 3, (9,)))) for _ in range(5)]
evenfed.train(torch.nn.Linear(4, 3), clients, rounds=70, device="cpu", progress=False)
print([name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def problem_of(model, clients=None, **options) -> Problem:
    return Problem.of(model, clients or federation(), evenfed.Settings(**{**OPTIONS, **options}))


@pytest.mark.parametrize("engine", ["reference", "parallel"])
def test_the_statistics_of_batchnorm_are_averaged_by_share(engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    clients = federation(sizes=(8, 4, 12))
    result = evenfed.train(model, clients, "fedavg", rounds=1, lr=0.1, engine=engine, device="cpu")
    statistics = []
    for client in clients:  # what each client's own statistics become after one whole-batch step
        own = evenfed.train(model, [client], "fedavg", rounds=1, lr=0.1, engine="reference", device="cpu").model
        statistics.append(own[1].running_mean)
    wanted = (8 * statistics[0] + 4 * statistics[1] + 12 * statistics[2]) / 24
    assert close(result.model[1].running_mean, wanted, 1e-5)
    assert int(result.model[1].num_batches_tracked) == 1


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        out = self.linear(x)
        return out * 2 if out.sum() > 0 else out


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x - x.mean(0))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.linear(x)


def normed(width=4, **options):
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width, **options), nn.ReLU(), nn.Linear(width, 3))


def normed_convolutions():
    """Several workers: enough clients with convolutions."""
    layers = [nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3))


def normed_with_dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("name", "make", "told"),  # those with buffers also with a personal model and with a snapshot
    [
        ("semi_vred", Branching, "control flow depends on the data"),
        ("semi_vred", Mixing, "depends on the other examples"),
        *((name, Counting, "changes its buffer 'seen'") for name in ("semi_vred", "ditto", "drfa")),
        *((name, normed, "BatchNorm1d '1' keeps statistics") for name in ("semi_vred", "ditto", "drfa")),
        ("ditto", lambda: normed(momentum=None), "BatchNorm1d '1' keeps statistics"),  # its counter is in the result
        ("drfa", lambda: normed(20_000), "BatchNorm1d '1' keeps statistics"),  # too large to be stacked anyway
        *((name, normed_convolutions, "BatchNorm2d '2' keeps statistics") for name in ("semi_vred", "ditto", "drfa")),
        ("semi_vred", normed_with_dropout, "BatchNorm1d '1' keeps statistics"),
        ("ditto", normed_with_dropout, "BatchNorm1d '1' keeps statistics"),
    ],
)
def test_what_cannot_be_stacked_is_visited_as_the_reference_does(name, make, told, monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    torch.manual_seed(0)
    model, clients = make().double(), federation(sizes=(10, 0, 4, 18, 6), dtype=torch.float64)
    results = {
        engine: evenfed.train(model, clients, name, engine=engine, **{**OPTIONS, "rounds": 3, "lr": 1e-3})
        for engine in ("parallel", "reference")
    }
    fast, reference = results["parallel"], results["reference"]
    assert "visited" in fast.engine and told in fast.engine
    assert ("2 workers" in fast.engine) == (make is normed_convolutions)
    assert torch.allclose(fast.server.theta, reference.server.theta, rtol=1e-9, atol=1e-12)
    assert set(fast.server.buffers) == set(reference.server.buffers) == set(dict(model.named_buffers()))
    for buffer, values in reference.server.buffers.items():
        assert torch.allclose(fast.server.buffers[buffer], values, rtol=1e-9, atol=1e-12), buffer
    for ours, theirs in zip(fast.records, reference.records, strict=True):
        assert np.allclose(ours.losses, theirs.losses, rtol=1e-9, equal_nan=True)
        assert np.allclose(ours.accuracy, theirs.accuracy, rtol=1e-9, equal_nan=True)
    if reference.personal is not None:
        assert torch.allclose(fast.personal, reference.personal, rtol=1e-9, atol=1e-12)


def test_batchnorm_of_images_trains_on_a_batch_of_one_example():
    spatial = evenfed.train(normed_convolutions(), federation(), rounds=1, batch_size=4, device="cpu")
    assert "BatchNorm2d" in spatial.engine


def test_the_rule_looks_at_model_shapes_and_device_only():
    assert stacking_wins(problem_of(small_model()), jobs=100)[0]
    assert not stacking_wins(problem_of(small_model()), jobs=2)[0]
    wide = nn.Sequential(nn.Linear(6, 30_000), nn.Linear(30_000, 3))
    assert not stacking_wins(problem_of(wide), jobs=100)[0]
    heavy = problem_of(models.cnn(1, 3, width=32).double(), images(side=32), batch_size=64)
    assert not stacking_wins(heavy, 100, [Batching(64)])[0]
    assert stacking_wins(problem_of(models.cnn(1, 3, width=4).double(), images()), 100, [Batching(4)])[0]
    assert not stacking_wins(problem_of(models.NextToken(7, 8, 256), sequences()), jobs=100)[0]
    assert "stacked" in Parallel(problem_of(small_model()), 100).how
    assert f"{cores()} workers" in Parallel(heavy, 100).how


def test_visiting_gives_torch_its_threads_back():
    before = torch.get_num_threads()
    settings = evenfed.Settings(**OPTIONS)
    problem = Problem.of(models.cnn(1, 3, width=4).double(), images(), settings)
    run(lambda p: Visiting(p, 2), [Run("fedavg", evenfed.algorithms.FedAvg(), settings)], problem)
    assert torch.get_num_threads() == before


def test_a_model_that_torch_compiles_is_the_model():
    options = {"rounds": 3, "lr": 0.1, "batch_size": 4, "device": "cpu"}
    plain = evenfed.train(small_model(), federation(), "vred", engine="reference", **options)
    for engine in ("reference", "parallel"):
        wrapped = torch.compile(small_model())
        found = evenfed.train(wrapped, federation(), "vred", engine=engine, **options)
        for ours, theirs in zip(found.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


def test_what_cannot_be_traced_goes_on_as_it_is(monkeypatch):
    tried = []

    def fail(*given):
        tried.append(given)
        raise RuntimeError("no trace of this")

    monkeypatch.setattr(replay, "trace", fail)
    doubled = replay.Traced(lambda x: 2 * x)
    assert [float(doubled(torch.tensor(float(k)))) for k in range(200)] == [2.0 * k for k in range(200)]
    assert len(tried) == 1
