"""The Python interface as a researcher uses it, and every way to misuse it."""

import copy
import dataclasses
import json
import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.algorithms import SemiVRed
from evenfed.comparison.analysis.history import History
from evenfed.comparison.runs import seed_list
from evenfed.core import streams
from evenfed.core.algorithm import Algorithm
from evenfed.core.guard import Guard
from evenfed.fairness import Fairness, Suppression, moved, oscillation
from evenfed.scores import top1
from evenfed.simulate.problem import initial_model
from worked_example import close, federation, small_model

CPU = {"device": "cpu"}


def test_a_result_holds_what_the_readme_promises():
    clients, model = federation(), small_model()
    before = [p.clone() for p in model.parameters()]
    result = evenfed.train(
        model, clients, algorithm="semi_vred", rounds=6, lr=0.05, batch_size=4, local_epochs=1, seed=0, **CPU
    )
    assert all(
        torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
    )  # the given model is left alone
    assert isinstance(result.model, nn.Sequential) and not result.model.training
    assert result.accuracy.shape == (5,) and math.isnan(result.accuracy[1])  # no test data there
    for x, y, found in ((*c.test, a) for c, a in zip(clients, result.accuracy, strict=True) if len(c.test[0])):
        assert found == pytest.approx(float((result.model(x).argmax(1) == y).float().mean()))
    fair = result.fairness
    known = result.accuracy[~np.isnan(result.accuracy)]
    assert (fair.mean, fair.worst) == (pytest.approx(known.mean()), pytest.approx(known.min()))
    assert len(result.records) == 6
    for t, record in enumerate(result.records):
        assert record.index == t and record.losses.shape == record.weights.shape == (5,)
        assert record.weights[1] == 0 and record.weights.sum() == pytest.approx(1)
        assert record.seconds > 0 and record.accuracy is not None and math.isfinite(record.objective)
    assert result.client_names == [f"site-{k}" for k in range(5)]
    assert -1 <= result.oscillation <= 1 or math.isnan(result.oscillation)


def test_losses_are_those_of_the_incoming_model():
    clients, model = federation(sizes=(5, 9)), small_model()
    record = evenfed.train(model, clients, "fedavg", rounds=1, lr=0.3, **CPU).records[0]
    wanted = [nn.functional.cross_entropy(model(x), y).item() for x, y in (c.train for c in clients)]
    assert close(record.losses, wanted, 1e-6)


def test_arrays_lists_and_clients_without_test_data_are_taken():
    draw = np.random.default_rng(0)
    clients = [evenfed.Client((draw.normal(size=(6, 6)), draw.integers(0, 3, 6).astype(np.int32))) for _ in range(3)]
    result = evenfed.train(small_model(), clients, rounds=1, **CPU)
    assert result.accuracy is None and result.fairness is None
    half = [evenfed.Client(c.train, c.train if k else None) for k, c in enumerate(clients)]
    assert np.isnan(evenfed.train(small_model(), half, rounds=1, **CPU).accuracy).tolist() == [True, False, False]


def test_participation_draws_that_many_and_others_keep_zero_weight():
    result = evenfed.train(small_model(), federation(), "fedavg", rounds=8, participation=2, **CPU)
    drawn = np.array([~np.isnan(r.losses) for r in result.records])
    assert (drawn.sum(1) == 2).all() and not drawn[:, 1].any()  # client 1 is empty
    assert all((r.weights[~seen] == 0).all() for r, seen in zip(result.records, drawn, strict=True))
    assert len({tuple(row) for row in drawn}) > 1
    half = evenfed.train(small_model(), federation(), "fedavg", rounds=2, participation=0.5, **CPU)
    assert (~np.isnan(half.records[0].losses)).sum() == 2  # half of the four with data


def test_seeds_repeat_and_differ():
    same = [
        evenfed.train(small_model(), federation(), rounds=2, batch_size=2, seed=5, **CPU).server.theta for _ in range(2)
    ]
    other = evenfed.train(small_model(), federation(), rounds=2, batch_size=2, seed=6, **CPU).server.theta
    assert torch.equal(*same) and not torch.equal(same[0], other)


