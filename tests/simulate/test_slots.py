"""The engine for GPUs, at tiny widths on a CPU: the same code, without the compiler and the recording."""

import dataclasses
import warnings
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import evenfed
from evenfed import models
from evenfed.algorithms import get
from evenfed.comparison import driver
from evenfed.core import streams
from evenfed.core.streams import Batching
from evenfed.local.training import LocalTraining
from evenfed.simulate import loop
from evenfed.simulate.engines import slots
from evenfed.simulate.engines.parallel import Parallel
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.schedule import Schedule, examples
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.layers import implicit, replay
from evenfed.simulate.layers.convolution import Taps, conv2d, group_norm
from evenfed.simulate.layers.implicit import correlate
from evenfed.simulate.layers.live import LiveParameters
from evenfed.simulate.loop import rounds, start
from evenfed.simulate.problem import EvalRequest, Problem, Task
from evenfed.simulate.state import Run
from worked_example import federation, small_model

pytestmark = pytest.mark.slow

CONVOLUTIONS = [  # image, kernel, stride, padding, dilation, channels
    ((9, 7), (3, 3), (1, 1), (1, 1), (1, 1), 4),
    ((8, 8), (3, 3), (2, 2), (1, 1), (1, 1), 3),
    ((2, 2), (3, 3), (2, 2), (1, 1), (1, 1), 3),
    ((1, 1), (3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((12, 12), (7, 7), (2, 2), (3, 3), (1, 1), 3),
    ((9, 9), (3, 3), (1, 1), (2, 2), (2, 2), 3),
    ((8, 8), (1, 1), (2, 2), (0, 0), (1, 1), 3),
    ((5, 6), (3, 1), (2, 1), (1, 0), (1, 1), 2),
    ((7, 7), (3, 3), (3, 3), (0, 0), (2, 2), 2),
    ((4, 4), (5, 5), (1, 1), (2, 2), (1, 1), 2),
]


class Residual(nn.Module):
    """The paper's network at a size a test can bear: 7x7 stem, pooling, blocks down to a single pixel."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        block = models.Block
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.GroupNorm(2, width), nn.Tanh(), nn.MaxPool2d(3, 2, 1)]
        blocks = [block(width, width, 1, 2), block(width, 8, 2, 2)]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
        self.layers = nn.Sequential(models.FromBytes(), *stem, *blocks, *pooled)

    def forward(self, x):
        return self.layers(x)


def images(sizes, size=8):
    draw = torch.Generator().manual_seed(0)

    def some(count):
        shown = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=draw)
        return shown, torch.randint(0, 10, (count,), generator=draw)

    return [evenfed.Client(some(n), some(3)) for n in sizes]


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)  # bytes become numbers of the default type
    yield
    torch.set_default_dtype(torch.float32)


def local(lr, batch_size=4):
    return LocalTraining(lr, Batching(batch_size))


def residual_problem(settings, sizes=(9, 5, 3)):
    torch.manual_seed(0)
    return Problem.of(Residual(), images(sizes), settings)


def small_problem(settings, dtype=torch.float32):
    """For what does not depend on the network: a step that is traced quickly."""
    return Problem.of(small_model(dtype), federation(sizes=(9, 5, 3), dtype=dtype), settings)


def final(engine, runs, problem):
    states = [start(r, problem) for r in runs]
    for now, _ in rounds(runs, states, problem, engine):
        states = now
    return states


def assert_the_references(make, clients, tolerance=1e-12):
    """An engine whose training by FedAvg was found to be the reference's."""
    torch.manual_seed(0)
    settings = evenfed.Settings(rounds=2, lr=0.05, batch_size=4, device="cpu")
    problem, runs = Problem.of(make(), clients, settings), [Run("fedavg", get("fedavg"), settings)]
    engine = Slots(problem, 2)
    (ours,), (theirs,) = final(engine, runs, problem), final(Reference(problem), runs, problem)
    assert torch.allclose(ours.server.theta, theirs.server.theta, rtol=0, atol=tolerance)
    return engine


@pytest.fixture
def kernels(monkeypatch):
    """As where a GPU has kernels for convolutions, which torch's own operations stand for here."""
    monkeypatch.setattr(implicit, "has_kernels", lambda *_: True)
    monkeypatch.setattr(implicit, "CHANNELS", 1)
    monkeypatch.setattr(implicit, "PLACES", 1)
    seen = []
    monkeypatch.setattr(implicit, "correlate", lambda *a: seen.append(a[-1]) or correlate(*a))
    return seen


@pytest.mark.parametrize("way", ["patches", "kernels"])
@pytest.mark.parametrize("form", CONVOLUTIONS, ids=str)
def test_convolution_is_torchs_with_its_gradients(form, way, request):
    seen = request.getfixturevalue(way) if way == "kernels" else []
    image, kernel, stride, padding, dilation, channels = form
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(3, 2, channels, *image, generator=draw, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 5, channels, *kernel, generator=draw, dtype=torch.float64, requires_grad=True)
    b = torch.randn(3, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([F.conv2d(x[c], w[c], b[c], stride, padding, dilation) for c in range(3)])
    found = vmap(lambda x, w, b: conv2d(x, w, b, stride, padding, dilation))(x, w, b)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    slope = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, w, b), slope), torch.autograd.grad(expected, (x, w, b), slope), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    plain = way == "kernels" and dilation == (1, 1) and kernel != (1, 1) and stride[0] == stride[1]
    assert seen == ([False, True] if plain and Taps.of(image, kernel, stride, padding, dilation).whole else [])


class Forms(nn.Module):
    """Convolutions that have no form of their own here, and one by keyword that has."""

    def __init__(self):
        super().__init__()
        self.plain, self.grouped = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=2)
        self.line, self.back = nn.Conv1d(4, 4, 3), nn.ConvTranspose2d(4, 4, 2)
        self.bent, self.out = nn.PReLU(4), nn.Linear(4, 10)

    def forward(self, x):
        x = F.conv2d(input=x.to(self.out.weight.dtype) / 255, weight=self.plain.weight, bias=self.plain.bias)
        x = self.back(self.bent(self.grouped(x)))
        return self.out(self.line(x.flatten(2)).mean(2))


