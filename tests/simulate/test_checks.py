"""Loss and score are checked before round 1: one number per example, in both engines and at Flower's sites."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import evenfed
from evenfed import losses, scores

CPU = {"device": "cpu", "rounds": 1, "lr": 0.1}
ENGINES = pytest.mark.parametrize("engine", ["parallel", "reference"])


def clients(targets, count=3, examples=6, inputs=4):
    """Clients whose targets are `targets(inputs)`, with test data of the same kind."""
    torch.manual_seed(0)
    made = []
    for _ in range(count):
        x = torch.randn(examples, inputs)
        test = torch.randn(examples, inputs)
        made.append(evenfed.Client((x, targets(x)), (test, targets(test))))
    return made


def positive(x):
    return (x[:, 0] > 0).long()


def positive_float(x):
    return (x[:, 0] > 0).float()


def total(x):
    return x.sum(1)


def logit():
    torch.manual_seed(1)
    return nn.Linear(4, 1)


class Sequences(nn.Module):
    """Scores of 5 classes at each of 4 positions, classes last, as language models give them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 5)

    def forward(self, x):
        return self.last(x[..., None])


class Squeezed(nn.Module):
    """`squeeze()` drops the axis of a batch of one example, too."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(x).squeeze()


def squared(out, y):
    return (out - y) ** 2


def squared_mean_of_rows(out, y):
    return ((out - y) ** 2).mean(1)


def own_row(out, y):
    return (out.flatten() - y) ** 2


def hits(out, y):
    return (out > 0) == y


def hit_rate(out, y):
    return (out.argmax(1) == y).float().mean()


BAD = {
    "broadcast loss": (logit, total, {"loss": squared}, r"loss gave \[8, 8\] for 8 examples.*\[8, 1\].*targets \[8\]"),
    "torch's broadcast loss": (logit, total, {"loss": nn.MSELoss(reduction="none")}, r"losses\.mse"),
    "a broadcast loss made flat": (logit, total, {"loss": squared_mean_of_rows}, "changes with the other examples"),
    "broadcast score": (logit, positive, {"loss": losses.binary, "score": hits}, r"score gave \[8, 8\] for 8 examples"),
    "mean loss": (logit, total, {"loss": nn.MSELoss()}, "one loss per example .*reduction='none'"),
    "mean of a function": (lambda: nn.Linear(4, 2), positive, {"loss": F.cross_entropy}, "one loss per example"),
    "scalar score": (lambda: nn.Linear(4, 2), positive, {"score": hit_rate}, "score gave one number for 8 examples"),
    "a score that is no tensor": (lambda: nn.Linear(4, 2), positive, {"score": lambda out, y: 0.5}, "gave a float"),
    "a score that fails": (lambda: nn.Linear(4, 2), positive, {"score": lambda out, y: out[:, 7]}, "score fails on"),
    "no function": (lambda: nn.Linear(4, 2), positive, {"score": 3}, "score=3"),
    "unknown name": (logit, total, {"loss": "mze"}, "did you mean 'mse'"),
    "binary, float targets": (logit, positive_float, {"loss": nn.BCEWithLogitsLoss(reduction="none")}, "losses.binary"),
    "binary, int targets": (
        lambda: nn.Sequential(logit(), nn.Flatten(0)),
        positive,
        {"loss": nn.BCEWithLogitsLoss(reduction="none")},
        "give float targets",
    ),
    "one logit, int targets": (logit, positive, {}, "losses.binary"),
    "one number, int targets": (lambda: nn.Sequential(logit(), nn.Flatten(0)), positive, {}, "losses.binary"),
    "float targets": (lambda: nn.Linear(4, 2), total, {}, '"mse" for numbers'),
    "classes last": (Sequences, lambda x: (x > 0).long(), {}, r"movedim\(-1, 1\)"),
    "classes last, many": (Sequences, lambda x: 4 * (x > 0).long(), {}, r"\[8, 4, 5\].*movedim\(-1, 1\)"),
    "a batch of one loses its axis": (Squeezed, total, {"loss": squared}, r"squeeze\(-1\)"),
    "no gradient": (lambda: nn.Linear(4, 2), positive, {"loss": scores.top1}, "no gradient"),
}


@ENGINES
@pytest.mark.parametrize("case", BAD)
def test_a_loss_or_score_that_cannot_be_right_is_refused_before_round_1(case, engine):
    model, targets, measures, message = BAD[case]
    with pytest.raises(evenfed.InputError, match=message):
        evenfed.train(model(), clients(targets), "fedavg", engine=engine, **measures, **CPU)


def test_a_broadcast_score_is_refused_where_the_federation_has_one_example_too():
    single = clients(positive, count=1, examples=1)
    with pytest.raises(evenfed.InputError, match=r"score gave \[2, 2\] for 2 examples"):
        evenfed.train(logit(), single, loss=losses.binary, score=hits, **CPU)


@ENGINES
def test_nothing_fails_at_the_end_that_could_fail_at_the_start(engine):
    """The score is tried on test data, even where it is asked for at the last round alone."""
    rounds = []
    given = clients(positive)
    for k, client in enumerate(given):
        x, y = client.test
        given[k] = evenfed.Client(client.train, (x, y[:, None].float()))
    options = {**CPU, "rounds": 30, "evaluate_every": 0, "callbacks": [rounds.append], "engine": engine}
    with pytest.raises(evenfed.InputError, match=r"loss fails .*test.*targets \[8, 1\]"):
        evenfed.train(nn.Linear(4, 2), given, loss=losses.cross_entropy, **options)

    def flat(out, y):
        return losses.cross_entropy(out, y.flatten().long())

    with pytest.raises(evenfed.InputError, match=r"score gave .*test.*targets \[8, 1\]"):
        evenfed.train(nn.Linear(4, 2), given, loss=flat, score=scores.top1, **options)
    assert rounds == []


@ENGINES
def test_whole_numbers_and_yes_or_no_are_scores(engine):
    """Also of code that looks into the values, which cannot be vectorised."""

    def hit(out, y):
        assert float(out.sum()) < 1e9
        return out.argmax(1) == y

    options = {**CPU, "engine": engine}
    five = clients(positive, count=5)  # enough to be stacked
    wanted = evenfed.train(nn.Linear(4, 2), five, seed=1, **options)
    for score in (hit, lambda out, y: (out.argmax(1) == y).long()):
        result = evenfed.train(wanted.model, five, score=score, **options)
        again = evenfed.train(wanted.model, five, **options)
        assert result.accuracy.tolist() == again.accuracy.tolist()


@ENGINES
def test_values_per_position_are_averaged_as_long_as_they_are_the_examples_own(engine):
    """[b, T] with T = b is no broadcast."""
    model = nn.Sequential(Sequences(), nn.Unflatten(2, (1, 5)), nn.Flatten(1, 2))

    def moved(out, y):
        return F.cross_entropy(out.movedim(-1, 1), y, reduction="none")

    result = evenfed.train(
        model, clients(lambda x: (x > 0).long(), examples=4), loss=moved, score=lambda o, y: o.argmax(2) == y,
        engine=engine, **CPU,
    )  # fmt: skip
    assert result.accuracy.shape == (3,)


@ENGINES
def test_binary_tasks_and_regression_work_with_what_is_shipped(engine):
    """One logit per example, whether [b] or [b, 1], whole or float targets: the same numbers."""
    options = {**CPU, "rounds": 6, "lr": 2.0, "engine": engine}
    some = functools.partial(clients, examples=30)
    reference = evenfed.train(logit(), some(positive), "fedavg", loss=losses.binary, **options)
    assert reference.fairness.mean > 0.8
    flat = nn.Sequential(logit(), nn.Flatten(0))
    torch_loss = nn.BCEWithLogitsLoss(reduction="none")
    for model, targets, loss in (
        (logit(), positive_float, "binary"),
        (flat, positive, losses.binary),
        (flat, positive_float, torch_loss),
        (flat, positive_float, functools.partial(F.binary_cross_entropy_with_logits, reduction="none")),
    ):
        result = evenfed.train(model, some(targets), "fedavg", loss=loss, **options)
        assert result.records[-1].losses == pytest.approx(reference.records[-1].losses, rel=1e-5)
        if loss in ("binary", losses.binary, torch_loss):
            assert result.accuracy.tolist() == reference.accuracy.tolist()
    for loss in ("mse", "mae"):
        result = evenfed.train(logit(), some(total), "fedavg", loss=loss, **{**options, "lr": 0.1})
        assert result.records[-1].losses.max() < 0.9 * result.records[0].losses.max()
    own = evenfed.train(logit(), some(total), "fedavg", loss=own_row, **{**options, "lr": 0.1})
    mse = evenfed.train(logit(), some(total), "fedavg", loss="mse", **{**options, "lr": 0.1})
    assert own.records[-1].losses == pytest.approx(mse.records[-1].losses)


def test_one_logit_is_never_judged_as_if_it_were_classes():
    """The highest of one number is always the first: top-1 would count the zeros."""
    own = evenfed.train(logit(), clients(positive), loss=lambda out, y: (out[:, 0] - y) ** 2, **CPU)
    assert own.accuracy is None


def test_models_with_batch_norm_and_dropout_pass_the_checks():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    result = evenfed.train(model, clients(positive), batch_size=3, **CPU)
    assert result.accuracy is not None