@pytest.mark.parametrize("engine", ["reference", "parallel"])
def test_training_leaves_the_callers_random_numbers_alone(engine):
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout())
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    evenfed.train(model, federation(), rounds=1, engine=engine, **CPU)
    assert torch.equal(torch.rand(1), wanted)


def test_prox_pulls_towards_the_incoming_model():
    free, tied = (
        evenfed.train(
            small_model(), federation(), "fedavg", rounds=1, lr=0.2, batch_size=2, prox=mu, **CPU
        ).server.theta
        for mu in (0.0, 2.0)
    )
    start = torch.cat([p.detach().reshape(-1) for p in small_model().parameters()])
    assert float((tied - start).norm()) < float((free - start).norm())


def test_own_loss_and_score():
    clients = [evenfed.Client((torch.randn(8, 6), torch.randn(8, 3)), (torch.randn(4, 6), torch.randn(4, 3)))] * 2
    options = {"loss": lambda out, y: (out - y) ** 2, "rounds": 3, **CPU}
    result = evenfed.train(small_model(), clients, "vred", **options)
    assert result.accuracy is None and result.records[-1].losses[0] < result.records[0].losses[0]
    nearness = evenfed.Metric(lambda out, y: -((out - y) ** 2), name="nearness")
    scored = evenfed.train(small_model(), clients, "vred", score=nearness, **options)
    assert (scored.accuracy < 0).all()


def test_ditto_is_evaluated_with_each_clients_own_model():
    clients = federation(sizes=(9, 6, 17))
    result = evenfed.train(small_model(), clients, evenfed.algorithms.Ditto(lam=0.1), rounds=4, lr=0.2, **CPU)
    for k, client in enumerate(clients):
        x, y = client.test
        own = result.client_model(k)
        assert result.accuracy[k] == pytest.approx(float((own(x).argmax(1) == y).float().mean()))
    assert not torch.equal(result.personal[0], result.personal[1])


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_a_model_of_a_clients_own_stays_finite_and_no_numbers_are_no_answer(engine):
    """Tied too strongly, own models blow up; they stay as they last were, and what is no number counts as wrong."""
    ditto = evenfed.algorithms.Ditto(lam=300.0)
    result = evenfed.train(small_model(), federation(), ditto, rounds=6, lr=0.5, batch_size=2, engine=engine, **CPU)
    assert result.personal.isfinite().all() and result.server.theta.isfinite().all()
    outputs = torch.tensor([[float("nan"), 1.0], [float("inf"), 0.0], [2.0, 1.0]])
    assert top1(outputs, torch.zeros(3).long()).tolist() == [0, 0, 1]


def test_an_algorithm_may_be_named_with_its_hyper_parameters():
    one, two = (
        evenfed.train(small_model(), federation(), algorithm, rounds=3, lr=0.3, **CPU).server.theta
        for algorithm in ("semi_vred[beta=1,smooth=0.5]", evenfed.algorithms.SemiVRed(beta=1.0))
    )
    assert not torch.equal(one, two)  # smoothed
    three = evenfed.train(small_model(), federation(), "semi_vred[beta=1]", rounds=3, lr=0.3, **CPU).server.theta
    assert torch.equal(two, three)
    with pytest.raises(evenfed.InputError, match=r"beta belongs to semi_vred: write algorithm='semi_vred\[beta=2\]'"):
        evenfed.train(small_model(), federation(), "semi_vred", beta=2)


def test_examples_that_see_each_other_in_training_alone_are_visited_too():
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, x):
            return self.last(x - x.mean(0)) if self.training else self.last(x)

    result = evenfed.train(Mixing(), federation(), "fedavg", rounds=1, **CPU)
    assert "depends on the other examples of its batch" in result.engine