def test_convolutions_left_to_torch_are_named_and_right(double):
    engine = assert_the_references(Forms, images((6, 4)))
    assert "torch's own grouped form, which is slower: conv1d, conv2d with groups" in engine.how
    assert "conv_transpose2d" in engine.how


@pytest.fixture
def as_on_a_gpu():
    """Autocast takes convolutions as it does on a GPU: after torch has checked their types."""
    rule = torch.library.Library("aten", "IMPL", "AutocastCPU")

    def convolution(x, w, b, *form):
        with torch.autocast("cpu", enabled=False):
            return torch.ops.aten.convolution(x.bfloat16(), w.bfloat16(), None if b is None else b.bfloat16(), *form)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it takes the place of another
        rule.impl("convolution", convolution)
    yield
    rule._destroy()


def test_data_that_the_device_does_not_hold_are_told_with_the_way_out(monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    settings = evenfed.Settings(batch_size=4, device="cpu")
    problem = residual_problem(settings)
    told = r"does not hold the data \(.* GB, images twice\); use device='cpu'"
    monkeypatch.setattr(slots.DeviceInputs, "of", full)
    with pytest.raises(evenfed.InputError, match=told):
        Slots(problem, 2)
    monkeypatch.setattr(torch.Tensor, "contiguous", full)
    with pytest.raises(evenfed.InputError, match=told):
        problem.train.to(torch.device("cpu"))


def test_in_bf16_layers_get_what_is_of_one_type(as_on_a_gpu):
    torch.manual_seed(0)
    problem = Problem.of(Forms(), images((6, 4)), evenfed.Settings(batch_size=4, device="cpu"))
    orders = [Task(0, 0, problem.theta, torch.arange(2), local(0.05))]
    ((_, exact),), ((_, rounded),) = Slots(problem, 2).train(orders), Slots(problem, 2, "bf16").train(orders)
    assert 0 < (rounded.delta - exact.delta).norm() < 0.05 * exact.delta.norm()


def test_what_torch_does_not_mix_is_told_with_the_way_out(monkeypatch):
    def refuse(*given, **options):
        raise RuntimeError("expected m1 and m2 to have the same dtype\nmore")

    problem = Problem.of(small_model(), federation(), evenfed.Settings(batch_size=4, device="cpu"))
    orders = [Task(0, 0, problem.theta, torch.arange(1), local(0.05))]
    monkeypatch.setattr(slots, "SlotStep", refuse)
    with pytest.raises(
        evenfed.InputError, match=r"not be computed in bf16 \(expected m1.*dtype\); use precision='tf32'"
    ):
        list(Slots(problem, 1, "bf16").train(orders))
    with pytest.raises(RuntimeError, match="expected m1"):
        list(Slots(problem, 1).train(orders))
    monkeypatch.setattr(slots, "EvaluationGraph", refuse)
    with pytest.raises(evenfed.InputError, match="computed in bf16"):
        Slots(problem, 1, "bf16").losses([EvalRequest(problem.theta, torch.arange(1), problem.buffers)])


@pytest.mark.parametrize("bent", [nn.ELU(), nn.ReLU6(), nn.Hardswish(), nn.Softplus()], ids=repr)
def test_activations_whose_gradients_lie_otherwise_in_memory_are_the_references(bent, double):
    def make():
        layers = (nn.Conv2d(3, 4, 3), bent, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
        return nn.Sequential(models.FromBytes(), *layers)

    assert_the_references(make, images((6, 4)))


class Blurred(nn.Module):
    """Convolutions that clients share: by a filter that does not learn, of frames one by one, of a constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("blur", torch.randn(3, 3, 3, 3))
        self.frame, self.constant = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("map", torch.randn(1, 3, 8, 8))
        self.out = nn.Linear(3, 10)

    def forward(self, x):
        x = F.conv2d(x.to(self.blur.dtype) / 255, self.blur, padding=1)
        frames = torch.vmap(self.frame, in_dims=1, out_dims=1)(torch.stack([x, x.tanh()], 1))
        return self.out((frames.sum(1) + self.constant(self.map)).tanh().mean((2, 3)))


def test_kernels_take_what_clients_share(kernels, double):
    assert "kernels of its own" in assert_the_references(Blurred, images((6, 4))).how


class Words(nn.Module):
    """A recurrent and an attending layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
        self.attend = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 20)

    def forward(self, x):
        return self.out(self.attend(self.lstm(self.inner(x))[0])[:, -1])


def test_sequences_are_the_references(double):
    draw = torch.Generator().manual_seed(0)

    def some(count):
        words = torch.randint(0, 20, (count, 6), generator=draw)
        return words[:, :-1].contiguous(), words[:, -1].contiguous()

    assert_the_references(Words, [evenfed.Client(some(n), some(3)) for n in (9, 5)], tolerance=1e-10)


@pytest.mark.parametrize("options", [{"groups": 2}, {"padding": "same"}])
def test_other_forms_of_convolution_stay_torchs_own(options):
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 4 // options.get("groups", 1), 3, 3)
    assert conv2d(x, w, **options) is None


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 6, 5, 2)])
def test_group_norm_is_torchs_in_any_memory_order(shape):
    x, weight, bias = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert torch.allclose(group_norm(turned, 2, weight, bias), F.group_norm(x, 2, weight, bias), atol=1e-5)
    assert group_norm(x.bfloat16(), 2, weight).dtype == torch.bfloat16


