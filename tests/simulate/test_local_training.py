"""Local training as torch's own loop does it: optimisers, clipping, schedules, local steps, augmentation."""

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.comparison.experiment import Experiment
from evenfed.core import streams
from evenfed.core.streams import Batching
from evenfed.local.optimizer import SGD, Adam
from evenfed.simulate import checkpoint, optimizer_states
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.engines.stacked import Stacked
from evenfed.simulate.engines.visiting import Visiting
from evenfed.simulate.loop import rounds, start
from evenfed.simulate.problem import Problem, Task
from evenfed.simulate.state import Run

ENGINES = {
    "reference": Reference,
    "visiting": lambda problem: Visiting(problem, 2),
    "stacked": lambda problem: Stacked(problem, 8),
    "slots": lambda problem: Slots(problem, 2),
}
OPTIMIZERS = [
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"name": "sgd", "momentum": 0.8, "dampening": 0.3},
    {"name": "SGD", "weight_decay": 0.2},
    {"name": "adam"},
    {"name": "adam", "betas": [0.7, 0.9], "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True},
    {"name": "adamw"},
    {"name": "AdamW", "weight_decay": 0.3, "amsgrad": True},
    {"name": "rmsprop"},
    {"name": "rmsprop", "alpha": 0.8, "eps": 1e-3, "momentum": 0.7, "centered": True, "weight_decay": 0.1},
    {"name": "adagrad", "lr_decay": 0.2, "weight_decay": 0.1},
]
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
CLASSES |= {"rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad}


def clients(sizes=(9, 6, 2)):
    draw = torch.Generator().manual_seed(0)
    made = []
    for size in sizes:
        inputs = torch.randn(size, 5, generator=draw, dtype=torch.float64)
        made.append(evenfed.Client((inputs, torch.randint(0, 3, (size,), generator=draw))))
    return made


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def problem_of(settings, module=None, people=None):
    return Problem.of(module or model(), people or clients(), settings)


def by_torch(settings, problem, client, rounds=1, make=model):
    """The parameters after local training in a plain loop with torch.optim."""
    module = make()
    start = torch.cat([p.detach().flatten() for p in module.parameters()])
    options = {"name": settings.optimizer} if isinstance(settings.optimizer, str) else dict(settings.optimizer)
    kind = CLASSES[options.pop("name").lower()]
    options.pop("keep", None)
    optimizer = kind(module.parameters(), lr=settings.lr, **options)
    inputs, targets = problem.train.of(client)
    for index in range(rounds):
        table = streams.batches(settings.seed, index, np.array([client]), np.array([len(inputs)]), settings.batching)
        for rows in table[0]:
            batch = torch.from_numpy(rows[rows >= 0])
            loss = nn.functional.cross_entropy(module(inputs[batch]), targets[batch])
            flat = torch.cat([p.flatten() for p in module.parameters()])
            if settings.prox:
                loss = loss + settings.prox / 2 * (flat - start).square().sum()
            optimizer.zero_grad()
            loss.backward()
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def trained(engine, problem, settings, ids=(0, 1, 2)):
    """[clients, D] parameters after round 0, in the order of `ids`."""
    task = Task(0, settings.seed, problem.theta, torch.tensor(ids), settings.local(0))
    found = {}
    for _, update in ENGINES[engine](problem).train([task]):
        deltas = update.delta
        if update.columns is not None:
            deltas = torch.zeros(len(update.ids), len(problem.theta)).double().index_copy(1, update.columns, deltas)
        found.update(zip(update.ids.tolist(), problem.theta - deltas, strict=True))
    return torch.stack([found[k] for k in ids])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: "-".join(map(str, o.values())))
def test_every_option_is_torchs_on_every_engine(engine, optimizer):
    settings = evenfed.Settings(lr=0.05, batch_size=4, local_epochs=3, optimizer=optimizer, device="cpu")
    problem = problem_of(settings)
    expected = torch.stack([by_torch(settings, problem, k) for k in range(3)])
    assert (expected - problem.theta).abs().max() > 0.01
    assert torch.allclose(trained(engine, problem, settings), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_is_clipped_with_the_pull_in_it_before_momentum_and_decay(engine):
    optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}
    settings = evenfed.Settings(
        lr=0.2, batch_size=4, local_epochs=4, optimizer=optimizer, clip=0.3, prox=0.7, device="cpu"
    )
    problem = problem_of(settings)
    expected = torch.stack([by_torch(settings, problem, k) for k in range(3)])
    assert torch.allclose(trained(engine, problem, settings), expected, rtol=0, atol=1e-9)
    free = evenfed.Settings(lr=0.2, batch_size=4, local_epochs=4, optimizer=optimizer, prox=0.7, device="cpu")
    assert (trained(engine, problem, free) - expected).abs().max() > 1e-3