def test_server_optimisers_by_name_table_and_function():
    found = [
        evenfed.train(small_model(), federation(), rounds=3, server_optimizer=given, server_lr=lr, **CPU).server.theta
        for given, lr in (
            ("sgd", 1.0),
            (None, 1.0),
            ({"name": "SGD", "momentum": 0.9}, 0.5),
            (lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), 1.0),
        )
    ]
    assert torch.allclose(found[0], found[1], atol=1e-7) and torch.equal(found[2], found[3])
    assert not torch.allclose(found[0], found[2])


def test_callbacks_see_every_round_and_may_stop():
    seen = []

    def listen(progress):
        seen.append((progress.label, progress.record.index, tuple(progress.server.params)))
        if progress.record.index == 2:
            raise StopIteration

    result = evenfed.train(small_model(), federation(), "vred", rounds=50, callbacks=[listen], **CPU)
    assert [s[:2] for s in seen] == [("vred", 0), ("vred", 1), ("vred", 2)] and len(result.records) == 3
    assert seen[0][2] == ("0.weight", "0.bias", "2.weight", "2.bias")


@pytest.mark.parametrize(("every", "evaluated"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (0, [4])])
def test_evaluate_every(every, evaluated):
    result = evenfed.train(small_model(), federation(), rounds=5, evaluate_every=every, **CPU)
    assert [r.index for r in result.records if r.accuracy is not None] == evaluated


def test_an_oscillating_run_warns_what_to_try():
    """Two clients that want opposite things and a strength that over-corrects swing with period two."""
    x = torch.ones(4, 1)
    clients = [evenfed.Client((x, torch.full((4,), v))) for v in (0.0, 1.0, 0.2)]
    options = {"loss": lambda out, y: (out[:, 0] - y) ** 2, "rounds": 30, "lr": 0.45, **CPU}
    model = nn.Linear(1, 1, bias=False)
    with pytest.warns(UserWarning, match="smooth=0.25"):
        swinging = evenfed.train(model, clients, evenfed.algorithms.AFL(lr_lambda=3.0), **options)
    assert swinging.oscillation < -0.85
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calm = evenfed.train(model, clients, "fedavg", **options)
    assert not calm.oscillation < -0.85


def test_smoothing_where_it_cannot_act_is_told():
    with pytest.warns(UserWarning, match="smooth has no effect") as told:
        evenfed.train(small_model(), federation(), "fedavg", rounds=1, smooth=0.5, **CPU)
    assert "fedavg" in str(told[0].message)


def test_a_diverging_run_keeps_a_finite_model_and_names_the_dropped():
    options = {"rounds": 6, "lr": 1e12, "loss": lambda outputs, targets: (outputs**2).sum(1), **CPU}
    with pytest.warns(UserWarning, match="diverged in round 3"):
        result = evenfed.train(nn.Linear(6, 3), federation(), "fedavg", **options)
    assert bool(result.server.theta.isfinite().all())
    assert any(r.dropped for r in result.records)
    last = result.records[1]
    assert not last.skipped and f"Last figures, after round 2: mean {100 * np.nanmean(last.accuracy):.1f}," in str(
        result
    )


def test_compare_shares_clients_initial_models_and_batches():
    clients = federation()
    found = evenfed.compare(
        small_model,
        clients,
        {"semi_vred": "semi_vred", "strong": {"algorithm": "semi_vred", "beta": 2.0, "smooth": 0.25}},
        seeds=[0, 4],
        rounds=3,
        batch_size=4,
        **CPU,
    )
    assert list(found.results) == ["fedavg", "semi_vred", "strong"]
    assert [r.settings.seed for r in found.results["strong"]] == [0, 4]
    assert found.results["strong"][0].settings.smooth == 0.25 and found.results["semi_vred"][0].settings.smooth is None
    first = [r[0].records[0].losses for r in found.results.values()]
    assert all(np.array_equal(a, first[0], equal_nan=True) for a in first)  # the same initial model
    alone = evenfed.train(small_model(), clients, "semi_vred", rounds=3, batch_size=4, seed=0, **CPU)
    assert torch.allclose(alone.server.theta, found.results["semi_vred"][0].server.theta, rtol=1e-5, atol=1e-6)
    wanted = Suppression.of(found.results["strong"][0].accuracy, found.results["fedavg"][0].accuracy)
    assert found.suppression("strong")[0] == wanted
    assert [r.settings.seed for r in found.floor] == [0, 4] and found.noise_floor.seeds == 2  # with other batches
    row = found.rows[2]
    assert row.label == "strong" and row.last["mean"][0] == pytest.approx(
        np.mean([r.fairness.mean for r in found.results["strong"]])
    )