def test_taps_that_only_meet_padding_are_known():
    assert Taps.of((2, 2), (3, 3), (2, 2), (1, 1), (1, 1)) == Taps((3, 3), range(1, 3), range(1, 3))
    assert Taps.of((4, 4), (3, 3), (1, 1), (1, 1), (1, 1)).whole


def test_most_of_the_papers_network_never_changes_on_its_images():
    model = nn.Sequential(models.FromBytes(), models.resnet18_gn(10))
    layout = evenfed.core.vector.Layout.of(dict(model.named_parameters()))
    one = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    assert len(LiveParameters.of(model, layout, one, crop=True)) == 4_234_826
    whole = LiveParameters.of(model, layout, one, crop=False)
    assert len(whole) == 11_181_642 and whole.columns.sort().values.equal(torch.arange(11_181_642))


class Shared(nn.Module):
    """A kernel that two images of different size and a penalty share: none of it may be left out."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.out = nn.Linear(3, 10)

    def forward(self, x):
        small = F.adaptive_avg_pool2d(x.to(self.conv.weight.dtype) / 255, 1)
        return self.out(self.conv(small).flatten(1) + self.conv.weight.square().sum())


def test_a_parameter_with_another_use_is_kept_whole(double):
    torch.manual_seed(0)
    settings = evenfed.Settings(rounds=2, lr=0.01, batch_size=4, device="cpu")
    problem = Problem.of(Shared(), images((6, 4)), settings)
    assert len(Slots(problem, 2).network.live(crop=True)) == len(problem.theta)
    runs = [Run("fedavg", evenfed.algorithms.get("fedavg"), settings)]
    (ours,), (theirs,) = final(Slots(problem, 2), runs, problem), final(Reference(problem), runs, problem)
    assert torch.allclose(ours.server.theta, theirs.server.theta, rtol=0, atol=1e-12)
    moved = (ours.server.theta - problem.theta)[problem.layout.shapes[0].numel() - 9 :][:9]
    assert bool((moved != 0).any())


class Asked(TorchDispatchMode):
    """Operations whose result a host would have to wait for on a GPU."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"):
            self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "problem_of"),  # a loss, models and snapshots of its own
    [("propfair", residual_problem), ("ditto", small_problem), ("drfa", small_problem)],
)
def test_nothing_waits_for_the_host_while_clients_train(name, problem_of):
    settings = evenfed.Settings(rounds=2, lr=0.05, batch_size=4, device="cpu")
    problem, run = problem_of(settings), Run(name, get(name), settings)
    engine, asked = Slots(problem, 2), Asked()
    train, watched = engine.train, []

    def under_watch(orders):
        found = train(orders)
        while True:
            with asked:
                update = next(found, None)
            if update is None:
                return
            watched.append(update)
            yield update

    engine.train = under_watch
    final(engine, [run], problem)
    assert len(watched) >= 2 and not asked.seen
    with asked:
        assert bool(torch.ones(1)) and asked.seen  # it does see such a thing