class Partly(nn.Module):
    """Of its three layers the loss depends on one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.used, self.detached, self.unused = (nn.Linear(5, 3).double() for _ in range(3))

    def forward(self, x):
        return self.used(x) + self.detached(x).detach()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ["adamw", {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("prox", [0, 0.7])  # with it every parameter has a gradient
def test_parameters_without_a_gradient_are_not_decayed(engine, optimizer, prox):
    settings = evenfed.Settings(lr=0.1, batch_size=4, optimizer=optimizer, prox=prox, device="cpu")
    problem = problem_of(settings, Partly())
    expected = torch.stack([by_torch(settings, problem, k, make=Partly) for k in range(3)])
    unused = (expected == problem.theta).all(0)
    assert unused.sum() == (0 if prox else 36)
    assert torch.allclose(trained(engine, problem, settings), expected, rtol=0, atol=1e-9)


def test_local_steps_go_on_over_the_clients_data_reshuffled_at_each_pass():
    sizes = np.array([5, 2, 400, 0])
    table = streams.batches(0, 3, np.arange(4), sizes, Batching(2, steps=7))
    assert table.shape == (4, 7, 2)
    assert (table[3] == -1).all()
    small = table[0]  # passes of 2 + 2 + 1 examples
    assert sorted(small[:3].ravel().tolist()) == [-1, 0, 1, 2, 3, 4] == sorted(small[3:6].ravel().tolist())
    assert small[:3].tolist() != small[3:6].tolist() and (small[6] >= 0).all()
    assert len({tuple(sorted(rows)) for rows in table[1].tolist()}) == 1
    epochs = streams.batches(0, 3, np.arange(4), sizes, Batching(2, epochs=3))
    assert (epochs[0, :7] == small).all()  # the same passes as epochs make
    assert Batching(2, steps=7).local_steps(sizes).tolist() == [7, 7, 7, 0]


def test_drop_last_leaves_out_short_batches_but_not_a_small_clients_only_one():
    sizes = np.array([5, 1, 4, 0])
    dropped = Batching(2, epochs=2, drop_last=True)
    table = streams.batches(0, 0, np.arange(4), sizes, dropped)
    lengths = (table >= 0).sum(2)
    assert lengths.tolist() == [[2, 2, 2, 2], [1, 1, 0, 0], [2, 2, 2, 2], [0, 0, 0, 0]]
    assert dropped.shortest(np.array([5, 1, 4])).tolist() == [2, 1, 2]
    whole = streams.batches(0, 0, np.arange(4), sizes, Batching(2, epochs=2))
    assert (table[0, :2] == whole[0, :2]).all() and (table[0, 2:] == whole[0, 3:5]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_local_steps_and_drop_last_train_as_torchs_loop(engine):
    optimizer = {"name": "sgd", "momentum": 0.9}
    settings = evenfed.Settings(lr=0.1, batch_size=4, local_steps=5, drop_last=True, optimizer=optimizer, device="cpu")
    problem = problem_of(settings)
    expected = torch.stack([by_torch(settings, problem, k) for k in range(3)])
    assert torch.allclose(trained(engine, problem, settings), expected, rtol=0, atol=1e-9)


def factors(schedule, rounds=9):
    settings = evenfed.Settings(rounds=rounds, lr=0.5, lr_schedule=schedule)
    return [settings.local(k).lr / 0.5 for k in range(rounds)]


def test_schedules():
    assert factors("constant") == [1] * 9
    assert factors("step") == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])
    assert factors({"name": "step", "every": 4, "factor": 0.5}) == [1] * 4 + [0.5] * 4 + [0.25]
    assert factors({"name": "exponential", "factor": 0.5})[:3] == [1, 0.5, 0.25]
    assert factors(lambda index: 1 / (1 + index))[:3] == pytest.approx([1, 1 / 2, 1 / 3])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    by_torch = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9, eta_min=0.2)
    expected = []
    for _ in range(9):
        expected.append(by_torch.get_last_lr()[0])
        optimizer.step()
        by_torch.step()
    assert factors({"name": "cosine", "final": 0.2}) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["qffl", "fcfl"])
def test_algorithms_see_the_learning_rate_of_the_round(algorithm):
    """A run whose second round has half the learning rate goes on as one with half the learning rate."""
    server = evenfed.Server.start(
        evenfed.algorithms.get(algorithm), torch.ones(2), [1, 2], lr=0.2, lr_schedule=lambda index: 0.5**index
    )
    assert server.round_lr == 0.2
    opened = evenfed.open_round(server, [1.0, 2.0])
    after, _ = evenfed.close_round(opened, [evenfed.Update(k, torch.ones(2)) for k in range(2)])
    assert opened.round.lr == 0.2
    assert evenfed.open_round(after, [1.0, 2.0]).round.lr == 0.1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"optimizer": "lion"}, r"unknown optimizer 'lion'.*sgd, adam, adamw, rmsprop, adagrad"),
        ({"optimizer": {"name": "adam", "momentum": 0.9}}, r"unknown option of optimizer adam 'momentum'.*betas"),
        ({"optimizer": {"name": "sgd", "lr": 0.1}}, r"an option of its own; give lr=0.1"),
        ({"optimizer": {"name": "sgd", "momentum": -1}}, r"momentum=-1; give a finite number of at least 0"),
        ({"optimizer": {"name": "sgd", "nesterov": True}}, r"nesterov=true needs a momentum above 0"),
        ({"optimizer": {"name": "adam", "betas": [0.9, 1]}}, r"betas=1; give a number of at least 0 and below 1"),
        ({"optimizer": {"name": "adam", "betas": 0.9}}, r"betas=0.9; give two numbers"),
        ({"optimizer": {"name": "sgd", "keep": 1}}, r"keep=1; give true or false"),
        ({"optimizer": 3}, r"optimizer=3: give a name \(sgd, adam, adamw, rmsprop, adagrad\)"),
        ({"clip": 0}, r"clip=0: give a finite number above 0"),
        ({"local_steps": 0}, r"local_steps=0: give a whole number, at least 1"),
        ({"local_steps": 5, "local_epochs": 2}, r"give one of them"),
        ({"drop_last": "yes"}, r"drop_last='yes': give true or false"),
        ({"lr_schedule": "linear"}, r"unknown lr_schedule 'linear'.*constant, step, exponential, cosine"),
        ({"lr_schedule": {"name": "step", "gamma": 0.1}}, r"unknown option of lr_schedule step 'gamma'.*every, factor"),
        ({"lr_schedule": {"name": "cosine", "final": 2}}, r"final=2; give a number from 0 to 1"),
        ({"lr_schedule": 0.5}, r"lr_schedule=0.5: give a name"),
        ({"lr_schedule": lambda index: 1 - index / 50}, r"gives 0.0 for round 50; every round's factor"),
        ({"lr_schedule": lambda index: [1][index]}, r"failed for round 1 \(IndexError"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_round(options, told):
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.Settings(**options)


def test_entries_of_a_comparison_train_each_in_their_own_way():
    """Different optimisers, batches and steps share a comparison, and each ends as if it ran alone."""
    entries = {
        "plain": {"algorithm": "fedavg"},
        "heavy": {"algorithm": "ditto", "optimizer": {"name": "sgd", "momentum": 0.9}, "batch_size": 3},
        "adam": {"algorithm": "drfa", "optimizer": "adamw", "local_steps": 3, "clip": 0.5, "lr_schedule": "cosine"},
    }
    shared = {"rounds": 2, "lr": 0.1, "batch_size": 4, "device": "cpu"}
    together = evenfed.compare(model(), clients(), entries, seeds=1, noise_floor=False, **shared)
    for label, entry in entries.items():
        options = dict(entry)
        alone = evenfed.train(model(), clients(), options.pop("algorithm"), engine="reference", **{**shared, **options})
        (found,) = together.results[label]
        assert torch.allclose(found.server.theta, alone.server.theta, rtol=0, atol=1e-9)


def pictures(sizes=(7, 4, 3)):
    draw = torch.Generator().manual_seed(0)
    made = []
    for size in sizes:
        images = torch.randint(0, 256, (size, 2, 5, 6), dtype=torch.uint8, generator=draw)
        made.append(evenfed.Client((images, torch.randint(0, 3, (size,), generator=draw))))
    return made


class Reader(nn.Module):
    """The model of small pictures."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(2, 3, 3).double()
        self.linear = nn.Linear(36, 3).double()

    def forward(self, x):
        return self.linear(self.convolution(x.double() / 255).tanh().flatten(1))