def test_a_factory_gives_each_seed_its_own_initial_model():
    found = evenfed.compare(
        lambda: nn.Linear(6, 3), federation(), ["fedavg"], seeds=2, rounds=1, noise_floor=False, **CPU
    )
    a, b = (r.records[0].losses for r in found.results["fedavg"])
    assert not np.array_equal(a, b, equal_nan=True) and found.noise_floor is None


def test_metrics_of_the_paper():
    fair = Fairness.of(range(1, 51))
    assert (fair.worst10, fair.best10, fair.worst, fair.worst20) == (3.0, 48.0, 1.0, 5.5)
    assert fair.std == pytest.approx(14.43086969)
    assert Fairness.of([0.5] * 9).worst10 == 0.5  # fewer than ten clients: at least one counts
    many = Fairness.of(range(1, 50))  # 4.9 clients: four whole and 0.9 of the fifth
    assert (many.worst10, many.worst20) == pytest.approx(((10 + 0.9 * 5) / 4.9, (45 + 0.8 * 10) / 9.8))
    assert many.best10 == pytest.approx(50 - many.worst10)
    late = History([], np.ones(1), 20)
    assert late.last_figures is None and late.late_fairness is None


def test_how_much_weight_is_moved_counts_those_who_took_part():
    shares, here = np.array([0.5, 0.3, 0.2]), np.zeros(3)
    absent = np.array([0.0, 0.0, np.nan])
    assert moved(np.array([shares, 7 * shares]), np.array([here, here]), shares) < 1e-12  # scale does not matter
    assert moved(np.array([[0.625, 0.375, 0.0]]), absent[None], shares) == pytest.approx(0, abs=1e-12)
    assert moved(np.array([[0.0, 1.0, 0.0], shares]), np.array([absent, here]), shares) == pytest.approx(0.3125)
    assert math.isnan(moved(np.zeros((1, 3)), here[None], shares))
    runs = {a: evenfed.train(small_model(), federation(), a, rounds=3, **CPU) for a in ("fedavg", "vred")}
    assert runs["fedavg"].moved == pytest.approx(0, abs=1e-6) and runs["vred"].moved > 1e-3


def test_oscillation_counts_a_clients_own_rounds_and_ignores_the_first_fall():
    swing = np.tile([[0.0, 1.0], [1.0, 0.0]], (10, 1))
    shares = np.array([0.5, 0.5])
    assert oscillation(swing, shares) == pytest.approx(-1)
    assert oscillation(np.vstack([np.full((20, 2), 9.0) * [[1, 0]], swing]), shares) == pytest.approx(-1)
    steady = np.cumsum(np.random.default_rng(0).normal(size=(60, 2)), axis=0)
    assert oscillation(steady, shares) > 0.3
    assert math.isnan(oscillation(swing[:4], shares))


