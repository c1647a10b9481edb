"""What belongs to one seed or one client stays with it: frozen parts, buffers, personal models, names."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.simulate import checkpoint
from evenfed.simulate.loop import engine_for, rounds, start
from evenfed.simulate.problem import Problem, initial_model
from evenfed.simulate.state import Run
from worked_example import close, federation, small_model

CPU = {"device": "cpu"}


class RandomFeatures(nn.Module):
    """Features through a random buffer and a frozen random layer, and a trained layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(6, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(x @ self.projection).tanh())


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_each_seed_of_a_comparison_has_its_own_frozen_parameters_and_buffers(engine):
    clients = federation(sizes=(9, 4, 17, 6))
    options = {"rounds": 3, "lr": 0.1, "batch_size": 4, "engine": engine, **CPU}
    comparison = evenfed.compare(RandomFeatures, clients, ["semi_vred"], seeds=[0, 1], **options)
    for seed, compared in zip([0, 1], comparison.results["semi_vred"], strict=True):
        alone = evenfed.train(initial_model(RandomFeatures, seed), clients, "semi_vred", seed=seed, **options)
        for ours, theirs in zip(compared.records, alone.records, strict=True):
            assert close(ours.losses, theirs.losses, 1e-5)
        for name, value in alone.model.state_dict().items():
            assert close(compared.model.state_dict()[name], value, 1e-5), name


def test_frozen_parts_that_are_the_same_for_all_seeds_are_held_once_and_trained_in_one_stack():
    torch.manual_seed(3)
    base = RandomFeatures()

    def pretrained() -> nn.Module:
        model = RandomFeatures()
        model.projection.copy_(base.projection)
        model.frozen.load_state_dict(base.frozen.state_dict())
        return model

    seen = []
    evenfed.compare(
        pretrained,
        federation(),
        ["semi_vred"],
        seeds=[0, 1],
        rounds=2,
        callbacks=[lambda progress: seen.append((progress.record.index, progress.seed))],
        **CPU,
    )
    rounds_of_all_runs = [index for index, _ in seen]
    assert rounds_of_all_runs == sorted(rounds_of_all_runs)  # together, not seed after seed


def test_a_function_that_makes_another_kind_of_model_for_another_seed_is_refused():
    widths = iter([8, 9, 9, 9])

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, width := next(widths)).requires_grad_(False), nn.Linear(width, 3))

    with pytest.raises(evenfed.InputError, match="seed"):
        evenfed.compare(model, federation(), ["fedavg"], seeds=2, rounds=1, **CPU)


def never_drawn(result: evenfed.Result) -> list[int]:
    """Clients that no round drew."""
    losses = np.stack([record.losses for record in result.records])
    was_never_asked = np.isnan(losses).all(axis=0)
    return np.flatnonzero(was_never_asked).tolist()


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_a_client_ditto_never_drew_is_judged_on_the_current_global_model(engine):
    clients = federation(sizes=(9, 9, 9, 9, 9, 9))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    options = {"rounds": 2, "lr": 0.5, "participation": 2, "seed": 4, "engine": engine, **CPU}
    result = evenfed.train(model, clients, "ditto", **options)
    outsiders = never_drawn(result)
    assert outsiders
    for k in outsiders:
        x, y = clients[k].test
        right = (result.model(x).argmax(1) == y).double().mean()
        assert result.accuracy[k] == pytest.approx(float(right))
        served = result.client_model(k).state_dict()
        for name, value in result.model.state_dict().items():
            assert torch.equal(served[name], value)


def test_who_has_a_model_of_its_own_is_known_after_a_checkpoint(tmp_path):
    clients = federation(sizes=(9,) * 6)
    settings = evenfed.Settings(rounds=2, participation=2, lr=0.3, **CPU)
    problem = Problem.of(small_model(), clients, settings)
    run = Run("ditto", evenfed.algorithms.get("ditto"), settings)
    state = start(run, problem)
    for states, _ in rounds([run], [state], problem, engine_for(problem, [run])):
        checkpoint.save(states[0], tmp_path / "state.safetensors")
        loaded = checkpoint.load(state, tmp_path / "state.safetensors")
        assert torch.equal(loaded.owns, states[0].owns) and loaded.owns.any()
        assert torch.equal(loaded.serving(), states[0].serving())
    assert not loaded.owns.all()


def test_clients_of_the_same_name_are_refused_and_named():
    clients = federation(sizes=(5, 5, 5))
    twins = [clients[0], evenfed.Client(clients[1].train, name="ward"), evenfed.Client(clients[2].train, name="ward")]
    with pytest.raises(evenfed.InputError, match=r"1 and 2.*'ward'"):
        evenfed.train(nn.Linear(6, 3), twins, rounds=1, **CPU)
    unnamed = [evenfed.Client(clients[0].train, name="1"), evenfed.Client(clients[1].train)]
    with pytest.raises(evenfed.InputError, match=r"0 and 1.*'1'"):
        evenfed.train(nn.Linear(6, 3), unnamed, rounds=1, **CPU)


def trained(result: evenfed.Result) -> int:
    """How many clients took part in the first round."""
    return np.count_nonzero(result.records[0].weights)


def test_one_participant_is_told_from_everyone():
    clients = federation(sizes=(5, 5, 5))
    with pytest.warns(UserWarning, match=r"participation=1 is one client.*1\.0"):
        alone = evenfed.train(nn.Linear(6, 3), clients, rounds=1, participation=1, **CPU)
    assert trained(alone) == 1
    with pytest.warns(UserWarning, match="participation=1 is one client"):
        comparison = evenfed.compare(
            nn.Linear(6, 3), clients, {"fedavg": {"participation": 1}}, rounds=1, seeds=1, noise_floor=False, **CPU
        )
    assert trained(comparison["fedavg"][0]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everyone = evenfed.train(nn.Linear(6, 3), clients, rounds=1, participation=1.0, **CPU)
        assert trained(everyone) == 3
        evenfed.train(nn.Linear(6, 3), clients[:1], rounds=1, participation=1, **CPU)