def noisy(batch, draw):
    return batch.double() + draw.uniform(*batch.shape) * 9


@pytest.mark.parametrize("augment", [evenfed.augment.crop_and_flip(2), noisy], ids=["crop_and_flip", "own"])
def test_every_engine_trains_on_the_same_augmented_pictures(augment):
    settings = evenfed.Settings(lr=0.1, batch_size=3, local_epochs=2, augment=augment, device="cpu")
    problem = problem_of(settings, Reader(), pictures())
    expected = trained("reference", problem, settings)
    for engine in ("visiting", "stacked", "slots"):
        assert torch.allclose(trained(engine, problem, settings), expected, rtol=0, atol=1e-9)
    assert torch.equal(trained("reference", problem, settings, ids=[2])[0], expected[2])  # whoever else trains
    without = evenfed.Settings(lr=0.1, batch_size=3, local_epochs=2, device="cpu")
    assert (trained("stacked", problem, without) - expected).abs().max() > 1e-3


def test_crop_and_flip_moves_and_mirrors_whole_pictures():
    picture = torch.arange(1, 13).view(1, 1, 3, 4).float()
    seen = evenfed.augment.crop_and_flip(1)(picture.expand(400, 2, 3, 4), streams.HashedNumbers(torch.tensor(5), 0))
    padded = nn.functional.pad(picture, [1] * 4)[0, 0]
    possible = {}
    for down in range(3):
        for right in range(3):
            crop = padded[down : down + 3, right : right + 4]
            possible[tuple(crop.flatten().tolist())] = possible[tuple(crop.flip(1).flatten().tolist())] = 0
    for image in seen:
        assert torch.equal(image[0], image[1])  # channels move together
        possible[tuple(image[0].flatten().tolist())] += 1
    assert len(possible) == 18 and min(possible.values()) > 5