BAD = [
    ({"clients": []}, "at least one evenfed.Client"),
    ({"clients": [evenfed.Client((torch.zeros(0, 6), torch.zeros(0).long()))] * 2}, "without training data"),
    ({"clients": [evenfed.Client((torch.zeros(3, 6), torch.zeros(2).long()))]}, "3 inputs but 2 targets"),
    (
        {"clients": [evenfed.Client((torch.full((3, 6), math.nan), torch.zeros(3).long()))]},
        "NaN or infinity in example 0",
    ),
    ({"clients": [evenfed.Client((torch.zeros(3, 6), torch.zeros(3)))]}, "whole class numbers"),
    ({"clients": [evenfed.Client((torch.zeros(3, 6), torch.full((3,), 7)))]}, "go up to 7 but the model scores 3"),
    ({"clients": [evenfed.Client((torch.zeros(3, 6), torch.full((3,), -1)))]}, "go down to -1"),
    ({"clients": [evenfed.Client((torch.zeros(3, 5), torch.zeros(3).long()))]}, "fails on a batch"),
    ({"clients": [((1, 2), (3, 4))]}, r"clients\[0\] is a pair"),
    ({"clients": [evenfed.Client((["a"], [1]))]}, "cannot become a tensor"),
    (
        {
            "clients": [
                evenfed.Client((torch.zeros(2, 6), torch.zeros(2).long())),
                evenfed.Client((torch.zeros(2, 4), torch.zeros(2).long())),
            ]
        },
        "same shapes",
    ),
    ({"model": "mlp"}, "torch.nn.Module"),
    ({"model": nn.ReLU()}, "no parameters"),
    ({"model": nn.Linear(6, 3).requires_grad_(False)}, r"none of the model's parameters requires a gradient.*_grad_"),
    ({"algorithm": "semi_vrd"}, "did you mean 'semi_vred'"),
    ({"algorithm": 3}, "give a name, a class or an instance"),
    ({"rounds": 0}, "rounds=0"),
    ({"rounds": 2.5}, "whole number"),
    ({"participation": 0}, "participation=0"),
    ({"participation": 0.0}, "participation=0.0"),
    ({"participation": 9}, "only 4 have training data"),
    ({"participation": True}, "participation=True"),
    ({"lr": -1.0}, "lr=-1.0"),
    ({"lr": math.nan}, "lr=nan"),
    ({"batch_size": 0}, "batch_size=0"),
    ({"smooth": 0.0}, "smooth=0.0"),
    ({"smooth": 1.5}, "smooth=1.5"),
    ({"engine": "paralel"}, "did you mean 'parallel'"),
    ({"learning_rate": 0.1}, "unknown option 'learning_rate'; did you mean 'lr'"),
    ({"epochs": 2}, "did you mean 'local_epochs'"),
    (
        {"momentum": 0.9},
        r"optimizer = \{name = \"sgd\", momentum = 0.9\}, in Python optimizer=\{'name': 'sgd', 'momentum': 0.9\}\.$",
    ),
    ({"nesterov": True}, r"nesterov = true\}, in Python optimizer=\{'name': 'sgd', 'nesterov': True\}"),
    ({"progres": False}, "did you mean 'progress'"),
    ({"unsen": ()}, "did you mean 'unseen'"),
    ({"los": "mse"}, "did you mean 'loss'"),
    ({"scor": "top1"}, "did you mean 'score'"),
    ({"callback": ()}, "did you mean 'callbacks'"),
    (
        {"temperature": 1},
        "'temperature'; allowed: model, clients, algorithm, loss, score, unseen, test, .* rounds, lr, ",
    ),
    ({"algorithm": "fedavg[learning_rate=0.1]"}, "did you mean 'lr'"),
    ({"round": 3}, "did you mean 'rounds'"),
    ({"device": "tpu9"}, "device='tpu9'"),
    ({"device": "mps"}, "device='mps' is not known; give cpu, cuda"),
    ({"server_optimizer": "adamm"}, "did you mean 'adam"),
    ({"server_optimizer": {"name": "sgd", "momentun": 0.9}}, "momentun"),
    ({"server_optimizer": {"name": "sgd", "momentum": "much"}}, "much.*see torch.optim.SGD"),
    ({"server_optimizer": {"name": "sgd", "lr": 0.1}}, "give server_lr=0.1"),
    ({"server_optimizer": {"momentum": 0.9}}, "server_optimizer={'momentum': 0.9}: give a name"),
    ({"server_optimizer": 3}, "server_optimizer=3: give a name"),
    ({"server_optimizer": "lbfgs"}, "unknown server_optimizer 'lbfgs'"),
    ({"server_optimizer": lambda parameters: 3}, "made a value of type int; it must make an optimiser of torch"),
    ({"loss": nn.CrossEntropyLoss()}, "one loss per example"),
    ({"prox": -0.1}, "prox=-0.1"),
]