def test_a_step_with_kernels_is_the_references(kernels, double):
    settings = evenfed.Settings(rounds=2, lr=0.05, batch_size=4, device="cpu")
    problem, runs = residual_problem(settings), [Run("fedavg", evenfed.algorithms.get("fedavg"), settings)]
    engine = Slots(problem, 2)
    (ours,), (theirs,) = final(engine, runs, problem), final(Reference(problem), runs, problem)
    assert torch.allclose(ours.server.theta, theirs.server.theta, rtol=0, atol=1e-12) and set(kernels) == {False, True}
    assert "large convolutions by kernels of its own" in engine.how


@cache
def residual_alone():
    """A problem, runs of five algorithms, and where the reference ends with each of them alone."""
    shared = evenfed.Settings(rounds=1, lr=0.05, batch_size=4, local_epochs=2, device="cpu")
    problem = residual_problem(shared)
    runs = [
        Run(name, evenfed.algorithms.get(name), dataclasses.replace(shared, seed=k, prox=0.1 * (name == "vred")))
        for k, name in enumerate(("fedavg", "propfair", "ditto", "drfa", "vred"))
    ]
    return problem, runs, [final(Reference(problem), [run], problem)[0] for run in runs]


def test_a_residual_network_agrees_with_the_reference_whatever_shares_its_slots(double):
    problem, runs, references = residual_alone()
    together = final(Slots(problem, 5), runs, problem)
    for alone, found in zip(references, together, strict=True):
        moved = (alone.server.theta - problem.theta).norm()
        assert float((found.server.theta - alone.server.theta).norm() / moved) < 1e-8
        if alone.personal is not None:
            assert float((found.personal - alone.personal).norm() / moved) < 1e-8