def test_augmentation_is_chosen_by_name_and_checked_before_the_first_round():
    named = evenfed.Settings(augment={"name": "crop_and_flip", "padding": 2})
    assert named.local(0).augment == evenfed.augment.crop_and_flip(2)
    shared = {"rounds": 1, "batch_size": 3, "device": "cpu"}
    told = {
        "takes images": ({"augment": "crop_and_flip"}, model(), clients()),
        r"\[2, 8, 8, 3\] look like channels last; give x.movedim": (
            *({"augment": "crop_and_flip"}, nn.Sequential(nn.Flatten(), nn.Linear(192, 2))),
            [evenfed.Client((torch.rand(6, 8, 8, 3), torch.arange(6) % 2))],
        ),
        "augment fails on a batch.*ValueError: no": ({"augment": refusing}, Reader(), pictures()),
        "made 1 examples of 2": ({"augment": lambda batch, draw: batch[:1]}, Reader(), pictures()),
    }
    for message, (options, module, people) in told.items():
        with pytest.raises(evenfed.InputError, match=message):
            evenfed.train(module, people, **shared, **options)
    small = [evenfed.Client((torch.rand(6, 4, 3, 3), torch.arange(6) % 2))]  # channels first, as the height shows
    evenfed.train(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), small, augment="crop_and_flip", **shared)
    with pytest.raises(evenfed.InputError, match=r"unknown augment 'crop'.*crop_and_flip"):
        evenfed.Settings(augment="crop")
    with pytest.raises(evenfed.InputError, match=r"cannot be sent to Flower's clients"):
        evenfed.Settings(augment=noisy, engine="flower")


def refusing(batch, draw):
    raise ValueError("no")