@pytest.mark.parametrize(("given", "told"), BAD, ids=[str(k) for k in range(len(BAD))])
def test_bad_input_is_one_clear_message(given, told):
    call = {"model": small_model(), "clients": federation(), "rounds": 1, **CPU, **given}
    with pytest.raises(evenfed.InputError, match=told) as caught:
        evenfed.train(**call)
    assert "\n" not in str(caught.value)


NUMPY = {
    "rounds": np.int64(2),
    "seed": np.uint8(3),
    "batch_size": np.int32(4),
    "local_steps": np.int64(2),
    "drop_last": np.True_,
    "lr": np.float32(0.5),
    "clip": np.float16(2),
    "participation": np.int64(2),
    "evaluate_participation": np.float32(0.5),
    "smooth": np.float64(0.25),
    "average": np.float32(0.75),
    "prox": np.float32(0.5),
    "optimizer": {"name": "adam", "betas": [np.float32(0.5), 0.75]},
    "server_optimizer": {"name": "sgd", "momentum": np.float32(0.5)},
    "lr_schedule": {"name": "step", "every": np.int64(3)},
    "guard": {"loss": np.float32(4)},
}


def test_numpy_scalars_are_pythons_numbers():
    settings = evenfed.Settings(**NUMPY)
    plain = evenfed.Settings(
        rounds=2,
        seed=3,
        batch_size=4,
        local_steps=2,
        drop_last=True,
        lr=0.5,
        clip=2.0,
        participation=2,
        evaluate_participation=0.5,
        smooth=0.25,
        average=0.75,
        prox=0.5,
        optimizer={"name": "adam", "betas": [0.5, 0.75]},
        server_optimizer={"name": "sgd", "momentum": 0.5},
        lr_schedule={"name": "step", "every": 3},
        guard={"loss": 4.0},
    )
    assert json.dumps(settings.describe()) == json.dumps(plain.describe())
    assert settings == plain and repr(settings) == repr(plain)
    assert repr(Guard(loss=np.float32(4))) == repr(Guard(loss=4.0))
    for number in (np.int64(0), np.bool_(True), np.float64(2)):
        with pytest.raises(evenfed.InputError, match="give a whole number, at least 1"):
            evenfed.Settings(rounds=number)


def test_numpy_scalars_in_entries_and_seeds():
    entries = [SemiVRed(beta=np.float32(0.5)), {"algorithm": "vred", "beta": np.int64(1), "smooth": np.float32(0.25)}]
    seeds = np.array([0, 1])
    options = {"rounds": 1, "batch_size": 4, "noise_floor": False, **CPU}
    found = evenfed.compare(small_model(), federation(), entries, seeds=seeds, **options)
    assert list(found) == ["fedavg", "semi_vred[beta=0.5]", "vred[beta=1.0,smooth=0.25]"]
    assert json.dumps(found["semi_vred[beta=0.5]"][1].algorithm.describe()) == '{"beta": 0.5, "safe": null}'
    assert seed_list(np.int64(2)) == seed_list([np.int64(0), 1]) == seed_list(np.array([0, 1])) == [0, 1]
    for wrong in (np.array([0.5]), np.array([[0]]), np.array([]), np.int64(0), np.array([1, 1]), np.True_):
        with pytest.raises(evenfed.InputError, match="give a number of seeds"):
            seed_list(wrong)


def test_every_setting_is_explained():
    for field in dataclasses.fields(evenfed.Settings):
        assert f"* `{field.name}`:" in evenfed.Settings.__doc__


