"""Dropout: every engine draws the same masks, and no client's depend on who else trains."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

import evenfed
from evenfed.algorithms import get
from evenfed.core import streams
from evenfed.core.streams import Batching
from evenfed.local.training import LocalTraining
from evenfed.simulate.engines.parallel import RANDOM, why_not_stacked
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.engines.stackability import RANDOM_THROUGHOUT
from evenfed.simulate.engines.stacked import Stacked
from evenfed.simulate.engines.visiting import Visiting
from evenfed.simulate.layers.dropout import Masks
from evenfed.simulate.loop import rounds, start
from evenfed.simulate.problem import Problem, Task
from evenfed.simulate.state import Run
from worked_example import federation

OPTIONS = {"rounds": 1, "lr": 0.1, "batch_size": 4, "device": "cpu"}


def variants():
    """One layer of each kind that acts on features or channels."""
    channels = [nn.Unflatten(1, (4, 2)), nn.Dropout1d(0.3), nn.Unflatten(2, (2, 1)), nn.Dropout2d(0.3)]
    more = [nn.Unflatten(3, (1, 1)), nn.Dropout3d(0.3), nn.FeatureAlphaDropout(0.2), nn.Flatten()]
    flat = [nn.Dropout(0.4), nn.SELU(), nn.AlphaDropout(0.2), nn.Dropout(0.1, inplace=True)]
    return nn.Sequential(nn.Linear(6, 8), *channels, *more, *flat, nn.Linear(8, 3))


def small():
    return nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.4), nn.ReLU(), nn.Linear(4, 3))


class Attending(nn.Module):
    """The six numbers as six tokens; sequences first, as torch's layers have it by default."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2)
        self.score = nn.Linear(4, 3)

    def forward(self, x):
        tokens = self.embed(x.T[..., None])
        hidden = self.layer(tokens)
        p = 0.3 if self.training else 0.0
        causal = F.scaled_dot_product_attention(*[hidden.transpose(0, 1)] * 3, dropout_p=p, is_causal=True)
        return self.score(F.dropout(causal, 0.1, self.training).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 3, 2, dropout=0.4)
        self.score = nn.Linear(3, 3)

    def forward(self, x):
        _, last = self.gru(x.view(-1, 3, 2).transpose(0, 1))
        return self.score(last[-1])


def model_of(make):
    torch.manual_seed(0)
    return make().double()


def trained(problem, engine, options=OPTIONS):
    """The model after the rounds."""
    run = Run("semi_vred", get("semi_vred"), evenfed.Settings(**options))
    states = [start(run, problem)]
    for new_states, _ in rounds([run], states, problem, engine):
        states = new_states
    return states[0].server.theta


@pytest.mark.parametrize("make", [variants, Attending, Recurrent])
def test_all_engines_draw_the_same_masks(make, monkeypatch):
    model = model_of(make)
    problem = Problem.of(model, federation(dtype=torch.float64), evenfed.Settings(**OPTIONS))
    assert why_not_stacked(problem) is None
    reference = trained(problem, Reference(problem))
    engines = [Visiting(problem, 2), Stacked(problem, 3), Slots(problem, 2)]
    for engine in engines:
        theta = trained(problem, engine)
        assert torch.allclose(theta, reference, rtol=1e-9, atol=1e-12), type(engine)
    monkeypatch.setattr(streams, "DROPOUT", 999)
    other_masks = trained(problem, Reference(problem))
    assert float((other_masks - reference).norm()) > 1e-3


def layers_of(key, x):
    """Every function of torch that drops something."""
    image = x[..., None, None]
    with Masks(key):
        dropped = [
            F.dropout(x, 0.5),
            F.dropout(x.clone(), 0.1, inplace=True),
            F.dropout1d(image[..., 0], 0.2),
            F.dropout2d(image, 0.3),
            F.dropout3d(image[..., None], 0.2),
            F.alpha_dropout(x, 0.2, True),
            F.feature_alpha_dropout(image, 0.2, True),
            F.scaled_dot_product_attention(image, image, image, dropout_p=0.3),
        ]
    return torch.stack([each.flatten(1) for each in dropped])