def test_an_augmentation_that_cannot_be_stacked_is_visited():
    def sometimes(batch, draw):
        return batch.flip(-1) if draw.uniform() < 0.5 else batch  # control flow that depends on a tensor

    options = {"rounds": 2, "batch_size": 3, "lr": 0.1, "device": "cpu", "augment": sometimes}
    visited = evenfed.train(Reader(), pictures((3, 4, 3, 5, 4)), "fedavg", **options)
    assert "its augmentation cannot be vectorised" in visited.engine
    reference = evenfed.train(Reader(), pictures((3, 4, 3, 5, 4)), "fedavg", engine="reference", **options)
    assert torch.allclose(visited.server.theta, reference.server.theta, rtol=0, atol=1e-9)


def last(advanced):
    """The states after the last round."""
    *_, (states, _) = advanced
    return states


KEPT = {"name": "adam", "amsgrad": True, "keep": True}


@pytest.mark.parametrize("engine", ["reference", "stacked", "slots", "visiting"])
def test_a_kept_state_goes_on_as_torchs_optimiser_does(engine):
    """One client, whose model is the global one: rounds are as if the optimiser had never stopped."""
    people = clients(sizes=(9,))
    settings = evenfed.Settings(rounds=3, lr=0.05, batch_size=4, optimizer=KEPT, device="cpu")
    problem = problem_of(settings, people=people)
    run = Run("fedavg", evenfed.algorithms.get("fedavg"), settings)
    (state,) = last(rounds([run], [start(run, problem)], problem, ENGINES[engine](problem)))
    expected = by_torch(settings, problem, 0, rounds=3)
    assert torch.allclose(state.server.theta, expected, rtol=0, atol=1e-9)
    assert state.moments.taken.tolist() == [9]
    fresh = evenfed.train(model(), people, "fedavg", rounds=3, lr=0.05, batch_size=4, optimizer="adam", device="cpu")
    assert (fresh.server.theta - expected).abs().max() > 1e-3


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_a_kept_state_is_the_clients_own_in_every_engine_and_resumes_to_the_bit(algorithm, tmp_path):
    settings = evenfed.Settings(rounds=4, lr=0.05, batch_size=4, optimizer=KEPT, participation=2, device="cpu")
    problem = problem_of(settings)
    run = Run(algorithm, evenfed.algorithms.get(algorithm), settings)
    ends = {}
    for name, make in ENGINES.items():
        for (state,), _ in rounds([run], [start(run, problem)], problem, make(problem)):
            if name == "stacked" and state.server.index == 2:
                checkpoint.save(state, tmp_path / "half")
        ends[name] = state
    for name in ("visiting", "stacked", "slots"):
        for found, expected in [
            (ends[name].server.theta, ends["reference"].server.theta),
            (ends[name].moments.values, ends["reference"].moments.values),
        ]:
            assert torch.allclose(found, expected, rtol=0, atol=1e-9)
        assert torch.equal(ends[name].moments.taken, ends["reference"].moments.taken)
    assert len(set(ends["stacked"].moments.taken.tolist())) > 1
    half = checkpoint.load(start(run, problem), tmp_path / "half")
    (state,) = last(rounds([run], [half], problem, Stacked(problem, 8)))
    assert torch.equal(state.server.theta, ends["stacked"].server.theta)
    assert torch.equal(state.moments.values, ends["stacked"].moments.values)


def test_states_that_memory_would_not_hold_are_refused_with_their_size(monkeypatch):
    monkeypatch.setattr(optimizer_states, "memory_of", lambda device: 7_000)
    with pytest.raises(evenfed.InputError, match=r"3 clients \(2 x 39 numbers each\).*3.74e-06 GB.*leave keep out"):
        evenfed.train(model(), clients(), rounds=1, optimizer={"name": "adam", "keep": True}, device="cpu")