def test_clients_that_start_elsewhere_train_in_the_same_step(double):
    """Taps that never learn stay where each client's start has them."""
    problem = residual_problem(evenfed.Settings(batch_size=4, device="cpu"))
    starts = problem.theta + 0.1 * torch.randn(3, len(problem.theta), generator=torch.Generator().manual_seed(3))
    plain = Task(0, 0, problem.theta, torch.arange(3), local(0.05))
    elsewhere = dataclasses.replace(plain, starts=starts, snapshot_steps=torch.ones(3, dtype=torch.int64))
    engine = Slots(problem, 2)
    found = dict(engine.train([plain, elsewhere]))
    (made,) = engine.steps.values()
    assert len(made.live) < len(problem.theta) and len(found[0].columns) == len(made.live)
    wanted = [update for _, update in Reference(problem).train([elsewhere])]
    for name in ("delta", "snapshot"):
        expected = torch.cat([getattr(u, name).reshape(-1, len(problem.theta)) for u in wanted])
        assert torch.allclose(getattr(found[1], name), expected, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("own", [False, True], ids=["one model", "models of their own"])
def test_measurements_are_the_references(own, double):
    problem = residual_problem(evenfed.Settings(batch_size=4, device="cpu"), sizes=(9, 0, 5, 3))
    draw = torch.Generator().manual_seed(3)
    models = problem.theta + 0.1 * torch.randn(4, len(problem.theta), generator=draw)
    question = EvalRequest(models if own else models[0], torch.tensor([3, 1, 0]), problem.buffers)
    functions = (problem.loss, problem.score)
    for ask in (
        lambda engine: engine.losses([question])[0],
        lambda engine: engine.scores([question], problem.judged, functions, classes=10)[0].means,
        lambda engine: engine.scores([question], problem.judged, functions, classes=10)[0].by_class,
    ):
        ours = ask(Slots(problem, 2))
        theirs = ask(Reference(problem))
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12, equal_nan=True)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    slot_count=st.integers(1, 5),
    batch=st.integers(1, 16),
    epochs=st.integers(1, 3),
    local_steps=st.none() | st.integers(1, 7),
    drop_last=st.booleans(),
)
def test_every_job_sees_the_batches_of_its_stream_in_one_slot(sizes, slot_count, batch, epochs, local_steps, drop_last):
    held = np.array(sizes)
    clients, seeds, begins = np.arange(len(sizes)) * 3, np.arange(len(sizes)) % 2 + 5, held.cumsum() - held
    batching = Batching(batch, epochs, local_steps, drop_last)
    table = examples(seeds, 7, clients, held, batching.passes(held), begins, torch.device("cpu")).numpy()
    made = Schedule.of(held, slot_count, batching)
    expected = streams.batches(seeds, 7, clients, held, batching)
    for step, event in made.begin.items():
        for slot, job in zip(event.slots, event.jobs, strict=True):
            for k in range(int(batching.local_steps(held[job : job + 1])[0])):
                first, count = made.first[step + k, slot], made.count[step + k, slot]
                wanted = expected[job, k]
                assert (table[first : first + count] - begins[job]).tolist() == wanted[wanted >= 0].tolist()
    assert int(made.count.sum()) == int((expected >= 0).sum())