def test_masks_are_the_same_alone_in_a_stack_and_traced_and_no_two_steps_share_one():
    keys = torch.from_numpy(streams.step_keys(0, 1, np.arange(3), 0))
    x = torch.ones(3, 5, 8)
    before = torch.get_rng_state()
    alone = torch.stack([layers_of(key, each) for key, each in zip(keys, x, strict=True)])
    assert torch.equal(vmap(layers_of)(keys, x), alone)
    traced = make_fx(vmap(layers_of))(keys, x)
    assert torch.equal(traced(keys.flip(0), x), alone.flip(0))  # the key is no constant of the trace
    assert torch.equal(torch.get_rng_state(), before)
    first, second, third = alone
    assert not torch.equal(first, second) and not torch.equal(second, third)
    assert len({tuple(row.flatten().tolist()) for row in first}) == len(first)  # nor two calls
    longer = layers_of(keys[0], torch.ones(9, 8))
    assert torch.equal(longer[:, :5], first)  # filling a batch up changes no mask


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p):
    ones = torch.ones(500, 400)
    with Masks(torch.tensor(7)):
        dropped = F.dropout(ones, p)
        all_gone = F.dropout(ones, 1.0)
        normal = F.alpha_dropout(torch.randn(500, 400, generator=torch.Generator().manual_seed(0)), p, True)
        untouched = F.dropout(ones, p, training=False)
    spread = (p * (1 - p) / ones.numel()) ** 0.5
    share = float((dropped == 0).double().mean())
    assert abs(share - p) < 5 * spread
    assert float(dropped.max()) == pytest.approx(1 / (1 - p))
    assert all_gone.sum() == 0 and untouched is ones
    with Masks(torch.tensor(7)):
        rounded = F.dropout(ones.bfloat16() * 1.5, p)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, (dropped * 1.5).bfloat16())  # the same mask, and no rounded factor
    assert abs(float(normal.mean())) < 0.02 and abs(float(normal.var()) - 1) < 0.05


def test_attention_with_dropout_is_torchs_own_where_nothing_is_dropped():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 6, generator=generator)
    seen = torch.rand(5, 5, generator=generator) > 0.4
    seen[2] = False  # this one sees nothing
    for options in ({"is_causal": True}, {"attn_mask": seen}, {"attn_mask": seen.float().log()}, {"scale": 0.3}):
        own = F.scaled_dot_product_attention(q, k, v, **options)
        with Masks(torch.tensor(1)):
            ours = F.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, **options)
        assert torch.allclose(ours, own, atol=1e-6), options
    few = k[:, :2]
    own = F.scaled_dot_product_attention(q, few, few, enable_gqa=True)
    with Masks(torch.tensor(1)):
        ours = F.scaled_dot_product_attention(q, few, few, dropout_p=1e-12, enable_gqa=True)
    assert torch.allclose(ours, own, atol=1e-6)


def test_a_clients_masks_do_not_depend_on_who_else_trains():
    problem = Problem.of(model_of(small), federation(dtype=torch.float64), evenfed.Settings(**OPTIONS))

    def delta_of_3(engine, ids):
        task = Task(index=3, seed=5, theta=problem.theta, ids=torch.tensor(ids), local=LocalTraining(0.1, Batching(4)))
        updates = [update for _, update in engine.train([task])]
        for update in updates:
            if 3 in update.ids:
                delta = torch.zeros(len(problem.theta), dtype=torch.float64)
                columns = slice(None) if update.columns is None else update.columns
                delta[columns] = update.delta[update.ids.tolist().index(3)]
        return delta

    alone = delta_of_3(Reference(problem), [3])
    for engine in (Stacked(problem, 8), Slots(problem, 2), Visiting(problem, 2)):
        assert torch.allclose(delta_of_3(engine, [0, 2, 3, 4]), alone, rtol=1e-9, atol=1e-12)


class Noisy(nn.Module):
    """Random numbers of its own, beside dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, x):
        noise = torch.randn_like(x) if self.training else 0
        return self.layers(x + noise)


def test_other_random_numbers_are_visited_by_one_worker_and_repeat():
    model = model_of(Noisy)
    clients = federation(dtype=torch.float64)
    results = {}
    for engine in ("parallel", "reference"):
        results[engine] = evenfed.train(model, clients, engine=engine, **OPTIONS)
    parallel = results["parallel"]
    assert RANDOM in parallel.engine and "1 worker" in parallel.engine
    assert torch.allclose(parallel.server.theta, results["reference"].server.theta, rtol=1e-9)


class AlwaysRandom(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("function", [F.gumbel_softmax, F.dropout])
def test_random_numbers_in_evaluation_are_the_same_every_time(function, tmp_path):
    torch.manual_seed(0)
    model = AlwaysRandom(function)
    options = {**OPTIONS, "rounds": 3, "progress": False}
    whole, again, reference = (
        evenfed.train(model, federation(), engine=engine, **options) for engine in ("parallel", "parallel", "reference")
    )
    assert RANDOM_THROUGHOUT in whole.engine and "1 worker" in whole.engine
    evenfed.train(model, federation(), out=tmp_path, **{**options, "rounds": 1})
    resumed = evenfed.train(model, federation(), out=tmp_path, **options)
    assert torch.allclose(whole.server.theta, reference.server.theta, atol=1e-6)
    for other in (again, resumed):
        assert torch.equal(whole.server.theta, other.server.theta)
        for one, two in zip(whole.records, other.records, strict=True):
            np.testing.assert_array_equal(one.losses, two.losses)
            np.testing.assert_array_equal(one.accuracy, two.accuracy)