def test_compare_lists_its_own_arguments_unless_it_guesses_one():
    with pytest.raises(evenfed.InputError, match=r"did you mean 'noise_floor'\?$"):
        evenfed.compare(small_model(), federation(), noise_flor=False)
    with pytest.raises(evenfed.InputError, match="'temperature'") as refused:
        evenfed.compare(small_model(), federation(), temperature=1)
    allowed = str(refused.value).partition("allowed: ")[2].split(", ")
    assert {"seeds", "workers", "loss", "lr"} <= set(allowed) and "seed" not in allowed


def test_a_comparison_warns_once_of_an_entry_whose_runs_break_down():
    options = {**CPU, "rounds": 10, "lr": 1e10, "batch_size": 8, "noise_floor": False}
    with pytest.warns(UserWarning, match="broke down") as warned:
        compared = evenfed.compare(
            small_model, federation(), {"fedavg": {"lr": 0.1}, "wild": "semi_vred"}, seeds=2, **options
        )
    ours = [warning for warning in warned if issubclass(warning.category, UserWarning)]  # numpy may tell of overflows
    (told,) = [str(warning.message) for warning in ours]
    assert told.startswith("wild broke down: ") and "smaller lr" in told and ours[0].filename == __file__
    printed = " ".join(str(compared).split())
    assert "wild broke down in 2 of 2 runs: " in printed and "fedavg broke down" not in printed
    assert "Broke down: " in str(compared["wild"][0]) or "Stopped early: " in str(compared["wild"][0])


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("semi_vred", {"beta": -0.1}, "beta=-0.1 is out of range; it must be at least 0"),
        ("vred", {"safe": 0}, "safe=0.0.*above 0.*fraction of β_max"),
        ("vred", {"safe": 1.1}, "at most 1"),
        ("semi_vred", {"bta": 0.1}, "did you mean 'beta'"),
        ("semi_vred", {"beta": "high"}, "beta='high' is a str"),
        ("semi_vred", {"beta": math.inf}, "not finite"),
        ("qffl", {"q": -1}, "favour the best served"),
        ("qffl", {"share_weighted": 1}, "share_weighted=1"),
        ("term", {"alpha": -1}, "alpha=-1.0"),
        ("propfair", {"baseline": 0}, "baseline=0.0.*above 0"),
        ("propfair", {"tail": "hubr"}, "'huber', 'linear'"),
        ("propfair", {"epsilon": 0}, "epsilon=0.0"),
        ("delta_fl", {"alpha": 0}, "above 0"),
        ("delta_fl", {"alpha": 1.5}, "at most 1"),
        ("gifair", {"strength": -1}, "widen the differences"),
        ("ditto", {"lam": -1}, "lam=-1.0"),
        ("drfa", {"lr_lambda": -1}, "lr_lambda=-1.0"),
        ("afl", {"lr_lambda": -1}, "lr_lambda=-1.0"),
        ("climb", {"epsilon": -1}, "epsilon=-1.0"),
        ("fcfl", {"temperature": 0}, "temperature=0.0"),
        ("fedmgda", {"epsilon": 2}, "at most 1"),
        ("fedfv", {"tau": 1.5}, "tau=1.5 is a float"),
        ("fedfv", {"tau": -1}, "counts rounds"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused_with_the_bound_and_its_reason(name, given, told):
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.algorithms.get(name, **given)


def test_negative_losses_are_refused_by_q_ffl():
    with pytest.raises(evenfed.InputError, match="losses >= 0"):
        evenfed.train(small_model(), federation(), "qffl", loss=lambda out, y: out[:, 0] - 100, rounds=1, **CPU)


def test_compare_refuses_what_makes_no_sense():
    for given, told in [
        ({"algorithms": "fedavg"}, "one string"),
        ({"algorithms": []}, "no algorithm"),
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, 1]}, "distinct"),
        ({"seed": 3}, "takes `seeds`"),
        ({"algorithms": ["vred", "vred"]}, "twice"),
        ({"algorithms": ["vred[beta]"]}, "no value"),
        ({"algorithms": {"fedavg": "vred"}}, "another label"),
        ({"algorithms": ["vred[rounds=3]"]}, "unknown option of vred"),
        ({"algorithms": {"a/b": "vred"}}, "cannot name a folder"),
    ]:
        with pytest.raises(evenfed.InputError, match=told):
            evenfed.compare(**{"model": small_model(), "clients": federation(), "rounds": 1, **CPU, **given})