def test_refilled_slots_are_hardly_ever_idle():
    sizes = np.sort(np.random.default_rng(0).integers(5, 2000, 50))[::-1]
    one, ten = ((Schedule.of(np.tile(sizes, runs), 16, Batching(64)).count > 0).mean() for runs in (1, 10))
    in_step = -(-sizes // 64)
    lock_step = in_step.sum() / (len(sizes) * in_step.max())
    assert lock_step < one < ten and ten > 0.97


def test_less_precision_moves_an_update_less_than_another_order_of_batches():
    problem = residual_problem(evenfed.Settings(batch_size=4, device="cpu"), sizes=(8,))

    def update(engine, seed=0):
        ((_, found),) = engine.train([Task(0, seed, problem.theta, torch.arange(1), local(0.02))])
        return found.delta

    in_full = Slots(problem, 1, "fp32")
    full, reduced, other = update(in_full), update(Slots(problem, 1, "bf16")), update(in_full, seed=1)
    assert reduced.dtype == torch.float32
    assert 0 < float((reduced - full).norm()) < float((other - full).norm())


def test_too_little_memory_means_fewer_slots_and_says_so(monkeypatch):
    problem = small_problem(evenfed.Settings(batch_size=4, device="cpu"))
    make = slots.SlotStep.__init__

    def needy(self, count, **rest):
        if count > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        make(self, count=count, **rest)

    monkeypatch.setattr(slots.SlotStep, "__init__", needy)
    engine = Slots(problem, 8)
    ((_, update),) = engine.train([Task(0, 0, problem.theta, torch.arange(3), local(0.1))])
    assert engine.slots == 2 and "8 did not fit into the device's memory" in engine.how
    ((_, expected),) = Slots(problem, 2).train([Task(0, 0, problem.theta, torch.arange(3), local(0.1))])
    assert torch.equal(update.delta, expected.delta)


def test_a_round_that_memory_does_not_hold_is_begun_again_with_fewer_slots(monkeypatch):
    """Too little memory in the middle of a round, for a second run's updates."""
    settings = evenfed.Settings(rounds=2, lr=0.05, batch_size=4, device="cpu")
    problem = small_problem(settings, torch.float64)
    runs = [Run(name, get(name), settings) for name in ("fedavg", "ditto")]
    undisturbed = final(Slots(problem, 1), runs, problem)
    note = slots.SlotRound._note

    def needy(self, event, into):
        if self.step.count > 1 and into:
            raise torch.OutOfMemoryError("CUDA out of memory")
        note(self, event, into)

    monkeypatch.setattr(slots.SlotRound, "_note", needy)
    engine = Slots(problem, 4)
    found = final(engine, runs, problem)
    assert engine.slots == 1 and "4 did not fit into the device's memory" in engine.how
    for ours, theirs in zip(found, undisturbed, strict=True):
        assert torch.equal(ours.server.theta, theirs.server.theta)
    monkeypatch.setattr(slots.SlotRound, "_note", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA")))
    with pytest.raises(evenfed.InputError, match="does not hold a round of 2 runs over 3 clients"):
        final(engine, runs, problem)


def test_not_even_one_slot_is_said_plainly(monkeypatch):
    def needy(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    problem = small_problem(evenfed.Settings(batch_size=4, device="cpu"))
    monkeypatch.setattr(slots.SlotStep, "__init__", needy)
    with pytest.raises(evenfed.InputError, match=r"does not hold one client's training step.*use a smaller"):
        list(Slots(problem, 4).train([Task(0, 0, problem.theta, torch.arange(3), local(0.1))]))


def test_measurements_take_smaller_passes_where_memory_is_short(monkeypatch):
    problem = small_problem(evenfed.Settings(batch_size=4, device="cpu"))
    make, everyone = slots.EvaluationGraph.__init__, torch.arange(3)

    def needy(self, network, resident, length):
        if length > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        make(self, network, resident, length)

    question = EvalRequest(problem.theta, everyone, {})
    (whole,) = Slots(problem, 2).losses([question])
    monkeypatch.setattr(slots.EvaluationGraph, "__init__", needy)
    short = Slots(problem, 2)
    (parts,) = short.losses([question])
    assert torch.allclose(whole, parts, rtol=1e-6) and "measured 4 examples at a time" in short.how


@pytest.mark.parametrize("side", [8, 1], ids=["8x8", "1x1, where most of a kernel only meets padding"])
def test_test_examples_may_be_of_another_shape_and_type_than_training_ones(side):
    """Images of two sizes, bytes and floats: measured as the plain loop measures them."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    small = torch.randint(0, 256, (6, 1, side, side), generator=draw).to(torch.uint8)
    large = torch.rand((6, 1, 10, 10), generator=draw)

    class AnySize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(2, 3)

        def forward(self, x):
            x = self.conv(x.float()).flatten(1)
            return self.last(torch.stack([x.mean(1), x.amax(1)], 1))

    problem = Problem.of(
        AnySize(), [evenfed.Client((small, labels), (large, labels))] * 2, evenfed.Settings(device="cpu")
    )
    question = EvalRequest(problem.theta, torch.arange(2), {})
    for ask in (
        lambda engine: engine.losses([question]),
        lambda engine: [engine.scores([question], problem.judged, (problem.loss,))[0].means],
    ):
        (ours,), (plain,) = ask(Slots(problem, 2)), ask(Reference(problem))
        assert torch.allclose(ours, plain, rtol=1e-5)


def test_a_short_batch_is_filled_up_with_its_own_examples():
    """The other client's example would have an infinite loss, and 0 times infinity is no number."""
    x = torch.full((5, 1), 100.0)
    clients = [evenfed.Client((x, torch.zeros(5).long())), evenfed.Client((x[:4], torch.ones(4).long()))]
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)

    def loss(outputs, targets):
        return -outputs.softmax(1).gather(1, targets[:, None])[:, 0].log()

    problem = Problem.of(model, clients, evenfed.Settings(batch_size=4, device="cpu"), loss=loss)
    orders = Task(0, 0, problem.theta, torch.arange(2), local(1.0))
    ((_, update),) = Slots(problem, 2).train([orders])
    found = dict(zip(update.ids.tolist(), update.delta.tolist(), strict=True))
    assert found == {0: [-50.0, 50.0], 1: [50.0, -50.0]}


def test_what_cannot_be_compiled_runs_as_it_is_and_says_why(monkeypatch):
    def broken(*arguments, **options):
        def fail(*tensors):
            raise RuntimeError("no compiler here\nmore")

        return fail

    x = torch.arange(3.0)
    made = replay.Replay(lambda x: x * 2, (x,))
    monkeypatch.setattr(torch, "compile", broken)
    made._compile(made.run)
    assert made.notes == ["not compiled: RuntimeError: no compiler here"]
    assert made().tolist() == [0, 2, 4]
    monkeypatch.setattr(made, "_recorded", lambda: torch.ones(2) @ torch.ones(3))
    made._record()
    assert made.graph is None and made.notes[-1].startswith("not recorded as a CUDA graph: RuntimeError: ")
    monkeypatch.setattr(replay, "COMPILED_OPERATIONS", 1)
    made._compile(made.run)
    assert "more than 1" in made.notes[-1]


def test_a_cpu_keeps_its_own_engines_and_says_that_it_computes_in_full():
    problem = Problem.of(small_model(), federation(), evenfed.Settings(batch_size=4, device="cpu"))
    told = Parallel(problem, 50, precision="bf16").how
    assert "clients stacked" in told and "in fp32: bf16 needs a GPU" in told


def test_precision_is_checked():
    with pytest.raises(evenfed.InputError, match=r"unknown precision 'half'.*fp32, tf32, bf16"):
        evenfed.Settings(precision="half")


def test_a_model_in_double_precision_is_not_rounded():
    settings = evenfed.Settings(batch_size=4, device="cpu")
    problem = Problem.of(small_model(torch.float64), federation(dtype=torch.float64), settings)
    with pytest.raises(evenfed.InputError, match=r"float64.*precision='fp32'"):
        Slots(problem, 2, "bf16")


def test_entries_of_a_comparison_may_differ_in_precision(monkeypatch):
    engines, rounded, before = [], [], torch.backends.cuda.matmul.allow_tf32
    make, advance = driver.engine_for, loop._advance

    def spied(problem, runs):
        engines.append({run.settings.precision for run in runs})
        return make(problem, runs)

    def looked_at(*arguments):
        rounded.append(torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32)
        return advance(*arguments)

    monkeypatch.setattr(driver, "engine_for", spied)
    monkeypatch.setattr(loop, "_advance", looked_at)
    found = evenfed.compare(
        small_model(),
        federation(),
        {"fedavg": {}, "fedavg-tf32": {"algorithm": "fedavg", "precision": "tf32"}},
        seeds=1,
        rounds=2,
        noise_floor=False,
    )
    one, two = found.results["fedavg"][0], found.results["fedavg-tf32"][0]
    assert one.settings.precision == "fp32" and two.settings.precision == "tf32"
    assert torch.allclose(one.server.theta, two.server.theta)
    assert engines == [{"fp32"}, {"tf32"}]
    assert rounded == [False, False, True, True]  # two rounds each
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_runs_of_one_precision_share_an_engine(monkeypatch):
    problem = Problem.of(small_model(), federation(), evenfed.Settings(device="cpu"))
    runs = [Run(str(k), get("fedavg"), evenfed.Settings(precision=p)) for k, p in enumerate(("bf16", "tf32", "bf16"))]
    groups = []
    monkeypatch.setattr(driver, "_drive_group", lambda group, *_: groups.append([each.run.label for each in group]))
    driver.drive([driver.Training.start(run, problem, None) for run in runs], driver.Sink())
    assert groups == [["0", "2"], ["1"]]