def test_a_file_an_entry_and_the_command_line_set_local_training():
    table = {
        "train": {
            "optimizer": {"name": "sgd", "momentum": 0.5},
            "lr_schedule": {"name": "step", "every": 5},
            "augment": {"name": "crop_and_flip"},
        },
        "algorithms": {"fedavg": {}, "semi_vred": {"optimizer": {"name": "adam", "betas": [0.5, 0.9]}, "clip": 2}},
    }
    experiment = Experiment.of(table, "mine")
    (variant,) = [v for v in experiment.variants if v.label == "semi_vred"]
    own = evenfed.Settings.of({**vars(experiment.train), **variant.options}).local(5)
    assert (own.optimizer, own.clip, own.lr) == (Adam(betas=(0.5, 0.9)), 2, pytest.approx(0.005))
    assert own.augment == evenfed.augment.crop_and_flip(4)
    changed = experiment.changed(
        ["train.optimizer.momentum=0.9", "train.optimizer.nesterov=true", "train.lr_schedule=cosine"]
    ).train
    assert changed.local(0).optimizer == SGD(momentum=0.9, nesterov=True) and changed.lr_schedule == "cosine"
    (entry,) = [v for v in experiment.changed(["semi_vred.optimizer.eps=0.1"]).variants if v.label == "semi_vred"]
    assert entry.options["optimizer"] == {"name": "adam", "betas": [0.5, 0.9], "eps": 0.1}
    with pytest.raises(evenfed.InputError, match=r"unknown option of optimizer sgd 'betas'"):
        experiment.changed(["train.optimizer.betas=[0.5, 0.9]"])
    with pytest.raises(evenfed.InputError, match=r"unknown option 'optimiser'; did you mean 'optimizer'"):
        experiment.changed(["train.optimiser.momentum=0.9"])


def test_a_header_says_how_clients_train():
    described = evenfed.Settings(optimizer={"name": "adam", "betas": (0.5, 0.9)}, lr_schedule=halved).describe()
    assert described["optimizer"] == {"name": "adam", "betas": [0.5, 0.9]}
    assert "halved" in described["lr_schedule"]["callable"]


def halved(index):
    return 0.5**index


def test_more_rounds_do_not_extend_a_run_whose_schedule_they_would_change(tmp_path):
    options = {"lr": 0.1, "device": "cpu", "out": tmp_path / "run", "progress": False}
    evenfed.train(model(), clients(), "fedavg", rounds=2, lr_schedule="cosine", **options)
    with pytest.raises(evenfed.InputError, match=r"lr_schedule"):
        evenfed.train(model(), clients(), "fedavg", rounds=4, lr_schedule="cosine", **options)
    whole = {**options, "out": tmp_path / "whole"}
    fixed = {"lr_schedule": {"name": "cosine", "rounds": 4}}
    evenfed.train(model(), clients(), "fedavg", rounds=2, **whole, **fixed)
    extended = evenfed.train(model(), clients(), "fedavg", rounds=4, **whole, **fixed)
    alone = evenfed.train(model(), clients(), "fedavg", rounds=4, lr=0.1, lr_schedule="cosine", device="cpu")
    assert torch.equal(extended.server.theta, alone.server.theta)


def points(sizes=(4, 3)):
    """Images of a single pixel: of a 3x3 kernel only the middle has a gradient."""
    return [evenfed.Client((image[:, :, :1, :1], target)) for image, target in (c.train for c in pictures(sizes))]


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(2, 3, 3, padding=1).double()

    def forward(self, x):
        return self.convolution(x.double() / 255).flatten(1)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_weight_decay_moves_what_has_no_gradient_too(decay):
    optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": decay}
    settings = evenfed.Settings(lr=0.1, batch_size=2, optimizer=optimizer, device="cpu")
    problem = problem_of(settings, Point(), points())
    expected = trained("reference", problem, settings, ids=(0, 1))
    assert int((expected != problem.theta).any(0).sum()) == (57 if decay else 9)
    assert torch.allclose(trained("slots", problem, settings, ids=(0, 1)), expected, rtol=0, atol=1e-12)


def test_in_bf16_states_are_full_and_a_refilled_slot_starts_afresh():
    settings = evenfed.Settings(lr=0.01, batch_size=2, optimizer="adam", clip=1.0, device="cpu")
    single = [evenfed.Client((c.train[0].float(), c.train[1])) for c in clients()]
    problem = problem_of(settings, model().float(), single)
    task = Task(0, 0, problem.theta, torch.arange(3), settings.local(0))
    one, three = Slots(problem, 1, "bf16"), Slots(problem, 3, "bf16")
    ((_, in_turn),), ((_, at_once),) = one.train([task]), three.train([task])
    assert torch.allclose(in_turn.delta, at_once.delta, rtol=0, atol=1e-4) and in_turn.delta.abs().max() > 0.005
    (step,) = one.steps.values()
    assert {tensor.dtype for tensor in step.moments} == {torch.float32}