@pytest.mark.parametrize(
    "spellings",
    [
        ["semi_vred", "Semi-VRed"],
        ["semi_vred", "semi_vred[beta=0.2]"],
        ["vred", "fedavg[lr=0.1]"],
        ["fedprox[mu=0.1]", "fedavg[prox=0.1]"],
        [evenfed.algorithms.SemiVRed(beta=1), "semi_vred[beta=1]"],
    ],
)
def test_an_entry_in_two_spellings_is_refused(spellings):
    options = {"rounds": 1, "lr": 0.1, "seeds": 1, "device": "cpu"}
    with pytest.raises(evenfed.InputError, match=r"'.*' and '.*' are the same entry"):
        evenfed.compare(linear, federation(), spellings, **options)
    labelled = dict(zip(["one", "two"], spellings, strict=True))
    assert {"one", "two"} <= set(evenfed.compare(linear, federation(), labelled, **options))


@dataclass(frozen=True)
class Nothing(Algorithm):
    name = "nothing"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"alg": "fedavg"}, "no key 'algorithm' .its keys: alg"),
        (Nothing, "so it trains FedAvg"),
        (Nothing(), "so it trains FedAvg"),
    ],
)
def test_an_entry_that_names_no_algorithm_is_refused(entry, told):
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.train(linear(), federation(), entry, rounds=1, **CPU)


def test_a_function_that_keeps_its_module_is_told_also_with_batches():
    module = linear()
    options = {"seeds": 2, "rounds": 1, "batch_size": 2, "noise_floor": False, **CPU}
    with pytest.warns(UserWarning, match="returns the same module every time"):
        evenfed.compare(lambda: module, federation(), ["fedavg"], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evenfed.compare(linear, federation(), ["fedavg"], **options)
        evenfed.compare(lambda: copy.deepcopy(module), federation(), ["fedavg"], **options)  # a pretrained one


def linear():
    return nn.Linear(6, 3)


@pytest.mark.parametrize("engine", ["parallel", "reference"])
def test_clients_may_start_from_models_of_their_own(engine):
    """As the authors' code does: after round 0 the server holds the average of what was trained from each."""
    options = {"seeds": 1, "rounds": 1, "lr": 1e-12, "noise_floor": False, "engine": engine}
    found = evenfed.compare(linear, federation(), ["fedavg"], start="own", **options).results["fedavg"][0]
    common = evenfed.compare(linear, federation(), ["fedavg"], **options).results["fedavg"][0]
    assert not torch.allclose(found.server.theta, common.server.theta, atol=1e-3)
    assert len(set(found.records[0].losses.round(4))) > 1
    again = evenfed.compare(linear, federation(), ["fedavg"], start="own", **options).results["fedavg"][0]
    assert torch.equal(found.server.theta, again.server.theta)
    seeds = streams.hashed(0, streams.INITIAL_MODEL, np.arange(len(federation()))) >> np.uint64(33)
    drawn = [torch.cat([p.detach().flatten() for p in initial_model(linear, int(s)).parameters()]) for s in seeds]
    sizes = torch.tensor([float(len(c.train[0])) for c in federation()])
    average = (sizes / sizes.sum()) @ torch.stack(drawn)
    assert torch.allclose(found.server.theta, average, atol=1e-5)


def test_models_of_their_own_need_a_function_that_makes_them():
    with pytest.raises(evenfed.InputError, match="give `compare` a function that makes the model"):
        evenfed.train(small_model(), federation(), "fedavg", start="own", rounds=1)
    with pytest.raises(evenfed.InputError, match=r"unknown start 'mine'.*common, own"):
        evenfed.Settings(start="mine")
